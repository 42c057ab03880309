//! Slots: which microseconds a master's job ids may have. No two masters then make the same id.

use saltcellar_base::clock::Micros;
use saltcellar_base::limits::CLUSTER_SLOTS_MAX;

use crate::word::{Word, words};

/// The slot of one of several masters, written `k/n`: number `k` of `n`.
///
/// # Invariant
///
/// `1 <= k <= n <=` [`CLUSTER_SLOTS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    number: u16,
    of: u16,
}

/// The only slot: all even microseconds.
impl Default for Slot {
    fn default() -> Self {
        Self { number: 1, of: 1 }
    }
}

impl Slot {
    /// The first microsecond of this slot from `at` on: 2(k-1) modulo 2n. The next microsecond
    /// belongs to the Salt extension, which makes job ids while the daemon is unreachable.
    pub fn first_from(self, at: Micros) -> Micros {
        let first = i64::from(self.number - 1) * 2;
        let ahead = (first - at.0.rem_euclid(self.step())).rem_euclid(self.step());
        Micros(at.0.saturating_add(ahead))
    }

    /// Microseconds from one of this slot to the next.
    pub fn step(self) -> i64 {
        i64::from(self.of) * 2
    }

    /// The number of slots, which is the largest number of masters.
    pub fn of(self) -> u16 {
        self.of
    }

    fn parse(text: &str) -> Option<Self> {
        // `parse` alone would also read "+1".
        let number = |text: &str| {
            let is_plain = text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u16>().ok().filter(|_| is_plain)
        };
        let (k, n) = text.split_once('/')?;
        let (number, of) = (number(k)?, number(n)?);
        let is_valid = (1..=CLUSTER_SLOTS_MAX).contains(&of) && (1..=of).contains(&number);
        is_valid.then_some(Self { number, of })
    }
}

words! {
    Slot: "k/n: the number n of masters, from 1 to 64, and the number k of this one, from 1 to n, such as 2/3",
        Slot::parse,
        |slot| format!("{}/{}", slot.number, slot.of);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_one_of_at_most_64() {
        for text in ["1/1", "1/3", "3/3", "64/64"] {
            assert_eq!(Slot::parse(text).unwrap().show().unwrap(), text);
        }
        for text in [
            "",
            "a",
            "/",
            "1",
            "1/",
            "/3",
            "0/3",
            "4/3",
            "1/0",
            "0/0",
            "-1/3",
            "+1/3",
            "1/3/3",
            " 1/3",
            "1 / 3",
            "1.0/3",
            "1/65",
            "65/65",
            "1/99999999",
        ] {
            assert_eq!(Slot::parse(text), None, "{text:?}");
        }
        assert!(Slot::ACCEPTS.contains(&format!(" {CLUSTER_SLOTS_MAX},")));
    }

    #[test]
    fn a_microsecond_belongs_to_one_slot() {
        for of in 1..=CLUSTER_SLOTS_MAX {
            let slots = (1..=of).map(|number| Slot { number, of });
            // From before 1970 on, and around the largest number.
            for from in [-300, 0, 1_795_800_000_123_456, i64::MAX - 1000] {
                let mut taken: Vec<i64> = Vec::new();
                for slot in slots.clone() {
                    let at = slot.first_from(Micros(from)).0;
                    assert_eq!(slot.first_from(Micros(at)).0, at);
                    taken.extend([at, at + 1]);
                }
                // Together they are all microseconds.
                let mut classes: Vec<i64> = taken
                    .iter()
                    .map(|at| at.rem_euclid(2 * i64::from(of)))
                    .collect();
                classes.sort_unstable();
                assert!(
                    classes.into_iter().eq(0..2 * i64::from(of)),
                    "{of} from {from}"
                );
            }
        }
    }
}
