//! How far a long piece of work is: a bar on a terminal, a line now and then elsewhere; always on standard error.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::store::tools::Watch;

/// How often a bar is drawn.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a line is written where there is no terminal. Work that is done before has none.
const LINES: Duration = Duration::from_secs(10);
const BAR_CHARS: usize = 24;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Segments,
    Jobs,
    Rows,
}

/// A bar, or lines.
pub(super) struct Bar {
    what: &'static str,
    unit: Unit,
    /// Columns of the terminal; none if this is not one.
    width: Option<usize>,
    begun: Instant,
    drawn: Instant,
    has_drawn: bool,
}

impl Bar {
    /// For work of that name.
    pub(super) fn new(what: &'static str, unit: Unit) -> Self {
        let stderr = std::io::stderr();
        let size = stderr.is_terminal().then(|| rustix::termios::tcgetwinsize(&stderr).ok()).flatten();
        let width = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let now = Instant::now();
        Self { what, unit, width, begun: now, drawn: now, has_drawn: false }
    }

    /// Seconds since it began.
    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn words(&self, done: u64, total: u64, on: &str) -> String {
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
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the bar")]
        let full = (share * BAR_CHARS as f64) as usize;
        let bar = format!("[{}{}] ", "#".repeat(full), "-".repeat(BAR_CHARS - full));
        let line = format!("{bar}{}", self.words(done, total, on));
        // The last column stays free: a terminal would begin a new line behind it.
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
        // Nobody is left to tell if this cannot be written.
        let _ = match self.width {
            Some(width) => write!(std::io::stderr(), "\r\x1b[K{}", self.line(width, done, total, on)),
            None => writeln!(std::io::stderr(), "{}", self.words(done, total, on)),
        };
        self.has_drawn = true;
    }
}

/// Takes the bar away.
impl Drop for Bar {
    fn drop(&mut self) {
        if self.has_drawn && self.width.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// A number of bytes as people read it.
pub(super) fn bytes(n: u64) -> String {
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
    fn bytes_are_short() {
        let short = [0, 1023, 1024, 150 * 1024, 3 << 40].map(bytes);
        assert_eq!(short, ["0 B", "1023 B", "1.0 KiB", "150 KiB", "3.0 TiB"]);
    }
}
