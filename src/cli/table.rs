//! Aligned columns.

use super::output::{Output, OutputError, plain};

/// Characters that a shortened column keeps at least.
const SHRUNK_CHARS_MIN: usize = 8;
const GAP: &str = "  ";

/// A column's heading and manner.
pub(super) struct Column {
    title: &'static str,
    manner: Manner,
}

#[derive(PartialEq)]
enum Manner {
    Left,
    Right,
    Shrinks,
}

impl Column {
    /// Text.
    pub(super) const fn left(title: &'static str) -> Self {
        Self { title, manner: Manner::Left }
    }

    /// Numbers.
    pub(super) const fn right(title: &'static str) -> Self {
        Self { title, manner: Manner::Right }
    }

    /// Text that is cut where a terminal is too narrow.
    pub(super) const fn shrinks(title: &'static str) -> Self {
        Self { title, manner: Manner::Shrinks }
    }
}

/// Columns, and the widths they have had so far: a table may come in parts.
pub(super) struct Table {
    columns: Vec<Column>,
    widths: Vec<usize>,
    headed: bool,
}

impl Table {
    /// A table without rows.
    pub(super) fn new(columns: impl Into<Vec<Column>>) -> Self {
        let columns = columns.into();
        let widths = columns.iter().map(|column| chars(column.title)).collect();
        Self { columns, widths, headed: false }
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
        loop {
            let total = self.widths.iter().sum::<usize>() + GAP.len() * self.widths.len().saturating_sub(1);
            let excess = total.saturating_sub(terminal);
            let shrinkable = self.columns.iter().zip(&mut self.widths);
            let shrinkable = shrinkable
                .filter(|(column, width)| column.manner == Manner::Shrinks && **width > SHRUNK_CHARS_MIN);
            let widest = shrinkable.map(|(_, width)| width).max_by_key(|width| **width);
            match widest {
                Some(width) if excess > 0 => *width -= 1,
                _ => return,
            }
        }
    }

    fn line(&self, row: &[String]) -> String {
        let cells = self.columns.iter().zip(&self.widths).zip(row);
        let cells = cells.map(|((column, &width), cell)| match column.manner {
            Manner::Right => format!("{cell:>width$}"),
            Manner::Shrinks if chars(cell) > width => {
                let kept: String = cell.chars().take(width.saturating_sub(1)).collect();
                format!("{kept}\u{2026}")
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
}
