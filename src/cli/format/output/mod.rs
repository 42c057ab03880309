//! Standard output: tables for people, JSON for programs.
//!
//! # Invariant
//!
//! No control character from Salt's data reaches a terminal: minions control much of the output,
//! and a terminal executes escape sequences. See [`plain`] and [`Output::json`].

mod sink;

pub(in crate::cli) use self::sink::disable_pager;

use std::io;

use serde::Serialize;

use self::sink::Sink;
use super::colour::{self, Line, Tone};
use super::outputter::Colours;
use super::streams;
use super::width::prefix;
use crate::base::visible::{json_plain, plain};

/// The structure of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns or indented text, for people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON object a line.
    Jsonl,
}

/// The values of `--output`: the formats, and the rows of tables for spreadsheets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Aligned columns or indented text, for people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON object a line.
    Jsonl,
    /// The rows of tables as comma-separated values (RFC 4180).
    Csv,
}

impl From<Form> for Format {
    fn from(form: Form) -> Self {
        match form {
            // The same rows as a table, see `Table::print`.
            Form::Table | Form::Csv => Self::Table,
            Form::Json => Self::Json,
            Form::Jsonl => Self::Jsonl,
        }
    }
}

impl From<Format> for Form {
    fn from(format: Format) -> Self {
        match format {
            Format::Table => Self::Table,
            Format::Json => Self::Json,
            Format::Jsonl => Self::Jsonl,
        }
    }
}

/// A write to standard output failed.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The reader closed the pipe; end without a message.
    #[error("write the output: the pipe is closed")]
    Closed,
    /// Anything else, such as a full disk.
    #[error("write the output: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Failed(error)
        }
    }
}

/// Standard output in one of the formats.
pub struct Output {
    pub(in crate::cli) form: Form,
    /// The format that `form` maps to.
    pub format: Format,
    /// Columns of the terminal; `None`, and no truncation, if standard output is not a terminal.
    pub(in crate::cli) width: Option<usize>,
    /// Its lines.
    pub(in crate::cli) height: Option<usize>,
    /// Whether text is coloured, and headings are bold.
    coloured: bool,
    /// Tables printed as comma-separated values.
    csv_tables: usize,
    sink: Sink,
}

impl Output {
    /// Standard output in this form.
    pub fn new(form: impl Into<Form>) -> Self {
        let form = form.into();
        // CSV is for programs even if a person looks at it.
        let terminal = streams::is_terminal() && form != Form::Csv;

        let (columns, lines) = streams::size().filter(|_| terminal).unzip();
        // Some terminals do not know their size.
        let columns = columns.filter(|columns| *columns > 0);
        let lines = lines.filter(|lines| *lines > 0);

        let format = form.into();
        let coloured = form != Form::Csv && colour::is_on(terminal);

        Self {
            form,
            format,
            width: columns,
            height: lines,
            coloured,
            csv_tables: 0,
            sink: Sink::stdout(),
        }
    }

    /// Like [`Output::new`], but text that does not fit the terminal goes to the pager. Ends with
    /// [`Output::finish`].
    pub(in crate::cli) fn paged(form: impl Into<Form>) -> Self {
        let mut out = Self::new(form);
        if out.form != Form::Csv {
            out.sink = Sink::paged();
        }
        out
    }

    /// Writes to a writer of a test.
    #[cfg(test)]
    pub(in crate::cli) fn to(form: impl Into<Form>, writer: Box<dyn io::Write>) -> Self {
        let mut out = Self::new(form);
        out.sink = Sink::direct(writer);
        out
    }

    pub(in crate::cli) fn is_csv(&self) -> bool {
        self.form == Form::Csv
    }

    /// Starts a table of comma-separated values; an empty line separates it from the previous one.
    pub(in crate::cli) fn csv_table(&mut self, titles: &[String]) -> Result<(), OutputError> {
        if self.csv_tables > 0 {
            self.sink.write("\n")?;
        }
        self.csv_tables += 1;
        self.csv_row(titles)
    }

    /// Writes a row of comma-separated values. Control characters are escaped already, so a row is
    /// one line.
    pub(in crate::cli) fn csv_row(&mut self, cells: &[String]) -> Result<(), OutputError> {
        let quoted = |cell: &String| {
            if cell.contains([',', '"']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell.clone()
            }
        };

        let line = cells.iter().map(quoted).collect::<Vec<_>>().join(",");
        Ok(self.sink.write(&format!("{line}\n"))?)
    }

