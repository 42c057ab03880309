//! A disk whose power can be cut: it knows what was synced, and what may be left of the rest.
//!
//! Everything is done to a real directory at once, as by a kernel that holds it in memory. Beside that the disk keeps,
//! per file, the bytes as of its last good sync and what was written since; and per directory the names as of
//! its last sync and what was made, renamed and removed since. [`PowerCut::cut`] makes a directory out of what is
//! synced and of any part of the rest: single writes, single 512-byte sectors of them, single names, sizes.
//!
//! Each directory is synced by itself, as POSIX has it: of a name that moves from one directory to another, either half may be
//! left. Within one directory a rename is done or not.
//!
//! A process that dies ([`PowerCut::let_power_go_after`], then [`PowerCut::restore`]) leaves everything in the kernel's memory: the
//! next one reads what is not on disk, and a later cut takes it.
//!
//! Space is counted as a file system does it ([`PowerCut::leave_blocks`]): blocks of files and directories, also those of files
//! that are removed and still open.
//!
//! After a sync that failed, what it should have made durable is gone for good, as with a kernel that drops the pages:
//! a later sync that succeeds does not bring it back.
//!
//! sled's directories (`state`, `index`) are not written through a fs. At a cut they are left out, kept as
//! they are, or kept with damage: nothing may rely on them.

mod left;
mod space;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use left::{Dice, Left};
use left::{Write, apply, content_left, copy_sled};
use space::{BLOCK, FileSpace};

use super::faults::{Act, Plan};
use super::{Disk, Fs, FsFile, Space};

/// A place in [`World::nodes`].
type Id = usize;

#[derive(Debug)]
enum Node {
    Dir {
        now: BTreeMap<OsString, Id>,
        synced: BTreeMap<OsString, Id>,
        /// Is it removed?
        gone: bool,
    },
    File {
        synced: Vec<u8>,
        unsynced: Vec<Write>,
        /// Was in memory when a sync failed, and is there no more.
        lost: Vec<Write>,
        space: FileSpace,
    },
}

/// A change of names that is not synced.
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
    /// Two names of a directory change places.
    Exchange {
        dir: Id,
        one: (OsString, Id),
        other: (OsString, Id),
    },
    /// Within a directory.
    Move {
        dir: Id,
        from: OsString,
        to: OsString,
        node: Id,
    },
}

impl Change {
    fn touches(&self, id: Id) -> bool {
        match self {
            Change::Put { dir, .. }
            | Change::Remove { dir, .. }
            | Change::Exchange { dir, .. }
            | Change::Move { dir, .. } => *dir == id,
        }
    }
}

type Names = BTreeMap<OsString, Id>;

#[derive(Debug)]
struct World {
    root: PathBuf,
    nodes: Vec<Node>,
    changes: Vec<Change>,
    /// Acts that still succeed; then the power is gone.
    acts_left: Option<u64>,
    /// Blocks that there are; `None` is no bound.
    blocks_max: Option<u64>,
    /// Such syncs say that all is well and do nothing.
    lie: Option<Act>,
}

/// The disk.
#[derive(Debug, Clone)]
pub(in crate::store) struct PowerCut {
    world: Arc<Mutex<World>>,
    plan: Arc<Plan>,
}

impl PowerCut {
    /// A disk with what a directory holds, all of it synced.
    pub(in crate::store) fn new(root: &Path, plan: Arc<Plan>) -> Self {
        let mut world = World {
            root: root.to_owned(),
            nodes: Vec::new(),
            changes: Vec::new(),
            acts_left: None,
            blocks_max: None,
            lie: None,
        };
        world.adopt(root);
        Self { world: Arc::new(Mutex::new(world)), plan }
    }

    /// A disk that tells every sync of a file, or of a directory, that all is well, and does nothing.
    pub(in crate::store) fn lying(self, about: Option<Act>) -> Self {
        self.world().lie = about;
        self
    }

