//! One connection to a master: a ZeroMQ REQ socket over TCP, with one request at a time.
//!
//! A message of a REQ socket is an empty frame and the body. The length of an answer is checked before memory is reserved for it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::{MasterAddress, MasterError};
use crate::limits::{MASTER_ANSWER_BYTES_MAX, MASTER_READ_BYTES};
use crate::wire::zmtp::{self, Command, Message, SocketType, Splitter, ZmtpItem};

/// A connection after its handshake, with no answer pending.
pub(super) struct Connection {
    stream: TcpStream,
    splitter: Splitter,
    place: String,
}

/// Why an exchange failed.
type Broken = String;

impl Connection {
    /// Connects, with a handshake.
    pub(super) fn open(place: &MasterAddress, until: Instant) -> Result<Self, MasterError> {
        let named = place.to_string();
        let unreachable = |why: String| MasterError::Unreachable { place: named.clone(), why };
        let addresses = place.address().to_socket_addrs().map_err(|why| unreachable(why.to_string()))?;
        let mut last = "its name resolves to no address".to_owned();
        for address in addresses {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    let mut connection = Self {
                        stream,
                        splitter: Splitter::new(MASTER_ANSWER_BYTES_MAX),
                        place: named.clone(),
                    };
                    return connection.handshake(until).map(|()| connection).map_err(unreachable);
                }
                Err(why) => last = why.to_string(),
            }
        }
        Err(unreachable(last))
    }

    fn handshake(&mut self, until: Instant) -> Result<(), Broken> {
        let text = |error: std::io::Error| error.to_string();
        self.stream.set_nodelay(true).map_err(text)?;
        self.write(&zmtp::greeting(), until)?;
        let mut theirs = [0; zmtp::GREETING_LEN];
        let mut have = 0;
        while have < theirs.len() {
            let n = self.read_into(theirs.get_mut(have..).unwrap_or_default(), until)?;
            have += n;
            if theirs.first() != Some(&0xff) {
                return Err(zmtp::ZmtpError::NoGreeting.to_string());
            }
        }
        zmtp::check_greeting(&theirs).map_err(|error| error.to_string())?;
        self.write(&zmtp::ready(SocketType::Req), until)?;
        loop {
            match self.splitter.next_item().map_err(|error| error.to_string())? {
                Some(ZmtpItem::Command(command)) => {
                    return SocketType::Req.check_ready(command).map_err(|error| error.to_string());
                }
                Some(ZmtpItem::Message(_)) => return Err("a message before the READY".to_owned()),
                None => {}
            }
            self.read(until)?;
        }
    }

    /// Whether no data is pending. A connection that was closed, or has unexpected data, is unusable.
    pub(super) fn is_quiet(&self) -> bool {
        let mut one = [0];
        if self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let waits = matches!(self.stream.peek(&mut one), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).is_ok() && waits && self.splitter.waiting() == 0
    }

    /// Sends a request and waits for its answer. After an error the connection is unusable.
    pub(super) fn exchange(&mut self, request: &[u8], until: Instant) -> Result<Vec<u8>, MasterError> {
        let mut bytes = Vec::with_capacity(request.len() + 16);
        zmtp::put_request(&mut bytes, request);
        // A partial message has no effect on the master.
        self.write(&bytes, until)
            .map_err(|why| MasterError::Unreachable { place: self.place.clone(), why })?;
        self.answer(until).map_err(|why| MasterError::NoAnswer { place: self.place.clone(), why })
    }

    fn answer(&mut self, until: Instant) -> Result<Vec<u8>, Broken> {
        loop {
            let pong = match self.splitter.next_item().map_err(|error| error.to_string())? {
                Some(ZmtpItem::Message(Message { first: [], second: Some(body), frames: 2 })) => {
                    return Ok(body.to_vec());
                }
                Some(ZmtpItem::Message(_)) => {
                    return Err("the answer is not a reply to a REQ socket".to_owned());
                }
                Some(ZmtpItem::Command(command)) => match zmtp::read_command(command) {
                    Some(Command::Ping(context)) => Some(zmtp::pong(context)),
                    _ => None,
                },
                None => {
                    self.read(until)?;
                    None
                }
            };
            if let Some(pong) = pong {
                self.write(&pong, until)?;
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8], until: Instant) -> Result<(), Broken> {
        while !bytes.is_empty() {
            let left = left(until)?;
            self.stream.set_write_timeout(Some(left)).map_err(|error| error.to_string())?;
            match self.stream.write(bytes) {
                Ok(0) => return Err("connection closed".to_owned()),
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(error) => ignore_timeout(&error)?,
            }
        }
        Ok(())
    }

    /// Reads available bytes into the splitter.
    fn read(&mut self, until: Instant) -> Result<(), Broken> {
        let mut buffer = [0; MASTER_READ_BYTES];
        let n = self.read_into(&mut buffer, until)?;
        self.splitter.feed(buffer.get(..n).unwrap_or_default());
        Ok(())
    }

    fn read_into(&mut self, buffer: &mut [u8], until: Instant) -> Result<usize, Broken> {
        loop {
            let left = left(until)?;
            self.stream.set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
            match self.stream.read(buffer) {
                Ok(0) => return Err("connection closed by the peer".to_owned()),
                Ok(n) => return Ok(n),
                Err(error) => ignore_timeout(&error)?,
            }
        }
    }
}

fn left(until: Instant) -> Result<Duration, Broken> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err("timeout".to_owned()) } else { Ok(left) }
}
/// Ignores timeouts and interrupts: the caller's loop checks the deadline.
fn ignore_timeout(error: &std::io::Error) -> Result<(), Broken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        _ => Err(error.to_string()),
    }
}