    /// Salt's colours, or none.
    pub(in crate::cli) fn colours(&self) -> Colours {
        Colours::new(self.coloured)
    }

    /// Replaces the status line of a terminal; an empty text removes it. No effect without a
    /// terminal.
    pub fn status(&mut self, text: &str) -> Result<(), OutputError> {
        let Some(width) = self.width.filter(|_| self.format == Format::Table) else {
            return Ok(());
        };

        // The last column stays empty: a terminal would wrap after it, and only one line is erased.
        let text = plain(text);
        let shown: String = prefix(text.chars(), width.saturating_sub(1), usize::MAX)
            .into_iter()
            .collect();

        self.sink.write(&format!("\r\x1b[K{shown}"))?;
        self.flush()
    }

    /// Writes a line, with control characters escaped.
    pub fn line(&mut self, text: &str) -> Result<(), OutputError> {
        self.rendered(&plain(text))
    }

    /// Writes text unescaped: the caller has passed all foreign parts through [`plain`].
    pub(in crate::cli) fn rendered(&mut self, text: &str) -> Result<(), OutputError> {
        self.text(text)?;
        self.text("\n")
    }

    /// Writes a line with its colours.
    pub(in crate::cli) fn styled(&mut self, line: &Line) -> Result<(), OutputError> {
        self.rendered(&line.painted(self.coloured))
    }

    /// Writes a line in bold on a terminal.
    pub(in crate::cli) fn heading(&mut self, text: &str) -> Result<(), OutputError> {
        self.styled(&Line::new(Tone::Title, text))
    }

    /// Writes text unescaped and without adding a line end.
    pub(in crate::cli) fn text(&mut self, text: &str) -> Result<(), OutputError> {
        // Only the rows of tables are comma-separated values.
        if self.is_csv() {
            Ok(())
        } else {
            Ok(self.sink.write(text)?)
        }
    }

    /// Writes a document: indented for `json`, otherwise on one line.
    pub fn json(&mut self, document: &(impl Serialize + ?Sized)) -> Result<(), OutputError> {
        // Converted in memory first, because a value without a form in JSON must not leave half a
        // document.
        let document = serde_json::to_value(document).map_err(io::Error::from)?;

        let text = if self.format == Format::Json {
            format!("{document:#}")
        } else {
            document.to_string()
        };
        self.rendered(&json_plain(&text))
    }

    /// Writes a document on one line without a line end.
    pub(in crate::cli) fn json_compact(
        &mut self,
        document: &(impl Serialize + ?Sized),
    ) -> Result<(), OutputError> {
        let text = serde_json::to_string(document).map_err(io::Error::from)?;
        self.text(&json_plain(&text))
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        Ok(self.sink.flush()?)
    }

    /// Writes what is buffered, and waits for the pager.
    pub(in crate::cli) fn finish(mut self) -> Result<(), OutputError> {
        Ok(self.sink.finish()?)
    }
}

/// The output of a verb that fails is printed before its error.
impl Drop for Output {
    fn drop(&mut self) {
        // There is nowhere to report a failure to write.
        let _ = self.sink.finish();
    }
}

/// Prints a document: by `table` for people, otherwise as one JSON document.
pub(in crate::cli) fn show(
    form: Form,
    document: &(impl Serialize + ?Sized),
    table: impl FnOnce(&mut Output) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = Output::paged(form);
    match out.format {
        Format::Table => table(&mut out)?,
        Format::Json | Format::Jsonl => out.json(document)?,
    }
    Ok(out.finish()?)
}

/// Like [`show`] for a document that is a list, with one line for each of its `rows` in `jsonl`.
pub(in crate::cli) fn show_rows(
    form: Form,
    document: &(impl Serialize + ?Sized),
    rows: &[impl Serialize],
    table: impl FnOnce(&mut Output) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if Format::from(form) != Format::Jsonl {
        return show(form, document, table);
    }
    let mut out = Output::paged(form);
    rows.iter().try_for_each(|row| out.json(row))?;
    Ok(out.finish()?)
}
