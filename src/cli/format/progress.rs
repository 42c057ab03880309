//! Progress of a long operation on standard error: a bar on a terminal, otherwise a line from time to time.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::store::tools::Watch;

/// Interval between two drawings of the bar.
const REDRAW: Duration = Duration::from_millis(100);
/// Interval between two lines without a terminal. Shorter operations print none.
const LINES: Duration = Duration::from_secs(10);
const BAR_CHARS: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Unit {
    Bytes,
    Segments,
    Jobs,
    Rows,
}

/// A progress bar, or progress lines.
pub(in crate::cli) struct Bar {
    what: &'static str,
    unit: Unit,
    /// Columns of the terminal; `None` if standard error is not a terminal.
    width: Option<usize>,
    started: Instant,
    drawn: Instant,
    has_drawn: bool,
}

impl Bar {
    pub(in crate::cli) fn new(what: &'static str, unit: Unit) -> Self {
        let stderr = std::io::stderr();
        let size = stderr.is_terminal().then(|| rustix::termios::tcgetwinsize(&stderr).ok()).flatten();
        let width = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let now = Instant::now();
        Self { what, unit, width, started: now, drawn: now, has_drawn: false }
    }

    /// Seconds since the start.
    pub(in crate::cli) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn text(&self, done: u64, total: u64, on: &str) -> String {
        if total == 0 {
            return format!("{}  {on}", self.what);
        }
        let share = (done as f64 / total as f64).min(1.0);
        let seconds = self.seconds();
        let mut parts = vec![format!("{} {:>3.0} %", self.what, (share * 100.0).floor())];
        match self.unit {
            Unit::Bytes => {
                parts.push(format!("{} of {}", bytes(done), bytes(total)));
                if seconds >= 1.0 {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "bytes per second"
                    )]
                    let rate = (done as f64 / seconds) as u64;
                    parts.push(format!("{}/s", bytes(rate)));
                }
            }
            Unit::Segments => parts.push(format!("{done} of {total} segments")),
            Unit::Jobs => parts.push(format!("{done} of {total} jobs")),
            Unit::Rows => parts.push(format!("{done} of {total} rows")),
        }
        if seconds >= 2.0 && share > 0.0 && share < 1.0 {
            parts.push(format!("{:.0} s left", seconds / share - seconds));
        }
        parts.extend((!on.is_empty()).then(|| on.to_owned()));
        parts.join("  ")
    }

    fn line(&self, width: usize, done: u64, total: u64, on: &str) -> String {
        let share = if total == 0 { 0.0 } else { (done as f64 / total as f64).min(1.0) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position in the bar")]
        let full = (share * BAR_CHARS as f64) as usize;
        let bar = format!("[{}{}] ", "#".repeat(full), "-".repeat(BAR_CHARS - full));
        let line = format!("{bar}{}", self.text(done, total, on));
        // The last column stays empty: a terminal would wrap after it.
        line.chars().take(width.saturating_sub(1)).collect()
    }
}

impl Watch for Bar {
    fn step(&mut self, done: u64, total: u64, on: &str) {
        let pause = if self.width.is_some() { REDRAW } else { LINES };
        if self.drawn.elapsed() < pause {
            return;
        }
        self.drawn = Instant::now();
        // There is nowhere to report a failure to write.
        let _ = match self.width {
            Some(width) => write!(std::io::stderr(), "\r\x1b[K{}", self.line(width, done, total, on)),
            None => writeln!(std::io::stderr(), "{}", self.text(done, total, on)),
        };
        self.has_drawn = true;
    }
}

/// Removes the bar.
impl Drop for Bar {
    fn drop(&mut self) {
        if self.has_drawn && self.width.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
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
    if unit == "B" || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fits_its_terminal() {
        let bar = Bar { width: Some(80), ..Bar::new("verify", Unit::Bytes) };
        let line = bar.line(80, 5 << 30, 10 << 30, "jobs/00000000000000000001");
        assert_eq!(line.chars().count(), 79);
        assert!(
            line.starts_with("[############------------] verify  50 %  5.0 GiB of 10.0 GiB  jobs/000"),
            "{line}"
        );
        assert!(bar.line(10, 0, 0, "").chars().count() < 10);
    }

    #[test]
    fn bytes_have_binary_units() {
        let short = [0, 1023, 1024, 150 * 1024, 3 << 40].map(bytes);
        assert_eq!(short, ["0 B", "1023 B", "1.0 KiB", "150 KiB", "3.0 TiB"]);
    }
}
