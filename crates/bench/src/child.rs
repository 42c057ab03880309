//! The processes under test, a real daemon and the baseline, each with its own directory, and their
//! resource usage.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use saltcellar::base::connect;
use saltcellar_testkit::usage::{Process, disk_bytes, memory_mb};
use tempfile::TempDir;

/// Timeout for starting, stopping (which includes sealing) and queries.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// Creates a temporary directory in `parent`, or in the system's directory for temporary files.
pub(crate) fn scratch(parent: Option<&Path>, keep: bool) -> anyhow::Result<TempDir> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let parent = std::path::absolute(&parent).context("find the directory")?;
    fs::create_dir_all(&parent).with_context(|| format!("create {}", parent.display()))?;

    let scratch = tempfile::Builder::new()
        .prefix("saltcellar-bench-")
        .permissions(fs::Permissions::from_mode(0o700))
        .disable_cleanup(keep)
        .tempdir_in(&parent);
    scratch.with_context(|| format!("create a directory in {}", parent.display()))
}

/// A process under test that accepts connections.
pub(crate) struct Subject {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
    data: PathBuf,
    log: PathBuf,
    cpu_at_start: f64,
}

pub(crate) struct Cost {
    /// CPU seconds from its start of service to its exit.
    pub(crate) cpu_s: f64,
    /// Bytes of disk blocks of its directory, after its exit.
    pub(crate) disk_bytes: u64,
}

impl Subject {
    /// Starts `program` with a new state directory, and a configuration file or defaults.
    pub(crate) fn daemon(
        program: &Path,
        scratch: &TempDir,
        config: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let empty = scratch.path().join("config.yaml");
        let config = if let Some(config) = config {
            std::path::absolute(config).context("find the configuration")?
        } else {
            // An empty file keeps the configuration of this host out.
            fs::write(&empty, "").context("write a configuration")?;
            empty
        };

        Self::start(program, scratch, "state", |command, data, socket| {
            command
                .args(["serve", "--log-level", "warn", "--config"])
                .arg(config);
            command
                .arg("--state-dir")
                .arg(data)
                .arg("--socket")
                .arg(socket);
        })
        .context("start the daemon")
    }

    /// Starts the baseline, see [`crate::baseline`].
    pub(crate) fn baseline(scratch: &TempDir, packers: usize) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("find this program")?;

        Self::start(&program, scratch, "baseline", |command, data, socket| {
            command
                .args(["baseline", "--packers"])
                .arg(packers.to_string());
            command.arg("--listen").arg(socket).arg("--into").arg(data);
        })
        .context("start the baseline")
    }

    fn start(
        program: &Path,
        scratch: &TempDir,
        data: &str,
        args: impl FnOnce(&mut Command, &Path, &Path),
    ) -> anyhow::Result<Self> {
        let [data, socket, log] = [data, "s", "log"].map(|name| scratch.path().join(name));

        let mut command = Command::new(program);
        args(&mut command, &data, &socket);

        // The environment of this process must not configure the process under test.
        for name in [
            "SALTCELLAR_SOCKET",
            "SALTCELLAR_STATE_DIR",
            "SALTCELLAR_LOG",
            "NOTIFY_SOCKET",
        ] {
            command.env_remove(name);
        }

        let stderr = fs::File::create(&log).context("create its log")?;

        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()?;

        let mut subject = Self {
            process: Process(child),
            socket,
            data,
            log,
            cpu_at_start: 0.0,
        };

        let deadline = Instant::now() + TIMEOUT;

        // A process that accepts a connection serves.
        while connect::unix(&subject.socket, TIMEOUT).is_err() {
            if let Some(status) = subject.process.0.try_wait()? {
                bail!("exited with {status}: {}", subject.log_text());
            }
            ensure!(
                Instant::now() < deadline,
                "not listening: {}",
                subject.log_text()
            );
            std::thread::sleep(Duration::from_millis(2));
        }

        // The CPU time of the start does not belong to the load.
        subject.cpu_at_start = subject.process.cpu_s()?;
        Ok(subject)
    }

    fn log_text(&self) -> String {
        fs::read_to_string(&self.log)
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    pub(crate) fn rss_peak_mb(&self) -> anyhow::Result<f64> {
        memory_mb(self.process.0.id(), "VmHWM")
    }

    pub(crate) fn rss_mb(&self) -> anyhow::Result<f64> {
        memory_mb(self.process.0.id(), "VmRSS")
    }

    /// Fails if the process logged a warning or an error.
    pub(crate) fn check_log(&self) -> anyhow::Result<()> {
        let log = self.log_text();
        ensure!(
            log.is_empty(),
            "check the daemon: unexpected log output: {log}"
        );
        Ok(())
    }

    /// Stops it gracefully and returns its resource usage.
    pub(crate) fn stop(&mut self) -> anyhow::Result<Cost> {
        let (status, cpu_s) = self.process.terminate(TIMEOUT)?;

        ensure!(
            status.success(),
            "stop the process: exited with {status}: {}",
            self.log_text()
        );

        Ok(Cost {
            cpu_s: cpu_s - self.cpu_at_start,
            disk_bytes: disk_bytes(&self.data)?,
        })
    }
}