    /// The power goes after so many more acts. What comes later fails and leaves no trace.
    pub(in crate::store) fn let_power_go_after(&self, acts: u64) {
        self.world().acts_left = Some(acts);
    }

    /// The process died and the machine runs on: what was not synced is still in its memory.
    pub(in crate::store) fn let_power_stay(&self) {
        self.world().acts_left = None;
    }

    /// Has the power gone?
    pub(in crate::store) fn is_dark(&self) -> bool {
        self.world().acts_left == Some(0)
    }

    /// The process that the power was taken from has ended, and the next one begins: the kernel lived on.
    pub(in crate::store) fn restore(&self) {
        self.world().acts_left = None;
    }

    /// Takes a file as it is in the real directory, as if all of it were on disk.
    pub(in crate::store) fn adopt_file(&self, path: &Path) {
        let mut world = self.world();
        if let Some(id) = world.find(path)
            && let Node::File { synced, unsynced, lost, .. } = &mut world.nodes[id]
        {
            (*synced, *unsynced, *lost) = (fs::read(path).unwrap(), Vec::new(), Vec::new());
        }
    }

    /// Makes `to` what the next start finds.
    pub(in crate::store) fn cut(&self, to: &Path, left: Left, dice: &mut Dice) {
        let mut world = self.world();
        world.acts_left = Some(0);
        let names = world.names_left(left, dice);
        world.write_dir(0, to, &names, left, dice);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asked before every act.
    fn act(&self, act: Act, path: &Path) -> io::Result<MutexGuard<'_, World>> {
        // The plan may sleep; nobody else should wait for that.
        let planned = self.plan.check(act, path, 0);
        let world = self.world().spend()?;
        planned.map(|()| world).map_err(|failure| failure.why)
    }
}

trait Spend: Sized {
    fn spend(self) -> io::Result<Self>;
}

impl Spend for MutexGuard<'_, World> {
    fn spend(mut self) -> io::Result<Self> {
        match &mut self.acts_left {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(self)
            }
            None => Ok(self),
        }
    }
}

/// Is this a directory of sled's?
fn is_sled(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("state") || name.starts_with("index"))
}

impl World {
    /// Takes a real file or directory in as it is.
    fn adopt(&mut self, path: &Path) -> Id {
        let id = self.nodes.len();
        if path.is_file() {
            let synced = fs::read(path).unwrap();
            let space = FileSpace::of_bytes(synced.len());
            self.nodes.push(Node::File { synced, unsynced: Vec::new(), lost: Vec::new(), space });
            return id;
        }
        self.nodes.push(Node::Dir { now: Names::new(), synced: Names::new(), gone: false });
        let mut items: Vec<_> = fs::read_dir(path).unwrap().map(|item| item.unwrap().file_name()).collect();
        items.retain(|name| id == 0 || !is_sled(name));
        items.sort();
        for name in items {
            let child = self.adopt(&path.join(&name));
            if let Node::Dir { now, synced, .. } = &mut self.nodes[id] {
                now.insert(name.clone(), child);
                synced.insert(name, child);
            }
        }
        id
    }

    fn find(&self, path: &Path) -> Option<Id> {
        let mut id = 0;
        for part in path.strip_prefix(&self.root).ok()?.components() {
            let Node::Dir { now, .. } = &self.nodes[id] else { return None };
            id = *now.get(part.as_os_str())?;
        }
        Some(id)
    }

    /// The directory that a path is in, and its name there.
    fn place(&self, path: &Path) -> Option<(Id, OsString)> {
        Some((self.find(path.parent()?)?, path.file_name()?.to_owned()))
    }

    fn now(&mut self, dir: Id) -> &mut Names {
        match &mut self.nodes[dir] {
            Node::Dir { now, .. } => now,
            Node::File { .. } => panic!("a file is no directory"),
        }
    }

