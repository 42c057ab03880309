//! The data that survives a power loss: contents of files and of sled's directories.

use std::fs;
use std::path::Path;

use saltcellar_testkit::Random;

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// The unsynced changes that survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survives {
    /// All of them, as after the death of a process.
    All,
    /// A random part of them.
    Some,
    Nothing,
}

/// An unsynced change of a file.
#[derive(Debug, Clone)]
pub(super) enum Write {
    Bytes { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

/// Applies a write, restricted to the sectors for which `kept` returns true.
pub(super) fn apply(content: &mut Vec<u8>, write: &Write, mut kept: impl FnMut(usize) -> bool) {
    match write {
        Write::Size(len) => {
            if kept(0) {
                content.resize(*len, 0);
            }
        }
        Write::Bytes { offset, bytes } => {
            // Sector by sector, at the boundaries of the disk, not of the write.
            let mut at = *offset;
            let end = offset + bytes.len();
            while at < end {
                let next = end.min((at / SECTOR + 1) * SECTOR);
                if kept(at / SECTOR) {
                    if content.len() < next {
                        content.resize(next, 0);
                    }
                    content[at..next].copy_from_slice(&bytes[at - offset..next - offset]);
                }
                at = next;
            }
        }
    }
}

/// The content of a file after a cut.
pub(super) fn content_after_cut(
    synced: &[u8],
    unsynced: &[Write],
    survives: Survives,
    rng: &mut Random,
) -> Vec<u8> {
    let mut content = synced.to_vec();
    let upto = match survives {
        Survives::All => unsynced.len(),
        Survives::Nothing => 0,
        // In most cases the last write is torn.
        Survives::Some if rng.coin() => unsynced.len(),
        Survives::Some => rng.index(unsynced.len() + 1),
    };

    // Without gaps, all writes but the last one survive whole.
    let gaps = rng.coin();
    let last = upto.saturating_sub(1);
    for (number, write) in unsynced.iter().take(upto).enumerate() {
        if survives == Survives::All || (number < last && !gaps) {
            apply(&mut content, write, |_| true);
            continue;
        }

        // Keep all sectors, those up to a random one, all but one, or a random set.
        let sectors = match write {
            Write::Bytes { offset, bytes } => {
                offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR)
            }
            Write::Size(_) => 0..1,
        };

        let torn_at = sectors.start + rng.index(sectors.len() + 1);
        let how = rng.index(4);
        apply(&mut content, write, |sector| match how {
            0 => true,
            1 => sector < torn_at,
            2 => sector != torn_at,
            _ => rng.coin(),
        });
        // Space may have been allocated for all of it; unwritten parts then read as zeros.
        if let Write::Bytes { offset, bytes } = write
            && rng.index(4) == 0
        {
            let len = content.len().max(offset + bytes.len());
            content.resize(len, 0);
        }
    }
    content
}

/// Copies a directory of sled, omits it, or damages the copy.
pub(super) fn copy_sled(from: &Path, to: &Path, survives: Survives, rng: &mut Random) {
    let how = if survives == Survives::All {
        // Without damage: a process that dies leaves sled's files as they are.
        9
    } else {
        rng.index(10)
    };
    // The directory was never written.
    if how == 0 {
        return;
    }

    fs::create_dir(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let target = to.join(item.file_name());
        if item.path().is_dir() {
            // Damage is chosen once, for the directory itself.
            copy_sled(&item.path(), &target, Survives::All, rng);
            continue;
        }
        // sled may remove a snapshot at any time.
        let Ok(mut bytes) = fs::read(item.path()) else {
            continue;
        };

        // Lost at the end, or a sector of zero bytes: sled opens the former without an error.
        match how {
            1 => bytes.truncate(rng.index(bytes.len() + 1)),
            2 if !bytes.is_empty() => {
                let at = rng.index(bytes.len());
                let end = bytes.len().min(at + SECTOR);
                bytes[at..end].fill(0);
            }
            _ => {}
        }
        fs::write(target, bytes).unwrap();
    }
}
