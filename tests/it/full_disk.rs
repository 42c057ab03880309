//! A real, full ext4 file system: senders get errors, space can be freed, no acknowledged entry is lost.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rmpv::Value;
use saltcellar::api::client::ClientError;

use crate::fake_daemon::program;
use crate::harness::{Asks as _, Cellar, map, wait_for};
use saltcellar_testkit::{DEADLINE, Random, missing};

/// An ext4 in a file, mounted as the state directory of a daemon; unmounted when dropped.
struct SmallDisk {
    state: PathBuf,
}

impl SmallDisk {
    /// `None` if the test cannot run; the reason has been printed.
    fn mount(dir: &Path, mebibytes: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            missing("root, to mount an ext4");
            return None;
        }
        let (image, state) = (dir.join("image"), dir.join("state"));
        fs::File::create(&image)
            .unwrap()
            .set_len(mebibytes << 20)
            .unwrap();
        fs::create_dir(&state).unwrap();
        match Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "1"])
            .arg(&image)
            .output()
        {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                missing("mkfs.ext4 (e2fsprogs)");
                return None;
            }
            made => assert!(made.unwrap().status.success(), "mkfs.ext4"),
        }
        let mounted = Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&state)
            .output()
            .unwrap();
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
            let forbidden = [
                "permission denied",
                "not permitted",
                "failed to setup loop device",
            ];
            let is_forbidden = forbidden
                .iter()
                .any(|words| why.to_lowercase().contains(words));
            assert!(is_forbidden, "mount: {why}");
            saltcellar_testkit::forbidden(&format!(
                "the right to mount, which most containers lack: {}",
                why.trim()
            ));
            return None;
        }
        let disk = Self { state };
        fs::remove_dir(disk.state.join("lost+found")).unwrap();
        disk.disable_reserve();
        Some(disk)
    }

    /// Disables ext4's reserved blocks, which would serve some writes on a full disk.
    fn disable_reserve(&self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let place = self.state.to_str().unwrap();
        let line = mounts
            .lines()
            .find(|line| line.split(' ').nth(1) == Some(place))
            .unwrap();
        let device = line.split(' ').next().unwrap().trim_start_matches("/dev/");
        fs::write(format!("/sys/fs/ext4/{device}/reserved_clusters"), "0").unwrap();
    }

    /// Writes until no block is free, not even for root.
    fn fill(&self) {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.state.join("filler.tmp"))
            .unwrap();
        let zeros = vec![0; 1 << 20];
        let mut piece = zeros.len();
        while piece > 0 {
            if file
                .write_all(&zeros[..piece])
                .and_then(|()| file.sync_all())
                .is_err()
            {
                piece /= 2;
            }
        }
        assert_eq!(self.free(), 0);
    }

    fn free(&self) -> u64 {
        rustix::fs::statvfs(&self.state).unwrap().f_bfree
    }

    /// Where the space is, for messages.
    fn usage(&self) -> String {
        let listed = Command::new("du").arg("-ak").arg(&self.state).output();
        String::from_utf8_lossy(&listed.unwrap().stdout).into_owned()
    }

    /// Waits until blocks are free: a file system under load reports freed space late.
    #[track_caller]
    fn wait_for_space(&self, printed: &str) {
        let until = Instant::now() + DEADLINE;
        while self.free() <= 100 {
            let usage = || format!("{} blocks are free\n{printed}{}", self.free(), self.usage());
            assert!(Instant::now() < until, "{}", usage());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Frees some blocks.
    fn shrink_filler(&self, bytes: u64) {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(self.state.join("filler.tmp"))
            .unwrap();
        file.set_len(file.metadata().unwrap().len() - bytes)
            .unwrap();
        file.sync_all().unwrap();
    }

    fn free_space(&self) {
        fs::remove_file(self.state.join("filler.tmp")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount")
            .arg("--lazy")
            .arg(&self.state)
            .status();
        assert!(
            std::thread::panicking() || unmounted.unwrap().success(),
            "umount {}",
            self.state.display()
        );
    }
}

fn jid(n: u64) -> String {
    format!("20261121030955{n:06}")
}

/// About 40 KiB that compress badly.
fn incompressible(n: u64) -> Value {
    let mut random = Random::new(n);
    let bytes: Vec<u8> = (0..2_500)
        .flat_map(|_| random.next().to_le_bytes())
        .collect();
    Value::Binary(bytes)
}

fn put(cellar: &Cellar, n: u64) -> Result<Value, ClientError> {
    let load = map(vec![
        ("jid", jid(n).into()),
        ("id", "web1".into()),
        ("fun", "test.ping".into()),
        ("return", incompressible(n)),
    ]);
    cellar.call("returner", vec![("load", load)])
}

fn is_stored(cellar: &Cellar, n: u64) -> bool {
    let found = cellar.ask("get_jid", vec![("jid", jid(n).into())]);
    found["web1"]["return"] == incompressible(n)
}

/// `when` is part of the message.
#[track_caller]
fn assert_stored(cellar: &Cellar, stored: &[u64], when: &str) {
    let missing: Vec<_> = stored.iter().filter(|n| !is_stored(cellar, **n)).collect();
    assert!(missing.is_empty(), "{when}: {missing:?}\n{}", cellar.log());
}

fn prune(cellar: &Cellar, more: &[&str]) -> String {
    let output = program()
        .args(["store", "prune", "--socket"])
        .arg(cellar.socket())
        .arg("--state-dir")
        .arg(cellar.state_dir())
        .args(more)
        .output()
        .unwrap();
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{printed}\n{}", cellar.log());
    printed
}

/// Asserts that no data was reported as damaged or lost.
fn assert_undamaged(cellar: &Cellar) {
    for name in ["segments_missing", "frames_damaged", "indexes_rebuilt"] {
        assert_eq!(cellar.counter(name), 0, "{name}\n{}", cellar.log());
    }
    assert!(
        !cellar.state_dir().join("state.damaged").exists(),
        "{}",
        cellar.log()
    );
}

const SMALL_SEGMENTS: &str =
    "store:\n  segment_bytes_max: 1MiB\n  free_bytes_low: 0\n  free_bytes_min: 0\n";

#[test]
fn on_a_full_ext4_space_can_be_freed_and_no_acknowledged_entry_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), 48) else {
        return;
    };
    fs::write(dir.path().join("c.yaml"), SMALL_SEGMENTS).unwrap();
    let mut cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let mut stored: Vec<u64> = (0..300).collect();
    for n in &stored {
        put(&cellar, *n).unwrap();
    }
    wait_for("sealed segments", || {
        (cellar.counter("segments_sealed") >= 5).then_some(())
    });

    // Senders get errors; the daemon continues.
    disk.fill();
    let mut rejected = 0;
    for n in 300..500 {
        match put(&cellar, n) {
            Ok(_) => stored.push(n),
            Err(ClientError::Refused { message, .. }) => {
                assert!(message.contains("No space left"), "{message}");
                rejected += 1;
            }
            Err(other) => panic!("{other}"),
        }
        if rejected == 5 {
            break;
        }
    }
    assert_eq!(rejected, 5, "the disk is not full");
    assert_stored(&cellar, &stored, "before a kill");

    // After a kill and a start without a free block, it serves all acknowledged entries.
    cellar.kill();
    disk.fill();
    cellar.restart();
    assert_stored(&cellar, &stored, "after a kill without a free block");
    assert_undamaged(&cellar);
    disk.fill();

    // As well without its state database, which cannot be created.
    cellar.kill();
    fs::remove_dir_all(cellar.state_dir().join("state")).unwrap();
    disk.fill();
    cellar.restart();
    assert_stored(&cellar, &stored, "without its state database");
    assert_undamaged(&cellar);
    disk.fill();

    // The disk fills up at any point of a commit, a seal or a start; then a kill.
    for round in 1..=12 {
        disk.shrink_filler(round * 24 * 1024);
        for n in round * 1_000..round * 1_000 + 40 {
            if put(&cellar, n).is_ok() {
                stored.push(n);
            } else if n % 3 == 0 {
                break;
            }
        }
        cellar.kill();
        cellar.restart();
        assert_stored(&cellar, &stored, &format!("round {round}"));
        assert_undamaged(&cellar);
    }
    disk.fill();

    // Pruning frees space, and entries are stored again.
    let printed = prune(&cellar, &["--retention-class", "jobs", "--bytes", "4MiB"]);
    disk.wait_for_space(&printed);
    stored.retain(|n| is_stored(&cellar, *n));
    assert!(
        (50..400).contains(&stored.len()),
        "{} are left\n{printed}",
        stored.len()
    );
    for n in 20_000..20_020 {
        put(&cellar, n).unwrap_or_else(|error| panic!("{error}\n{}", cellar.log()));
        stored.push(n);
    }
    cellar.kill();
    cellar.restart();
    assert_stored(&cellar, &stored, "with free space again");
    assert_undamaged(&cellar);

    // The same without a daemon, of segments that were never sealed, in a directory that has no room
    // for another name.
    disk.fill();
    assert!(cellar.terminate(), "{}", cellar.log());
    let class_dir = cellar.state_dir().join("log/jobs");
    let segments: Vec<_> = fs::read_dir(&class_dir).unwrap().collect();
    for segment in segments {
        let _ = fs::remove_file(segment.unwrap().path().join("index"));
    }
    disk.fill();
    let mut names = (0..10_000).map(|n| class_dir.join(format!("{n}.tmp")));
    assert!(names.any(|name| fs::File::create(name).is_err()));
    let printed = prune(&cellar, &["--retention-class", "jobs", "--bytes", "2MiB"]);
    disk.wait_for_space(&printed);
    assert!(printed.contains("dropped"), "{printed}");

    // Retention frees space itself if it is configured to.
    disk.free_space();
    fs::write(
        cellar.dir.path().join("c.yaml"),
        SMALL_SEGMENTS.replace("free_bytes_low: 0", "free_bytes_low: 6MiB"),
    )
    .unwrap();
    cellar.restart();
    assert_undamaged(&cellar);
    stored.retain(|n| is_stored(&cellar, *n));
    for n in 30_000..30_300 {
        put(&cellar, n).unwrap();
        stored.push(n);
    }
    // What retention frees while the file is written would be filled as well, until the store has nothing left to give.
    assert!(cellar.terminate(), "{}", cellar.log());
    disk.fill();
    cellar.restart();
    wait_for("free space", || {
        (disk.free() * 4096 > 4 << 20).then_some(())
    });
    put(&cellar, 40_000).unwrap();
    cellar.kill();
    cellar.restart();
    assert!(is_stored(&cellar, 40_000));
    assert_undamaged(&cellar);
    assert!(cellar.terminate(), "{}", cellar.log());
    drop(cellar);
    drop(disk);
}
