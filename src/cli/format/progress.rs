//! Progress of a long operation on standard error: a bar on a terminal, otherwise a line from time
//! to time.

use std::io::Write as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::streams::is_quiet;
use crate::base::visible::plain;
use crate::store::tools::Watch;

/// Shorter operations show nothing.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// Interval between two lines without a terminal.
const LINES: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Unit {
    Bytes,
    Segments,
    Jobs,
    Rows,
}

impl Unit {
    /// The end of the bar's template, after the share.
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}",
            Self::Segments => "{pos} of {len} segments",
            Self::Jobs => "{pos} of {len} jobs",
            Self::Rows => "{pos} of {len} rows",
        }
    }
}

/// A progress bar, or progress lines.
pub(in crate::cli) struct Bar {
    what: &'static str,
    unit: Unit,
    /// Hidden without a terminal.
    drawn: ProgressBar,
    started: Instant,
    printed: Instant,
}

impl Bar {
    pub(in crate::cli) fn new(what: &'static str, unit: Unit) -> Self {
        Self::on(what, unit, ProgressDrawTarget::stderr())
    }

    fn on(what: &'static str, unit: Unit, target: ProgressDrawTarget) -> Self {
        let template = format!(
            "[{{bar:24}}] {{prefix}} {{percent:>3}} %  {}  {{eta}} left  {{wide_msg}}",
            unit.template()
        );

        // A constant apart from the unit.
        let style = ProgressStyle::with_template(&template)
            .expect("the template is valid")
            .progress_chars("#>-");

        let drawn = ProgressBar::with_draw_target(None, target)
            .with_style(style)
            .with_prefix(what);

        // The first line without a terminal comes after a whole interval.
        let now = Instant::now();

        Self {
            what,
            unit,
            drawn,
            started: now,
            printed: now,
        }
    }

    /// Seconds since the start.
    pub(in crate::cli) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// A line without a terminal.
    fn text(&self, done: u64, total: u64, on: &str) -> String {
        // The total is unknown, as with standard input.
        if total == 0 {
            return format!("{}  {on}", self.what);
        }

        let share = (done as f64 / total as f64).min(1.0) * 100.0;
        let numbers = match self.unit {
            Unit::Bytes => format!("{} of {}", bytes(done), bytes(total)),
            Unit::Segments => format!("{done} of {total} segments"),
            Unit::Jobs => format!("{done} of {total} jobs"),
            Unit::Rows => format!("{done} of {total} rows"),
        };

        format!("{} {:>3.0} %  {numbers}  {on}", self.what, share.floor())
            .trim_end()
            .to_owned()
    }

    fn draw(&self, done: u64, total: u64, on: &str) {
        if total > 0 {
            self.drawn.set_length(total);
        }
        self.drawn.set_message(on.to_owned());
        self.drawn.set_position(done);
    }
}

impl Watch for Bar {
    fn step(&mut self, done: u64, total: u64, on: &str) {
        if self.started.elapsed() < SHOWN_AFTER || is_quiet() {
            return;
        }

        // File names of a store that is not ours.
        let on = plain(on);

        if !self.drawn.is_hidden() {
            self.draw(done, total, &on);
        } else if self.printed.elapsed() >= LINES {
            self.printed = Instant::now();
            // There is nowhere to report a failure to write.
            let _ = writeln!(super::streams::stderr(), "{}", self.text(done, total, &on));
        }
    }
}

/// Removes the bar.
impl Drop for Bar {
    fn drop(&mut self) {
        self.drawn.finish_and_clear();
    }
}

/// Formats a number of bytes with a binary unit.
pub(in crate::cli) fn bytes(n: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = n as f64;
    let mut unit = "B";
    for next in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }

    // Three digits are enough, and bytes have no fraction.
    if unit == "B" || value >= 100.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_share_and_numbers() {
        let bar = Bar::on("verify", Unit::Bytes, ProgressDrawTarget::hidden());
        assert_eq!(
            bar.text(5 << 30, 10 << 30, "jobs/1"),
            "verify  50 %  5.0 GiB of 10.0 GiB  jobs/1"
        );
        assert_eq!(bar.text(0, 0, "jobs/1"), "verify  jobs/1");
    }

    #[test]
    fn every_unit_has_a_valid_template() {
        for unit in [Unit::Bytes, Unit::Segments, Unit::Jobs, Unit::Rows] {
            Bar::on("verify", unit, ProgressDrawTarget::hidden()).draw(1, 2, "x");
        }
    }

    #[test]
    fn bytes_have_binary_units() {
        let short = [0, 1023, 1024, 150 * 1024, 3 << 40].map(bytes);
        assert_eq!(short, ["0 B", "1023 B", "1.0 KiB", "150 KiB", "3.0 TiB"]);
    }
}
