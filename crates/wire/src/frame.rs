//! Frames of a Salt event bus.
//!
//! A frame is `msgpack({"head": {}, "body": bin})`. Two framings exist and change inside a release line
//! (`salt/transport/frame.py`, `salt/transport/ipc.py`; see `docs/ARCHITECTURE.md`):
//!
//! ```text
//! plain   frame frame frame ...
//! len32   u32 BE length, frame, u32 BE length, frame ...
//! ```
//!
//! A stream starts with a frame, whose first byte identifies the framing: `0x82`, a map of two, is plain; as a
//! length it would mean more than 2 GB. An upgrade of the master can change the framing of the same socket, so it
//! is detected at every connect. Other streams are rejected after five bytes.

use memchr::memmem;

use super::msgpack::{self, DecodeError, Head, Reader};
use saltcellar_base::named::named;

/// Bytes of a frame in which its header ends.
const HEADER_BYTES_MAX: usize = 256;
/// Bytes of a body among which its tag is looked for, if the body is too large to be read.
const TAG_START_BYTES: usize = 1024;

/// The framing of a stream.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Frames without separators; each ends where its value ends.
    #[default]
    Plain,
    /// Frames with length prefixes.
    Len32,
}

named! {
    Framing {
        Plain: "plain",
        Len32: "len32",
    }
}

impl Framing {
    /// Detects the framing; `None` until there are enough bytes. A map is plain, because as a length
    /// it would mean more than 2 GB; a length followed by a map is len32.
    fn of(start: &[u8], max: usize) -> Result<Option<Self>, FrameError> {
        let is_map = |byte: u8| matches!(byte, 0x80..=0x8f | 0xde | 0xdf);
        let unknown = || FrameError::Unknown {
            start: start.iter().take(8).copied().collect(),
            max,
        };

        match (start.first(), start.first_chunk::<4>(), start.get(4)) {
            (Some(&first), ..) if is_map(first) => Ok(Some(Framing::Plain)),
            (_, Some(head), _) if u32::from_be_bytes(*head) as usize > max => Err(unknown()),
            (_, Some(_), Some(&first)) if is_map(first) => Ok(Some(Framing::Len32)),
            (_, Some(_), Some(_)) => Err(unknown()),
            _ => Ok(None),
        }
    }
}

/// Why a stream of frames cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame is too large. It is passed over, and the splitter continues with the next frame.
    #[error("a frame of {len} bytes exceeds the limit of {max}")]
    Oversized {
        /// The frame's bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
        /// The tag in its body, or the beginning of a long one.
        tag: Vec<u8>,
    },
    /// A frame is too large and its header does not determine its end, so the next frame cannot be
    /// found.
    #[error("a frame of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// Announced bytes, or received bytes of an unfinished frame.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The first bytes match no known framing.
    #[error(
        "the first bytes {start:02x?} are neither a msgpack map nor a length of at most {max} followed by one: \
        the framing of an unknown release, or not an event bus"
    )]
    Unknown {
        /// The first bytes.
        start: Vec<u8>,
        /// The limit of a length.
        max: usize,
    },
    /// Malformed msgpack where a frame should start.
    #[error("not a frame: {0}")]
    Malformed(#[from] DecodeError),
}

/// Splits a stream into frames.
#[derive(Debug)]
pub struct FrameSplitter {
    framing: Option<Framing>,
    /// What arrived is in `read..end`; the rest is room.
    buffer: Vec<u8>,
    read: usize,
    end: usize,
    /// Bytes to come of a frame that is passed over.
    passing: usize,
    frame_bytes_max: usize,
}

impl FrameSplitter {
    /// A splitter for frames of up to `frame_bytes_max` bytes.
    pub fn new(frame_bytes_max: usize) -> Self {
        Self {
            framing: None,
            buffer: Vec::new(),
            read: 0,
            end: 0,
            passing: 0,
            frame_bytes_max,
        }
    }

    /// The framing, once detected.
    pub fn framing(&self) -> Option<Framing> {
        self.framing
    }