    fn put(&mut self, path: &Path, node: Node) -> Option<Id> {
        let (dir, name) = self.place(path)?;
        let id = self.nodes.len();
        self.nodes.push(node);
        self.now(dir).insert(name.clone(), id);
        self.changes.push(Change::Put { dir, name, node: id });
        Some(id)
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let Some(node) = self.find(from) else { return };
        let (Some(from), Some(to)) = (self.place(from), self.place(to)) else { return };
        self.now(from.0).remove(&from.1);
        if let Some(replaced) = self.now(to.0).insert(to.1.clone(), node).filter(|id| *id != node) {
            self.unlink(replaced);
        }
        if from.0 == to.0 {
            self.changes.push(Change::Move { dir: from.0, from: from.1, to: to.1, node });
            return;
        }
        self.changes.push(Change::Put { dir: to.0, name: to.1, node });
        self.changes.push(Change::Remove { dir: from.0, name: from.1, node });
    }

    /// Lets two names of one directory change places.
    fn exchange(&mut self, one: &Path, other: &Path) -> Option<()> {
        let ((dir, one), (same, other)) = (self.place(one)?, self.place(other)?);
        assert_eq!(dir, same, "names of one directory");
        let names = self.now(dir);
        let (first, second) = (*names.get(&one)?, *names.get(&other)?);
        names.insert(one.clone(), second);
        names.insert(other.clone(), first);
        self.changes.push(Change::Exchange { dir, one: (one, first), other: (other, second) });
        Some(())
    }

    fn remove(&mut self, path: &Path) {
        let (Some(node), Some((dir, name))) = (self.find(path), self.place(path)) else { return };
        // A directory is emptied first, name by name; of that, too, any part may be left.
        if let Node::Dir { now, .. } = &self.nodes[node] {
            for child in now.keys().cloned().collect::<Vec<_>>() {
                self.remove(&path.join(child));
            }
        }
        self.now(dir).remove(&name);
        self.unlink(node);
        self.changes.push(Change::Remove { dir, name, node });
    }

    fn sync_dir(&mut self, id: Id) {
        if self.lie == Some(Act::SyncDir) {
            return;
        }
        let (done, rest) = std::mem::take(&mut self.changes).into_iter().partition(|c| c.touches(id));
        self.changes = rest;
        for change in done {
            match change {
                Change::Put { dir, name, node } => drop(self.synced(dir).insert(name, node)),
                Change::Remove { dir, name, .. } => drop(self.synced(dir).remove(&name)),
                Change::Exchange { dir, one, other } => {
                    self.synced(dir).insert(one.0, other.1);
                    self.synced(dir).insert(other.0, one.1);
                }
                Change::Move { dir, from, to, node } => {
                    self.synced(dir).remove(&from);
                    self.synced(dir).insert(to, node);
                }
            }
        }
    }

    fn synced(&mut self, dir: Id) -> &mut Names {
        match &mut self.nodes[dir] {
            Node::Dir { synced, .. } => synced,
            Node::File { .. } => panic!("a file is no directory"),
        }
    }

    fn write(&mut self, id: Option<Id>, write: Write) {
        if let Some(Node::File { unsynced, .. }) = id.map(|id| &mut self.nodes[id]) {
            unsynced.push(write);
        }
    }

    fn sync_file(&mut self, id: Option<Id>, good: bool) {
        if self.lie == Some(Act::Sync) {
            return;
        }
        let Some(Node::File { synced, unsynced, lost, .. }) = id.map(|id| &mut self.nodes[id]) else {
            return;
        };
        if !good {
            lost.append(unsynced);
            return;
        }
        lost.clear();
        for write in unsynced.drain(..) {
            apply(synced, &write, |_| true);
        }
    }

