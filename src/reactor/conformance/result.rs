//! The result of a case: where it differs from Salt.

use std::fmt;

/// A part of a case, in the order of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    /// The case itself.
    Case,
    /// The option `reactor` as read.
    EffectiveReactor,
    /// Log records of reading the configuration.
    ConfigLogs,
    /// References that matched.
    Matched,
    /// Strings rendered by Jinja.
    Renders,
    /// Parsed and padded data.
    High,
    /// Chunks in order.
    Low,
    /// Calls in order.
    Calls,
    /// Functions called by templates.
    SaltCalls,
    /// Events that were fired.
    Fired,
    /// Log records.
    Logs,
}

impl Layer {
    /// The name in the case files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layer::Case => "case",
            Layer::EffectiveReactor => "effective_reactor",
            Layer::ConfigLogs => "config_logs",
            Layer::Matched => "matched",
            Layer::Renders => "renders",
            Layer::High => "high",
            Layer::Low => "low",
            Layer::Calls => "calls",
            Layer::SaltCalls => "salt_calls",
            Layer::Fired => "fired",
            Layer::Logs => "logs",
        }
    }
}

/// A difference from Salt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// The event, from 1; 0 is the configuration.
    pub(crate) event: usize,
    /// The differing part.
    pub(crate) layer: Layer,
    /// The expected and the actual value.
    pub(crate) what: String,
    /// True if only a rendered text differs, with the same meaning.
    pub(crate) lesser: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.event > 0 {
            write!(f, "event {}: ", self.event)?;
        }
        write!(f, "{}: {}", self.layer.name(), self.what)?;
        if self.lesser {
            f.write_str(" (only the text differs)")
        } else {
            Ok(())
        }
    }
}

/// The result of a case.
#[derive(Debug, Clone)]
pub(crate) struct CaseResult {
    /// The case.
    pub(crate) id: String,
    /// Differences, by event and layer; empty if the case passed.
    pub(crate) differences: Vec<Difference>,
    /// Accepted differences, because the case marks a defect of Salt.
    pub(crate) excused: Vec<Difference>,
    /// The reason if the case needs Salt's Python.
    pub(crate) needs_salt: Option<String>,
}

impl CaseResult {
    /// True without differences.
    pub(crate) fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.differences.first() else {
            return write!(f, "PASS {}", self.id);
        };
        write!(f, "FAIL {}: {first}", self.id)?;
        if let Some(why) = &self.needs_salt {
            write!(f, "; requires Salt's Python (--salt-python): {why}")?;
        }
        match self.differences.len() - 1 {
            0 => Ok(()),
            more => write!(f, "; {more} more"),
        }
    }
}
