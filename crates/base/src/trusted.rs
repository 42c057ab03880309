//! Programs and files that were *found*, in `PATH`, in the command line of a process, in a unit or next to a program, and that this process
//! may run or hand to root all the same: nobody but root and the user who runs them can replace them.
//!
//! # Invariant
//!
//! A [`TrustedProgram`] or [`TrustedPath`] exists only after a check of every directory, link and file that the kernel passes on the way
//! to it. Root runs no program by a path that it found except through [`TrustedProgram::command`] (a test in `tests/tidy.rs`).

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::users;

/// The directories in which a command of this module finds further programs.
pub const PROGRAM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Links on the way to a file, as in Linux.
const LINKS_MAX: usize = 40;
const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Why a path is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// It cannot be inspected, or does not exist.
    #[error("{}: {why}", path.display())]
    Unknown {
        /// The path.
        path: PathBuf,
        /// The error.
        why: io::Error,
    },
    /// Nobody could run it.
    #[error("{} is not an executable file: name another program, or run `chmod +x` on this file", .0.display())]
    NotAProgram(PathBuf),
    /// Another user can replace it.
    #[error(
        "{} is not used, because users other than root{user} can replace it: {problem}",
        path.display()
    )]
    Replaceable {
        /// The path.
        path: PathBuf,
        /// The user that would run it, with a comma, unless that is root.
        user: String,
        /// What is open to whom, and the remedy.
        problem: String,
    },
}

/// An existing file or directory that only root and one user can replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedPath(PathBuf);

impl TrustedPath {
    /// Checks `path`, which the user `uid` will use. A relative path begins at the current directory.
    pub fn check(path: &Path, uid: u32) -> Result<Self, Untrusted> {
        let unknown = |why| Untrusted::Unknown {
            path: path.to_owned(),
            why,
        };

        let path = std::path::absolute(path).map_err(unknown)?;

        // A user who can replace one step on the way replaces everything behind it.
        for (step, found) in steps(&path).map_err(unknown)? {
            if let Some(problem) = problem(&step, &found, uid) {
                let user = if uid == 0 {
                    String::new()
                } else {
                    format!(" and uid {uid}")
                };
                return Err(Untrusted::Replaceable {
                    path,
                    user,
                    problem,
                });
            }
        }

        Ok(Self(path))
    }

    /// Checks a directory and everything below it.
    pub fn check_tree(dir: &Path, uid: u32) -> Result<Self, Untrusted> {
        let checked = Self::check(dir, uid)?;
        let unknown = |why| Untrusted::Unknown {
            path: dir.to_owned(),
            why,
        };

        let mut dirs = vec![checked.0.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).map_err(unknown)? {
                let path = entry.map_err(unknown)?.path();
                Self::check(&path, uid)?;
                // A link to a directory may lead above it.
                if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
                    dirs.push(path);
                }
            }
        }

        Ok(checked)
    }

    /// The absolute path, with its links.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// A program that only root and the user who runs it can replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProgram(TrustedPath);

impl TrustedProgram {
    /// Checks the program at `path`, which the user `uid` will run.
    pub fn check(path: &Path, uid: u32) -> Result<Self, Untrusted> {
        let checked = TrustedPath::check(path, uid)?;
        let is_program = fs::metadata(&checked.0)
            .is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0);
        if is_program {
            Ok(Self(checked))
        } else {
            Err(Untrusted::NotAProgram(checked.0))
        }
    }

    /// The first program of that name in the absolute directories of `PATH`, which the user `uid` will run.
    pub fn in_path(name: &str, uid: u32) -> Result<Self, Untrusted> {
        let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PROGRAM_PATH));
        let found = std::env::split_paths(&path)
            // The current directory belongs to anyone.
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .find(|program| program.is_file());

        match found {
            Some(program) => Self::check(&program, uid),
            None => Err(Untrusted::Unknown {
                path: PathBuf::from(name),
                why: io::Error::new(io::ErrorKind::NotFound, "not found in PATH"),
            }),
        }
    }

    /// The absolute path, with its links: a virtual environment of Python is known by its link.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A command that runs it in `/`, where it finds nothing of the caller's directory.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.path());
        command.current_dir("/");
        command
    }
}

/// Removes the caller's environment from a command: only `PATH`, the locale and the directory of the user remain.
pub fn clean_environment(command: &mut Command, home: Option<&Path>) {
    command
        .env_clear()
        .env("PATH", PROGRAM_PATH)
        .env("LC_ALL", "C.UTF-8");
    if let Some(home) = home {
        command.env("HOME", home);
    }
}

/// Each directory, link and file that the kernel passes on the way to an absolute path, and what the path names at last.
pub fn steps(path: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut here = PathBuf::from("/");
    let mut passed = vec![(here.clone(), fs::symlink_metadata(&here)?)];
    let mut links = 0;
    let mut parts: Vec<OsString> = parts_of(path);

    while let Some(part) = parts.pop() {
        if part == ".." {
            // Links before it are resolved by now, so this is the real parent.
            here.pop();
            continue;
        }

        let next = here.join(&part);
        let found = fs::symlink_metadata(&next)?;
        if found.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::other("too many links"));
            }

            let target = fs::read_link(&next)?;
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            parts.extend(parts_of(&target));
        } else {
            here.clone_from(&next);
        }

        // A link is a step as well: a user who replaces it decides where it leads.
        passed.push((next, found));
    }

    Ok(passed)
}

