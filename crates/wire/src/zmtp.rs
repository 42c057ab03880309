//! ZMTP 3, ZeroMQ's protocol on a stream (<https://rfc.zeromq.org/spec/23/> and 37).
//!
//! ```text
//! greeting   64 bytes   ff, 8 bytes of padding, 7f; version major, minor; mechanism, 20 bytes; as-server; zeros
//! frame      flags, length (1 byte; 8 bytes big-endian if flag 2 is set), body
//! flags      1: more frames of this message follow   2: long length   4: a command
//! command    length of the name, name, data
//! ```
//!
//! Only the mechanism NULL is supported; the permissions of the socket's file provide access control. A peer's READY contains its
//! socket type.
//!
//! # Invariant
//!
//! Memory for an announced length is reserved only after checking it against the limit. No byte is scanned twice, however the
//! stream is chunked.

use std::ops::Range;

use saltcellar_base::limits::ZMTP_FRAMES_MAX;

/// Bytes of a greeting.
pub const GREETING_LEN: usize = 64;

/// Bytes of the longest frame header.
const HEADER_MAX: usize = 9;

/// Bytes of a READY: socket type, identity of at most 255 bytes, application properties.
const READY_BYTES_MAX: usize = 4096;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A protocol error of a peer, which ends its connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// Not ZMTP.
    #[error(
        "not a ZeroMQ peer (a greeting begins with ff, and its tenth byte is 7f): use ZeroMQ to connect to this socket"
    )]
    NoGreeting,
    /// ZMTP 1 or 2: libzmq before version 4.
    #[error("the peer uses ZMTP {0}, but version 3 is required (libzmq 4 or later)")]
    Version(u8),
    /// A mechanism other than NULL.
    #[error(
        "the peer requests the security mechanism {0}, but only NULL is supported; the permissions of the socket's file control access"
    )]
    Mechanism(String),
    /// Invalid flags of a frame, or an invalid command.
    #[error("{0}")]
    Malformed(&'static str),
    /// An incompatible socket type.
    #[error(
        "the peer's {theirs} socket is incompatible with this {ours} socket: connect a socket of the matching type (docs/ZEROMQ.md)"
    )]
    SocketType {
        /// The type of this end.
        ours: &'static str,
        /// The type in the peer's READY.
        theirs: String,
    },
    /// A message is too large.
    #[error("a message of {len} bytes exceeds the limit of {max}: send smaller messages")]
    TooLarge {
        /// Announced bytes, including earlier frames.
        len: u64,
        /// The limit in bytes.
        max: usize,
    },
}

/// The type of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// Receives messages.
    Pull,
    /// Sends messages to subscribers.
    Pub,
    /// Sends messages to a PULL, for measurements.
    Push,
    /// Sends requests and receives responses.
    Req,
}

impl SocketType {
    /// The name in READY.
    pub fn name(self) -> &'static str {
        match self {
            SocketType::Pull => "PULL",
            SocketType::Pub => "PUB",
            SocketType::Push => "PUSH",
            SocketType::Req => "REQ",
        }
    }

    fn is_compatible(self, theirs: &[u8]) -> bool {
        match self {
            SocketType::Pull => theirs == b"PUSH",
            SocketType::Pub => theirs == b"SUB" || theirs == b"XSUB",
            SocketType::Push => theirs == b"PULL",
            SocketType::Req => theirs == b"ROUTER" || theirs == b"REP",
        }
    }

    /// Checks a peer's READY.
    pub fn check_ready(self, command: &[u8]) -> Result<(), ZmtpError> {
        let Some(Command::Ready(theirs)) = read_command(command) else {
            return Err(ZmtpError::Malformed(
                "the peer's first command is not READY",
            ));
        };

        let theirs = theirs.ok_or(ZmtpError::Malformed(
            "a READY without the property Socket-Type",
        ))?;

        if self.is_compatible(theirs) {
            return Ok(());
        }

        // Truncated to the length of a socket type, because it is logged.
        let theirs =
            String::from_utf8_lossy(theirs.get(..theirs.len().min(16)).unwrap_or_default());
        Err(ZmtpError::SocketType {
            ours: self.name(),
            theirs: theirs.escape_debug().collect(),
        })
    }
}

