//! ZMTP 3: what ZeroMQ's sockets say to one another on a stream (https://rfc.zeromq.org/spec/23/ and /37/).
//!
//! ```text
//! greeting   64 bytes   ff, 8 bytes of padding, 7f; version major, minor; mechanism, 20 bytes; as-server; zeros
//! frame      flags, length (1 byte; 8 bytes big-endian if flag 2 is set), body
//! flags      1: more frames of this message follow   2: long length   4: a command
//! command    length of the name, name, data
//! ```
//!
//! Only the mechanism NULL is spoken: whoever may open the socket's file is trusted to speak. A peer's READY names its
//! socket type, and a subscription comes as a message (`01` prefix, version 3.0) or as a command (3.1).
//!
//! # Invariant
//!
//! Nothing is set aside for a length before it was checked against the limit, and no byte is looked at twice however the
//! stream is cut.

use std::ops::Range;

use crate::limits::ZMTP_FRAMES_MAX;

/// Bytes of a greeting.
pub const GREETING_LEN: usize = 64;

/// Bytes of the longest header of a frame.
const HEADER_MAX: usize = 9;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a peer cannot be understood. Its connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// Not ZMTP at all.
    #[error("the greeting of a ZeroMQ peer begins with ff and has 7f in its tenth byte")]
    NoGreeting,
    /// ZMTP 1 or 2: libzmq before version 4.
    #[error("the peer speaks ZMTP {0}; version 3 is spoken here, by libzmq 4 and later")]
    Version(u8),
    /// A mechanism other than NULL.
    #[error(
        "the peer asks for the security mechanism {0}; here it is NULL, and the socket's file has the permissions"
    )]
    Mechanism(String),
    /// The flags of a frame, or a command, make no sense.
    #[error("{0}")]
    Malformed(&'static str),
    /// A socket that has nothing to say to this one.
    #[error("a {theirs} socket cannot talk to a {ours}")]
    SocketType {
        /// What this end is.
        ours: &'static str,
        /// What the peer's READY says.
        theirs: String,
    },
    /// A message announces more bytes than allowed.
    #[error("a message of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// Bytes announced, with the frames before.
        len: u64,
        /// The limit.
        max: usize,
    },
}

/// What a socket of this end is, and with whom it talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// Takes messages.
    Pull,
    /// Gives messages to whom has subscribed.
    Pub,
    /// Gives messages to a PULL: the load of a measurement.
    Push,
    /// Asks, and is answered.
    Req,
}

impl SocketType {
    /// Its name in READY.
    pub fn name(self) -> &'static str {
        match self {
            SocketType::Pull => "PULL",
            SocketType::Pub => "PUB",
            SocketType::Push => "PUSH",
            SocketType::Req => "REQ",
        }
    }

    fn talks_to(self, theirs: &[u8]) -> bool {
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
            return Err(ZmtpError::Malformed("a peer's first command is READY"));
        };
        let theirs = theirs.ok_or(ZmtpError::Malformed("a READY has properties, Socket-Type among them"))?;
        if self.talks_to(theirs) {
            return Ok(());
        }
        // Only as much of it as a socket type has; it goes into the log.
        let theirs = String::from_utf8_lossy(theirs.get(..theirs.len().min(16)).unwrap_or_default());
        Err(ZmtpError::SocketType { ours: self.name(), theirs: theirs.escape_debug().collect() })
    }
}

/// What this end says first.
pub fn greeting() -> [u8; GREETING_LEN] {
    let mut greeting = [0; GREETING_LEN];
    let said = [(0, &[0xff][..]), (9, &[0x7f, 3, 0]), (12, b"NULL")];
    for (at, bytes) in said {
        for (place, byte) in greeting.iter_mut().skip(at).zip(bytes) {
            *place = *byte;
        }
    }
    greeting
}

