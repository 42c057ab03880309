//! Child processes, resources of processes and directories, and percentiles of measured values.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A child process that is killed when dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// CPU seconds used so far, user and system.
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        Ok(state_and_cpu_s(self.0.id())?.1)
    }

    /// Waits until it is idle, to include work after the last response, such as sealing.
    pub fn wait_until_idle(&self, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        let mut seen = self.cpu_s()?;
        let mut quiet = 0;

        // Three quiet tenths of a second in a row, because background work may pause in between.
        while quiet < 3 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
            let now = self.cpu_s()?;
            // At most one tick of 10 ms.
            quiet = if now - seen < 0.011 { quiet + 1 } else { 0 };
            seen = now;
        }
        Ok(())
    }

    /// Sends SIGTERM and waits. Returns the exit status, and the CPU seconds used by the process.
    pub fn terminate(&mut self, timeout: Duration) -> anyhow::Result<(ExitStatus, f64)> {
        let id = self.0.id();
        let pid = i32::try_from(id)
            .ok()
            .and_then(Pid::from_raw)
            .context("find the process")?;
        kill_process(pid, Signal::TERM).context("stop the process")?;

        let deadline = Instant::now() + timeout;
        loop {
            // The kernel keeps the CPU times of a zombie until it is reaped.
            let (state, cpu_s) = state_and_cpu_s(id)?;
            if state == 'Z' {
                return Ok((self.0.wait()?, cpu_s));
            }

            ensure!(
                Instant::now() < deadline,
                "stop the process: still running after {timeout:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process's state, and its user and system time in seconds.
fn state_and_cpu_s(pid: u32) -> anyhow::Result<(char, f64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .context("read the times of the process")?;

    // The name is in parentheses and may contain spaces. After it, the state is the first field,
    // the CPU times are the 12th and 13th.
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();

    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0)
    };

    let state = fields
        .first()
        .and_then(|field| field.chars().next())
        .unwrap_or('?');

    Ok((
        state,
        (ticks(11) + ticks(12)) as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

/// CPU seconds of this process, user and system.
pub fn own_cpu_s() -> anyhow::Result<f64> {
    Ok(state_and_cpu_s(std::process::id())?.1)
}

/// Resident memory of a process in megabytes, now (`VmRSS`) or at its peak (`VmHWM`).
pub fn memory_mb(pid: u32, name: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_default();
    let kib = line.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<f64>();
    Ok(kib.with_context(|| format!("read {name} in {path}"))? * 1.024 / 1000.0)
}

/// Bytes of the disk blocks of a file or a directory tree, as counted by `du`.
pub fn disk_bytes(path: &Path) -> anyhow::Result<u64> {
    let meta =
        std::fs::symlink_metadata(path).with_context(|| format!("inspect {}", path.display()))?;
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for item in std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
            bytes += disk_bytes(&item?.path())?;
        }
    }
    Ok(bytes)
}

/// Durations of calls, for percentiles.
#[derive(Debug, Default)]
pub struct Durations {
    /// In milliseconds, ascending.
    sorted: Vec<f64>,
}

impl FromIterator<Duration> for Durations {
    fn from_iter<T: IntoIterator<Item = Duration>>(durations: T) -> Self {
        let mut sorted: Vec<f64> = durations
            .into_iter()
            .map(|duration| duration.as_secs_f64() * 1e3)
            .collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }
}

impl Durations {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The percentile in milliseconds, 0.5 for the median; `None` without durations.
    pub fn ms(&self, share: f64) -> Option<f64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index"
        )]
        let at = (self.sorted.len() as f64 * share) as usize;
        self.sorted
            .get(at.min(self.sorted.len().saturating_sub(1)))
            .copied()
    }
}