/// The greeting of this end.
pub fn greeting() -> [u8; GREETING_LEN] {
    let mut greeting = [0; GREETING_LEN];
    let fields = [(0, &[0xff][..]), (9, &[0x7f, 3, 0]), (12, b"NULL")];
    for (at, bytes) in fields {
        for (to, byte) in greeting.iter_mut().skip(at).zip(bytes) {
            *to = *byte;
        }
    }
    greeting
}

/// Checks a peer's greeting.
pub fn check_greeting(theirs: &[u8; GREETING_LEN]) -> Result<(), ZmtpError> {
    let [0xff, _, _, _, _, _, _, _, _, tail, major, _, rest @ ..] = theirs else {
        return Err(ZmtpError::NoGreeting);
    };

    if tail & 1 == 0 {
        return Err(ZmtpError::NoGreeting);
    }

    // A newer peer uses version 3 with this end.
    if *major < 3 {
        return Err(ZmtpError::Version(*major));
    }

    let mechanism = rest.get(..20).unwrap_or_default();
    let end = mechanism
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);

    match mechanism.get(..end).unwrap_or_default() {
        b"NULL" => Ok(()),
        other => {
            let name = String::from_utf8_lossy(other).escape_debug().collect();
            Err(ZmtpError::Mechanism(name))
        }
    }
}

/// A supported command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// READY, with the peer's socket type; `None` for invalid properties.
    Ready(Option<&'a [u8]>),
    /// PING, whose context is returned in the PONG.
    Ping(&'a [u8]),
    /// Other commands, including PONG, ERROR and subscriptions: ignored.
    Other,
}

/// Parses a command's body; `None` without a name.
pub fn read_command(body: &[u8]) -> Option<Command<'_>> {
    let (&len, rest) = body.split_first()?;
    let (name, data) = rest.split_at_checked(usize::from(len))?;
    Some(match name {
        b"READY" => Command::Ready(property(data, b"Socket-Type")),
        // The first two bytes are a TTL, which is ignored: this end has its own timeout.
        b"PING" => Command::Ping(data.get(2..).unwrap_or_default()),
        _ => Command::Other,
    })
}

/// A property of a READY. Names are case-insensitive.
fn property<'a>(mut data: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    while let Some((&len, rest)) = data.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(len))?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) =
            rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        data = rest;
    }
    None
}

/// Appends the header of a frame.
fn put_header(out: &mut Vec<u8>, flags: u8, len: usize) {
    if let Ok(len) = u8::try_from(len) {
        out.extend_from_slice(&[flags, len]);
    } else {
        out.push(flags | LONG);
        out.extend_from_slice(&(len as u64).to_be_bytes());
    }
}

