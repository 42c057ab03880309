//! Results as rows of a table, and as JSON with the same fields.

use std::time::{Duration, Instant};

use saltcellar::cli::{Column, Format, Output, Table};
use saltcellar_testkit::usage::Durations;
use serde_json::{Map, Value as Json, json};

use crate::options::Options;

/// Interval of updates of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// A result: each field has the title of a column, a key in JSON, or both.
#[derive(Default)]
pub(crate) struct Row {
    columns: Vec<Column>,
    cells: Vec<String>,
    json: Map<String, Json>,
}

impl Row {
    /// A cell of the table only.
    fn cell(mut self, column: Column, text: impl Into<String>) -> Self {
        self.columns.push(column);
        self.cells.push(text.into());
        self
    }

    pub(crate) fn label(self, title: &'static str, text: impl Into<String>) -> Self {
        self.cell(Column::left(title), text)
    }

    /// A value of JSON only.
    pub(crate) fn json(mut self, key: &str, value: impl Into<Json>) -> Self {
        self.json.insert(key.to_owned(), value.into());
        self
    }

    /// A string of both.
    pub(crate) fn text(self, title: &'static str, key: &str, text: &str) -> Self {
        self.label(title, text).json(key, text)
    }

    /// A count of both; empty and null if `None`.
    pub(crate) fn count(self, title: &'static str, key: &str, n: impl Into<Option<u64>>) -> Self {
        let n = n.into();
        self.cell(
            Column::right(title),
            n.map(|n| thousands(n as f64)).unwrap_or_default(),
        )
        .json(key, n)
    }

    /// A number with this many decimals; an empty `key` restricts it to the table. Empty and null
    /// if `None`.
    pub(crate) fn number<N: Into<Option<f64>>>(
        self,
        title: &'static str,
        key: &str,
        decimals: usize,
        n: N,
    ) -> Self {
        let n = n.into();

        let text = |n| {
            if decimals == 0 {
                thousands(n)
            } else {
                format!("{n:.decimals$}")
            }
        };

        let row = self.cell(Column::right(title), n.map(text).unwrap_or_default());
        // Some numbers only repeat other numbers for people.
        if key.is_empty() {
            row
        } else {
            row.json(key, n.map(|n| rounded(n, decimals)))
        }
    }

    pub(crate) fn latency(self, durations: &Durations) -> Self {
        let row = self.number("P50 MS", "p50_ms", 3, durations.ms(0.5));
        row.number("P99 MS", "p99_ms", 3, durations.ms(0.99))
    }

    pub(crate) fn latency_and_max(self, durations: &Durations) -> Self {
        self.latency(durations)
            .number("MAX MS", "max_ms", 3, durations.ms(1.0))
    }
}

pub(crate) struct Report {
    out: Output,
    table: Option<Table>,
    progress_at: Option<Instant>,
}

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            out: Output::new(options.output),
            table: None,
            progress_at: None,
        }
    }

    /// Prints a row if the format is a table, and returns its JSON. All rows have the same columns.
    pub(crate) fn row(&mut self, row: Row) -> anyhow::Result<Json> {
        Ok(self.rows(vec![row])?.pop().unwrap_or_default())
    }

    /// Like [`Report::row`], with rows that are aligned with each other.
    pub(crate) fn rows(&mut self, rows: Vec<Row>) -> anyhow::Result<Vec<Json>> {
        let (mut columns, mut lines, mut documents) = (Vec::new(), Vec::new(), Vec::new());

        for row in rows {
            // All rows have the same columns, so the last row's do.
            columns = row.columns;
            lines.push(row.cells);
            documents.push(row.json.into());
        }

        if self.out.format == Format::Table {
            // The progress line would stay above the table.
            self.out.status("")?;
            self.table
                .get_or_insert_with(|| Table::new(columns))
                .print(&mut self.out, &lines)?;
            self.out.flush()?;
        }

        Ok(documents)
    }

    pub(crate) fn note(&mut self, text: &str) -> anyhow::Result<()> {
        if self.out.format == Format::Table {
            self.out.line(text)?;
        }
        Ok(self.out.flush()?)
    }

    /// Prints a document, unless the format is a table.
    pub(crate) fn document(&mut self, document: &Json) -> anyhow::Result<()> {
        if self.out.format != Format::Table {
            self.out.json(document)?;
        }
        Ok(self.out.flush()?)
    }

    /// Prints a row, as a line of a table or as a document.
    pub(crate) fn print_row(&mut self, row: Row) -> anyhow::Result<()> {
        let document = self.row(row)?;
        self.document(&document)
    }

    /// Prints rows, as a table or as one document.
    pub(crate) fn print_rows(&mut self, rows: Vec<Row>) -> anyhow::Result<()> {
        let rows = self.rows(rows)?;
        self.document(&rows.into())
    }

    /// Prints documents: each on a line, or in one document made of all of them.
    pub(crate) fn documents(
        &mut self,
        documents: Vec<Json>,
        whole: impl FnOnce(Vec<Json>) -> Json,
    ) -> anyhow::Result<()> {
        if self.out.format == Format::Jsonl {
            return documents
                .iter()
                .try_for_each(|document| self.document(document));
        }
        self.document(&whole(documents))
    }

    /// Prints the documents of runs.
    pub(crate) fn runs(&mut self, runs: Vec<Json>) -> anyhow::Result<()> {
        self.documents(runs, |runs| json!({ "runs": runs }))
    }

    pub(crate) fn progress(&mut self, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self
            .progress_at
            .is_none_or(|at| at.elapsed() > PROGRESS_INTERVAL)
        {
            self.progress_at = Some(Instant::now());
            self.out.status(&text())?;
        }
        Ok(())
    }
}

/// Sets a field of a document.
pub(crate) fn set(document: &mut Json, name: &str, value: impl Into<Json>) {
    if let Some(fields) = document.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Formats `1,234,567`.
pub(crate) fn thousands(n: f64) -> String {
    let digits = format!("{n:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number rounded to `decimals` decimals, as JSON.
pub(crate) fn rounded(n: f64, decimals: usize) -> Json {
    let unit = 10_f64.powi(i32::try_from(decimals).unwrap_or(0));
    Json::from((n * unit).round() / unit)
}
