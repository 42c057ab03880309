//! The rows of a page of a list.

use crate::base::limits::LIST_BYTES_MAX;

/// The rows of a page while it is made. Their number and their bytes are bounded here, for all lists
/// whose rows have values of senders.
pub(super) struct PageRows<T> {
    rows: Vec<T>,
    rows_max: usize,
    bytes: usize,
}

impl<T> PageRows<T> {
    pub(super) fn new(rows_max: usize) -> Self {
        Self {
            rows: Vec::new(),
            rows_max,
            bytes: 0,
        }
    }

    /// Whether the page ends here. Called before a row is read and not after it: a page then
    /// contains at least one row, however large, and the list advances.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= self.rows_max || self.bytes >= LIST_BYTES_MAX
    }

    /// Adds rows that were made of `bytes`.
    pub(super) fn add(&mut self, rows: impl IntoIterator<Item = T>, bytes: usize) {
        let before = self.rows.len();
        self.rows.extend(rows);
        // What yields no row costs nothing to send.
        if self.rows.len() > before {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn into_rows(self) -> Vec<T> {
        self.rows
    }
}