    /// Appends bytes from the socket.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.fed(bytes.len());
    }

    /// Room for this many bytes from the socket, which avoids another copy. [`FrameSplitter::fed`]
    /// reports how many were received.
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.read > 0 {
            self.buffer.copy_within(self.read..self.end, 0);
            self.end -= self.read;
            self.read = 0;
        }

        // It never shrinks, so zeros are written only when it grows.
        let end = self.end + bytes;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        self.buffer.get_mut(self.end..end).unwrap_or_default()
    }

    /// Appends the first bytes of the room.
    pub fn fed(&mut self, bytes: usize) {
        self.end = self.buffer.len().min(self.end + bytes);

        // Nothing else has arrived while a frame is passed over.
        let passed = self.passing.min(self.end - self.read);
        self.passing -= passed;
        self.read += passed;
    }

    /// Passes over this many bytes, of which some may not have arrived.
    fn pass(&mut self, len: usize) {
        let arrived = self.end - self.read;
        if len <= arrived {
            self.read += len;
        } else {
            self.passing = len - arrived;
            (self.read, self.end) = (0, 0);
        }
    }

    /// The next complete frame; `None` if more bytes are needed. Reading can go on after [`FrameError::Oversized`].
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let max = self.frame_bytes_max;
        let rest = self.buffer.get(self.read..self.end).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }

        if self.framing.is_none() {
            self.framing = Framing::of(rest, max)?;
        }
        let Some(framing) = self.framing else {
            // Fewer than five bytes do not show the framing.
            return Ok(None);
        };

        let (skip, len) = match framing {
            Framing::Plain => match Reader::new(rest).value() {
                Ok(frame) => (0, frame.len()),
                Err(DecodeError::Short) => match extent(rest) {
                    Ok((end, _)) => (0, end),
                    // The end of such a frame is unknown until it is complete, so the limit
                    // applies to what has arrived.
                    Err(_) if rest.len() <= max => return Ok(None),
                    Err(_) => {
                        return Err(FrameError::TooLarge {
                            len: rest.len(),
                            max,
                        });
                    }
                },
                Err(e) => return Err(e.into()),
            },
            Framing::Len32 => match rest.first_chunk::<4>() {
                Some(head) => (
                    4,
                    usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX),
                ),
                None => return Ok(None),
            },
        };

        // Before the frame is complete: a wrong length must not be waited for.
        if len > max {
            return match start_of(rest.get(skip..).unwrap_or_default(), len) {
                Ok(Some(tag)) => {
                    let tag = tag.to_vec();
                    self.pass(skip.saturating_add(len));
                    Err(FrameError::Oversized { len, max, tag })
                }
                Ok(None) => Ok(None),
                Err(_) => Err(FrameError::TooLarge { len, max }),
            };
        }

        let from = self.read + skip;
        let to = from + len;
        if self.end < to {
            return Ok(None);
        }

        self.read = to;
        Ok(self.buffer.get(from..to))
    }
}

/// The length of a frame by its header, if its body is its last value, and the bytes of the body that have arrived.
fn extent(frame: &[u8]) -> Result<(usize, &[u8]), DecodeError> {
    let mut reader = Reader::new(frame);
    let count = reader.map()?;
    for n in 1..=count {
        let key = reader.value()?;
        if msgpack::as_text(key) != Some("body") {
            reader.value()?;
            continue;
        }

        let (Head::Str(len) | Head::Bin(len)) = reader.head()? else {
            return Err(DecodeError::Type("bin"));
        };
        if n < count {
            return Err(DecodeError::Type("map that ends with its body"));
        }
        let body = reader.rest();
        let end = (frame.len() - body.len())
            .checked_add(len)
            .ok_or(DecodeError::Type("bin"))?;
        return Ok((end, body.get(..len).unwrap_or(body)));
    }
    Err(DecodeError::Type("map with a body"))
}

/// The tag of a frame of `len` bytes, or the beginning of a long one; `None` if more bytes are needed. Fails unless its header says the same
/// length.
fn start_of(frame: &[u8], len: usize) -> Result<Option<&[u8]>, DecodeError> {
    let (end, body) = match extent(frame) {
        // Its header has not arrived yet.
        Err(DecodeError::Short) if frame.len() < HEADER_BYTES_MAX => return Ok(None),
        extent => extent?,
    };
    if end != len {
        return Err(DecodeError::Type("frame of the announced length"));
    }

    let start = body.get(..TAG_START_BYTES).unwrap_or(body);
    let tag = memmem::find(start, b"\n\n").and_then(|at| start.get(..at));
    let is_enough = start.len() == TAG_START_BYTES || end == frame.len();
    Ok(tag.or(is_enough.then_some(start)))
}

