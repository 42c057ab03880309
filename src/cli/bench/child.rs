//! The processes under test: a real daemon and the yardstick, each on a directory of its own, and what the
//! kernel says of them.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Starting and stopping take no longer, sealing a whole run included.
const PATIENCE: Duration = Duration::from_secs(300);

/// A directory that is removed at the end, unless it is to be kept.
pub(super) struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes one in `parent`, or where temporary files go.
    pub(super) fn new(parent: Option<&Path>, keep: bool) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let parent = std::path::absolute(&parent).context("find the directory")?;
        fs::create_dir_all(&parent).with_context(|| format!("make {}", parent.display()))?;
        let mut number = 0;
        loop {
            let path = parent.join(format!("saltcellar-bench-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, keep }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                Err(error) => return Err(error).with_context(|| format!("make {}", path.display())),
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

/// A process under test, ready to be spoken to.
pub(super) struct Subject {
    child: Child,
    socket: PathBuf,
    data: PathBuf,
    log: PathBuf,
    cpu_at_start: f64,
}

/// What a process took.
pub(super) struct Cost {
    /// Processor seconds from when it was ready to its end.
    pub(super) cpu_s: f64,
    /// Bytes of disk blocks of its directory, after its end.
    pub(super) disk_bytes: u64,
}

impl Subject {
    /// `saltcellar serve` on a new state directory, with default settings or those of a file.
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

    /// The yardstick: see [`super::yardstick`].
    pub(super) fn yardstick(scratch: &Scratch, packers: usize) -> anyhow::Result<Self> {
        let dir = scratch.path();
        let (socket, data) = (dir.join("y"), dir.join("yardstick"));
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["bench", "yardstick", "--packers"]).arg(packers.to_string());
        command.arg("--listen").arg(&socket).arg("--into").arg(&data);
        Self::start(command, socket, data, dir.join("log")).context("start the yardstick")
    }

    fn start(mut command: Command, socket: PathBuf, data: PathBuf, log: PathBuf) -> anyhow::Result<Self> {
        let words = fs::File::create(&log).context("make its log")?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words).spawn()?;
        let mut subject = Self { child, socket, data, log, cpu_at_start: 0.0 };
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&subject.socket).is_err() {
            if let Some(status) = subject.child.try_wait()? {
                bail!("it ended with {status}: {}", subject.words());
            }
            if Instant::now() > deadline {
                bail!("it does not listen: {}", subject.words());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        subject.cpu_at_start = cpu_s(subject.child.id())?;
        Ok(subject)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn words(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Processor seconds that it has taken so far.
    pub(super) fn cpu_s(&self) -> anyhow::Result<f64> {
        cpu_s(self.child.id())
    }

    /// The most memory it has had resident, in MB.
    pub(super) fn rss_peak_mb(&self) -> f64 {
        self.status_kb("VmHWM:") / 1000.0 * 1.024
    }

    /// The memory it has resident now, in MB.
    pub(super) fn rss_mb(&self) -> f64 {
        self.status_kb("VmRSS:") / 1000.0 * 1.024
    }

    fn status_kb(&self, key: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or(0.0)
    }

    /// Waits until it has nothing to do: what it does after the last answer, such as sealing, is part of it.
    pub(super) fn wait_until_idle(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
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

    /// Stops it in order, and says what it took.
    pub(super) fn stop(mut self) -> anyhow::Result<Cost> {
        let id = self.child.id();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("find the process")?;
        kill_process(pid, Signal::TERM).context("stop the process")?;
        let deadline = Instant::now() + PATIENCE;
        // Until it is waited for, the kernel keeps its times.
        while stat(id)?.0 != 'Z' {
            if Instant::now() > deadline {
                bail!("stop the process: it goes on");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let cpu_s = cpu_s(id)? - self.cpu_at_start;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("stop the process: it ended with {status}: {}", self.words());
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

/// A process's state, and its ticks of user and system time.
fn stat(pid: u32) -> anyhow::Result<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("read the times of the process")?;
    // The name stands in parentheses and may have spaces; state is the first field behind it, times the 12th on.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let state = fields.first().and_then(|field| field.chars().next()).unwrap_or('?');
    Ok((state, ticks(11) + ticks(12)))
}

/// Processor seconds of a process, user and system.
pub(super) fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    Ok(stat(pid)?.1 as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes of the blocks that a file or a directory takes, as `du` counts them.
fn disk_bytes(path: &Path) -> anyhow::Result<u64> {
    let meta = fs::symlink_metadata(path).with_context(|| format!("look at {}", path.display()))?;
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for item in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
            bytes += disk_bytes(&item?.path())?;
        }
    }
    Ok(bytes)
}
