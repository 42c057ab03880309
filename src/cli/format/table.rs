//! Tables of aligned columns that fit the terminal.
//!
//! # Invariant
//!
//! No cell is wider than [`CELL_WIDTH_MAX`], on a terminal or not: a longer one is cut and ends in
//! an ellipsis. The other formats print whole values. Widths are counted in columns of a terminal:
//! a wide character takes two columns, a combining one none.

use std::borrow::Cow;

use super::colour::{Line, Tone};
use super::output::{Output, OutputError};
use super::width::{prefix, width_of};
use crate::base::visible::plain;

/// Minimum width of a truncated column.
const SHRUNK_CHARS_MIN: usize = 8;
const GAP: &str = "  ";
/// Maximum width of a cell. One long argument would otherwise pad every row of its column.
const CELL_WIDTH_MAX: usize = 1000;
/// Maximum number of characters of a cell, because combining characters have no width.
const CELL_CHARS_MAX: usize = 2 * CELL_WIDTH_MAX;
const ELLIPSIS: char = '\u{2026}';
/// Default of [`Column::min_chars`] of columns that are truncated at the end.
const SHRUNK_CHARS: usize = 9;
/// The same for columns that are truncated in the middle.
const MIDDLE_CHARS: usize = 24;
/// The same for ids of jobs: they name ten seconds, which is enough for `jobs show`.
const JID_CHARS: usize = 14;
/// Widths of a time: `2026-11-21 05:47:28.123`, without milliseconds, and without the year.
const TIME_CHARS: usize = 23;
const TIME_CHARS_SECONDS: usize = 19;
const TIME_CHARS_MIN: usize = 14;

/// A column: its title, and how its cells are aligned, cut and coloured.
#[derive(Clone, Copy)]
pub struct Column {
    title: &'static str,
    fit: Fit,
    /// Order in which columns are omitted on a narrow terminal, largest first; 0 means never.
    drop_order: u8,
    /// Whether it is shown only if its cells differ.
    only_if_different: bool,
    /// Preferred minimum width: other columns are omitted before this one becomes narrower.
    min_chars: usize,
    /// What decides the colour of a cell.
    tone: CellTone,
}

#[derive(Clone, Copy)]
enum CellTone {
    None,
    OfText(fn(&str) -> Tone),
    OfRow,
}

#[derive(Clone, Copy, PartialEq)]
enum Fit {
    Left,
    Right,
    TruncateEnd,
    TruncateMiddle,
    /// A time, which loses its milliseconds and then its year.
    Time,
}

impl Fit {
    /// Whether its cells lose a character at a time.
    fn truncates(self) -> bool {
        matches!(self, Self::TruncateEnd | Self::TruncateMiddle)
    }
}

impl Column {
    const fn new(title: &'static str, fit: Fit, min_chars: usize) -> Self {
        Self {
            title,
            fit,
            drop_order: 0,
            only_if_different: false,
            min_chars,
            tone: CellTone::None,
        }
    }

    /// Left-aligned text, never truncated.
    pub const fn left(title: &'static str) -> Self {
        Self::new(title, Fit::Left, 0)
    }

    /// Right-aligned numbers, never truncated.
    pub const fn right(title: &'static str) -> Self {
        Self::new(title, Fit::Right, 0)
    }

    /// Text that is truncated at its end on a narrow terminal.
    pub(in crate::cli) const fn truncated(title: &'static str) -> Self {
        Self::new(title, Fit::TruncateEnd, SHRUNK_CHARS)
    }

    /// Text that is truncated in its middle on a narrow terminal.
    pub(in crate::cli) const fn middle_truncated(title: &'static str) -> Self {
        Self::new(title, Fit::TruncateMiddle, MIDDLE_CHARS)
    }

    /// Times, which lose their milliseconds and then their year on a narrow terminal.
    pub(in crate::cli) const fn time(title: &'static str) -> Self {
        Self::new(title, Fit::Time, TIME_CHARS_MIN)
    }

