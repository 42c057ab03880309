//! A simulated disk whose power can be cut.
//!
//! Every operation is immediately applied to a real directory, which plays the role of the page
//! cache. The disk also records, for each file, its bytes as of the last successful sync and the
//! writes since; for each directory, its names as of the last sync and the changes since.
//! [`PowerCut::cut`] creates a directory with the synced state and a random part of the rest:
//! single writes, single 512-byte sectors of them, single names, sizes.
//!
//! Each directory is synced separately, as in POSIX: when a name moves between two directories,
//! either half of the move may survive. A rename within one directory is atomic.
//!
//! When a process is killed ([`PowerCut::cut_after`], then [`PowerCut::restore`]), the page cache
//! survives: the next process reads unsynced data, which a later power loss may lose.
//!
//! Space is counted in blocks of files and directories ([`PowerCut::leave_blocks`]), including
//! removed files that are still open.
//!
//! Data of a failed sync is lost, as with a kernel that drops dirty pages: a later successful sync
//! does not make it durable.
//!
//! The directory of sled (`state`) bypasses the [`Fs`]. A cut omits them, keeps them, or
//! keeps them damaged.

mod space;
mod torn;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use saltcellar_testkit::Random;
use space::{BLOCK, FileSpace};
pub(crate) use torn::Survives;
use torn::{Write, apply, content_after_cut, copy_sled};

use super::faults::{Act, Plan};
use super::{Disk, Fs, FsFile, Space};

/// An index into [`DiskState::nodes`].
type Id = usize;

#[derive(Debug)]
enum DiskNode {
    Dir {
        now: BTreeMap<OsString, Id>,
        synced: BTreeMap<OsString, Id>,
        /// Removed.
        gone: bool,
    },
    File {
        synced: Vec<u8>,
        unsynced: Vec<Write>,
        /// Writes that a failed sync dropped from the page cache.
        lost: Vec<Write>,
        space: FileSpace,
    },
}

/// An unsynced change of names.
#[derive(Debug, Clone)]
enum Change {
    Put {
        dir: Id,
        name: OsString,
        node: Id,
    },
    Remove {
        dir: Id,
        name: OsString,
        node: Id,
    },
    /// A rename within a directory.
    Move {
        dir: Id,
        from: OsString,
        to: OsString,
        node: Id,
    },
}

impl Change {
    fn dir(&self) -> Id {
        match self {
            Change::Put { dir, .. } | Change::Remove { dir, .. } | Change::Move { dir, .. } => *dir,
        }
    }

    /// Applies the change to the names of its directory, unless they lack an earlier change.
    fn apply(self, names: &mut Names) {
        let has = |name: &OsString, node: Id| names.get(name) == Some(&node);
        match self {
            Change::Put { name, node, .. } => drop(names.insert(name, node)),
            Change::Remove { name, node, .. } if has(&name, node) => drop(names.remove(&name)),
            Change::Move { from, to, node, .. } if has(&from, node) => {
                names.remove(&from);
                names.insert(to, node);
            }
            Change::Remove { .. } | Change::Move { .. } => {}
        }
    }
}

type Names = BTreeMap<OsString, Id>;

#[derive(Debug)]
struct DiskState {
    root: PathBuf,
    nodes: Vec<DiskNode>,
    changes: Vec<Change>,
    /// Operations that still succeed before the power is cut.
    acts_left: Option<u64>,
    /// Total blocks; `None` is unlimited.
    blocks_max: Option<u64>,
    /// Syncs of this kind report success and do nothing.
    lie: Option<Act>,
}

#[derive(Debug, Clone)]
pub(crate) struct PowerCut {
    state: Arc<Mutex<DiskState>>,
    plan: Arc<Plan>,
}

impl PowerCut {
    /// A disk with the content of a directory, fully synced.
    pub(crate) fn new(root: &Path, plan: Arc<Plan>) -> Self {
        let mut state = DiskState {
            root: root.to_owned(),
            nodes: Vec::new(),
            changes: Vec::new(),
            acts_left: None,
            blocks_max: None,
            lie: None,
        };

        state.adopt(root);

        Self {
            state: Arc::new(Mutex::new(state)),
            plan,
        }
    }

