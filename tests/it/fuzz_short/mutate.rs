//! Mutations of seeds: small changes, and changes of lengths, counts and ends.

use saltcellar_testkit::Random;

/// Bytes of the longest input.
const INPUT_BYTES_MAX: usize = 64 * 1024;

/// Limits of integer types and encodings.
const EDGES: [u64; 18] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Special bytes: heads of msgpack and DER, ends of strings.
const HEADS: [u8; 24] = [
    0x00, 0x0a, 0x2f, 0x30, 0x7f, 0x80, 0x8f, 0x90, 0x92, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc4, 0xc6,
    0xc9, 0xcf, 0xd3, 0xdb, 0xdc, 0xdd, 0xde, 0xdf,
];

/// A stream of inputs; the same seed gives the same stream.
pub(super) struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    random: Random,
}

impl<'a> Mutator<'a> {
    pub(super) fn new(seed: u64, seeds: &'a [Vec<u8>]) -> Self {
        Self {
            seeds,
            random: Random::new(seed),
        }
    }

    /// A number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.below(end as u64)).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.random.next().to_le_bytes()[0]
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    /// One of the seeds, short ones more often, because they are faster.
    fn seed(&mut self) -> &'a [u8] {
        let [one, other] = [self.below(self.seeds.len()), self.below(self.seeds.len())];
        let [one, other] = [&self.seeds[one], &self.seeds[other]];
        if one.len() < other.len() { one } else { other }
    }

    /// A range of up to this many bytes, most often a short one.
    fn stretch(&mut self, len: usize) -> (usize, usize) {
        let from = self.below(len + 1);
        let most = if self.below(4) == 0 { len } else { 32 };
        (from, (from + self.below(most + 1)).min(len))
    }

    /// The next input.
    pub(super) fn input(&mut self) -> Vec<u8> {
        if self.below(32) == 0 {
            let len = self.below(300);
            return self.bytes(len);
        }
        let mut input = self.seed().to_vec();
        // One change as often as two, two as often as three and more.
        let mut more = true;
        while more {
            self.change(&mut input);
            more = self.below(2) == 0;
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len());
        match self.below(13) {
            0 => {
                let bit = self.below(8);
                input
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|byte| *byte ^= 1 << bit);
            }
            1 => {
                let byte = self.byte();
                input
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|old| *old = byte);
            }
            2 => {
                let head = HEADS[self.below(HEADS.len())];
                input
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|old| *old = head);
            }
            3 | 4 => self.number(input, at),
            5 => input.truncate(at),
            6 => {
                let (from, to) = self.stretch(input.len());
                input.drain(from..to);
            }
            7 => {
                let len = self.below(16);
                let new = self.bytes(len);
                input.splice(at..at, new);
            }
            8 => {
                // Repeated, occasionally very often.
                let (from, to) = self.stretch(input.len());
                let times = if self.below(8) == 0 {
                    self.below(1000)
                } else {
                    1
                };
                let times = times.min(INPUT_BYTES_MAX / (to - from).max(1));
                let part = input[from..to].repeat(times);
                input.splice(to..to, part);
            }
            9 => {
                // The end of another one.
                let other = self.seed();
                let from = self.below(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            10 => {
                // A part of another one, in between.
                let other = self.seed();
                let (from, to) = self.stretch(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
            11 => {
                // A part of itself, over another.
                let (from, to) = self.stretch(input.len());
                let part = input[from..to].to_vec();
                input
                    .iter_mut()
                    .skip(at)
                    .zip(part)
                    .for_each(|(old, new)| *old = new);
            }
            _ => {
                // The whole input appended to itself, or to another one.
                let other = if self.below(2) == 0 {
                    input.clone()
                } else {
                    self.seed().to_vec()
                };
                input.extend_from_slice(&other);
            }
        }
        input.truncate(INPUT_BYTES_MAX);
    }

    /// Overwrites a possible number by a limit, by a number near the old one, or near the number of remaining
    /// bytes.
    fn number(&mut self, input: &mut [u8], at: usize) {
        let width = 1 << self.below(4);
        let rest = input.len() - at;
        let Some(place) = input.get_mut(at..at + width) else {
            return;
        };
        let is_big = self.below(2) == 0;
        let old = place.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let old = if is_big {
            old
        } else {
            old.swap_bytes() >> (64 - 8 * width)
        };
        let near = u64::try_from(self.below(5)).unwrap().wrapping_sub(2);
        let new = match self.below(4) {
            0 | 1 => EDGES[self.below(EDGES.len())],
            2 => old.wrapping_add(near),
            _ => u64::try_from(rest - width).unwrap().wrapping_add(near),
        };
        if is_big {
            place.copy_from_slice(&new.to_be_bytes()[8 - width..]);
        } else {
            place.copy_from_slice(&new.to_le_bytes()[..width]);
        }
    }
}

#[test]
fn a_seed_repeats_its_inputs_and_every_mutation_occurs() {
    let seeds = vec![b"one seed of some length".to_vec(), vec![0; 300], vec![]];
    let stream = |seed: u64| {
        let mut mutator = Mutator::new(seed, &seeds);
        (0..2000).map(|_| mutator.input()).collect::<Vec<_>>()
    };
    let inputs = stream(7);
    assert!(inputs == stream(7) && inputs != stream(8));
    assert!(inputs.iter().all(|input| input.len() <= INPUT_BYTES_MAX));
    let has = |what: &dyn Fn(&[u8]) -> bool| inputs.iter().any(|input| what(input));
    let holds = |input: &[u8], part: &[u8]| input.windows(part.len()).any(|at| at == part);
    assert!(
        has(&|input| input == &b"one seed of some length"[..4]),
        "cut"
    );
    let differs = |input: &[u8]| {
        input
            .iter()
            .zip(&seeds[0])
            .filter(|(new, old)| new != old)
            .count()
    };
    assert!(
        has(&|input| input.len() == seeds[0].len() && differs(input) == 1),
        "one byte"
    );
    assert!(
        has(&|input| holds(input, &[0xff, 0xff, 0xff, 0xff]) && input.len() == 300),
        "an edge"
    );
    assert!(
        has(&|input| holds(input, b"lengthone seed")),
        "repeated whole"
    );
    assert!(
        has(&|input| input.starts_with(b"one se") && holds(input, &[0; 32])),
        "spliced"
    );
    assert!(has(&|input| input.len() > 5000), "repeated often");
}
