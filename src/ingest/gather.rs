//! How long the events of a bus gather: in its socket until the next read, and in memory until they are handed over.
//!
//! A read and a commit cost as much as many events, and nobody waits for a response. But a full socket makes Salt's publisher wait, or lose
//! events if `ipc_write_buffer` is set; and someone may wait for the events themselves.

use std::time::Duration;

use crate::base::limits::{
    BUS_BATCH_BYTES, BUS_BATCH_TIME, BUS_GATHER, BUS_GATHER_BYTES, BUS_GATHER_MIN,
    BUS_GATHER_TO_REACT, BUS_SOCKET_FULL_BYTES,
};
use crate::model::Batch;
use crate::store::Store;

/// Who waits for new events of a bus: events gather for longer only while nobody does.
#[derive(Clone)]
pub(crate) struct Readers {
    /// A reactor, always.
    pub(crate) reacts: bool,
    /// Those that follow the log: clients, and sinks.
    pub(crate) store: Store,
}

impl Readers {
    pub(crate) fn wait(&self) -> bool {
        self.reacts || self.store.is_followed()
    }

    /// The longest pause between two reads.
    pub(crate) fn pause_max(&self) -> Duration {
        if self.reacts {
            BUS_GATHER_TO_REACT
        } else {
            BUS_GATHER
        }
    }
}

/// What a read took from a socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    /// Bytes of the socket's buffer that it had occupied.
    pub(super) occupied: usize,
    /// The time in which it arrived: since the read before.
    pub(super) within: Duration,
}

impl Taken {
    /// The pause until the next read, in which at this rate [`BUS_GATHER_BYTES`] are occupied; at most `max`.
    pub(super) fn pause(self, max: Duration) -> Duration {
        // More than the socket could take may have arrived.
        if self.occupied >= BUS_SOCKET_FULL_BYTES {
            return Duration::ZERO;
        }

        let factor = BUS_GATHER_BYTES as f64 / self.occupied.max(1) as f64;
        let pause = self.within.as_secs_f64() * factor;
        if pause >= max.as_secs_f64() {
            max
        } else if pause >= BUS_GATHER_MIN.as_secs_f64() {
            Duration::from_secs_f64(pause)
        } else {
            Duration::ZERO
        }
    }
}

/// Bytes of a socket's buffer that a frame occupies, which Linux counts as the memory that it takes. A publisher that could not write
/// for a while writes several frames together, which take less.
pub(super) fn occupied_by(frame_bytes: usize) -> usize {
    const PAGE: usize = 4096;
    /// The description of a message, and what follows its bytes.
    const DESCRIPTION: usize = 256;
    const TRAILER: usize = 320;

    if frame_bytes + TRAILER <= PAGE {
        (frame_bytes + TRAILER).next_power_of_two() + DESCRIPTION
    } else {
        // What does not fit into the first page is in further pages.
        (frame_bytes + TRAILER).next_multiple_of(PAGE) + DESCRIPTION
    }
}

/// Whether events that have gathered for this long are handed over: immediately if a reader waits for new events, else once
/// they are many or old.
pub(super) fn is_due(batch: &Batch, age: Duration, readers_wait: bool) -> bool {
    readers_wait || batch.bytes() >= BUS_BATCH_BYTES || age >= BUS_BATCH_TIME
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::model::Source;
    use crate::wire::salt_event::event_entry;

    /// What Linux gives a unix socket.
    const SOCKET_BYTES: usize = 212_992;

    /// Reads a steady stream for a second: the number of reads, and the most that the socket held at one of them.
    fn read_steadily(frames_per_s: u64, frame_bytes: usize, max: Duration) -> (u64, usize) {
        // Timestamps in nanoseconds.
        let second = 1_000_000_000;
        let (mut now, mut before, mut read) = (0_u64, 0, 0);
        let (mut reads, mut most) = (0, 0);

        while now < second {
            // A read waits for a frame.
            now = now.max((read + 1) * second / frames_per_s + 1);

            let frames = now * frames_per_s / second - read;
            let taken = Taken {
                occupied: usize::try_from(frames).unwrap() * occupied_by(frame_bytes),
                within: Duration::from_nanos(now - before),
            };
            read += frames;
            reads += 1;
            // The first pause of a stream is for its first frame alone.
            if reads > 2 {
                most = most.max(taken.occupied);
            }

            before = now;
            let pause = u64::try_from(taken.pause(max).as_nanos()).unwrap();
            now += 20_000 + 2_000 * frames + pause;
        }
        (reads, most)
    }

    #[test]
    fn a_read_takes_many_events_and_the_socket_is_never_full() {
        for rate in [2_000, 5_000, 20_000] {
            for bytes in [200, 400, 1_300, 1_800, 3_000] {
                let (reads, most) = read_steadily(rate, bytes, BUS_GATHER);
                let stream = format!("{rate}/s of {bytes} bytes: {reads} reads, {most} bytes");
                assert!(most < SOCKET_BYTES, "{stream}");
                let socket_takes = (SOCKET_BYTES / occupied_by(bytes)) as u64;
                // As many as arrive in the longest pause, or half of what the socket takes.
                assert!(rate / reads > (socket_takes / 2).min(rate / 50), "{stream}");
            }
        }
    }

    #[test]
    fn a_full_socket_is_read_on_at_once() {
        let full = Taken {
            occupied: SOCKET_BYTES,
            within: Duration::from_millis(25),
        };
        assert_eq!(full.pause(BUS_GATHER), Duration::ZERO);
    }

    #[test]
    fn the_pause_is_bounded_for_whoever_waits() {
        let after_silence = Taken {
            occupied: 1280,
            within: Duration::from_secs(60),
        };
        assert_eq!(after_silence.pause(BUS_GATHER), BUS_GATHER);
        assert_eq!(
            after_silence.pause(BUS_GATHER_TO_REACT),
            BUS_GATHER_TO_REACT
        );
        let nothing = Taken {
            occupied: 0,
            within: Duration::ZERO,
        };
        assert_eq!(nothing.pause(BUS_GATHER), Duration::ZERO);
    }

    #[test]
    fn events_are_handed_over_at_once_for_a_reader_and_else_when_they_are_many_or_old() {
        let batch_of = |bytes: usize| {
            let data = vec![0xc0; bytes];
            Batch::of(&event_entry(b"tag", &data, Source::Bus, Micros(1)))
        };
        let few = batch_of(1);

        assert!(is_due(&few, Duration::ZERO, true));
        assert!(!is_due(&few, BUS_BATCH_TIME / 2, false));
        assert!(is_due(&few, BUS_BATCH_TIME, false));
        assert!(is_due(&batch_of(BUS_BATCH_BYTES), Duration::ZERO, false));
    }
}