    /// Makes every sync of a file, or of a directory, report success and do nothing.
    pub(crate) fn lying(self, about: Option<Act>) -> Self {
        self.state.lock().lie = about;
        self
    }

    /// Cuts the power after this number of operations. Later operations fail without effect.
    pub(crate) fn cut_after(&self, acts: u64) {
        self.state.lock().acts_left = Some(acts);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.state.lock().acts_left == Some(0)
    }

    /// Restores the power for the next process; the page cache is intact.
    pub(crate) fn restore(&self) {
        self.state.lock().acts_left = None;
    }

    /// Records the file in the real directory as fully synced.
    pub(crate) fn adopt_file(&self, path: &Path) {
        let mut state = self.state.lock();
        if let Some(id) = state.find(path)
            && let DiskNode::File {
                synced,
                unsynced,
                lost,
                ..
            } = &mut state.nodes[id]
        {
            *synced = fs::read(path).unwrap();
            *unsynced = Vec::new();
            *lost = Vec::new();
        }
    }

    /// Creates in `to` the state that the next start finds.
    pub(crate) fn cut(&self, to: &Path, survives: Survives, rng: &mut Random) {
        let mut state = self.state.lock();
        // Names first: content is written only where a name survives.
        state.acts_left = Some(0);
        let names = state.names_after_cut(survives, rng);
        state.write_dir(0, to, &names, survives, rng);
    }

    /// Called before every operation.
    fn begin(&self, act: Act, path: &Path) -> io::Result<MutexGuard<'_, DiskState>> {
        // The plan may sleep; do not hold the lock meanwhile.
        let planned = self.plan.check(act, path, 0);
        let state = self.state.lock().count_operation()?;
        planned.map(|()| state).map_err(|failure| failure.why)
    }
}

trait CountOperation: Sized {
    fn count_operation(self) -> io::Result<Self>;
}

impl CountOperation for MutexGuard<'_, DiskState> {
    fn count_operation(mut self) -> io::Result<Self> {
        match &mut self.acts_left {
            Some(0) => Err(io::Error::other("the power is cut")),
            Some(left) => {
                *left -= 1;
                Ok(self)
            }
            None => Ok(self),
        }
    }
}

fn is_sled(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("state"))
}

impl DiskState {
    /// Records an existing file or directory as synced.
    fn adopt(&mut self, path: &Path) -> Id {
        let id = self.nodes.len();
        if path.is_file() {
            let synced = fs::read(path).unwrap();
            let space = FileSpace::of_bytes(synced.len());
            self.nodes.push(DiskNode::File {
                synced,
                unsynced: Vec::new(),
                lost: Vec::new(),
                space,
            });

            return id;
        }

        self.nodes.push(DiskNode::Dir {
            now: Names::new(),
            synced: Names::new(),
            gone: false,
        });
        let mut items: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|item| item.unwrap().file_name())
            .collect();
        // sled bypasses the simulated disk, so its directories are not part of it.
        items.retain(|name| id == 0 || !is_sled(name));
        items.sort();

