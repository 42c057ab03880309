//! Frames on a Salt event bus.
//!
//! A frame is `msgpack({"head": {}, "body": bin})`. Two framings exist and change inside a release line
//! (`salt/transport/frame.py`, `salt/transport/ipc.py`; see `docs/ARCHITECTURE.md`):
//!
//! ```text
//! plain   frame frame frame ...
//! len32   u32 BE length, frame, u32 BE length, frame ...
//! ```
//!
//! A subscriber starts at a frame's first byte, and that byte tells: `0x82`, a map of two, is plain. Read as a
//! length it would announce more than 2 GB. A master's upgrade changes the framing under the same path, so it
//! is detected anew at every connect. What is neither is refused by its first five bytes.

use super::msgpack::{self, DecodeError, Reader};

/// How frames follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One after the other; the end of one is known by walking it.
    Plain,
    /// Each behind its length.
    Len32,
}

impl Framing {
    /// The name shown in `saltcellar status`.
    pub fn name(self) -> &'static str {
        match self {
            Framing::Plain => "plain",
            Framing::Len32 => "len32",
        }
    }
}

impl Framing {
    /// The framing that the first bytes of a stream tell, once they are enough to tell: a map is plain, for read as a length
    /// it would announce more than 2 GB; a length is len32, if a map is behind it.
    fn of(start: &[u8], max: usize) -> Result<Option<Self>, FrameError> {
        let is_map = |byte: u8| matches!(byte, 0x80..=0x8f | 0xde | 0xdf);
        let unknown = || FrameError::Unknown { start: start.iter().take(8).copied().collect(), max };
        match (start.first(), start.first_chunk::<4>(), start.get(4)) {
            (Some(&first), ..) if is_map(first) => Ok(Some(Framing::Plain)),
            (_, Some(head), _) if u32::from_be_bytes(*head) as usize > max => Err(unknown()),
            (_, Some(_), Some(&first)) if is_map(first) => Ok(Some(Framing::Len32)),
            (_, Some(_), Some(_)) => Err(unknown()),
            _ => Ok(None),
        }
    }
}

/// Why a stream of frames cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame announces more bytes than allowed: nothing behind it can be found.
    #[error("a frame of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// Bytes announced, or already received of an unfinished frame.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The first bytes are in no framing that is known.
    #[error(
        "the first bytes {start:02x?} are neither a msgpack map nor a length of at most {max} with one behind it: \
         a framing of a release not known here, or no event bus"
    )]
    Unknown {
        /// The first bytes.
        start: Vec<u8>,
        /// The limit of a length.
        max: usize,
    },
    /// Bytes that are no msgpack where a frame should begin.
    #[error("no frame: {0}")]
    Malformed(#[from] DecodeError),
}

/// Cuts a stream into frames.
#[derive(Debug)]
pub struct Splitter {
    framing: Option<Framing>,
    buffer: Vec<u8>,
    read: usize,
    frame_bytes_max: usize,
}

impl Splitter {
    /// A new stream; frames may have up to `frame_bytes_max` bytes.
    pub fn new(frame_bytes_max: usize) -> Self {
        Self { framing: None, buffer: Vec::new(), read: 0, frame_bytes_max }
    }

    /// The framing, once the first byte has come.
    pub fn framing(&self) -> Option<Framing> {
        self.framing
    }

    /// Takes bytes as they came off the socket.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.read > 0 {
            self.buffer.drain(..self.read);
            self.read = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; `None` until more bytes come.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let max = self.frame_bytes_max;
        let rest = self.buffer.get(self.read..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        if self.framing.is_none() {
            self.framing = Framing::of(rest, max)?;
        }
        let Some(framing) = self.framing else { return Ok(None) };
        let (skip, len) = match framing {
            Framing::Plain => match Reader::new(rest).value() {
                Ok(frame) => (0, frame.len()),
                Err(DecodeError::Short) if rest.len() <= max => return Ok(None),
                Err(DecodeError::Short) => return Err(FrameError::TooLarge { len: rest.len(), max }),
                Err(e) => return Err(e.into()),
            },
            Framing::Len32 => match rest.first_chunk::<4>() {
                Some(head) => (4, usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX)),
                None => return Ok(None),
            },
        };
        if len > max {
            return Err(FrameError::TooLarge { len, max });
        }
        let from = self.read + skip;
        let to = from + len;
        if self.buffer.len() < to {
            return Ok(None);
        }
        self.read = to;
        Ok(self.buffer.get(from..to))
    }
}