/// Checks what a peer says first.
pub fn check_greeting(theirs: &[u8; GREETING_LEN]) -> Result<(), ZmtpError> {
    let [0xff, _, _, _, _, _, _, _, _, tail, major, _, rest @ ..] = theirs else {
        return Err(ZmtpError::NoGreeting);
    };
    if tail & 1 == 0 {
        return Err(ZmtpError::NoGreeting);
    }
    if *major < 3 {
        return Err(ZmtpError::Version(*major));
    }
    let mechanism = rest.get(..20).unwrap_or_default();
    let end = mechanism.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match mechanism.get(..end).unwrap_or_default() {
        b"NULL" => Ok(()),
        other => {
            let name = String::from_utf8_lossy(other).escape_debug().collect();
            Err(ZmtpError::Mechanism(name))
        }
    }
}

/// A command, as far as it means something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// READY, with the peer's socket type; `None` if its properties make no sense.
    Ready(Option<&'a [u8]>),
    /// SUBSCRIBE to a prefix.
    Subscribe(&'a [u8]),
    /// CANCEL the subscription to a prefix.
    Cancel(&'a [u8]),
    /// PING; the context goes back in the PONG.
    Ping(&'a [u8]),
    /// Any other, PONG and ERROR among them: nothing to do.
    Other,
}

/// Reads a command's body; `None` if it has no name.
pub fn read_command(body: &[u8]) -> Option<Command<'_>> {
    let (&len, rest) = body.split_first()?;
    let (name, data) = rest.split_at_checked(usize::from(len))?;
    Some(match name {
        b"READY" => Command::Ready(property(data, b"Socket-Type")),
        b"SUBSCRIBE" => Command::Subscribe(data),
        b"CANCEL" => Command::Cancel(data),
        // Two bytes of time to live come first; this end has its own patience.
        b"PING" => Command::Ping(data.get(2..).unwrap_or_default()),
        _ => Command::Other,
    })
}

/// A property of a READY. Names are compared as they are spelled in the standard's letters, whatever their case.
fn property<'a>(mut data: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    while let Some((&len, rest)) = data.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(len))?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)?;
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

/// Appends a message of one frame that is made of parts.
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

/// The answer to a PING.
pub fn pong(context: &[u8]) -> Vec<u8> {
    // The standard bounds a context to 16 bytes.
    command("PONG", &[context.get(..context.len().min(16)).unwrap_or_default()])
}

/// Last words: why the connection ends. libzmq's monitor shows them.
pub fn error(reason: &str) -> Vec<u8> {
    let reason = reason.as_bytes();
    let reason = reason.get(..reason.len().min(255)).unwrap_or_default();
    command("ERROR", &[&[u8::try_from(reason.len()).unwrap_or(0)], reason])
}

/// What comes out of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A command's body.
    Command(&'a [u8]),
    /// A whole message.
    Message(Message<'a>),
}

/// A whole message; of more than two frames only how many they are is kept.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its first frame.
    pub first: &'a [u8],
    /// Its second frame.
    pub second: Option<&'a [u8]>,
    /// How many frames it has.
    pub frames: usize,
}

/// Cuts a stream, its greeting already taken, into messages and commands.
#[derive(Debug)]
pub struct Splitter {
    buffer: Vec<u8>,
    /// Everything before has been given out.
    read: usize,
    /// Where the next frame begins.
    scanned: usize,
    /// The first frames of the message that has begun, and how many there are.
    begun: [Range<usize>; 2],
    frames: usize,
    /// Bytes of its bodies.
    message_bytes: usize,
    message_bytes_max: usize,
}

impl Splitter {
    /// A new stream; messages may have up to `message_bytes_max` bytes in all their frames.
    pub fn new(message_bytes_max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            read: 0,
            scanned: 0,
            begun: [0..0, 0..0],
            frames: 0,
            message_bytes: 0,
            message_bytes_max,
        }
    }

    /// The buffer, with room for `room` more bytes, to append to what came off the socket. What was given out is gone.
    pub fn spare(&mut self, room: usize) -> &mut Vec<u8> {
        if self.read > 0 {
            self.buffer.drain(..self.read);
            self.scanned -= self.read;
            for range in &mut self.begun {
                *range = range.start.saturating_sub(self.read)..range.end.saturating_sub(self.read);
            }
            self.read = 0;
        }
        // A giant that has left is not worth its room.
        if self.buffer.is_empty() && self.buffer.capacity() > room.saturating_mul(4) {
            self.buffer = Vec::new();
        }
        self.buffer.reserve(room);
        &mut self.buffer
    }

    /// Takes bytes as they came off the socket.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.spare(bytes.len()).extend_from_slice(bytes);
    }

    /// Bytes that have come and not been given out.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.read
    }

    /// Bytes still to come of the frame that has begun, if its length is known. It was checked against the limit.
    pub fn missing(&self) -> usize {
        match self.header() {
            Ok(Some((_, body))) => body.end.saturating_sub(self.buffer.len()),
            _ => 0,
        }
    }

    /// The next message or command; `None` until more bytes come.
    pub fn next_piece(&mut self) -> Result<Option<Piece<'_>>, ZmtpError> {
        loop {
            let Some((flags, body)) = self.header()? else { return Ok(None) };
            if body.end > self.buffer.len() {
                return Ok(None);
            }
            self.scanned = body.end;
            if flags & COMMAND != 0 {
                // libzmq lets one of these pass even between the frames of a message.
                if self.frames == 0 {
                    self.read = self.scanned;
                }
                return Ok(Some(Piece::Command(self.buffer.get(body).unwrap_or_default())));
            }
            self.message_bytes += body.len();
            if let Some(place) = self.begun.get_mut(self.frames) {
                *place = body;
            }
            self.frames += 1;
            if flags & MORE != 0 {
                if self.frames >= ZMTP_FRAMES_MAX {
                    return Err(ZmtpError::Malformed("a message of too many frames"));
                }
                continue;
            }
            let [first, second] = self.begun.clone();
            let frames = std::mem::take(&mut self.frames);
            self.message_bytes = 0;
            self.read = self.scanned;
            let bytes = |range: Range<usize>| self.buffer.get(range).unwrap_or_default();
            let second = (frames > 1).then(|| bytes(second));
            return Ok(Some(Piece::Message(Message { first: bytes(first), second, frames })));
        }
    }

    /// The flags of the frame that begins at `scanned`, and where its body lies. `None` until its header is whole.
    fn header(&self) -> Result<Option<(u8, Range<usize>)>, ZmtpError> {
        let rest = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some((&flags, rest)) = rest.split_first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(ZmtpError::Malformed("flags of a frame that ZMTP 3 does not know"));
        }
        let (len, header) = if flags & LONG != 0 {
            let Some(len) = rest.first_chunk::<8>() else { return Ok(None) };
            (u64::from_be_bytes(*len), HEADER_MAX)
        } else {
            let Some(len) = rest.first() else { return Ok(None) };
            (u64::from(*len), 2)
        };
        let of_message = if flags & COMMAND == 0 { self.message_bytes } else { 0 };
        let all = len.saturating_add(of_message as u64);
        match usize::try_from(len) {
            Ok(body) if all <= self.message_bytes_max as u64 => {
                let from = self.scanned + header;
                Ok(Some((flags, from..from + body)))
            }
            _ => Err(ZmtpError::TooLarge { len: all, max: self.message_bytes_max }),
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

    type Cut = (char, Vec<Vec<u8>>);

    /// Everything in a stream that comes in pieces of `step` bytes: commands as `c`, messages as `m` with their frames.
    fn cut(stream: &[u8], step: usize) -> Result<Vec<Cut>, ZmtpError> {
        let mut splitter = Splitter::new(1000);
        let mut found = Vec::new();
        for bytes in stream.chunks(step) {
            splitter.feed(bytes);
            while let Some(piece) = splitter.next_piece()? {
                found.push(match piece {
                    Piece::Command(body) => ('c', vec![body.to_vec()]),
                    Piece::Message(Message { first, second, frames }) => {
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
    fn messages_and_commands_come_apart_at_any_cut() {
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
    fn a_length_is_refused_before_a_byte_is_set_aside_for_it() {
        let mut four_tib = vec![LONG];
        four_tib.extend_from_slice(&(1_u64 << 42).to_be_bytes());
        let mut endless = vec![LONG];
        endless.extend_from_slice(&u64::MAX.to_be_bytes());
        // Each frame fits, the message does not.
        let parts = [frame(MORE, &[0; 600]), frame(0, &[0; 600])].concat();
        let in_progress = [frame(MORE, &[0; 600]), endless.clone()].concat();
        for stream in [&four_tib, &endless, &parts, &in_progress] {
            assert!(matches!(cut(stream, 5), Err(ZmtpError::TooLarge { max: 1000, .. })));
        }
        let mut splitter = Splitter::new(1000);
        splitter.feed(&four_tib);
        assert!(splitter.next_piece().is_err());
        assert_eq!(splitter.missing(), 0);
        assert!(splitter.buffer.capacity() < 1000);
    }

    #[test]
    fn what_is_missing_of_a_frame_is_known_from_its_header() {
        let mut splitter = Splitter::new(1000);
        assert_eq!(splitter.missing(), 0);
        splitter.feed(&frame(0, &[1; 700])[..100]);
        assert_eq!(splitter.next_piece(), Ok(None));
        assert_eq!((splitter.missing(), splitter.waiting()), (609, 100));
        splitter.feed(&[1; 609]);
        assert!(matches!(splitter.next_piece(), Ok(Some(Piece::Message(_)))));
        assert_eq!((splitter.missing(), splitter.waiting()), (0, 0));
    }

    #[test]
    fn flags_and_frames_beyond_the_standard_end_the_stream() {
        for flags in [8, 0x80, 0xff, MORE | COMMAND] {
            assert!(matches!(cut(&frame(flags, b"x"), 1), Err(ZmtpError::Malformed(_))), "{flags}");
        }
        let many: Vec<u8> = std::iter::repeat_n(frame(MORE, b""), ZMTP_FRAMES_MAX).flatten().collect();
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
        assert_eq!(with(10, &[3, 1]), Ok(()), "3.1 is newer, and understood");
        assert_eq!(with(8, &[1]), Ok(()), "libzmq says a length here, for peers of version 1");
        assert_eq!(with(0, b"G"), Err(ZmtpError::NoGreeting));
        assert_eq!(with(9, &[0]), Err(ZmtpError::NoGreeting));
        assert_eq!(with(10, &[1]), Err(ZmtpError::Version(1)));
        assert_eq!(with(12, b"CURVE"), Err(ZmtpError::Mechanism("CURVE".into())));
        assert_eq!(with(12, b"NULLX"), Err(ZmtpError::Mechanism("NULLX".into())));
    }

    #[test]
    fn a_ready_tells_who_may_talk_to_whom() {
        let ready = |theirs: &[u8]| {
            let len = u32::try_from(theirs.len()).unwrap().to_be_bytes();
            [b"\x05READY\x08Identity\0\0\0\x01x\x0bsocket-type", &len[..], theirs].concat()
        };
        assert_eq!(SocketType::Pull.check_ready(&ready(b"PUSH")), Ok(()));
        for theirs in [&b"SUB"[..], b"XSUB"] {
            assert_eq!(SocketType::Pub.check_ready(&ready(theirs)), Ok(()));
        }
        for theirs in [&b"SUB"[..], b"", b"PUSHX", &[0xff; 300]] {
            let error = SocketType::Pull.check_ready(&ready(theirs)).unwrap_err();
            assert!(matches!(&error, ZmtpError::SocketType { ours: "PULL", theirs } if theirs.len() < 200));
        }
        for broken in
            [&b""[..], b"\x05READY", b"\x05READY\x0bSocket-Type\0\0\0\x09PUSH", b"\x09READY", b"\x04PING"]
        {
            assert!(
                matches!(SocketType::Pull.check_ready(broken), Err(ZmtpError::Malformed(_))),
                "{broken:?}"
            );
        }
        // Our own is one.
        let ours = super::ready(SocketType::Pull);
        assert_eq!(read_command(&ours[2..]), Some(Command::Ready(Some(b"PULL"))));
    }

    #[test]
    fn a_ping_is_answered_with_its_context() {
        assert_eq!(read_command(b"\x04PING\x00\x64abc"), Some(Command::Ping(b"abc")));
        assert_eq!(pong(b"abc"), b"\x04\x08\x04PONGabc");
        assert_eq!(pong(&[b'x'; 100]).len(), 2 + 5 + 16);
        assert_eq!(error("no")[..], b"\x04\x09\x05ERROR\x02no"[..]);
    }
}