    /// The names that each directory has after a cut.
    fn names_left(&self, left: Left, dice: &mut Dice) -> Vec<Names> {
        let mut names: Vec<Names> = Vec::new();
        for node in &self.nodes {
            names.push(match node {
                Node::Dir { now, .. } if left == Left::All => now.clone(),
                Node::Dir { synced, .. } => synced.clone(),
                Node::File { .. } => Names::new(),
            });
        }
        if left != Left::Some {
            return names;
        }
        // A journal keeps the order, so that a part of the changes from the front is left; nobody promises that.
        let (upto, gaps) = (dice.below(self.changes.len() + 1), dice.coin());
        for change in self.changes.iter().take(upto).filter(|_| !gaps || dice.coin()) {
            match change {
                Change::Put { dir, name, node } => drop(names[*dir].insert(name.clone(), *node)),
                Change::Remove { dir, name, node } => {
                    if names[*dir].get(name) == Some(node) {
                        names[*dir].remove(name);
                    }
                }
                Change::Exchange { dir, one, other } => {
                    if names[*dir].get(&one.0) == Some(&one.1) && names[*dir].get(&other.0) == Some(&other.1)
                    {
                        names[*dir].insert(one.0.clone(), other.1);
                        names[*dir].insert(other.0.clone(), one.1);
                    }
                }
                Change::Move { dir, from, to, node } => {
                    if names[*dir].get(from) == Some(node) {
                        names[*dir].remove(from);
                        names[*dir].insert(to.clone(), *node);
                    }
                }
            }
        }
        names
    }

    fn write_dir(&self, id: Id, to: &Path, names: &[Names], left: Left, dice: &mut Dice) {
        for (name, node) in &names[id] {
            let place = to.join(name);
            match &self.nodes[*node] {
                Node::Dir { .. } => {
                    fs::create_dir(&place).unwrap();
                    self.write_dir(*node, &place, names, left, dice);
                }
                Node::File { synced, unsynced, lost, .. } => {
                    fs::write(&place, content_left(synced, &[&lost[..], unsynced].concat(), left, dice))
                        .unwrap();
                }
            }
        }
        // What is not ours stands in the real directory, wherever that is now.
        let Some(real) = self.path_of(id) else { return };
        for item in fs::read_dir(real).into_iter().flatten().map(|item| item.unwrap()) {
            if item.path().is_dir() && is_sled(&item.file_name()) && id != 0 {
                copy_sled(&item.path(), &to.join(item.file_name()), left, dice);
            }
        }
    }

    /// Where a directory is, if it was not removed.
    fn path_of(&self, wanted: Id) -> Option<PathBuf> {
        let mut open = vec![(0, self.root.clone())];
        while let Some((id, path)) = open.pop() {
            if id == wanted {
                return Some(path);
            }
            if let Node::Dir { now, .. } = &self.nodes[id] {
                open.extend(now.iter().map(|(name, child)| (*child, path.join(name))));
            }
        }
        None
    }
}