/// The frame of an event to fire, in the given framing.
pub fn fired(framing: Framing, tag: &[u8], data: &[u8]) -> Vec<u8> {
    // The head is empty, as in Salt's frames.
    let mut w = msgpack::Writer::new();
    w.map(2)
        .str("head")
        .map(0)
        .str("body")
        .bin(&[tag, b"\n\n", data].concat());

    let frame = w.into_bytes();

    match framing {
        Framing::Plain => frame,
        Framing::Len32 => {
            let len = u32::try_from(frame.len())
                .expect("an event is far below 4 GiB")
                .to_be_bytes();
            [&len, frame.as_slice()].concat()
        }
    }
}

/// The body of a frame: the bytes under `body`, packed as bin or str.
pub fn body(frame: &[u8]) -> Option<&[u8]> {
    Reader::new(msgpack::get(frame, "body")?).bytes().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut w = msgpack::Writer::new();
        w.map(2).str("head").map(0).str("body").bin(body);
        w.into_bytes()
    }

    fn cut(stream: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<Framing>) {
        let mut splitter = FrameSplitter::new(1 << 20);
        let mut bodies = Vec::new();
        for bytes in stream.chunks(step) {
            splitter.feed(bytes);
            while let Some(frame) = splitter.next_frame().unwrap() {
                bodies.push(body(frame).unwrap().to_vec());
            }
        }
        (bodies, splitter.framing())
    }

    #[test]
    fn a_fired_event_is_a_frame_in_its_framing() {
        for framing in [Framing::Plain, Framing::Len32] {
            let (bodies, found) = cut(&fired(framing, b"a/b", b"\x80"), 3);
            assert_eq!(
                (bodies, found),
                (vec![b"a/b\n\n\x80".to_vec()], Some(framing))
            );
        }
    }

    #[test]
    fn both_framings_are_split_at_any_chunking() {
        let bodies: Vec<Vec<u8>> = vec![
            b"a\n\n\x80".to_vec(),
            vec![7; 300],
            vec![],
            vec![0x82; 70_000],
        ];
        let plain: Vec<u8> = bodies.iter().flat_map(|b| frame(b)).collect();
        let len32: Vec<u8> = bodies
            .iter()
            .flat_map(|b| {
                [
                    &u32::try_from(frame(b).len()).unwrap().to_be_bytes()[..],
                    &frame(b),
                ]
                .concat()
            })
            .collect();
        for step in [1, 3, 4096, 1 << 20] {
            // One byte at a time over 70 kB of plain frames is quadratic, so small steps use the small bodies.
            let few = if step < 100 { 3 } else { 4 };
            let plain_len: usize = bodies[..few].iter().map(|b| frame(b).len()).sum();
            assert_eq!(
                cut(&plain[..plain_len], step),
                (bodies[..few].to_vec(), Some(Framing::Plain))
            );
            assert_eq!(cut(&len32, step), (bodies.clone(), Some(Framing::Len32)));
        }
    }

    #[test]
    fn bytes_read_into_the_splitters_room_are_split() {
        let stream = [frame(b"a"), frame(&[7; 300]), frame(b"b")].concat();
        let mut splitter = FrameSplitter::new(1 << 20);
        let mut bodies = Vec::new();
        for bytes in stream.chunks(100) {
            // A read may fill a part of the room only.
            splitter.room(128)[..bytes.len()].copy_from_slice(bytes);
            splitter.fed(bytes.len());
            while let Some(frame) = splitter.next_frame().unwrap() {
                bodies.push(body(frame).unwrap().to_vec());
            }
        }
        assert_eq!(bodies, [b"a".to_vec(), vec![7; 300], b"b".to_vec()]);
        assert!(splitter.buffer.len() < 600, "room is used again");
    }

    #[test]
    fn a_frame_over_the_limit_is_rejected_by_its_header() {
        let mut splitter = FrameSplitter::new(100);
        splitter.feed(&[0, 0, 0, 2, 0x82, 0xc0]);
        assert_eq!(splitter.next_frame(), Ok(Some(&[0x82, 0xc0][..])));
        // What follows is no frame, or one of another length.
        for start in [&[0xc0][..], &frame(&[0; 200])] {
            let mut splitter = FrameSplitter::new(100);
            splitter.feed(&[0, 0, 0, 2, 0x82, 0xc0]);
            assert!(matches!(splitter.next_frame(), Ok(Some(_))));
            splitter.feed(&[&[0, 1, 0, 0], start].concat());
            assert_eq!(
                splitter.next_frame(),
                Err(FrameError::TooLarge {
                    len: 65_536,
                    max: 100
                })
            );
        }

        // Its header does not determine where it ends.
        let mut w = msgpack::Writer::new();
        w.map(2).str("body").bin(&[0; 200]).str("head").map(0);
        let frame = w.into_bytes();
        for end in [150, frame.len()] {
            let mut splitter = FrameSplitter::new(100);
            splitter.feed(&frame[..end]);
            let found = splitter.next_frame();
            assert!(
                matches!(found, Err(FrameError::TooLarge { .. })),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_passed_over_and_named() {
        let long_tag = [vec![b't'; 3_000], vec![0; 4_000]].concat();
        let with_tag = [&b"salt/job/1/ret/web1\n\n"[..], &vec![7; 5_000]].concat();
        let bodies = [b"a\n\n\x80".to_vec(), with_tag, long_tag, b"b".to_vec()];
        for framing in [Framing::Plain, Framing::Len32] {
            let stream = bodies.iter().flat_map(|body| {
                let frame = frame(body);
                let len = u32::try_from(frame.len()).unwrap().to_be_bytes();
                let prefix = &len[..if framing == Framing::Len32 { 4 } else { 0 }];
                [prefix, &frame].concat()
            });
            let stream: Vec<u8> = stream.collect();
            for step in [1, 7, 1_500, stream.len()] {
                let mut splitter = FrameSplitter::new(2_000);
                let (mut found, mut passed) = (Vec::new(), Vec::new());
                for bytes in stream.chunks(step) {
                    splitter.feed(bytes);
                    // A frame that is passed over is not kept.
                    assert!(splitter.buffer.len() <= 2_000 + step);
                    loop {
                        match splitter.next_frame() {
                            Ok(Some(frame)) => found.push(body(frame).unwrap().to_vec()),
                            Ok(None) => break,
                            Err(FrameError::Oversized { len, tag, .. }) => passed.push((len, tag)),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                assert_eq!(found, [bodies[0].clone(), bodies[3].clone()]);
                let [one, two] = [1, 2].map(|n| frame(&bodies[n]).len());
                let tags = [b"salt/job/1/ret/web1".to_vec(), vec![b't'; 1_024]];
                let [first, second] = tags;
                assert_eq!(passed, [(one, first), (two, second)], "{framing:?} {step}");
            }
        }
    }

    #[test]
    fn unknown_framings_are_detected_by_their_first_bytes() {
        for (start, unknown) in [
            (&b"GET / HTTP/1.1"[..], true),
            (&[0, 1, 0, 0], true),
            (&[0, 0, 0, 9, 0x92, 0, 0], true),
            (&[0, 0, 0, 9], false),
            (&[0, 0, 0, 9, 0x83], false),
            (&[0x83, 0xa1], false),
        ] {
            let mut splitter = FrameSplitter::new(100);
            splitter.feed(start);
            let found = splitter.next_frame().map(|frame| frame.is_some());
            assert_eq!(
                matches!(found, Err(FrameError::Unknown { .. })),
                unknown,
                "{start:?}: {found:?}"
            );
        }
    }

    #[test]
    fn malformed_data_where_a_frame_should_start_is_an_error() {
        let mut splitter = FrameSplitter::new(100);
        splitter.feed(&[0x82, 0xc1, 0, 0, 0]);
        assert_eq!(
            splitter.next_frame(),
            Err(FrameError::Malformed(DecodeError::Marker))
        );
    }
}