    /// Ids of jobs. On a narrow terminal they lose their tail before a time or a user is omitted:
    /// what remains is the time once more.
    pub(in crate::cli) const fn jid() -> Self {
        Self::new("JID", Fit::TruncateEnd, JID_CHARS)
    }

    /// Colours the cells by what they say of a result.
    pub(in crate::cli) const fn toned(self, tone: fn(&str) -> Tone) -> Self {
        Self {
            tone: CellTone::OfText(tone),
            ..self
        }
    }

    /// Gives the cells the tone of their row.
    pub(in crate::cli) const fn toned_by_row(self) -> Self {
        Self {
            tone: CellTone::OfRow,
            ..self
        }
    }

    /// Omits the column on a narrow terminal; columns with a larger `order` are omitted first.
    pub(in crate::cli) const fn drop_order(self, order: u8) -> Self {
        Self {
            drop_order: order,
            ..self
        }
    }

    /// Omits the column on a terminal if all of the first rows contain the same in it.
    pub(in crate::cli) const fn if_different(self) -> Self {
        Self {
            only_if_different: true,
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

/// A table, which may be printed in several parts. A column is as wide as its widest cell so far,
/// unless the terminal is too narrow.
pub struct Table {
    columns: Vec<Column>,
    widths: Vec<usize>,
    /// Whether each column is shown; fixed by the first rows.
    shown: Vec<bool>,
    headed: bool,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl Into<Vec<Column>>) -> Self {
        let columns = columns.into();

        let widths = columns
            .iter()
            .map(|column| width_of(column.title))
            .collect();

        let shown = vec![true; columns.len()];
        Self {
            columns,
            widths,
            shown,
            headed: false,
        }
    }

    /// The heading and the rows as lines that fit into `width` columns.
    pub(in crate::cli) fn lines(mut self, rows: &[Vec<String>], width: Option<usize>) -> Vec<Line> {
        let rows = self.bounded(rows);
        self.fit(&rows, width);

        let rows = rows.iter().map(|row| self.line(row, Tone::Plain));
        std::iter::once(self.heading()).chain(rows).collect()
    }

    fn titles(&self) -> Vec<String> {
        self.columns
            .iter()
            .map(|column| column.title.to_owned())
            .collect()
    }

    fn heading(&self) -> Line {
        Line::new(Tone::Title, self.line(&self.titles(), Tone::Plain).text())
    }

    /// Prints the rows, preceded by the heading on the first call.
    pub fn print(&mut self, out: &mut Output, rows: &[Vec<String>]) -> Result<(), OutputError> {
        self.print_with(out, rows, |_| Tone::Plain, |_| String::new())
    }

    /// Like [`Table::print`], with the tone and with the text under each row, by its index.
    pub(in crate::cli) fn print_with(
        &mut self,
        out: &mut Output,
        rows: &[Vec<String>],
        tone: impl Fn(usize) -> Tone,
        below: impl Fn(usize) -> String,
    ) -> Result<(), OutputError> {
        // CSV is for programs, so its cells are whole.
        if out.is_csv() {
            if !std::mem::replace(&mut self.headed, true) {
                out.csv_table(&self.titles())?;
            }

            return escaped(rows).iter().try_for_each(|row| out.csv_row(row));
        }

        // Before the widths are measured, because an escape is wider than its character.
        let rows = self.bounded(rows);
        self.fit(&rows, out.width);

        if !self.headed {
            out.styled(&self.heading())?;
            self.headed = true;
        }

        for (number, row) in rows.iter().enumerate() {
            out.styled(&self.line(row, tone(number)))?;
            out.text(&below(number))?;
        }
        Ok(())
    }

    /// Widens the columns to their content, then omits and truncates columns until the table fits
    /// the terminal.
    fn fit(&mut self, rows: &[Vec<String>], terminal: Option<usize>) {
        if !self.headed {
            for (at, column) in self.columns.iter().enumerate() {
                let mut cells = rows.iter().map(|row| row.get(at));
                let first = cells.next();
                let is_same = first.is_none_or(|first| cells.all(|cell| cell == first));
                if let Some(shown) = self.shown.get_mut(at)
                    && column.only_if_different
                    && is_same
                {
                    *shown = false;
                }
            }
        }

        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(width_of(cell));
            }
        }

        let Some(terminal) = terminal else { return };

        // A column without a value is the first to go: it shows nothing, and others would lose characters.
        if !self.headed && self.excess(terminal) > 0 {
            for (at, column) in self.columns.iter().enumerate() {
                let is_empty = rows
                    .iter()
                    .all(|row| row.get(at).is_none_or(String::is_empty));
                if let Some(shown) = self.shown.get_mut(at)
                    && column.drop_order > 0
                    && is_empty
                {
                    *shown = false;
                }
            }
        }

        // After the heading is printed, columns can no longer disappear.
        while !self.headed && self.preferred_width() > terminal {
            let optional = self.columns.iter().zip(&mut self.shown);
            let optional = optional.filter(|(column, shown)| **shown && column.drop_order > 0);
            // Without such columns the others are truncated below.
            let Some((_, shown)) = optional.max_by_key(|(column, _)| column.drop_order) else {
                break;
            };

            *shown = false;
        }

        // A whole part at a time, if the others would be shorter than they should be.
        for chars in [TIME_CHARS_SECONDS, TIME_CHARS_MIN] {
            for at in 0..self.columns.len() {
                if self.least_width(|width| width) > terminal
                    && let (Some(column), Some(width)) =
                        (self.columns.get(at), self.widths.get_mut(at))
                    && column.fit == Fit::Time
                {
                    *width = chars.max(width_of(column.title)).min(*width);
                }
            }
        }

        // Below their preferred widths only if that is not enough.
        for below_preferred in [false, true] {
            self.truncate(terminal, below_preferred);
        }
    }