impl Fs for PowerCut {
    fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        let mut world = self.act(Act::Create, path)?;
        let known = world.find(path);
        if known.is_none() {
            world.has_room(path, 0)?;
        }
        let file = Disk.create(path)?;
        let id = known.or_else(|| {
            let (synced, space) = (Vec::new(), FileSpace::default());
            world.put(path, Node::File { synced, unsynced: Vec::new(), lost: Vec::new(), space })
        });
        if known.is_some() {
            world.write(id, Write::Size(0));
            world.space_of(id).into_iter().for_each(|space| space.blocks.clear());
        }
        drop(world);
        Ok(self.file(path, id, file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        let id = self.world().find(path);
        Ok(self.file(path, id, Disk.open(path)?))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        let id = self.world().find(path);
        Ok(self.file(path, id, Disk.open_to_write(path)?))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.act(Act::MakeDir, path)?;
        world.has_room(path, 1)?;
        Disk.make_dir(path)?;
        world.put(path, Node::Dir { now: Names::new(), synced: Names::new(), gone: false });
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.act(Act::SyncDir, path)?;
        if let Some(id) = world.find(path) {
            world.sync_dir(id);
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.act(Act::Rename, to)?;
        world.has_room(to, 0)?;
        Disk.rename(from, to)?;
        world.rename(from, to);
        Ok(())
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let mut world = self.act(Act::Rename, other)?;
        Disk.exchange(one, other)?;
        world.exchange(one, other);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut world = self.act(Act::Remove, path)?;
        Disk.remove_file(path)?;
        world.remove(path);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = self.act(Act::Remove, path)?;
        Disk.remove_dir_all(path)?;
        world.remove(path);
        Ok(())
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let world = self.world();
        match world.blocks_max {
            Some(most) => Ok(Space { available: world.blocks_free() * BLOCK, total: most * BLOCK }),
            None => self.plan.space().map_or_else(|| Disk.space(path), Ok),
        }
    }
}

impl PowerCut {
    fn file(&self, path: &Path, id: Option<Id>, real: Box<dyn FsFile>) -> Box<dyn FsFile> {
        self.world().space_of(id).into_iter().for_each(|space| space.open += 1);
        Box::new(CuttableFile { disk: self.clone(), path: path.to_owned(), id, real })
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
        self.disk.world().space_of(self.id).into_iter().for_each(|space| space.open -= 1);
    }
}

impl CuttableFile {
    fn sync(&self) -> io::Result<()> {
        let planned = self.disk.plan.check(Act::Sync, &self.path, 0);
        let mut world = self.disk.world().spend()?;
        // The real file is in the kernel's memory, which is all that is needed of it.
        world.sync_file(self.id, planned.is_ok());
        planned.map_err(|failure| failure.why)
    }
}

impl FsFile for CuttableFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let planned = self.disk.plan.check(Act::Write, &self.path, bytes.len());
        let mut world = self.disk.world().spend()?;
        let part = planned.as_ref().map_or_else(|failure| &bytes[..failure.part], |()| bytes);
        let fits = world.allocate(self.id, offset, part.len());
        let is_full = fits < part.len();
        let part = &part[..fits];
        self.real.write_all_at(part, offset)?;
        if !part.is_empty() {
            let offset = usize::try_from(offset).unwrap();
            world.write(self.id, Write::Bytes { offset, bytes: part.to_vec() });
        }
        if is_full {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        planned.map_err(|failure| failure.why)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.plan.check_read(&self.path, offset, buffer.len())?;
        self.real.read_exact_at(buffer, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.act(Act::SetLen, &self.path)?;
        self.real.set_len(len)?;
        world.write(self.id, Write::Size(usize::try_from(len).unwrap()));
        let blocks = len.div_ceil(BLOCK);
        world.space_of(self.id).into_iter().for_each(|space| space.blocks.retain(|block| *block < blocks));
        Ok(())
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
            Self { disk: PowerCut::new(&root, plan.clone()), dir, plan, cuts: 0 }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join("now").join(name)
        }

        /// What a cut may leave of a file, over many throws of the dice. The disk goes on: as if copied.
        fn found(&mut self, name: &str, left: Left) -> std::collections::BTreeSet<Option<Vec<u8>>> {
            let mut found = std::collections::BTreeSet::new();
            for seed in 0..200 {
                self.cuts += 1;
                let to = self.dir.path().join(self.cuts.to_string());
                fs::create_dir(&to).unwrap();
                self.disk.cut(&to, left, &mut Dice::new(seed));
                self.disk.world().acts_left = None;
                found.insert(fs::read(to.join(name)).ok());
            }
            found
        }
    }

    #[test]
    fn what_is_synced_stays_and_of_the_rest_any_part_may() {
        let mut bench = Bench::new();
        let file = bench.disk.create(&bench.path("log")).unwrap();
        file.write_all_at(&[1; 700], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(bench.found("log", Left::Nothing), [None].into(), "the name is not synced");
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(bench.found("log", Left::Some), [Some(vec![1; 700])].into());
        file.write_all_at(&[2; 600], 700).unwrap();
        let found = bench.found("log", Left::Some);
        let whole = [vec![1; 700], vec![2; 600]].concat();
        assert!(found.contains(&Some(vec![1; 700])) && found.contains(&Some(whole.clone())));
        assert!(found.iter().all(|one| one.as_ref().unwrap()[..700] == [1; 700]));
        // Torn at 1,024: the first half, or the second behind a hole, or zeros.
        for part in [&whole[..1024], &[&[1; 700][..], &[0; 324], &[2; 276]].concat()] {
            assert!(found.contains(&Some(part.to_vec())), "{} bytes", part.len());
        }
        assert!(found.contains(&Some([&[1; 700][..], &[0; 600]].concat())), "room was made");
        assert_eq!(bench.found("log", Left::All), [Some(whole.clone())].into());
        file.sync_data().unwrap();
        assert_eq!(bench.found("log", Left::Nothing), [Some(whole)].into());
    }

    #[test]
    fn a_rename_is_done_or_not_until_the_directory_is_synced() {
        let mut bench = Bench::new();
        bench.disk.write_whole(&bench.path("FORMAT"), b"old").unwrap();
        assert_eq!(bench.found("FORMAT", Left::Some), [Some(b"old".to_vec())].into());
        let (temporary, place) = (bench.path("FORMAT.tmp"), bench.path("FORMAT"));
        let file = bench.disk.create(&temporary).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        file.sync_all().unwrap();
        bench.disk.rename(&temporary, &place).unwrap();
        let both = [Some(b"old".to_vec()), Some(b"new".to_vec())];
        assert_eq!(bench.found("FORMAT", Left::Some), both.into());
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(bench.found("FORMAT", Left::Some), [Some(b"new".to_vec())].into());
    }

    #[test]
    fn names_that_change_places_do_so_at_once() {
        let mut bench = Bench::new();
        bench.disk.write_whole(&bench.path("one"), b"1").unwrap();
        bench.disk.write_whole(&bench.path("other"), b"2").unwrap();
        bench.disk.exchange(&bench.path("one"), &bench.path("other")).unwrap();
        assert_eq!(bench.found("one", Left::Some), [Some(b"1".to_vec()), Some(b"2".to_vec())].into());
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(bench.found("one", Left::Some), [Some(b"2".to_vec())].into());
        assert_eq!(bench.found("other", Left::Some), [Some(b"1".to_vec())].into());
    }

    #[test]
    fn each_directory_is_synced_by_itself() {
        for (synced, left, place) in [("from", None, None), ("to", Some(b"x".to_vec()), Some(b"x".to_vec()))]
        {
            let mut bench = Bench::new();
            for dir in ["from", "to"] {
                bench.disk.make_dir(&bench.path(dir)).unwrap();
            }
            bench.disk.write_whole(&bench.path("from/a"), b"x").unwrap();
            bench.disk.sync_dir(&bench.path("")).unwrap();
            bench.disk.rename(&bench.path("from/a"), &bench.path("to/a")).unwrap();
            bench.disk.sync_dir(&bench.path(synced)).unwrap();
            assert_eq!(bench.found("from/a", Left::Nothing), [left].into(), "{synced} is synced");
            assert_eq!(bench.found("to/a", Left::Nothing), [place].into(), "{synced} is synced");
        }
    }

    #[test]
    fn a_process_that_dies_leaves_what_is_not_synced_to_the_next() {
        let mut bench = Bench::new();
        bench.disk.write_whole(&bench.path("log"), b"old").unwrap();
        let file = bench.disk.open_to_write(&bench.path("log")).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        bench.disk.let_power_go_after(0);
        file.sync_data().unwrap_err();
        bench.disk.restore();
        assert_eq!(fs::read(bench.path("log")).unwrap(), b"new");
        assert_eq!(bench.found("log", Left::Nothing), [Some(b"old".to_vec())].into());
        bench.disk.open_to_write(&bench.path("log")).unwrap().sync_data().unwrap();
        assert_eq!(bench.found("log", Left::Nothing), [Some(b"new".to_vec())].into());
    }

    #[test]
    fn space_is_that_of_blocks_and_a_removed_file_keeps_its_own_while_it_is_open() {
        let bench = Bench::new();
        let disk = &bench.disk;
        let file = disk.create(&bench.path("log")).unwrap();
        file.write_all_at(&[1; 5000], 0).unwrap();
        let used = disk.blocks_used();
        disk.leave_blocks(Some(1));
        let why = file.write_all_at(&[2; 9000], 5000).unwrap_err();
        assert_eq!((why.kind(), file.size().unwrap()), (io::ErrorKind::StorageFull, 3 * 4096));
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
    fn a_bad_sector_cannot_be_read_until_it_is_mended() {
        let bench = Bench::new();
        let file = bench.disk.create(&bench.path("log")).unwrap();
        file.write_all_at(&[1; 2000], 0).unwrap();
        bench.plan.spoil("log", 512..1024);
        let mut bytes = [0; 100];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let why = file.read_exact_at(&mut bytes, 450).unwrap_err();
        assert_eq!(why.raw_os_error(), Some(Errno::IO.raw_os_error()));
        bench.plan.heal();
        file.read_exact_at(&mut bytes, 450).unwrap();
    }

    #[test]
    fn what_a_failed_sync_lost_stays_lost() {
        let mut bench = Bench::new();
        bench.disk.write_whole(&bench.path("log"), b"header").unwrap();
        let file = bench.disk.open_to_write(&bench.path("log")).unwrap();
        file.write_all_at(b"one", 6).unwrap();
        bench.plan.add(Fault::once(Act::Sync, Errno::IO));
        file.sync_data().unwrap_err();
        file.sync_data().unwrap();
        file.write_all_at(b"two", 9).unwrap();
        file.sync_data().unwrap();
        assert_eq!(fs::read(bench.path("log")).unwrap(), b"headeronetwo");
        assert_eq!(bench.found("log", Left::Nothing), [Some(b"header\0\0\0two".to_vec())].into());
    }

    #[test]
    fn a_directory_goes_away_whole_in_part_or_not_at_all() {
        let mut bench = Bench::new();
        bench.disk.make_dir(&bench.path("dir")).unwrap();
        bench.disk.write_whole(&bench.path("dir/a"), b"a").unwrap();
        assert_eq!(bench.found("dir/a", Left::Nothing), [None].into(), "dir itself is not synced");
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(bench.found("dir/a", Left::Nothing), [Some(b"a".to_vec())].into());
        bench.disk.remove_dir_all(&bench.path("dir")).unwrap();
        assert_eq!(bench.found("dir/a", Left::Some).len(), 2);
        bench.disk.sync_dir(&bench.path("")).unwrap();
        assert_eq!(bench.found("dir/a", Left::Some), [None].into());
    }

    #[test]
    fn without_power_nothing_is_done() {
        let bench = Bench::new();
        bench.disk.let_power_go_after(1);
        let file = bench.disk.create(&bench.path("log")).unwrap();
        assert!(bench.disk.is_dark());
        file.write_all_at(b"x", 0).unwrap_err();
        file.sync_data().unwrap_err();
        bench.disk.make_dir(&bench.path("dir")).unwrap_err();
        assert!(!bench.path("dir").exists() && fs::read(bench.path("log")).unwrap().is_empty());
    }

    #[test]
    fn a_lying_disk_loses_what_it_said_was_synced() {
        for (about, left) in [(Act::Sync, Some(Vec::new())), (Act::SyncDir, None)] {
            let mut bench = Bench::new();
            bench.disk = bench.disk.lying(Some(about));
            bench.disk.write_whole(&bench.path("log"), b"words").unwrap();
            assert_eq!(bench.found("log", Left::Nothing), [left].into(), "{about:?}");
        }
    }
}