        for name in items {
            let child = self.adopt(&path.join(&name));
            if let DiskNode::Dir { now, synced, .. } = &mut self.nodes[id] {
                now.insert(name.clone(), child);
                synced.insert(name, child);
            }
        }
        id
    }

    fn find(&self, path: &Path) -> Option<Id> {
        let mut id = 0;
        for part in path.strip_prefix(&self.root).ok()?.components() {
            let DiskNode::Dir { now, .. } = &self.nodes[id] else {
                return None;
            };
            id = *now.get(part.as_os_str())?;
        }

        Some(id)
    }

    /// The node of a path's directory, and the path's last component.
    fn target(&self, path: &Path) -> Option<(Id, OsString)> {
        Some((self.find(path.parent()?)?, path.file_name()?.to_owned()))
    }

    fn now(&mut self, dir: Id) -> &mut Names {
        match &mut self.nodes[dir] {
            DiskNode::Dir { now, .. } => now,
            DiskNode::File { .. } => panic!("not a directory"),
        }
    }

    fn put(&mut self, path: &Path, node: DiskNode) -> Option<Id> {
        let (dir, name) = self.target(path)?;

        let id = self.nodes.len();
        self.nodes.push(node);

        self.now(dir).insert(name.clone(), id);
        self.changes.push(Change::Put {
            dir,
            name,
            node: id,
        });
        Some(id)
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let Some(node) = self.find(from) else { return };
        let (Some(from), Some(to)) = (self.target(from), self.target(to)) else {
            return;
        };

        self.now(from.0).remove(&from.1);
        // A rename over an existing file removes that one.
        if let Some(replaced) = self
            .now(to.0)
            .insert(to.1.clone(), node)
            .filter(|id| *id != node)
        {
            self.unlink(replaced);
        }
        // Within one directory a rename is a single change, so it survives as a whole or not at
        // all.
        if from.0 == to.0 {
            self.changes.push(Change::Move {
                dir: from.0,
                from: from.1,
                to: to.1,
                node,
            });
            return;
        }

        // Between directories it is two changes, of which either may survive.
        self.changes.push(Change::Put {
            dir: to.0,
            name: to.1,
            node,
        });
        self.changes.push(Change::Remove {
            dir: from.0,
            name: from.1,
            node,
        });
    }

    fn remove(&mut self, path: &Path) {
        let (Some(node), Some((dir, name))) = (self.find(path), self.target(path)) else {
            return;
        };

        // A directory is emptied first, name by name; any part of that may survive.
        if let DiskNode::Dir { now, .. } = &self.nodes[node] {
            for child in now.keys().cloned().collect::<Vec<_>>() {
                self.remove(&path.join(child));
            }
        }

        self.now(dir).remove(&name);
        self.unlink(node);

        self.changes.push(Change::Remove { dir, name, node });
    }

    fn sync_dir(&mut self, id: Id) {
        // Reports success and does nothing, as a disk with a volatile cache.
        if self.lie == Some(Act::SyncDir) {
            return;
        }

        let (done, rest): (Vec<_>, _) = std::mem::take(&mut self.changes)
            .into_iter()
            .partition(|change| change.dir() == id);
        self.changes = rest;

        if let DiskNode::Dir { synced, .. } = &mut self.nodes[id] {
            for change in done {
                change.apply(synced);
            }
        }
    }

    fn write(&mut self, id: Option<Id>, write: Write) {
        if let Some(DiskNode::File { unsynced, .. }) = id.map(|id| &mut self.nodes[id]) {
            unsynced.push(write);
        }
    }

    fn sync_file(&mut self, id: Option<Id>, good: bool) {
        // As `sync_dir`.
        if self.lie == Some(Act::Sync) {
            return;
        }

        let Some(DiskNode::File {
            synced,
            unsynced,
            lost,
            ..
        }) = id.map(|id| &mut self.nodes[id])
        else {
            return;
        };
        // The kernel may mark the pages clean: a later sync does not write them.
        if !good {
            lost.append(unsynced);
            return;
        }

        // Writes that an earlier failed sync dropped do not reach the disk with this one either.
        lost.clear();
        for write in unsynced.drain(..) {
            apply(synced, &write, |_| true);
        }
    }

    /// The names in each directory after a cut.
    fn names_after_cut(&self, survives: Survives, rng: &mut Random) -> Vec<Names> {
        let mut names: Vec<Names> = Vec::new();
        for node in &self.nodes {
            names.push(match node {
                DiskNode::Dir { now, .. } if survives == Survives::All => now.clone(),
                DiskNode::Dir { synced, .. } => synced.clone(),
                DiskNode::File { .. } => Names::new(),
            });
        }
        // Nothing random in the other two cases.
        if survives != Survives::Some {
            return names;
        }
        // With a journal a prefix of the changes would survive, but POSIX does not guarantee this
        // order.
        let upto = rng.index(self.changes.len() + 1);
        let gaps = rng.coin();
        for change in self
            .changes
            .iter()
            .take(upto)
            .filter(|_| !gaps || rng.coin())
        {
            change.clone().apply(&mut names[change.dir()]);
        }

        names
    }

    fn write_dir(&self, id: Id, to: &Path, names: &[Names], survives: Survives, rng: &mut Random) {
        for (name, node) in &names[id] {
            let target = to.join(name);
            match &self.nodes[*node] {
                DiskNode::Dir { .. } => {
                    fs::create_dir(&target).unwrap();
                    self.write_dir(*node, &target, names, survives, rng);
                }
                DiskNode::File {
                    synced,
                    unsynced,
                    lost,
                    ..
                } => {
                    fs::write(
                        &target,
                        content_after_cut(synced, &[&lost[..], unsynced].concat(), survives, rng),
                    )
                    .unwrap();
                }
            }
        }

        // sled's directory exists only in the real directory.
        let Some(real) = self.path_of(id) else { return };
        for item in fs::read_dir(real)
            .into_iter()
            .flatten()
            .map(|item| item.unwrap())
        {
            if item.path().is_dir() && is_sled(&item.file_name()) && id != 0 {
                copy_sled(&item.path(), &to.join(item.file_name()), survives, rng);
            }
        }
    }

    /// The current path of a directory, unless it was removed.
    fn path_of(&self, wanted: Id) -> Option<PathBuf> {
        let mut open = vec![(0, self.root.clone())];
        while let Some((id, path)) = open.pop() {
            if id == wanted {
                return Some(path);
            }
            if let DiskNode::Dir { now, .. } = &self.nodes[id] {
                open.extend(now.iter().map(|(name, child)| (*child, path.join(name))));
            }
        }
        None
    }
}