/// An event as it is fired: the frame of a bus in one of the framings.
pub fn fired(framing: Framing, tag: &[u8], data: &[u8]) -> Vec<u8> {
    let mut w = msgpack::Writer::new();
    w.map(2).str("head").map(0).str("body").bin(&[tag, b"\n\n", data].concat());
    let frame = w.into_bytes();
    match framing {
        Framing::Plain => frame,
        Framing::Len32 => {
            let len = u32::try_from(frame.len()).expect("an event is far below 4 GiB").to_be_bytes();
            [&len, frame.as_slice()].concat()
        }
    }
}

/// The body of a frame: the bytes under `body`, whether packed as bin or as str.
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
        let mut splitter = Splitter::new(1 << 20);
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
    fn what_is_fired_is_a_frame_of_its_framing() {
        for framing in [Framing::Plain, Framing::Len32] {
            let (bodies, found) = cut(&fired(framing, b"a/b", b"\x80"), 3);
            assert_eq!((bodies, found), (vec![b"a/b\n\n\x80".to_vec()], Some(framing)));
        }
    }

    #[test]
    fn both_framings_come_apart_at_any_cut() {
        let bodies: Vec<Vec<u8>> = vec![b"a\n\n\x80".to_vec(), vec![7; 300], vec![], vec![0x82; 70_000]];
        let plain: Vec<u8> = bodies.iter().flat_map(|b| frame(b)).collect();
        let len32: Vec<u8> = bodies
            .iter()
            .flat_map(|b| [&u32::try_from(frame(b).len()).unwrap().to_be_bytes()[..], &frame(b)].concat())
            .collect();
        for step in [1, 3, 4096, 1 << 20] {
            // One byte at a time over 70 kB of plain frames is quadratic; the small steps get the small bodies.
            let few = if step < 100 { 3 } else { 4 };
            let plain_len: usize = bodies[..few].iter().map(|b| frame(b).len()).sum();
            assert_eq!(cut(&plain[..plain_len], step), (bodies[..few].to_vec(), Some(Framing::Plain)));
            assert_eq!(cut(&len32, step), (bodies.clone(), Some(Framing::Len32)));
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_by_its_header() {
        let mut splitter = Splitter::new(100);
        splitter.feed(&[0, 0, 0, 2, 0x82, 0xc0]);
        assert_eq!(splitter.next_frame(), Ok(Some(&[0x82, 0xc0][..])));
        splitter.feed(&[0, 1, 0, 0]);
        assert_eq!(splitter.next_frame(), Err(FrameError::TooLarge { len: 65_536, max: 100 }));
        let mut splitter = Splitter::new(100);
        splitter.feed(&frame(&[0; 200]));
        assert!(matches!(splitter.next_frame(), Err(FrameError::TooLarge { .. })));
        let mut splitter = Splitter::new(100);
        splitter.feed(&frame(&[0; 200])[..150]);
        assert!(matches!(splitter.next_frame(), Err(FrameError::TooLarge { .. })));
    }

    #[test]
    fn what_begins_like_no_known_framing_is_told_by_its_first_bytes() {
        for (start, unknown) in [
            (&b"GET / HTTP/1.1"[..], true),
            (&[0, 1, 0, 0], true),
            (&[0, 0, 0, 9, 0x92, 0, 0], true),
            (&[0, 0, 0, 9], false),
            (&[0, 0, 0, 9, 0x83], false),
            (&[0x83, 0xa1], false),
        ] {
            let mut splitter = Splitter::new(100);
            splitter.feed(start);
            let found = splitter.next_frame().map(|frame| frame.is_some());
            assert_eq!(matches!(found, Err(FrameError::Unknown { .. })), unknown, "{start:?}: {found:?}");
        }
    }

    #[test]
    fn garbage_where_a_frame_should_begin_is_an_error() {
        let mut splitter = Splitter::new(100);
        splitter.feed(&[0x82, 0xc1, 0, 0, 0]);
        assert_eq!(splitter.next_frame(), Err(FrameError::Malformed(DecodeError::Marker)));
    }
}
