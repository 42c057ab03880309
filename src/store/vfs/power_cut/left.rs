//! What may be left of a file, and of sled's directories, when the power goes.

use std::fs;
use std::path::Path;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// SeqNos that follow from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The numbers of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of `n` numbers from 0 on (splitmix64).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % (n.max(1) as u64)).unwrap()
    }

    pub(super) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// How much is left of what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// All of it: the process died, the power stayed.
    All,
    /// What the dice say.
    Some,
    /// Nothing.
    Nothing,
}

/// What was done to a file.
#[derive(Debug, Clone)]
pub(super) enum Write {
    Bytes { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

/// Does a write, but only those sectors of it that are `kept`.
pub(super) fn apply(content: &mut Vec<u8>, write: &Write, mut kept: impl FnMut(usize) -> bool) {
    match write {
        Write::Size(len) => {
            if kept(0) {
                content.resize(*len, 0);
            }
        }
        Write::Bytes { offset, bytes } => {
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

/// What a file holds after a cut.
pub(super) fn content_left(synced: &[u8], unsynced: &[Write], left: Left, dice: &mut Dice) -> Vec<u8> {
    let mut content = synced.to_vec();
    let upto = match left {
        Left::All => unsynced.len(),
        Left::Nothing => 0,
        // Mostly the last write is the one that is cut in two.
        Left::Some if dice.coin() => unsynced.len(),
        Left::Some => dice.below(unsynced.len() + 1),
    };
    let (gaps, last) = (dice.coin(), upto.saturating_sub(1));
    for (number, write) in unsynced.iter().take(upto).enumerate() {
        if left == Left::All || (number < last && !gaps) {
            apply(&mut content, write, |_| true);
            continue;
        }
        // All of it, the sectors up to a place, all but one, or any of them.
        let sectors = match write {
            Write::Bytes { offset, bytes } => offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR),
            Write::Size(_) => 0..1,
        };
        let (torn_at, how) = (sectors.start + dice.below(sectors.len() + 1), dice.below(4));
        apply(&mut content, write, |sector| match how {
            0 => true,
            1 => sector < torn_at,
            2 => sector != torn_at,
            _ => dice.coin(),
        });
        // Room may have been made for all of it; what was not written reads as zeros.
        if let Write::Bytes { offset, bytes } = write
            && dice.below(4) == 0
        {
            let len = content.len().max(offset + bytes.len());
            content.resize(len, 0);
        }
    }
    content
}

/// Copies a directory that nothing relies on, or does not, or damages the copy.
pub(super) fn copy_sled(from: &Path, to: &Path, left: Left, dice: &mut Dice) {
    let how = if left == Left::All { 9 } else { dice.below(10) };
    if how == 0 {
        return;
    }
    fs::create_dir(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let place = to.join(item.file_name());
        if item.path().is_dir() {
            copy_sled(&item.path(), &place, Left::All, dice);
            continue;
        }
        // sled may remove a snapshot at any time.
        let Ok(mut bytes) = fs::read(item.path()) else { continue };
        match how {
            1 => bytes.truncate(dice.below(bytes.len() + 1)),
            2 if !bytes.is_empty() => {
                let at = dice.below(bytes.len());
                let end = bytes.len().min(at + SECTOR);
                bytes[at..end].fill(0);
            }
            _ => {}
        }
        fs::write(place, bytes).unwrap();
    }
}