impl Fs for PowerCut {
    fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        let mut state = self.begin(Act::Create, path)?;
        // A file that exists is truncated and needs no other name.
        let known = state.find(path);
        if known.is_none() {
            state.has_room(path, 0)?;
        }

        let file = Disk.create(path)?;

        let id = known.or_else(|| {
            let (synced, space) = (Vec::new(), FileSpace::default());
            state.put(
                path,
                DiskNode::File {
                    synced,
                    unsynced: Vec::new(),
                    lost: Vec::new(),
                    space,
                },
            )
        });

        if known.is_some() {
            state.write(id, Write::Size(0));
            state
                .space_of(id)
                .into_iter()
                .for_each(|space| space.blocks.clear());
        }

        drop(state);
        Ok(self.file(path, id, file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        let id = self.state.lock().find(path);
        Ok(self.file(path, id, Disk.open(path)?))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        let id = self.state.lock().find(path);
        Ok(self.file(path, id, Disk.open_to_write(path)?))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(Act::MakeDir, path)?;
        state.has_room(path, 1)?;

        Disk.make_dir(path)?;
        state.put(
            path,
            DiskNode::Dir {
                now: Names::new(),
                synced: Names::new(),
                gone: false,
            },
        );
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(Act::SyncDir, path)?;
        if let Some(id) = state.find(path) {
            state.sync_dir(id);
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.begin(Act::Rename, to)?;
        // A longer directory may need a block.
        state.has_room(to, 0)?;
        Disk.rename(from, to)?;
        state.rename(from, to);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(Act::Remove, path)?;
        Disk.remove_file(path)?;
        state.remove(path);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(Act::Remove, path)?;
        Disk.remove_dir_all(path)?;
        state.remove(path);
        Ok(())
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let state = self.state.lock();

        match state.blocks_max {
            Some(most) => Ok(Space {
                available: state.blocks_free() * BLOCK,
                total: most * BLOCK,
            }),
            None => self.plan.space().map_or_else(|| Disk.space(path), Ok),
        }
    }
}

impl PowerCut {
    fn file(&self, path: &Path, id: Option<Id>, real: Box<dyn FsFile>) -> Box<dyn FsFile> {
        self.state
            .lock()
            .space_of(id)
            .into_iter()
            .for_each(|space| space.open += 1);

        Box::new(CuttableFile {
            disk: self.clone(),
            path: path.to_owned(),
            id,
            real,
        })
    }
}

#[derive(Debug)]
struct CuttableFile {
    disk: PowerCut,
    path: PathBuf,
    id: Option<Id>,
    real: Box<dyn FsFile>,
}

impl Drop for CuttableFile {
    fn drop(&mut self) {
        self.disk
            .state
            .lock()
            .space_of(self.id)
            .into_iter()
            .for_each(|space| space.open -= 1);
    }
}

impl CuttableFile {
    fn sync(&self) -> io::Result<()> {
        // Before the lock: the plan may delay the operation.
        let planned = self.disk.plan.check(Act::Sync, &self.path, 0);
        let mut state = self.disk.state.lock().count_operation()?;
        // The real file is the page cache and needs no sync.
        state.sync_file(self.id, planned.is_ok());
        planned.map_err(|failure| failure.why)
    }
}

impl FsFile for CuttableFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // As in `sync`.
        let planned = self.disk.plan.check(Act::Write, &self.path, bytes.len());
        let mut state = self.disk.state.lock().count_operation()?;

        let part = planned
            .as_ref()
            .map_or_else(|failure| &bytes[..failure.part], |()| bytes);
        // As much as the free blocks hold is written, and the rest fails.
        let fits = state.allocate(self.id, offset, part.len());
        let is_full = fits < part.len();
        let part = &part[..fits];
        // The real file first, because a failure there must leave no record.
        self.real.write_all_at(part, offset)?;
        if !part.is_empty() {
            let offset = usize::try_from(offset).unwrap();
            state.write(
                self.id,
                Write::Bytes {
                    offset,
                    bytes: part.to_vec(),
                },
            );
        }

        if is_full {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        planned.map_err(|failure| failure.why)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk
            .plan
            .check_read(&self.path, offset, buffer.len())?;
        self.real.read_exact_at(buffer, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.begin(Act::SetLen, &self.path)?;
        self.real.set_len(len)?;

        state.write(self.id, Write::Size(usize::try_from(len).unwrap()));

        // Blocks behind the new end are free again.
        let blocks = len.div_ceil(BLOCK);
        state
            .space_of(self.id)
            .into_iter()
            .for_each(|space| space.blocks.retain(|block| *block < blocks));
        Ok(())
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.real.set_mode(mode)
    }

    fn size(&self) -> io::Result<u64> {
        self.real.size()
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::faults::Fault;
    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        plan: Arc<Plan>,
        disk: PowerCut,
        cuts: usize,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (root, plan) = (dir.path().join("now"), Arc::new(Plan::default()));
            fs::create_dir(&root).unwrap();
            Self {
                disk: PowerCut::new(&root, plan.clone()),
                dir,
                plan,
                cuts: 0,
            }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join("now").join(name)
        }

        /// The possible contents of a file after a cut, over many seeds. The disk is not changed.
        fn found(
            &mut self,
            name: &str,
            survives: Survives,
        ) -> std::collections::BTreeSet<Option<Vec<u8>>> {
            let mut found = std::collections::BTreeSet::new();
            for seed in 0..200 {
                self.cuts += 1;
                let to = self.dir.path().join(self.cuts.to_string());
                fs::create_dir(&to).unwrap();
                self.disk.cut(&to, survives, &mut Random::new(seed));
                self.disk.state.lock().acts_left = None;
                found.insert(fs::read(to.join(name)).ok());
            }
            found
        }
    }

    #[test]
    fn synced_data_survives_and_any_part_of_the_rest_may() {
        let mut bench = Bench::new();
        let file = bench.disk.create(&bench.path("log")).unwrap();
        file.write_all_at(&[1; 700], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(
            bench.found("log", Survives::Nothing),
            [None].into(),
            "the name is not synced"
        );
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(
            bench.found("log", Survives::Some),
            [Some(vec![1; 700])].into()
        );
        file.write_all_at(&[2; 600], 700).unwrap();
        let found = bench.found("log", Survives::Some);
        let whole = [vec![1; 700], vec![2; 600]].concat();
        assert!(found.contains(&Some(vec![1; 700])) && found.contains(&Some(whole.clone())));
        assert!(
            found
                .iter()
                .all(|one| one.as_ref().unwrap()[..700] == [1; 700])
        );
        // Torn at 1,024: the first half, the second half behind a hole, or zeros.
        for part in [
            &whole[..1024],
            &[&[1; 700][..], &[0; 324], &[2; 276]].concat(),
        ] {
            assert!(found.contains(&Some(part.to_vec())), "{} bytes", part.len());
        }
        assert!(
            found.contains(&Some([&[1; 700][..], &[0; 600]].concat())),
            "space was allocated"
        );
        assert_eq!(
            bench.found("log", Survives::All),
            [Some(whole.clone())].into()
        );
        file.sync_data().unwrap();
        assert_eq!(bench.found("log", Survives::Nothing), [Some(whole)].into());
    }

    #[test]
    fn an_unsynced_rename_survives_or_not() {
        let mut bench = Bench::new();
        bench
            .disk
            .write_whole(&bench.path("FORMAT"), b"old")
            .unwrap();
        assert_eq!(
            bench.found("FORMAT", Survives::Some),
            [Some(b"old".to_vec())].into()
        );
        let (temporary, target) = (bench.path("FORMAT.tmp"), bench.path("FORMAT"));
        let file = bench.disk.create(&temporary).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        file.sync_all().unwrap();
        bench.disk.rename(&temporary, &target).unwrap();
        let both = [Some(b"old".to_vec()), Some(b"new".to_vec())];
        assert_eq!(bench.found("FORMAT", Survives::Some), both.into());
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(
            bench.found("FORMAT", Survives::Some),
            [Some(b"new".to_vec())].into()
        );
    }

    #[test]
    fn each_directory_is_synced_separately() {
        for (synced, survives, target) in [
            ("from", None, None),
            ("to", Some(b"x".to_vec()), Some(b"x".to_vec())),
        ] {
            let mut bench = Bench::new();
            for dir in ["from", "to"] {
                bench.disk.make_dir(&bench.path(dir)).unwrap();
            }
            bench.disk.write_whole(&bench.path("from/a"), b"x").unwrap();
            bench.disk.sync_dir(&bench.path("")).unwrap();
            bench
                .disk
                .rename(&bench.path("from/a"), &bench.path("to/a"))
                .unwrap();
            bench.disk.sync_dir(&bench.path(synced)).unwrap();
            assert_eq!(
                bench.found("from/a", Survives::Nothing),
                [survives].into(),
                "{synced} is synced"
            );
            assert_eq!(
                bench.found("to/a", Survives::Nothing),
                [target].into(),
                "{synced} is synced"
            );
        }
    }

    #[test]
    fn unsynced_data_survives_the_death_of_the_process() {
        let mut bench = Bench::new();
        bench.disk.write_whole(&bench.path("log"), b"old").unwrap();
        let file = bench.disk.open_to_write(&bench.path("log")).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        bench.disk.cut_after(0);
        file.sync_data().unwrap_err();
        bench.disk.restore();
        assert_eq!(fs::read(bench.path("log")).unwrap(), b"new");
        assert_eq!(
            bench.found("log", Survives::Nothing),
            [Some(b"old".to_vec())].into()
        );
        bench
            .disk
            .open_to_write(&bench.path("log"))
            .unwrap()
            .sync_data()
            .unwrap();
        assert_eq!(
            bench.found("log", Survives::Nothing),
            [Some(b"new".to_vec())].into()
        );
    }

    #[test]
    fn space_is_counted_in_blocks_and_an_open_removed_file_keeps_its_blocks() {
        let bench = Bench::new();
        let disk = &bench.disk;
        let file = disk.create(&bench.path("log")).unwrap();
        file.write_all_at(&[1; 5000], 0).unwrap();
        let used = disk.blocks_used();
        disk.leave_blocks(Some(1));
        let why = file.write_all_at(&[2; 9000], 5000).unwrap_err();
        assert_eq!(
            (why.kind(), file.size().unwrap()),
            (io::ErrorKind::StorageFull, 3 * 4096)
        );
        assert_eq!(disk.space(&bench.path("log")).unwrap().available, 0);
        disk.make_dir(&bench.path("dir")).unwrap_err();
        file.write_all_at(&[3; 100], 0).unwrap();
        disk.remove_file(&bench.path("log")).unwrap();
        disk.make_dir(&bench.path("dir")).unwrap_err();
        drop(file);
        assert_eq!(disk.blocks_used(), used - 2);
        disk.make_dir(&bench.path("dir")).unwrap();
    }

    #[test]
    fn reads_of_a_bad_sector_fail_until_it_is_repaired() {
        let bench = Bench::new();
        let file = bench.disk.create(&bench.path("log")).unwrap();
        file.write_all_at(&[1; 2000], 0).unwrap();
        bench.plan.add_bad_sector("log", 512..1024);
        let mut bytes = [0; 100];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let why = file.read_exact_at(&mut bytes, 450).unwrap_err();
        assert_eq!(why.raw_os_error(), Some(Errno::IO.raw_os_error()));
        bench.plan.heal();
        file.read_exact_at(&mut bytes, 450).unwrap();
    }

    #[test]
    fn data_of_a_failed_sync_stays_lost() {
        let mut bench = Bench::new();
        bench
            .disk
            .write_whole(&bench.path("log"), b"header")
            .unwrap();
        let file = bench.disk.open_to_write(&bench.path("log")).unwrap();
        file.write_all_at(b"one", 6).unwrap();
        bench.plan.add(Fault::once(Act::Sync, Errno::IO));
        file.sync_data().unwrap_err();
        file.sync_data().unwrap();
        file.write_all_at(b"two", 9).unwrap();
        file.sync_data().unwrap();
        assert_eq!(fs::read(bench.path("log")).unwrap(), b"headeronetwo");
        assert_eq!(
            bench.found("log", Survives::Nothing),
            [Some(b"header\0\0\0two".to_vec())].into()
        );
    }

    #[test]
    fn an_unsynced_removal_of_a_directory_survives_in_any_part() {
        let mut bench = Bench::new();
        bench.disk.make_dir(&bench.path("dir")).unwrap();
        bench.disk.write_whole(&bench.path("dir/a"), b"a").unwrap();
        assert_eq!(
            bench.found("dir/a", Survives::Nothing),
            [None].into(),
            "dir itself is not synced"
        );
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(
            bench.found("dir/a", Survives::Nothing),
            [Some(b"a".to_vec())].into()
        );
        bench.disk.remove_dir_all(&bench.path("dir")).unwrap();
        assert_eq!(bench.found("dir/a", Survives::Some).len(), 2);
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(bench.found("dir/a", Survives::Some), [None].into());
    }

    #[test]
    fn without_power_every_operation_fails() {
        let bench = Bench::new();
        bench.disk.cut_after(1);
        let file = bench.disk.create(&bench.path("log")).unwrap();
        assert!(bench.disk.is_cut());
        file.write_all_at(b"x", 0).unwrap_err();
        file.sync_data().unwrap_err();
        bench.disk.make_dir(&bench.path("dir")).unwrap_err();
        assert!(!bench.path("dir").exists() && fs::read(bench.path("log")).unwrap().is_empty());
    }

    #[test]
    fn a_lying_disk_loses_data_that_it_reported_as_synced() {
        for (about, survives) in [(Act::Sync, Some(Vec::new())), (Act::SyncDir, None)] {
            let mut bench = Bench::new();
            bench.disk = bench.disk.lying(Some(about));
            bench
                .disk
                .write_whole(&bench.path("log"), b"words")
                .unwrap();
            assert_eq!(
                bench.found("log", Survives::Nothing),
                [survives].into(),
                "{about:?}"
            );
        }
    }
}
