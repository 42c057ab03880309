//! The order in which Python prints and walks a set: that of its hash table.
//!
//! Texts have no order that two processes share, for Python seeds their hashes; here it is that of the seed 0, `PYTHONHASHSEED=0`.

use super::num;
use super::val::Val;
use crate::sls::jinja::budget;

/// Members of a set, in the order in which they were added, as CPython's table has them.
pub(crate) fn order(items: Vec<Val>) -> Vec<Val> {
    let hashes: Option<Vec<i64>> = items.iter().map(hash).collect();
    let Some(hashes) = hashes else { return items };
    let mut table: Vec<Option<usize>> = vec![None; 8];
    let mut fill = 0;
    for place in 0..items.len() {
        insert(&mut table, &hashes, place);
        fill += 1;
        if fill * 5 >= (table.len() - 1) * 3 {
            let wanted = if fill > 50_000 { fill * 2 } else { fill * 4 };
            let mut size = 8;
            while size <= wanted {
                size *= 2;
            }
            let old = std::mem::replace(&mut table, vec![None; size]);
            for place in old.into_iter().flatten() {
                insert(&mut table, &hashes, place);
            }
        }
    }
    table.into_iter().flatten().filter_map(|place| items.get(place).cloned()).collect()
}

fn insert(table: &mut [Option<usize>], hashes: &[i64], place: usize) {
    const LINEAR_PROBES: usize = 9;
    let mask = table.len() - 1;
    let hash = hashes.get(place).copied().unwrap_or(0).cast_unsigned();
    let mut perturb = hash;
    let low = |hash: u64| usize::try_from(hash & (mask as u64)).unwrap_or(0);
    let mut i = low(hash);
    loop {
        let probes = if i + LINEAR_PROBES <= mask { LINEAR_PROBES } else { 0 };
        for at in i..=i + probes {
            if let Some(slot @ None) = table.get_mut(at) {
                *slot = Some(place);
                return;
            }
        }
        perturb >>= 5;
        i = low((i as u64).wrapping_mul(5).wrapping_add(1).wrapping_add(perturb));
    }
}

/// `hash(value)`
fn hash(val: &Val) -> Option<i64> {
    const MODULUS: i128 = (1 << 61) - 1;
    let whole = |i: i128| {
        let h = i64::try_from(i.unsigned_abs() % MODULUS.unsigned_abs()).unwrap_or(0);
        let h = if i < 0 { -h } else { h };
        if h == -1 { -2 } else { h }
    };
    Some(match val {
        Val::Bool(_) | Val::Int(_) | Val::Big(_) => whole(val.as_int()?),
        Val::Float(f) if f.fract() == 0.0 => whole(num::trunc(*f)?),
        Val::Str(text) | Val::Markup(text) => {
            if text.is_empty() {
                return Some(0);
            }
            let top = text.chars().map(u32::from).max().unwrap_or(0);
            let mut bytes = Vec::with_capacity(text.len());
            for c in text.chars() {
                let code = u32::from(c).to_le_bytes();
                bytes.extend_from_slice(code.get(
                    ..if top < 0x100 {
                        1
                    } else if top < 0x1_0000 {
                        2
                    } else {
                        4
                    },
                )?);
            }
            let h = siphash(&bytes).cast_signed();
            if h == -1 { -2 } else { h }
        }
        Val::Tuple(tuple) => {
            budget::spend(tuple.items.len());
            // The rendering is about to fail, whatever the order.
            if budget::is_spent() {
                return None;
            }
            // xxHash, as CPython has it since 3.8.
            let mut acc: u64 = 2_870_177_450_012_600_261;
            for item in &tuple.items {
                let lane = hash(item)?.cast_unsigned();
                acc = acc.wrapping_add(lane.wrapping_mul(14_029_467_366_897_019_727));
                acc = acc.rotate_left(31).wrapping_mul(11_400_714_785_074_694_791);
            }
            let len = tuple.items.len() as u64;
            acc = acc.wrapping_add(len ^ (0x27d4_eb2f_1656_67c5 ^ 0x35_d373));
            if acc == u64::MAX { 1_546_275_796 } else { acc.cast_signed() }
        }
        _ => return None,
    })
}

/// SipHash-1-3 with the key 0.
fn siphash(bytes: &[u8]) -> u64 {
    let mut v =
        [0x736f_6d65_7073_6575_u64, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
    let round = |v: &mut [u64; 4]| {
        let [v0, v1, v2, v3] = v;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v1);
        *v0 = v0.wrapping_add(*v3);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    };
    let mut feed = |word: u64| {
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    };
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        feed(chunk.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)));
    }
    let rest = chunks.remainder().iter().rev().fold(0, |word, b| word << 8 | u64::from(*b));
    feed((bytes.len() as u64) << 56 | rest);
    v[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}
