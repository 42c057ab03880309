//! Aligned columns.

use super::output::{Output, OutputError, plain};

/// Characters that a shortened column keeps at least.
const SHRUNK_CHARS_MIN: usize = 8;
const GAP: &str = "  ";

/// What a column keeps unless it says otherwise, see [`Column::keeps`].
const SHRUNK_CHARS: usize = 9;
const MIDDLE_CHARS: usize = 24;

/// A column's heading and manner.
pub(super) struct Column {
    title: &'static str,
    manner: Manner,
    /// Left out on a narrow terminal, the greatest number first; 0 never.
    yields: u8,
    /// Characters that it is given if it can: before it is cut shorter, another one yields.
    keeps: usize,
}

#[derive(PartialEq)]
enum Manner {
    Left,
    Right,
    Shrinks,
    Middle,
}

impl Manner {
    fn shrinks(&self) -> bool {
        matches!(self, Self::Shrinks | Self::Middle)
    }
}

impl Column {
    /// Text.
    pub(super) const fn left(title: &'static str) -> Self {
        Self { title, manner: Manner::Left, yields: 0, keeps: 0 }
    }

    /// Numbers.
    pub(super) const fn right(title: &'static str) -> Self {
        Self { title, manner: Manner::Right, yields: 0, keeps: 0 }
    }

    /// Text that is cut where a terminal is too narrow.
    pub(super) const fn shrinks(title: &'static str) -> Self {
        Self { title, manner: Manner::Shrinks, yields: 0, keeps: SHRUNK_CHARS }
    }

    /// The same of text whose end tells as much as its beginning.
    pub(super) const fn middle(title: &'static str) -> Self {
        Self { title, manner: Manner::Middle, yields: 0, keeps: MIDDLE_CHARS }
    }

    /// Left out altogether where a terminal is too narrow; those with a greater number go first.
    pub(super) const fn yields(self, first: u8) -> Self {
        Self { yields: first, ..self }
    }

    /// Keeps so many characters if another column can yield.
    pub(super) const fn keeps(self, chars: usize) -> Self {
        Self { keeps: chars, ..self }
    }
}

/// Columns, and the widths they have had so far: a table may come in parts.
pub(super) struct Table {
    columns: Vec<Column>,
    widths: Vec<usize>,
    /// Which are shown; settled with the first rows.
    shown: Vec<bool>,
    headed: bool,
}

impl Table {
    /// A table without rows.
    pub(super) fn new(columns: impl Into<Vec<Column>>) -> Self {
        let columns = columns.into();
        let widths = columns.iter().map(|column| chars(column.title)).collect();
        let shown = vec![true; columns.len()];
        Self { columns, widths, shown, headed: false }
    }

    /// Prints the heading, once, and these rows.
    pub(super) fn print(&mut self, out: &mut Output, rows: &[Vec<String>]) -> Result<(), OutputError> {
        self.print_with(out, rows, |_| String::new())
    }