    /// Narrows the columns that may be truncated, as far as the terminal requires.
    fn truncate(&mut self, terminal: usize, below_preferred: bool) {
        loop {
            let excess = self.excess(terminal);

            let shrinkable = self.columns.iter().zip(&mut self.widths).zip(&self.shown);
            let shrinkable = shrinkable.filter(|((column, width), shown)| {
                let least = if below_preferred {
                    SHRUNK_CHARS_MIN.min(column.min_chars)
                } else {
                    column.min_chars
                };
                **shown && column.fit.truncates() && **width > least
            });

            let widest = shrinkable
                .map(|((_, width), _)| width)
                .max_by_key(|width| **width);

            // One character at a time, because the widest columns are to end up equally wide.
            match widest {
                Some(width) if excess > 0 => *width -= 1,
                _ => return,
            }
        }
    }

    /// The columns of the terminal that the table is wider than it.
    fn excess(&self, terminal: usize) -> usize {
        let shown = || {
            self.widths
                .iter()
                .zip(&self.shown)
                .filter(|(_, shown)| **shown)
        };
        let total = shown().map(|(width, _)| width).sum::<usize>()
            + GAP.len() * shown().count().saturating_sub(1);

        total.saturating_sub(terminal)
    }

    /// Terminal width at which every column contains its preferred minimum width.
    fn preferred_width(&self) -> usize {
        self.least_width(|width| TIME_CHARS_MIN.min(width))
    }

    /// As [`Table::preferred_width`], with what `time` makes of the widths of times.
    fn least_width(&self, time: impl Fn(usize) -> usize) -> usize {
        let all = self
            .columns
            .iter()
            .zip(&self.widths)
            .zip(&self.shown)
            .filter(|(_, shown)| **shown);

        let widths = all.map(|((column, width), _)| match column.fit {
            Fit::TruncateEnd | Fit::TruncateMiddle => column.min_chars.min(*width),
            Fit::Time => time(*width),
            Fit::Left | Fit::Right => *width,
        });

        widths
            .map(|width| width + GAP.len())
            .sum::<usize>()
            .saturating_sub(GAP.len())
    }