/// The names of a path, the last one first.
fn parts_of(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// Who besides root and the user `uid` can replace what this step names, and the remedy.
fn problem(step: &Path, found: &Metadata, uid: u32) -> Option<String> {
    let (at, owner, mode) = (step.display(), found.uid(), found.mode());
    if owner != 0 && owner != uid {
        return Some(format!(
            "{at} belongs to uid {owner} (`chown root {at}`, or use another one)"
        ));
    }

    // In a sticky directory only the owner of an entry can replace it. The mode of a link means nothing.
    if found.is_symlink() || found.is_dir() && mode & STICKY != 0 {
        return None;
    }

    if mode & OTHERS_WRITE != 0 {
        return Some(format!("anyone can write to {at} (`chmod o-w {at}`)"));
    }

    // The group is no danger if nobody else is in it. An access list may name further users under
    // the same bits.
    let gid = found.gid();
    let is_open =
        mode & GROUP_WRITES != 0 && (has_acl(step) || !users::has_no_members_but(gid, &[0, uid]));

    is_open.then(|| format!("members of group {gid} can write to {at} (`chmod g-w {at}`)"))
}

/// Whether an access control list may name further users. The bits of the group are then its mask.
fn has_acl(path: &Path) -> bool {
    let mut value = [0u8; 512];
    match rustix::fs::getxattr(path, "system.posix_acl_access", &mut value) {
        // A list that does not fit into the buffer is a list as well.
        Ok(_) | Err(rustix::io::Errno::RANGE) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn program(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        set_mode(&path, 0o755);
        path
    }

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The reason without the path of the program.
    fn reason(path: &Path, dir: &Path) -> Option<String> {
        let error = TrustedProgram::check(path, uid()).err()?.to_string();
        let at = format!("{}/", dir.display());
        Some(error.replace(&at, ""))
    }

    #[test]
    fn a_program_is_trusted_if_nobody_else_can_replace_any_step_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let python = program(dir, "venv/bin/python3", "#!/bin/sh\n");
        for made in ["venv", "venv/bin"] {
            set_mode(&dir.join(made), 0o755);
        }
        symlink("venv/bin/python3", dir.join("link")).unwrap();
        symlink("link", dir.join("link-to-link")).unwrap();
        symlink("../venv/../link", dir.join("venv/up")).unwrap();
        let ways = ["venv/bin/python3", "link", "link-to-link", "venv/up"].map(|way| dir.join(way));
        for way in &ways {
            assert_eq!(reason(way, dir), None, "{}", way.display());
            assert_eq!(
                TrustedProgram::check(way, uid()).unwrap().path(),
                way,
                "the link's own name"
            );
        }
        for (open, mode, closed) in [
            ("venv/bin/python3", 0o757, 0o755),
            ("venv/bin", 0o757, 0o755),
            ("venv", 0o777, 0o755),
        ] {
            set_mode(&dir.join(open), mode);
            for way in &ways {
                let reason = reason(way, dir).unwrap();
                assert!(
                    reason.ends_with(&format!("anyone can write to {open} (`chmod o-w {open}`)")),
                    "{reason}"
                );
            }
            set_mode(&dir.join(open), closed);
        }
        set_mode(&dir.join("venv"), 0o1777);
        assert_eq!(reason(&python, dir), None, "a sticky directory, as /tmp");
        set_mode(&python, 0o644);
        assert_eq!(
            reason(&python, dir).unwrap(),
            "venv/bin/python3 is not an executable file: name another program, or run `chmod +x` on this file"
        );
        assert!(
            reason(&dir.join("none"), dir)
                .unwrap()
                .starts_with("none: No such file")
        );
        symlink("circle", dir.join("circle")).unwrap();
        assert!(
            reason(&dir.join("circle"), dir)
                .unwrap()
                .contains("too many links")
        );
    }

    #[test]
    fn a_program_of_another_user_is_trusted_only_for_that_user() {
        // Only root can give files away.
        if uid() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        let python = program(dir.path(), "bin/python3", "#!/bin/sh\n");
        set_mode(&dir.path().join("bin"), 0o755);
        let check = |uid| TrustedProgram::check(&python, uid).map_err(|error| error.to_string());
        assert!(check(0).is_ok() && check(12_345).is_ok());
        for of_user in [&python, &dir.path().join("bin")] {
            std::os::unix::fs::chown(of_user, Some(12_345), None).unwrap();
            let error = check(0).unwrap_err();
            assert!(
                error.contains("users other than root can replace it")
                    && error.contains(&format!("{} belongs to uid 12345", of_user.display())),
                "{error}"
            );
            assert!(check(12_345).is_ok());
            assert!(check(12_346).is_err());
            std::os::unix::fs::chown(of_user, Some(0), None).unwrap();
        }
        // A group without members other than root, and one that no file lists.
        set_mode(&python, 0o775);
        assert!(check(0).is_ok());
        std::os::unix::fs::chown(&python, None, Some(54_321)).unwrap();
        assert!(
            check(0)
                .unwrap_err()
                .contains("members of group 54321 can write")
        );
    }

    #[test]
    fn a_directory_is_trusted_with_everything_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = program(dir.path(), "share/runners/x.py", "");
        for made in ["share", "share/runners"] {
            set_mode(&dir.path().join(made), 0o755);
        }
        let check = || TrustedPath::check_tree(&dir.path().join("share"), uid());
        assert!(check().is_ok());
        set_mode(&file, 0o666);
        assert!(
            check()
                .unwrap_err()
                .to_string()
                .contains("anyone can write to")
        );
    }

    #[test]
    fn only_absolute_directories_of_path_are_searched() {
        assert_eq!(
            TrustedProgram::in_path("sh", uid())
                .unwrap()
                .path()
                .file_name(),
            Some("sh".as_ref())
        );
        let error = TrustedProgram::in_path("no-such-program", uid()).unwrap_err();
        assert_eq!(error.to_string(), "no-such-program: not found in PATH");
    }
}