    /// Like [`Table::print`], with lines of `below` under each row, which it gets by number.
    pub(super) fn print_with(
        &mut self,
        out: &mut Output,
        rows: &[Vec<String>],
        below: impl Fn(usize) -> String,
    ) -> Result<(), OutputError> {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| plain(cell).into_owned()).collect()).collect();
        self.fit(&rows, out.width);
        if !self.headed {
            let titles: Vec<String> = self.columns.iter().map(|column| column.title.to_owned()).collect();
            out.heading(&self.line(&titles))?;
            self.headed = true;
        }
        for (number, row) in rows.iter().enumerate() {
            out.line(&self.line(row))?;
            out.text(&below(number))?;
        }
        Ok(())
    }

    /// Widens the columns to their content, then narrows what may shrink to the terminal.
    fn fit(&mut self, rows: &[Vec<String>], terminal: Option<usize>) {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(chars(cell));
            }
        }
        let Some(terminal) = terminal else { return };
        while !self.headed && self.comfortable() > terminal {
            let yielding = self.columns.iter().zip(&mut self.shown);
            let yielding = yielding.filter(|(column, shown)| **shown && column.yields > 0);
            let Some((_, shown)) = yielding.max_by_key(|(column, _)| column.yields) else { break };
            *shown = false;
        }
        loop {
            let shown = || self.widths.iter().zip(&self.shown).filter(|(_, shown)| **shown);
            let total = shown().map(|(width, _)| width).sum::<usize>()
                + GAP.len() * shown().count().saturating_sub(1);
            let excess = total.saturating_sub(terminal);
            let shrinkable = self.columns.iter().zip(&mut self.widths).zip(&self.shown);
            let shrinkable = shrinkable.filter(|((column, width), shown)| {
                **shown && column.manner.shrinks() && **width > SHRUNK_CHARS_MIN
            });
            let widest = shrinkable.map(|((_, width), _)| width).max_by_key(|width| **width);
            match widest {
                Some(width) if excess > 0 => *width -= 1,
                _ => return,
            }
        }
    }

    /// Columns of a terminal on which nothing is cut short of telling.
    fn comfortable(&self) -> usize {
        let all = self.columns.iter().zip(&self.widths).zip(&self.shown).filter(|(_, shown)| **shown);
        let widths = all.map(|((column, width), _)| match column.manner {
            Manner::Shrinks | Manner::Middle => column.keeps.min(*width),
            Manner::Left | Manner::Right => *width,
        });
        widths.map(|width| width + GAP.len()).sum::<usize>().saturating_sub(GAP.len())
    }

    fn line(&self, row: &[String]) -> String {
        let cells = self.columns.iter().zip(&self.widths).zip(row).zip(&self.shown);
        let cells = cells.filter(|(_, shown)| **shown).map(|(cell, _)| cell);
        let cells = cells.map(|((column, &width), cell)| match column.manner {
            Manner::Right => format!("{cell:>width$}"),
            Manner::Shrinks if chars(cell) > width => {
                let kept: String = cell.chars().take(width.saturating_sub(1)).collect();
                format!("{kept}\u{2026}")
            }
            Manner::Middle if chars(cell) > width => {
                let kept = width.saturating_sub(1);
                let tail = kept * 3 / 5;
                let begin: String = cell.chars().take(kept - tail).collect();
                let end: String = cell.chars().skip(chars(cell) - tail).collect();
                format!("{begin}\u{2026}{end}")
            }
            _ => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(terminal: Option<usize>) -> Vec<String> {
        let mut table = Table::new([Column::right("SEQ"), Column::shrinks("TAG"), Column::left("ID")]);
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["1", "salt/job/1/ret/web1", "web1"]), row(["1000", "x", ""])];
        table.fit(&rows, terminal);
        rows.iter().map(|row| table.line(row)).collect()
    }

    #[test]
    fn columns_are_aligned_and_cut_on_a_terminal_only() {
        assert_eq!(lines(None), ["   1  salt/job/1/ret/web1  web1", "1000  x"]);
        assert_eq!(lines(Some(22)), ["   1  salt/job/\u{2026}  web1".to_owned(), "1000  x".to_owned()]);
        assert_eq!(lines(Some(1)), ["   1  salt/jo\u{2026}  web1".to_owned(), "1000  x".to_owned()]);
    }

    #[test]
    fn a_narrow_terminal_costs_columns_before_it_costs_their_meaning() {
        let lines = |terminal| {
            let columns = [
                Column::left("TIME").yields(2),
                Column::middle("TAG"),
                Column::shrinks("MINION").yields(1),
                Column::right("N"),
            ];
            let mut table = Table::new(columns);
            let row = ["2026-11-21 05:47:28.123", "salt/job/20261121054728123456/ret/web1", "web1", "7"];
            let rows = [row.map(str::to_owned).to_vec()];
            table.fit(&rows, Some(terminal));
            table.line(&rows[0])
        };
        assert_eq!(lines(80), "2026-11-21 05:47:28.123  salt/job/20261121054728123456/ret/web1  web1    7");
        assert_eq!(lines(60), "2026-11-21 05:47:28.123  salt/job/2\u{2026}3456/ret/web1  web1    7");
        assert_eq!(lines(36), "salt/job/2\u{2026}23456/ret/web1  web1    7");
        assert_eq!(lines(28), "salt/job/2\u{2026}23456/ret/web1  7");
    }
}
