//! Tables of aligned columns that fit the terminal.

use super::output::{Output, OutputError, plain};

/// Minimum width of a truncated column.
const SHRUNK_CHARS_MIN: usize = 8;
const GAP: &str = "  ";
/// Default of [`Column::min_chars`] of columns that are truncated at the end.
const SHRUNK_CHARS: usize = 9;
/// The same for columns that are truncated in the middle.
const MIDDLE_CHARS: usize = 24;

#[derive(Clone, Copy)]
pub(in crate::cli) struct Column {
    title: &'static str,
    fit: Fit,
    /// Order in which columns are omitted on a narrow terminal, largest first; 0 means never.
    drop_order: u8,
    /// Preferred minimum width: other columns are omitted before this one becomes narrower.
    min_chars: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Fit {
    Left,
    Right,
    TruncateEnd,
    TruncateMiddle,
}

impl Fit {
    fn truncates(self) -> bool {
        matches!(self, Self::TruncateEnd | Self::TruncateMiddle)
    }
}

impl Column {
    /// Left-aligned text, never truncated.
    pub(in crate::cli) const fn left(title: &'static str) -> Self {
        Self {
            title,
            fit: Fit::Left,
            drop_order: 0,
            min_chars: 0,
        }
    }

    /// Right-aligned numbers, never truncated.
    pub(in crate::cli) const fn right(title: &'static str) -> Self {
        Self {
            title,
            fit: Fit::Right,
            drop_order: 0,
            min_chars: 0,
        }
    }

    /// Text that is truncated at its end on a narrow terminal.
    pub(in crate::cli) const fn truncated(title: &'static str) -> Self {
        Self {
            title,
            fit: Fit::TruncateEnd,
            drop_order: 0,
            min_chars: SHRUNK_CHARS,
        }
    }

    /// Text that is truncated in its middle on a narrow terminal.
    pub(in crate::cli) const fn middle_truncated(title: &'static str) -> Self {
        Self {
            title,
            fit: Fit::TruncateMiddle,
            drop_order: 0,
            min_chars: MIDDLE_CHARS,
        }
    }

    /// Omits the column on a narrow terminal; columns with a larger `order` are omitted first.
    pub(in crate::cli) const fn drop_order(self, order: u8) -> Self {
        Self {
            drop_order: order,
            ..self
        }
    }

    /// Sets the preferred minimum width, see the field.
    pub(in crate::cli) const fn min_chars(self, chars: usize) -> Self {
        Self {
            min_chars: chars,
            ..self
        }
    }
}

/// A table, which may be printed in several parts. Column widths never shrink between parts.
pub(in crate::cli) struct Table {
    columns: Vec<Column>,
    widths: Vec<usize>,
    /// Whether each column is shown; fixed by the first rows.
    shown: Vec<bool>,
    headed: bool,
}

impl Table {
    pub(in crate::cli) fn new(columns: impl Into<Vec<Column>>) -> Self {
        let columns = columns.into();
        let widths = columns.iter().map(|column| chars(column.title)).collect();
        let shown = vec![true; columns.len()];
        Self {
            columns,
            widths,
            shown,
            headed: false,
        }
    }

    /// The heading and the rows as lines that fit into `width` columns.
    pub(in crate::cli) fn lines(
        mut self,
        rows: &[Vec<String>],
        width: Option<usize>,
    ) -> Vec<String> {
        let rows = escaped(rows);
        self.fit(&rows, width);
        let titles: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.title.to_owned())
            .collect();
        std::iter::once(&titles)
            .chain(&rows)
            .map(|row| self.line(row))
            .collect()
    }

    /// Prints the rows, preceded by the heading on the first call.
    pub(in crate::cli) fn print(
        &mut self,
        out: &mut Output,
        rows: &[Vec<String>],
    ) -> Result<(), OutputError> {
        self.print_with(out, rows, |_| String::new())
    }