    fn line(&self, row: &[String], of_row: Tone) -> Line {
        let cells = self
            .columns
            .iter()
            .zip(&self.widths)
            .zip(row)
            .zip(&self.shown);

        let cells = cells.filter(|(_, shown)| **shown).map(|(cell, _)| cell);

        let mut line = Line::default();
        for (number, ((column, &width), cell)) in cells.enumerate() {
            // By the whole cell, because a cut cell may lack the word that decides.
            let tone = match column.tone {
                CellTone::None => Tone::Plain,
                CellTone::OfText(tone) => tone(cell),
                CellTone::OfRow => of_row,
            };
            let cell = column.fit.cut(cell, width);
            let padding = " ".repeat(width.saturating_sub(width_of(&cell)));

            if number > 0 {
                line = line.and(Tone::Plain, GAP);
            }
            line = match column.fit {
                Fit::Right => line.and(Tone::Plain, padding).and(tone, cell),
                _ => line.and(tone, cell).and(Tone::Plain, padding),
            };
        }

        line.trimmed()
    }

    /// The rows without characters that change the terminal, and without cells that exceed
    /// [`CELL_WIDTH_MAX`].
    fn bounded(&self, rows: &[Vec<String>]) -> Vec<Vec<String>> {
        // Escaped first, because escapes are longer than what they replace.
        let bound = |(column, cell): (&Column, &String)| {
            let cell = plain(cell);
            column.fit.bounded(&cell).into_owned()
        };
        rows.iter()
            .map(|row| self.columns.iter().zip(row).map(bound).collect())
            .collect()
    }
}

impl Fit {
    /// The cell, cut if it is wider than `width` and the column may be truncated.
    fn cut(self, cell: &str, width: usize) -> Cow<'_, str> {
        match self {
            Self::Left | Self::Right => Cow::Borrowed(cell),
            Self::TruncateEnd | Self::TruncateMiddle => self.cut_to(cell, width, usize::MAX),
            Self::Time => cut_time(cell, width),
        }
    }

    /// The cell within the limits of all tables.
    fn bounded(self, cell: &str) -> Cow<'_, str> {
        self.cut_to(cell, CELL_WIDTH_MAX, CELL_CHARS_MAX)
    }

    fn cut_to(self, cell: &str, width: usize, chars: usize) -> Cow<'_, str> {
        // A cell of few bytes takes few columns and characters, and most cells are short.
        if cell.len() <= width.min(chars)
            || width_of(cell) <= width && cell.chars().count() <= chars
        {
            return Cow::Borrowed(cell);
        }

        // The ellipsis takes a place of its own.
        let (width, chars) = (width.saturating_sub(1), chars.saturating_sub(1));

        let (of_end, chars_of_end) = match self {
            Self::TruncateMiddle => (width * 3 / 5, chars / 2),
            Self::Left | Self::Right | Self::TruncateEnd | Self::Time => (0, 0),
        };

        let begin = prefix(cell.chars(), width - of_end, chars - chars_of_end);
        let end: Vec<char> = prefix(cell.chars().rev(), of_end, chars_of_end);

        let all = begin
            .into_iter()
            .chain([ELLIPSIS])
            .chain(end.into_iter().rev());

        Cow::Owned(all.collect())
    }
}

/// A time without what does not fit: first its milliseconds, then its year.
fn cut_time(cell: &str, width: usize) -> Cow<'_, str> {
    // An absent time, or another string in its place.
    if cell.len() != TIME_CHARS || !cell.is_ascii() || width >= TIME_CHARS {
        return Fit::TruncateEnd.cut(cell, width);
    }
    let year = TIME_CHARS_SECONDS - TIME_CHARS_MIN;
    let start = if width < TIME_CHARS_SECONDS { year } else { 0 };
    let seconds = cell.get(start..TIME_CHARS_SECONDS).unwrap_or(cell);
    Fit::TruncateEnd.cut(seconds, width)
}

