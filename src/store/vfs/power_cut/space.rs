//! Space on the simulated disk, counted in blocks as a file system does.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::{Id, Node, PowerCut, World};

/// What a file takes of the disk.
#[derive(Debug, Default)]
pub(super) struct FileSpace {
    /// The numbers of its blocks that are allocated.
    pub(super) blocks: BTreeSet<u64>,
    /// How many have it open.
    pub(super) open: usize,
    /// Is it removed? Its blocks are free once nobody has it open.
    pub(super) gone: bool,
}

impl FileSpace {
    pub(super) fn of_bytes(len: usize) -> Self {
        Self { blocks: (0..(len as u64).div_ceil(BLOCK)).collect(), ..Self::default() }
    }
}

/// Bytes of a block of the disk, and names of a directory that fit into one.
pub(super) const BLOCK: u64 = 4096;
const NAMES_OF_A_BLOCK: usize = 16;

impl PowerCut {
    /// Leaves so many blocks free; `None` is no bound.
    pub(in crate::store) fn leave_blocks(&self, free: Option<u64>) {
        let mut world = self.world();
        world.blocks_max = free.map(|free| world.blocks_used() + free);
    }

    /// Blocks that are in use.
    pub(in crate::store) fn blocks_used(&self) -> u64 {
        self.world().blocks_used()
    }
}

impl World {
    /// A file or directory has lost its name.
    pub(super) fn unlink(&mut self, id: Id) {
        match &mut self.nodes[id] {
            Node::Dir { gone, .. } => *gone = true,
            Node::File { space, .. } => space.gone = true,
        }
    }

    /// Blocks in use, names included.
    pub(super) fn blocks_used(&self) -> u64 {
        let used = |node: &Node| match node {
            Node::Dir { gone: true, .. } => 0,
            Node::Dir { now, .. } => 1 + (now.len() / NAMES_OF_A_BLOCK) as u64,
            Node::File { space, .. } if space.gone && space.open == 0 => 0,
            Node::File { space, .. } => space.blocks.len() as u64,
        };
        self.nodes.iter().map(used).sum()
    }

    /// Blocks that are free.
    pub(super) fn blocks_free(&self) -> u64 {
        self.blocks_max.map_or(u64::MAX, |most| most.saturating_sub(self.blocks_used()))
    }

    /// Is there room for one more name in the directory of a path, and for so many blocks?
    pub(super) fn has_room(&self, path: &Path, blocks: u64) -> io::Result<()> {
        let names = match path.parent().and_then(|dir| self.find(dir)).map(|dir| &self.nodes[dir]) {
            Some(Node::Dir { now, .. }) if !now.contains_key(path.file_name().unwrap_or_default()) => {
                now.len() + 1
            }
            _ => 1,
        };
        let wanted = blocks + u64::from(names % NAMES_OF_A_BLOCK == 0);
        if wanted > self.blocks_free() { Err(rustix::io::Errno::NOSPC.into()) } else { Ok(()) }
    }

    /// Allocates blocks for a write; how many bytes of it fit.
    pub(super) fn allocate(&mut self, id: Option<Id>, offset: u64, len: usize) -> usize {
        let mut free = self.blocks_free();
        let Some(Node::File { space, .. }) = id.map(|id| &mut self.nodes[id]) else { return len };
        let end = offset + len as u64;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            if !space.blocks.contains(&block) {
                if free == 0 {
                    return usize::try_from((block * BLOCK).saturating_sub(offset)).unwrap().min(len);
                }
                free -= 1;
                space.blocks.insert(block);
            }
        }
        len
    }

    pub(super) fn space_of(&mut self, id: Option<Id>) -> Option<&mut FileSpace> {
        match id.map(|id| &mut self.nodes[id]) {
            Some(Node::File { space, .. }) => Some(space),
            _ => None,
        }
    }
}
