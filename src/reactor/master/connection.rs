//! One connection to a master: a ZeroMQ REQ socket over TCP, with one request at a time.
//!
//! A message of a REQ socket is an empty frame and the body. The length of a response is checked
//! before memory is reserved for it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::address::MasterAddress;
use super::error::MasterError;
use crate::base::limits::{MASTER_ANSWER_BYTES_MAX, MASTER_READ_BYTES};
use crate::wire::zmtp::{self, Command, Handshake, Message, SocketType, Splitter, ZmtpItem};

/// A connection after its handshake, with no response pending.
pub(super) struct MasterConnection {
    stream: TcpStream,
    splitter: Splitter,
    place: String,
}

/// Why an exchange failed.
type Broken = Box<dyn std::error::Error>;

impl MasterConnection {
    pub(super) fn open(place: &MasterAddress, until: Instant) -> Result<Self, MasterError> {
        Self::connect(place, until).map_err(|why| MasterError::Unreachable {
            place: place.to_string(),
            why: why.to_string(),
        })
    }

    fn connect(place: &MasterAddress, until: Instant) -> Result<Self, Broken> {
        let mut last: Broken = "its name resolves to no address".into();

        // A name can have several addresses, of which only some may be reachable.
        for address in place.address().to_socket_addrs()? {
            // `connect_timeout` rejects a timeout of zero.
            let left = until
                .saturating_duration_since(Instant::now())
                .max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    let splitter = Splitter::new(MASTER_ANSWER_BYTES_MAX);
                    let mut connection = Self {
                        stream,
                        splitter,
                        place: place.to_string(),
                    };
                    // A failed handshake ends the search: something responds, but it is no master.
                    connection.handshake(until)?;
                    return Ok(connection);
                }
                Err(why) => last = why.into(),
            }
        }

        Err(last)
    }

    fn handshake(&mut self, until: Instant) -> Result<(), Broken> {
        // A request must not wait for the acknowledgement of the packet before it.
        self.stream.set_nodelay(true)?;
        self.write(&zmtp::greeting(), until)?;
        loop {
            match self.splitter.handshake(SocketType::Req)? {
                Handshake::Send(bytes) => self.write(&bytes, until)?,
                Handshake::Receive => self.read(until)?,
                Handshake::Done => return Ok(()),
            }
        }
    }

    /// True if no data is pending. A connection that was closed, or contains unexpected data, is
    /// unusable.
    pub(super) fn is_quiet(&self) -> bool {
        let mut one = [0];
        if self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let waits = matches!(self.stream.peek(&mut one), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).is_ok() && waits && self.splitter.waiting() == 0
    }

    /// Sends a request and waits for its response. After an error the connection is unusable.
    pub(super) fn exchange(
        &mut self,
        request: &[u8],
        until: Instant,
    ) -> Result<Vec<u8>, MasterError> {
        let mut bytes = Vec::with_capacity(request.len() + 16);
        zmtp::put_request(&mut bytes, request);
        // A partial message has no effect on the master.
        self.write(&bytes, until)
            .map_err(|why| MasterError::Unreachable {
                place: self.place.clone(),
                why: why.to_string(),
            })?;

        // From here on the master has the whole request.
        self.answer(until).map_err(|why| MasterError::NoAnswer {
            place: self.place.clone(),
            why: why.to_string(),
        })
    }

    fn answer(&mut self, until: Instant) -> Result<Vec<u8>, Broken> {
        loop {
            let pong = match self.splitter.next_item()? {
                Some(ZmtpItem::Message(Message {
                    first: [],
                    second: Some(body),
                    frames: 2,
                })) => {
                    return Ok(body.to_vec());
                }
                Some(ZmtpItem::Message(_)) => {
                    return Err("the response is not a reply to a REQ socket".into());
                }
                Some(ZmtpItem::Command(command)) => match zmtp::read_command(command) {
                    Some(Command::Ping(context)) => zmtp::pong(context),
                    // Other commands need no response.
                    _ => continue,
                },
                None => {
                    self.read(until)?;
                    continue;
                }
            };

            // Before the reply is read on: a peer that gets no PONG may close the connection.
            self.write(&pong, until)?;
        }
    }

    fn write(&mut self, mut bytes: &[u8], until: Instant) -> Result<(), Broken> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left(until)?))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err("connection closed".into()),
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(error) => ignore_timeout(error)?,
            }
        }
        Ok(())
    }

    /// Reads available bytes into the splitter.
    fn read(&mut self, until: Instant) -> Result<(), Broken> {
        let mut buffer = [0; MASTER_READ_BYTES];
        loop {
            self.stream.set_read_timeout(Some(left(until)?))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err("connection closed by the peer".into()),
                Ok(n) => {
                    self.splitter.feed(buffer.get(..n).unwrap_or_default());
                    return Ok(());
                }
                Err(error) => ignore_timeout(error)?,
            }
        }
    }
}

fn left(until: Instant) -> Result<Duration, Broken> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err("timeout".into())
    } else {
        Ok(left)
    }
}

/// Ignores timeouts and interrupts: the caller's loop checks the deadline.
fn ignore_timeout(error: std::io::Error) -> Result<(), Broken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        _ => Err(error.into()),
    }
}
