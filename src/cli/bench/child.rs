//! The processes under test, a real daemon and the baseline, each with its own directory, and their resource usage.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Timeout of starting and stopping, which includes sealing.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A temporary directory, removed on drop unless `keep` is set.
pub(super) struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Creates a directory in `parent`, or in the system's directory for temporary files.
    pub(super) fn new(parent: Option<&Path>, keep: bool) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let parent = std::path::absolute(&parent).context("find the directory")?;
        fs::create_dir_all(&parent).with_context(|| format!("create {}", parent.display()))?;
        let mut number = 0;
        loop {
            let path = parent.join(format!("saltcellar-bench-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, keep }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                Err(error) => return Err(error).with_context(|| format!("create {}", path.display())),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A process under test that accepts connections.
pub(super) struct Subject {
    child: Child,
    socket: PathBuf,
    data: PathBuf,
    log: PathBuf,
    cpu_at_start: f64,
}

/// Resources used by a process.
pub(super) struct Cost {
    /// CPU seconds from its start of service to its exit.
    pub(super) cpu_s: f64,
    /// Bytes of disk blocks of its directory, after its exit.
    pub(super) disk_bytes: u64,
}

impl Subject {
    /// Starts `saltcellar serve` with a new state directory, and a configuration file or defaults.
    pub(super) fn daemon(scratch: &Scratch, config: Option<&Path>) -> anyhow::Result<Self> {
        let dir = scratch.path();
        let empty = dir.join("config.yaml");
        let config = if let Some(config) = config {
            std::path::absolute(config).context("find the configuration")?
        } else {
            fs::write(&empty, "").context("write a configuration")?;
            empty
        };
        let (socket, data) = (dir.join("s"), dir.join("state"));
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["serve", "--log-level", "warn", "--config"]).arg(config);
        command.arg("--state-dir").arg(&data).arg("--socket").arg(&socket);
        for name in ["SALTCELLAR_SOCKET", "SALTCELLAR_STATE_DIR", "SALTCELLAR_LOG", "NOTIFY_SOCKET"] {
            command.env_remove(name);
        }
        Self::start(command, socket, data, dir.join("log")).context("start the daemon")
    }

    /// Starts the baseline, see [`super::baseline`].
    pub(super) fn baseline(scratch: &Scratch, packers: usize) -> anyhow::Result<Self> {
        let dir = scratch.path();
        let (socket, data) = (dir.join("y"), dir.join("baseline"));
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["bench", "baseline", "--packers"]).arg(packers.to_string());
        command.arg("--listen").arg(&socket).arg("--into").arg(&data);
        Self::start(command, socket, data, dir.join("log")).context("start the baseline")
    }

    fn start(mut command: Command, socket: PathBuf, data: PathBuf, log: PathBuf) -> anyhow::Result<Self> {
        let stderr = fs::File::create(&log).context("create its log")?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn()?;
        let mut subject = Self { child, socket, data, log, cpu_at_start: 0.0 };
        let deadline = Instant::now() + TIMEOUT;
        while UnixStream::connect(&subject.socket).is_err() {
            if let Some(status) = subject.child.try_wait()? {
                bail!("exited with {status}: {}", subject.log_text());
            }
            if Instant::now() > deadline {
                bail!("not listening: {}", subject.log_text());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        subject.cpu_at_start = cpu_s(subject.child.id())?;
        Ok(subject)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// CPU seconds used so far.
    pub(super) fn cpu_s(&self) -> anyhow::Result<f64> {
        cpu_s(self.child.id())
    }

    /// Peak resident memory in MB.
    pub(super) fn rss_peak_mb(&self) -> f64 {
        self.status_kb("VmHWM:") / 1000.0 * 1.024
    }

    /// Resident memory in MB.
    pub(super) fn rss_mb(&self) -> f64 {
        self.status_kb("VmRSS:") / 1000.0 * 1.024
    }

    fn status_kb(&self, key: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or(0.0)
    }

    /// Waits until it is idle, so that work after the last answer, such as sealing, is included.
    pub(super) fn wait_until_idle(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let mut seen = cpu_s(self.child.id())?;
        let mut quiet = 0;
        while quiet < 3 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
            let now = cpu_s(self.child.id())?;
            quiet = if now - seen < 0.011 { quiet + 1 } else { 0 };
            seen = now;
        }
        Ok(())
    }

    /// Stops it gracefully and returns its resource usage.
    pub(super) fn stop(mut self) -> anyhow::Result<Cost> {
        let id = self.child.id();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("find the process")?;
        kill_process(pid, Signal::TERM).context("stop the process")?;
        let deadline = Instant::now() + TIMEOUT;
        // The kernel keeps the times of a zombie until it is reaped.
        while stat(id)?.0 != 'Z' {
            if Instant::now() > deadline {
                bail!("stop the process: still running");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let cpu_s = cpu_s(id)? - self.cpu_at_start;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("stop the process: exited with {status}: {}", self.log_text());
        }
        Ok(Cost { cpu_s, disk_bytes: disk_bytes(&self.data)? })
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process's state, and the sum of its user and system time in clock ticks.
fn stat(pid: u32) -> anyhow::Result<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("read the times of the process")?;
    // The name is in parentheses and may contain spaces. After it, the state is the first field, the times are the 12th and 13th.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let state = fields.first().and_then(|field| field.chars().next()).unwrap_or('?');
    Ok((state, ticks(11) + ticks(12)))
}

/// CPU seconds of a process, user and system.
pub(super) fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    Ok(stat(pid)?.1 as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes of the disk blocks of a file or a directory tree, as counted by `du`.
fn disk_bytes(path: &Path) -> anyhow::Result<u64> {
    let meta = fs::symlink_metadata(path).with_context(|| format!("inspect {}", path.display()))?;
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for item in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
            bytes += disk_bytes(&item?.path())?;
        }
    }
    Ok(bytes)
}
