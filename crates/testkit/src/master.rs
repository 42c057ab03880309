//! A fake Salt master's request port.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::Builder;

use saltcellar_base::limits::MASTER_READ_BYTES;
use saltcellar_wire::msgpack::Writer;
use saltcellar_wire::zmtp::{self, Splitter, ZmtpItem};

/// The command READY of a master's socket.
const READY: &[u8] = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";

/// The master's end of a connection: a ROUTER.
#[derive(Debug)]
pub struct Router {
    /// The connection, for invalid responses.
    pub stream: TcpStream,
    splitter: Splitter,
}

impl Router {
    /// Exchanges greetings with a client, and waits for its READY.
    pub fn accept(mut stream: TcpStream) -> io::Result<Self> {
        // As libzmq does: a small message is sent immediately.
        stream.set_nodelay(true)?;
        stream.write_all(&zmtp::greeting())?;
        let mut theirs = [0; zmtp::GREETING_LEN];
        stream.read_exact(&mut theirs)?;
        zmtp::check_greeting(&theirs).map_err(io::Error::other)?;
        stream.write_all(READY)?;

        let mut router = Self {
            stream,
            splitter: Splitter::new(1 << 20),
        };

        match router.next_item()?.as_deref() {
            Some([]) => Ok(router),
            _ => Err(io::Error::other("the client's READY is missing")),
        }
    }

    /// The body of the next request; `None` at the end of the connection.
    pub fn next_request(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self.next_item()? {
                Some(command) if command.is_empty() => {}
                request => return Ok(request),
            }
        }
    }

    /// The body of the next request, empty for a command; `None` at the end of the connection.
    fn next_item(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self.splitter.next_item().map_err(io::Error::other)? {
                Some(ZmtpItem::Command(_)) => return Ok(Some(Vec::new())),
                Some(ZmtpItem::Message(message))
                    if message.first.is_empty() && message.frames == 2 =>
                {
                    return Ok(message.second.map(<[u8]>::to_vec));
                }
                Some(ZmtpItem::Message(_)) => {
                    // A REQ sends an empty frame and one with the body, nothing else.
                    return Err(io::Error::other("not a message of a REQ"));
                }
                // Not complete yet.
                None => {}
            }

            let mut buffer = [0; MASTER_READ_BYTES];
            match self.stream.read(&mut buffer)? {
                0 => return Ok(None),
                n => self.splitter.feed(buffer.get(..n).unwrap_or_default()),
            }
        }
    }

    /// Sends a response.
    pub fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        zmtp::put_request(&mut bytes, body);
        self.stream.write_all(&bytes)
    }
}

/// Responds to the requests of all connections, each on a thread that runs until the process exits.
/// Returns the port.
pub fn serve(answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) -> io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let answer = Arc::new(answer);
    let named = || Builder::new().name("fake-master".to_owned());

    named().spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            let work = move || -> io::Result<()> {
                let mut router = Router::accept(stream?)?;
                while let Some(request) = router.next_request()? {
                    router.send(&answer(&request))?;
                }
                Ok(())
            };
            // On failure the connection is closed, and the client retries.
            drop(named().spawn(work));
        }
    })?;

    Ok(port)
}

/// The response to a job that was published for the minion `web1`.
pub fn published(jid: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(2)
        .str("enc")
        .str("clear")
        .str("load")
        .map(3)
        .str("jid")
        .str(jid);
    w.str("minions")
        .array(1)
        .str("web1")
        .str("missing")
        .array(0);
    w.into_bytes()
}
