//! The files of a master's or minion's configuration, watched for changes.
//!
//! # Invariant
//!
//! The state of a file is taken before the file is read, so a change during the read is a change
//! since the read.

use std::path::{Path, PathBuf};

use super::{FileIdentity, Role, SaltMaster};

/// Files and directories with their states before they were read; `None` for a missing one.
#[derive(Debug, Default)]
pub struct WatchedFiles(Vec<(PathBuf, Option<FileIdentity>)>);

impl WatchedFiles {
    /// These files, which are read after this call.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut watched = Self::default();
        watched.add(paths);
        watched
    }

    /// Whether one of them is not as it was before it was read.
    pub fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, known)| state(path) != *known)
    }

    /// Whether this file is watched.
    pub fn contains(&self, path: &Path) -> bool {
        self.0.iter().any(|(known, _)| known == path)
    }

    /// Adds the files that are not watched yet; whether there were some.
    fn add<'a>(&mut self, paths: impl IntoIterator<Item = &'a Path>) -> bool {
        let before = self.0.len();
        for path in paths {
            if !self.contains(path) {
                self.0.push((path.to_owned(), state(path)));
            }
        }
        self.0.len() > before
    }
}

fn state(path: &Path) -> Option<FileIdentity> {
    FileIdentity::of(path).ok()
}

impl SaltMaster {
    /// Reads a configuration, and makes `watched` its files, valid or not, with their directories,
    /// where a new file can turn up. `watched` contains the files of the last read, or none.
    pub fn read_watched(path: &Path, role: Role, watched: &mut WatchedFiles) -> Self {
        let mut always = vec![path.to_owned()];
        always.extend(
            path.parent()
                .map(|dir| dir.join(format!("{}.d", role.name()))),
        );

        // The files of the last read are examined first, because one pass is then mostly enough.
        let known = watched.0.iter().map(|(path, _)| &**path);
        let mut files = WatchedFiles::of(always.iter().map(|path| &**path).chain(known));

        loop {
            let salt = Self::read_as(path, role);

            // The directory of the main file changes for many other reasons.
            let included = salt.files.iter().filter(|file| *file != path);
            let dirs = included.filter_map(|file| file.parent());
            let current: Vec<&Path> = salt
                .files
                .iter()
                .map(|file| &**file)
                .chain(dirs.filter(|dir| Some(*dir) != path.parent()))
                .collect();

            // The state of a file that turns up now is from after it was read, so all are read
            // again.
            if files.add(current.iter().copied()) {
                continue;
            }

            files
                .0
                .retain(|(file, _)| always.contains(file) || current.contains(&&**file));
            *watched = files;
            return salt;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn changes_of_files_and_new_files_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("minion");
        let include = dir.path().join("minion.d");
        let extra = dir.path().join("extra");
        for made in [&include, &extra] {
            fs::create_dir(made).unwrap();
        }
        fs::write(&path, "include: extra/*.conf\n").unwrap();
        fs::write(extra.join("a.conf"), "a: 1\n").unwrap();

        let mut watched = WatchedFiles::default();
        let mut changes = |expected: bool| {
            assert_eq!(watched.have_changed(), expected);
            SaltMaster::read_watched(&path, Role::Minion, &mut watched);
            assert!(!watched.have_changed());
        };
        changes(false);
        fs::write(&path, "include: extra/*.conf\nx: 2\n").unwrap();
        changes(true);
        // Its first file, in a directory that was empty
        fs::write(include.join("b.conf"), "b: 1\n").unwrap();
        changes(true);
        fs::write(extra.join("c.conf"), "c: 1\n").unwrap();
        changes(true);
        fs::remove_file(extra.join("a.conf")).unwrap();
        changes(true);
        fs::write(dir.path().join("other"), "").unwrap();
        changes(false);
    }
}