    /// Like [`Table::print`], with the text `below(index)` under each row.
    pub(in crate::cli) fn print_with(
        &mut self,
        out: &mut Output,
        rows: &[Vec<String>],
        below: impl Fn(usize) -> String,
    ) -> Result<(), OutputError> {
        let rows = escaped(rows);
        let titles: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.title.to_owned())
            .collect();
        if out.is_csv() {
            if !std::mem::replace(&mut self.headed, true) {
                out.csv_table(&titles)?;
            }
            return rows.iter().try_for_each(|row| out.csv_row(row));
        }
        self.fit(&rows, out.width);
        if !self.headed {
            out.heading(&self.line(&titles))?;
            self.headed = true;
        }
        for (number, row) in rows.iter().enumerate() {
            out.line(&self.line(row))?;
            out.text(&below(number))?;
        }
        Ok(())
    }

    /// Widens the columns to their content, then omits and truncates columns until the table fits the terminal.
    fn fit(&mut self, rows: &[Vec<String>], terminal: Option<usize>) {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(chars(cell));
            }
        }
        let Some(terminal) = terminal else { return };
        while !self.headed && self.preferred_width() > terminal {
            let optional = self.columns.iter().zip(&mut self.shown);
            let optional = optional.filter(|(column, shown)| **shown && column.drop_order > 0);
            let Some((_, shown)) = optional.max_by_key(|(column, _)| column.drop_order) else {
                break;
            };
            *shown = false;
        }
        loop {
            let shown = || {
                self.widths
                    .iter()
                    .zip(&self.shown)
                    .filter(|(_, shown)| **shown)
            };
            let total = shown().map(|(width, _)| width).sum::<usize>()
                + GAP.len() * shown().count().saturating_sub(1);
            let excess = total.saturating_sub(terminal);
            let shrinkable = self.columns.iter().zip(&mut self.widths).zip(&self.shown);
            let shrinkable = shrinkable.filter(|((column, width), shown)| {
                **shown && column.fit.truncates() && **width > SHRUNK_CHARS_MIN
            });
            let widest = shrinkable
                .map(|((_, width), _)| width)
                .max_by_key(|width| **width);
            match widest {
                Some(width) if excess > 0 => *width -= 1,
                _ => return,
            }
        }
    }

    /// Terminal width at which every column has its preferred minimum width.
    fn preferred_width(&self) -> usize {
        let all = self
            .columns
            .iter()
            .zip(&self.widths)
            .zip(&self.shown)
            .filter(|(_, shown)| **shown);
        let widths = all.map(|((column, width), _)| match column.fit {
            Fit::TruncateEnd | Fit::TruncateMiddle => column.min_chars.min(*width),
            Fit::Left | Fit::Right => *width,
        });
        widths
            .map(|width| width + GAP.len())
            .sum::<usize>()
            .saturating_sub(GAP.len())
    }

    fn line(&self, row: &[String]) -> String {
        let cells = self
            .columns
            .iter()
            .zip(&self.widths)
            .zip(row)
            .zip(&self.shown);
        let cells = cells.filter(|(_, shown)| **shown).map(|(cell, _)| cell);
        let cells = cells.map(|((column, &width), cell)| match column.fit {
            Fit::Right => format!("{cell:>width$}"),
            Fit::TruncateEnd if chars(cell) > width => {
                let kept: String = cell.chars().take(width.saturating_sub(1)).collect();
                format!("{kept}\u{2026}")
            }
            Fit::TruncateMiddle if chars(cell) > width => {
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

fn escaped(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    rows.iter()
        .map(|row| row.iter().map(|cell| plain(cell).into_owned()).collect())
        .collect()
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(terminal: Option<usize>) -> Vec<String> {
        let mut table = Table::new([
            Column::right("SEQ"),
            Column::truncated("TAG"),
            Column::left("ID"),
        ]);
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [
            row(["1", "salt/job/1/ret/web1", "web1"]),
            row(["1000", "x", ""]),
        ];
        table.fit(&rows, terminal);
        rows.iter().map(|row| table.line(row)).collect()
    }

    #[test]
    fn columns_are_aligned_and_truncated_only_on_a_terminal() {
        assert_eq!(lines(None), ["   1  salt/job/1/ret/web1  web1", "1000  x"]);
        assert_eq!(
            lines(Some(22)),
            [
                "   1  salt/job/\u{2026}  web1".to_owned(),
                "1000  x".to_owned()
            ]
        );
        assert_eq!(
            lines(Some(1)),
            [
                "   1  salt/jo\u{2026}  web1".to_owned(),
                "1000  x".to_owned()
            ]
        );
    }

    #[test]
    fn a_narrow_terminal_omits_columns_before_it_truncates_others() {
        let lines = |terminal| {
            let columns = [
                Column::left("TIME").drop_order(2),
                Column::middle_truncated("TAG"),
                Column::truncated("MINION").drop_order(1),
                Column::right("N"),
            ];
            let mut table = Table::new(columns);
            let row = [
                "2026-11-21 05:47:28.123",
                "salt/job/20261121054728123456/ret/web1",
                "web1",
                "7",
            ];
            let rows = [row.map(str::to_owned).to_vec()];
            table.fit(&rows, Some(terminal));
            table.line(&rows[0])
        };
        assert_eq!(
            lines(80),
            "2026-11-21 05:47:28.123  salt/job/20261121054728123456/ret/web1  web1    7"
        );
        assert_eq!(
            lines(60),
            "2026-11-21 05:47:28.123  salt/job/2\u{2026}3456/ret/web1  web1    7"
        );
        assert_eq!(lines(36), "salt/job/2\u{2026}23456/ret/web1  web1    7");
        assert_eq!(lines(28), "salt/job/2\u{2026}23456/ret/web1  7");
    }
}