/// Appends a single-frame message, given in parts.
pub fn put_message(out: &mut Vec<u8>, parts: &[&[u8]]) {
    put_header(out, 0, parts.iter().map(|part| part.len()).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a request of a REQ socket: an empty frame, and the body.
pub fn put_request(out: &mut Vec<u8>, body: &[u8]) {
    put_header(out, MORE, 0);
    put_message(out, &[body]);
}

fn command(name: &str, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = 1 + name.len() + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut out = Vec::with_capacity(HEADER_MAX + len);
    put_header(&mut out, COMMAND, len);
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name.as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// The READY of a socket.
pub fn ready(socket_type: SocketType) -> Vec<u8> {
    let value = socket_type.name().as_bytes();
    let len = u32::try_from(value.len()).unwrap_or(0).to_be_bytes();
    command("READY", &[&[11], b"Socket-Type", &len, value])
}

/// The response to a PING.
pub fn pong(context: &[u8]) -> Vec<u8> {
    // The standard limits a context to 16 bytes.
    command(
        "PONG",
        &[context.get(..context.len().min(16)).unwrap_or_default()],
    )
}

/// An item of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum ZmtpItem<'a> {
    /// A command's body.
    Command(&'a [u8]),
    /// A complete message.
    Message(Message<'a>),
}

/// A complete message; of more than two frames only the number is kept.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The first frame.
    pub first: &'a [u8],
    /// The second frame.
    pub second: Option<&'a [u8]>,
    /// Number of frames.
    pub frames: usize,
}

/// The next step of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Receive more bytes.
    Receive,
    /// The handshake is complete.
    Done,
}

/// Splits a stream, after its greeting, into messages and commands.
#[derive(Debug)]
pub struct Splitter {
    buffer: Vec<u8>,
    /// The peer's greeting was read by [`Splitter::handshake`].
    greeted: bool,
    /// Everything before was returned.
    read: usize,
    /// Start of the next frame.
    scanned: usize,
    /// The first frames of the unfinished message, and their number.
    parts: [Range<usize>; 2],
    frames: usize,
    /// Bytes of the unfinished message's bodies.
    message_bytes: usize,
    message_bytes_max: usize,
}

impl Splitter {
    /// A splitter for messages of up to `message_bytes_max` bytes in all their frames.
    pub fn new(message_bytes_max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            greeted: false,
            read: 0,
            scanned: 0,
            parts: [0..0, 0..0],
            frames: 0,
            message_bytes: 0,
            message_bytes_max,
        }
    }

    /// The buffer with `room` spare bytes, for appending data from the socket. Returned data is discarded.
    pub fn spare(&mut self, room: usize) -> &mut Vec<u8> {
        if self.read > 0 {
            self.buffer.drain(..self.read);
            self.scanned -= self.read;
            for range in &mut self.parts {
                *range = range.start.saturating_sub(self.read)..range.end.saturating_sub(self.read);
            }
            self.read = 0;
        }

        // Release the memory of a large message.
        if self.buffer.is_empty() && self.buffer.capacity() > room.saturating_mul(4) {
            self.buffer = Vec::new();
        }

        self.buffer.reserve(room);
        &mut self.buffer
    }

    /// Appends bytes from the socket.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.spare(bytes.len()).extend_from_slice(bytes);
    }

    /// Bytes received but not returned yet.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.read
    }

    /// Missing bytes of the unfinished frame, if its length is known. The length is within the limit.
    pub fn missing(&self) -> usize {
        match self.header() {
            Ok(Some((_, body))) => body.end.saturating_sub(self.buffer.len()),
            _ => 0,
        }
    }

    /// The next step of the handshake for a socket of type `ours`, which has sent its [`greeting`].
    pub fn handshake(&mut self, ours: SocketType) -> Result<Handshake, ZmtpError> {
        if !self.greeted {
            let received = self.buffer.get(self.read..).unwrap_or_default();
            // Checked first: a peer with another protocol may send less than a greeting, or wait for a response.
            if received.first().is_some_and(|first| *first != 0xff) {
                return Err(ZmtpError::NoGreeting);
            }

            let Some(theirs) = received.first_chunk() else {
                return Ok(Handshake::Receive);
            };

            check_greeting(theirs)?;
            self.greeted = true;
            self.read += GREETING_LEN;
            self.scanned = self.read;
            return Ok(Handshake::Send(ready(ours)));
        }

        match self.next_item()? {
            Some(ZmtpItem::Command(command)) => {
                return ours.check_ready(command).map(|()| Handshake::Done);
            }
            Some(ZmtpItem::Message(_)) => {
                return Err(ZmtpError::Malformed("a message before the READY"));
            }
            None => {}
        }

        // Checked while it is incomplete, because the limit of messages is far larger.
        if self.waiting() + self.missing() > READY_BYTES_MAX {
            return Err(ZmtpError::Malformed("an oversized READY"));
        }
        Ok(Handshake::Receive)
    }

    /// The next message or command; `None` if more bytes are needed.
    pub fn next_item(&mut self) -> Result<Option<ZmtpItem<'_>>, ZmtpError> {
        loop {
            let Some((flags, body)) = self.header()? else {
                return Ok(None);
            };
            if body.end > self.buffer.len() {
                // A frame is returned as a whole.
                return Ok(None);
            }

            self.scanned = body.end;
            if flags & COMMAND != 0 {
                // libzmq allows commands even between the frames of a message.
                if self.frames == 0 {
                    self.read = self.scanned;
                }
                return Ok(Some(ZmtpItem::Command(
                    self.buffer.get(body).unwrap_or_default(),
                )));
            }

            self.message_bytes += body.len();

            // Only the first two frames are kept: no event contains more.
            if let Some(part) = self.parts.get_mut(self.frames) {
                *part = body;
            }
            self.frames += 1;

            if flags & MORE != 0 {
                if self.frames >= ZMTP_FRAMES_MAX {
                    return Err(ZmtpError::Malformed("a message of too many frames"));
                }
                continue;
            }

            // Complete: the next frame begins another message.
            let [first, second] = self.parts.clone();
            let frames = std::mem::take(&mut self.frames);
            self.message_bytes = 0;
            self.read = self.scanned;

            let bytes = |range: Range<usize>| self.buffer.get(range).unwrap_or_default();
            let second = (frames > 1).then(|| bytes(second));

            return Ok(Some(ZmtpItem::Message(Message {
                first: bytes(first),
                second,
                frames,
            })));
        }
    }

    /// The flags and body range of the frame at `scanned`; `None` until its header is complete.
    fn header(&self) -> Result<Option<(u8, Range<usize>)>, ZmtpError> {
        let rest = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some((&flags, rest)) = rest.split_first() else {
            return Ok(None);
        };

        // Reserved bits must be zero, and a command is always one frame.
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(ZmtpError::Malformed("invalid flags of a ZMTP 3 frame"));
        }

        let (len, header) = if flags & LONG != 0 {
            let Some(len) = rest.first_chunk::<8>() else {
                return Ok(None);
            };
            (u64::from_be_bytes(*len), HEADER_MAX)
        } else {
            let Some(len) = rest.first() else {
                return Ok(None);
            };
            (u64::from(*len), 2)
        };

        // The limit applies to a message: its frames together count, not each of them.
        let of_message = if flags & COMMAND == 0 {
            self.message_bytes
        } else {
            0
        };

        let all = len.saturating_add(of_message as u64);

        // Commands between the frames of a message are kept until it is complete, so they count as well.
        let kept = if self.frames > 0 {
            self.scanned - self.read
        } else {
            0
        };
        let kept_max = self.message_bytes_max + ZMTP_FRAMES_MAX * HEADER_MAX;
        if len.saturating_add(kept as u64) > kept_max as u64 {
            return Err(ZmtpError::TooLarge {
                len: len.saturating_add(kept as u64),
                max: self.message_bytes_max,
            });
        }

        match usize::try_from(len) {
            Ok(body) if all <= self.message_bytes_max as u64 => {
                let from = self.scanned + header;
                Ok(Some((flags, from..from + body)))
            }
            _ => Err(ZmtpError::TooLarge {
                len: all,
                max: self.message_bytes_max,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_header(&mut out, flags, body.len());
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn commands_between_the_frames_of_a_message_are_bounded() {
        let mut splitter = Splitter::new(1000);
        let mut feed = |bytes: &[u8]| {
            splitter.feed(bytes);
            loop {
                match splitter.next_item() {
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        feed(&frame(MORE, b"")).unwrap();
        let mut fed = 0;
        while feed(&frame(COMMAND, &[0; 100])).is_ok() {
            fed += 1;
            assert!(fed < 1000, "no end");
        }
        assert!(fed >= 9, "{fed}");
    }

    type Cut = (char, Vec<Vec<u8>>);

    /// All items of a stream in chunks of `step` bytes: commands as `c`, messages as `m` with their frames.
    fn cut(stream: &[u8], step: usize) -> Result<Vec<Cut>, ZmtpError> {
        let mut splitter = Splitter::new(1000);
        let mut found = Vec::new();
        for bytes in stream.chunks(step) {
            splitter.feed(bytes);
            while let Some(item) = splitter.next_item()? {
                found.push(match item {
                    ZmtpItem::Command(body) => ('c', vec![body.to_vec()]),
                    ZmtpItem::Message(Message {
                        first,
                        second,
                        frames,
                    }) => {
                        let mut parts = vec![first.to_vec()];
                        parts.extend(second.map(<[u8]>::to_vec));
                        assert!(frames >= parts.len());
                        ('m', parts)
                    }
                });
            }
        }
        Ok(found)
    }

    #[test]
    fn messages_and_commands_are_split_at_any_chunking() {
        let (long, short) = (vec![7; 300], b"tag\n\n\x80".to_vec());
        let stream = [
            frame(0, &short),
            frame(COMMAND, b"\x04PINGxx"),
            frame(0, &long),
            frame(MORE, b"tag"),
            frame(COMMAND, b"\x04PING"),
            frame(0, b"\x80"),
            frame(MORE, b"1"),
            frame(MORE, b""),
            frame(0, b"3"),
            frame(0, b""),
        ]
        .concat();
        let expected = vec![
            ('m', vec![short]),
            ('c', vec![b"\x04PINGxx".to_vec()]),
            ('m', vec![long]),
            ('c', vec![b"\x04PING".to_vec()]),
            ('m', vec![b"tag".to_vec(), b"\x80".to_vec()]),
            ('m', vec![b"1".to_vec(), vec![]]),
            ('m', vec![vec![]]),
        ];
        for step in [1, 2, 7, 4096] {
            assert_eq!(cut(&stream, step).unwrap(), expected, "step {step}");
        }
    }

    #[test]
    fn a_length_is_rejected_before_memory_is_reserved_for_it() {
        let mut four_tib = vec![LONG];
        four_tib.extend_from_slice(&(1_u64 << 42).to_be_bytes());
        let mut endless = vec![LONG];
        endless.extend_from_slice(&u64::MAX.to_be_bytes());
        // Each frame fits, the message does not.
        let parts = [frame(MORE, &[0; 600]), frame(0, &[0; 600])].concat();
        let in_progress = [frame(MORE, &[0; 600]), endless.clone()].concat();
        for stream in [&four_tib, &endless, &parts, &in_progress] {
            assert!(matches!(
                cut(stream, 5),
                Err(ZmtpError::TooLarge { max: 1000, .. })
            ));
        }
        let mut splitter = Splitter::new(1000);
        splitter.feed(&four_tib);
        assert!(splitter.next_item().is_err());
        assert_eq!(splitter.missing(), 0);
        assert!(splitter.buffer.capacity() < 1000);
    }

    #[test]
    fn the_missing_bytes_of_a_frame_follow_from_its_header() {
        let mut splitter = Splitter::new(1000);
        assert_eq!(splitter.missing(), 0);
        splitter.feed(&frame(0, &[1; 700])[..100]);
        assert_eq!(splitter.next_item(), Ok(None));
        assert_eq!((splitter.missing(), splitter.waiting()), (609, 100));
        splitter.feed(&[1; 609]);
        assert!(matches!(
            splitter.next_item(),
            Ok(Some(ZmtpItem::Message(_)))
        ));
        assert_eq!((splitter.missing(), splitter.waiting()), (0, 0));
    }

    #[test]
    fn invalid_flags_and_too_many_frames_end_the_stream() {
        for flags in [8, 0x80, 0xff, MORE | COMMAND] {
            assert!(
                matches!(cut(&frame(flags, b"x"), 1), Err(ZmtpError::Malformed(_))),
                "{flags}"
            );
        }
        let many: Vec<u8> = std::iter::repeat_n(frame(MORE, b""), ZMTP_FRAMES_MAX)
            .flatten()
            .collect();
        assert!(matches!(cut(&many, 3), Err(ZmtpError::Malformed(_))));
    }

    #[test]
    fn greetings_are_checked() {
        assert_eq!(check_greeting(&greeting()), Ok(()));
        let with = |at: usize, bytes: &[u8]| {
            let mut greeting = greeting();
            greeting[at..at + bytes.len()].copy_from_slice(bytes);
            check_greeting(&greeting)
        };
        assert_eq!(with(10, &[3, 1]), Ok(()), "3.1 is newer, and supported");
        assert_eq!(
            with(8, &[1]),
            Ok(()),
            "libzmq puts a length here, for peers of version 1"
        );
        assert_eq!(with(0, b"G"), Err(ZmtpError::NoGreeting));
        assert_eq!(with(9, &[0]), Err(ZmtpError::NoGreeting));
        assert_eq!(with(10, &[1]), Err(ZmtpError::Version(1)));
        assert_eq!(
            with(12, b"CURVE"),
            Err(ZmtpError::Mechanism("CURVE".into()))
        );
        assert_eq!(
            with(12, b"NULLX"),
            Err(ZmtpError::Mechanism("NULLX".into()))
        );
    }

    #[test]
    fn a_handshake_is_read_at_any_chunking() {
        let stream = [
            &greeting()[..],
            &ready(SocketType::Push),
            &frame(0, b"first"),
        ]
        .concat();
        for step in [1, 7, GREETING_LEN, 4096] {
            let (mut splitter, mut sent) = (Splitter::new(1000), Vec::new());
            let mut chunks = stream.chunks(step);
            loop {
                match splitter.handshake(SocketType::Pull).unwrap() {
                    Handshake::Send(bytes) => sent.extend(bytes),
                    Handshake::Receive => splitter.feed(chunks.next().unwrap()),
                    Handshake::Done => break,
                }
            }
            assert_eq!(sent, ready(SocketType::Pull), "step {step}");
            chunks.for_each(|chunk| splitter.feed(chunk));
            let first = Message {
                first: b"first",
                second: None,
                frames: 1,
            };
            assert_eq!(
                splitter.next_item(),
                Ok(Some(ZmtpItem::Message(first))),
                "step {step}"
            );
        }
    }

    #[test]
    fn socket_types_in_ready_must_be_compatible() {
        let ready = |theirs: &[u8]| {
            let len = u32::try_from(theirs.len()).unwrap().to_be_bytes();
            [
                b"\x05READY\x08Identity\0\0\0\x01x\x0bsocket-type",
                &len[..],
                theirs,
            ]
            .concat()
        };
        assert_eq!(SocketType::Pull.check_ready(&ready(b"PUSH")), Ok(()));
        for theirs in [&b"SUB"[..], b"XSUB"] {
            assert_eq!(SocketType::Pub.check_ready(&ready(theirs)), Ok(()));
        }
        for theirs in [&b"SUB"[..], b"", b"PUSHX", &[0xff; 300]] {
            let error = SocketType::Pull.check_ready(&ready(theirs)).unwrap_err();
            assert!(
                matches!(&error, ZmtpError::SocketType { ours: "PULL", theirs } if theirs.len() < 200)
            );
        }
        for broken in [
            &b""[..],
            b"\x05READY",
            b"\x05READY\x0bSocket-Type\0\0\0\x09PUSH",
            b"\x09READY",
            b"\x04PING",
        ] {
            assert!(
                matches!(
                    SocketType::Pull.check_ready(broken),
                    Err(ZmtpError::Malformed(_))
                ),
                "{broken:?}"
            );
        }
        // Our own READY is valid.
        let ours = super::ready(SocketType::Pull);
        assert_eq!(
            read_command(&ours[2..]),
            Some(Command::Ready(Some(b"PULL")))
        );
    }

    #[test]
    fn a_ping_is_answered_with_its_context() {
        assert_eq!(
            read_command(b"\x04PING\x00\x64abc"),
            Some(Command::Ping(b"abc"))
        );
        assert_eq!(pong(b"abc"), b"\x04\x08\x04PONGabc");
        assert_eq!(pong(&[b'x'; 100]).len(), 2 + 5 + 16);
    }
}