fn escaped(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    rows.iter()
        .map(|row| row.iter().map(|cell| plain(cell).into_owned()).collect())
        .collect()
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
        rows.iter()
            .map(|row| table.line(row, Tone::Plain).text())
            .collect()
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
            table.line(&rows[0], Tone::Plain).text()
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

    #[test]
    fn a_column_without_values_is_omitted_before_others_are_truncated() {
        let heading = |arg: &str, terminal| {
            let columns = [
                Column::truncated("TAG"),
                Column::truncated("ARG").min_chars(4).drop_order(1),
                Column::right("EMPTY"),
            ];
            let mut table = Table::new(columns);
            let rows = [["salt/job/1/new", arg, ""].map(str::to_owned).to_vec()];
            table.fit(&rows, Some(terminal));
            (
                table.heading().text(),
                table.line(&rows[0], Tone::Plain).text(),
            )
        };
        let both = |heading: &str, row: &str| (heading.to_owned(), row.to_owned());

        // With room for all columns, or a value, it stays; a column that is never omitted stays as well.
        assert_eq!(
            heading("", 40),
            both("TAG             ARG  EMPTY", "salt/job/1/new")
        );
        assert_eq!(
            heading("", 22),
            both("TAG             EMPTY", "salt/job/1/new")
        );
        assert_eq!(
            heading("abcd", 25),
            both("TAG           ARG   EMPTY", "salt/job/1/\u{2026}  abcd")
        );
    }

    #[test]
    fn a_wide_cell_is_cut_by_its_width_on_a_terminal() {
        let column = Column::truncated("X");
        for (cell, expected) in [
            (
                "\u{6771}\u{4eac}\u{6771}\u{4eac}\u{6771}",
                "\u{6771}\u{4eac}\u{6771}\u{2026}",
            ),
            ("e\u{301}tat de l\u{27}art", "e\u{301}tat de\u{2026}"),
            ("e\u{301}tat", "e\u{301}tat"),
        ] {
            assert_eq!(column.fit.cut(cell, 8), expected);
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn no_cell_makes_a_table_wider_than_its_columns_allow(
            cells in proptest::collection::vec(cell(), 4),
            terminal in proptest::option::of(1_usize..300),
        ) {
            let columns = [
                Column::left("LEFT"),
                Column::right("RIGHT"),
                Column::truncated("END"),
                Column::middle_truncated("MIDDLE"),
            ];
            let lines = Table::new(columns).lines(&[cells], terminal);
            proptest::prop_assert_eq!(lines.len(), 2);
            let most = 4 * CELL_WIDTH_MAX + 3 * GAP.len();
            for line in lines.iter().map(Line::text) {
                let line = line.as_str();
                proptest::prop_assert!(width_of(line) <= most, "{} columns", width_of(line));
                proptest::prop_assert!(line.chars().count() <= 4 * CELL_CHARS_MAX + 3 * GAP.len() + most);
                let has_control = line.contains(['\n', '\r', '\u{1b}', '\u{202e}', '\u{2066}']);
                proptest::prop_assert!(!has_control);
            }
        }
    }

    /// Huge, wide, combining and unprintable strings.
    fn cell() -> impl proptest::strategy::Strategy<Value = String> {
        use proptest::prelude::{Just, Strategy as _, prop_oneof};
        const TEXTS: [&str; 10] = [
            "x",
            "\u{6771}",
            "a\u{301}",
            "\u{301}",
            "\u{202e}",
            "\u{2066}",
            "\n",
            "\u{1b}[2J",
            "\u{1f468}\u{200d}",
            "\t",
        ];
        let text = prop_oneof![
            proptest::sample::select(&TEXTS[..]).prop_map(str::to_owned),
            ".{1,4}",
        ];
        let count = prop_oneof![4 => 0_usize..40, 1 => Just(100_000), 1 => 900_usize..1_100];
        (text, count).prop_map(|(text, count)| text.repeat(count))
    }
}
