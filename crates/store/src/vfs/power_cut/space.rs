//! Space of the simulated disk, counted in blocks.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::{DiskNode, DiskState, Id, PowerCut};

/// The blocks of a file.
#[derive(Debug, Default)]
pub(super) struct FileSpace {
    pub(super) blocks: BTreeSet<u64>,
    /// Number of open handles.
    pub(super) open: usize,
    /// Removed; its blocks are freed when the last handle is closed.
    pub(super) gone: bool,
}

impl FileSpace {
    pub(super) fn of_bytes(len: usize) -> Self {
        Self {
            blocks: (0..(len as u64).div_ceil(BLOCK)).collect(),
            ..Self::default()
        }
    }
}

/// Bytes in a block, and directory entries that fit into one.
pub(super) const BLOCK: u64 = 4096;
const NAMES_OF_A_BLOCK: usize = 16;

impl PowerCut {
    /// Limits the free blocks; `None` is unlimited.
    pub(crate) fn leave_blocks(&self, free: Option<u64>) {
        let mut state = self.state.lock();
        state.blocks_max = free.map(|free| state.blocks_used() + free);
    }

    pub(crate) fn blocks_used(&self) -> u64 {
        self.state.lock().blocks_used()
    }
}

impl DiskState {
    /// A file or directory has lost its name.
    pub(super) fn unlink(&mut self, id: Id) {
        match &mut self.nodes[id] {
            DiskNode::Dir { gone, .. } => *gone = true,
            DiskNode::File { space, .. } => space.gone = true,
        }
    }

    pub(super) fn blocks_used(&self) -> u64 {
        let used = |node: &DiskNode| match node {
            DiskNode::Dir { gone: true, .. } => 0,
            DiskNode::Dir { now, .. } => 1 + (now.len() / NAMES_OF_A_BLOCK) as u64,
            DiskNode::File { space, .. } if space.gone && space.open == 0 => 0,
            DiskNode::File { space, .. } => space.blocks.len() as u64,
        };
        self.nodes.iter().map(used).sum()
    }

    pub(super) fn blocks_free(&self) -> u64 {
        self.blocks_max
            .map_or(u64::MAX, |most| most.saturating_sub(self.blocks_used()))
    }

    /// Fails with ENOSPC unless there is space for another name in the path's directory, and for
    /// `blocks` blocks.
    pub(super) fn has_room(&self, path: &Path, blocks: u64) -> io::Result<()> {
        // A name that exists is replaced and needs no room.
        let names = match path
            .parent()
            .and_then(|dir| self.find(dir))
            .map(|dir| &self.nodes[dir])
        {
            Some(DiskNode::Dir { now, .. })
                if !now.contains_key(path.file_name().unwrap_or_default()) =>
            {
                now.len() + 1
            }
            _ => 1,
        };

        let wanted = blocks + u64::from(names % NAMES_OF_A_BLOCK == 0);
        if wanted > self.blocks_free() {
            Err(rustix::io::Errno::NOSPC.into())
        } else {
            Ok(())
        }
    }

    /// Allocates the blocks of a write; returns the number of bytes that fit.
    pub(super) fn allocate(&mut self, id: Option<Id>, offset: u64, len: usize) -> usize {
        // Counted before the file is borrowed.
        let mut free = self.blocks_free();
        let Some(DiskNode::File { space, .. }) = id.map(|id| &mut self.nodes[id]) else {
            return len;
        };

        let end = offset + len as u64;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            // Blocks are allocated when they are first written, so a preallocated log needs none.
            if !space.blocks.contains(&block) {
                if free == 0 {
                    // A partial write ends at the last block that is free.
                    return usize::try_from((block * BLOCK).saturating_sub(offset))
                        .unwrap()
                        .min(len);
                }
                free -= 1;
                space.blocks.insert(block);
            }
        }
        len
    }

    pub(super) fn space_of(&mut self, id: Option<Id>) -> Option<&mut FileSpace> {
        match id.map(|id| &mut self.nodes[id]) {
            Some(DiskNode::File { space, .. }) => Some(space),
            _ => None,
        }
    }
}
