//! The transport `syslog`: messages of RFC 5424.
//!
//! ```text
//! message   <priority>1 time host application - function [saltcellar@32473 id=".." seq=".." tag=".." jid=".."] item
//! unix      one datagram per message; on a stream socket each message ends with a newline
//! tcp, tls  length " " message (RFC 6587, octet counting; RFC 5425)
//! ```
//!
//! The host is the minion, or the master for events without one. 32473 is the enterprise number for
//! examples (RFC 5612).
//!
//! Before each batch the connection is tested, because the receiver may have closed it, and
//! messages written to it would be lost.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde::Deserialize;

use super::deliver::{BoxedDestination, Rejected};
use super::item::Item;
use super::socket::SocketDestination;
use crate::base::connect;
use crate::client::tls;
use crate::config::ClientTls;
use crate::config::within;
use crate::engines::event::Event;
use crate::engines::framing::Framing;
use crate::engines::kind::{Kind, options};
use crate::model::word::{self, Word, words};

const DOC: &str = r"Messages of RFC 5424 to a unix socket, over TCP or TLS.

| option | value | default |
|---|---|---|
| `address` | `unix:` and an absolute path (datagrams, else a stream; behind `/dev/log`, journald keeps the whole line as its message: use `journald` for fields), `tcp://host:port` or `tls://host:port` (octet counting) | `unix:/dev/log` |
| `facility` | `kern`, `user`, `daemon`, `auth`, `authpriv`, `local0` to `local7` and the other names of RFC 5424 | `daemon` |
| `severity` | `emergency`, `alert`, `critical`, `error`, `warning`, `notice`, `info`, `debug` | `info` |
| `app_name` | the field APP-NAME | `salt` |
| `tls` | same as `http` | the system's |
| `timeout` | for a connection or a write | 10s |

The host is the minion, MSGID the function, and the structured data `saltcellar@32473` has `id`, `seq`, `tag` and `jid`. The message is the item. Syslog acknowledges nothing: messages count as delivered
once the kernel has them, so the end of a receiver can lose some. rsyslog cuts messages longer than its `maxMessageSize` (8k).";

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "syslog",
    doc: DOC,
    example: "{address: 'tls://logs.example.com:6514', facility: local0, severity: info, app_name: salt, \
              tls: {ca: /etc/ssl/own-ca.pem}, timeout: 10s}",
    build: |given| {
        let syslog: SyslogDestination = options(given)?;
        syslog.tls.check()?;
        within(
            "timeout",
            &syslog.timeout,
            Duration::from_secs(1)..=Duration::from_secs(600),
        )?;
        Ok(Box::new(syslog))
    },
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct SyslogDestination {
    #[serde(default, with = "word")]
    address: Address,
    #[serde(default)]
    facility: Facility,
    #[serde(default)]
    severity: Severity,
    #[serde(default = "salt")]
    app_name: String,
    #[serde(default)]
    tls: ClientTls,
    /// Longest wait for a connection or a write.
    #[serde(default = "ten_seconds", with = "word")]
    timeout: Duration,
}

fn salt() -> String {
    "salt".to_owned()
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

/// The address of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Unix(PathBuf),
    Tcp(String),
    Tls(String),
}

impl Default for Address {
    fn default() -> Self {
        Self::Unix(PathBuf::from("/dev/log"))
    }
}

words! {
    Address: "unix: and an absolute path, tcp://host:port, or tls://host:port",
        |text| {
            if let Some(path) = text.strip_prefix("unix:") {
                return PathBuf::parse(path).map(Self::Unix);
            }
            let (scheme, place) = text.split_once("://")?;
            let (host, port) = place.rsplit_once(':')?;
            if host.is_empty() || port.parse::<u16>().is_err() {
                return None;
            }
            match scheme {
                "tcp" => Some(Self::Tcp(place.to_owned())),
                "tls" => Some(Self::Tls(place.to_owned())),
                _ => None,
            }
        },
        |address| match address {
            Self::Unix(path) => format!("unix:{}", path.display()),
            Self::Tcp(place) => format!("tcp://{place}"),
            Self::Tls(place) => format!("tls://{place}"),
        };
}

/// A facility by its name; the code is its index.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Facility {
    Kern,
    User,
    Mail,
    #[default]
    Daemon,
    Auth,
    Syslog,
    Lpr,
    News,
    Uucp,
    Cron,
    AuthPriv,
    Ftp,
    Local0 = 16,
    Local1,
    Local2,
    Local3,
    Local4,
    Local5,
    Local6,
    Local7,
}

/// A severity by its name; the code is its index.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Emergency,
    Alert,
    Critical,
    Error,
    Warning,
    Notice,
    #[default]
    Info,
    Debug,
}

impl Severity {
    pub(super) fn code(self) -> u8 {
        self as u8
    }
}

impl SocketDestination for SyslogDestination {
    type Socket = Socket;

    const NAMES: (&str, &str) = ("syslog", "messages");

    fn place(&self) -> String {
        self.address.show().unwrap_or_default()
    }

    fn connect(&self) -> io::Result<Socket> {
        Socket::connect(self)
    }

    fn if_open(socket: Socket) -> Option<Socket> {
        socket.if_open()
    }

    fn message(&self, item: &Item) -> Vec<u8> {
        let Event {
            id,
            seq,
            at,
            tag,
            minion,
            fun,
            jid,
            master_id,
            ..
        } = &*item.event;
        let priority = self.facility as u8 * 8 + self.severity.code();

        // RFC 5424 names the originator here: the minion, or the master for an event of its own.
        let host = if minion.is_empty() {
            &**master_id
        } else {
            minion
        };
        // The maximum lengths of RFC 5424.
        let [host, app_name, function] = [(host, 255), (&self.app_name, 48), (fun, 32)].map(header);

        let mut head = format!(
            "<{priority}>1 {} {host} {app_name} - {function} [saltcellar@32473",
            at.iso()
        );

        let seq = seq.to_string();
        // An empty value is left out, as an absent one.
        for (name, value) in [("id", id), ("seq", &seq), ("tag", tag), ("jid", jid)] {
            if !value.is_empty() {
                // Writing to a string cannot fail.
                let _ = write!(head, " {name}=\"{}\"", escaped(value));
            }
        }

        head.push_str("] ");

        let mut message = head.into_bytes();
        message.extend_from_slice(&item.bytes);
        message
    }

    fn send(socket: &mut Socket, messages: &[Vec<u8>]) -> io::Result<Vec<Rejected>> {
        socket.send(messages)
    }
}

enum Socket {
    Datagram(UnixDatagram),
    /// Messages end with a newline.
    Lines(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    fn connect(settings: &SyslogDestination) -> io::Result<Self> {
        let timeout = settings.timeout;
        match &settings.address {
            Address::Unix(path) => Self::connect_unix(path, timeout),
            Address::Tcp(place) => connect_tcp(place, timeout).map(Self::Tcp),
            Address::Tls(place) => {
                // Before the connection: unusable certificates are an error of their own.
                let config = tls::client(&settings.tls).map_err(io::Error::other)?;

                let host = place
                    .rsplit_once(':')
                    .map_or(place.as_str(), |(host, _)| host);
                // A certificate names an IPv6 address without brackets.
                let host = host
                    .trim_start_matches('[')
                    .trim_end_matches(']')
                    .to_owned();
                let name = ServerName::try_from(host).map_err(io::Error::other)?;
                let mut tls =
                    ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;

                let mut stream = connect_tcp(place, timeout)?;
                // Now and not with the first message, because a TLS error must be reported as such.
                while tls.is_handshaking() {
                    tls.complete_io(&mut stream)?;
                }
                Ok(Self::Tls(Box::new(StreamOwned::new(tls, stream))))
            }
        }
    }

    /// Connects as syslog(3) does: to a datagram socket, or else to a stream socket.
    fn connect_unix(path: &Path, timeout: Duration) -> io::Result<Self> {
        let datagram = UnixDatagram::unbound()?;
        match datagram.connect(path) {
            // The other kind of socket listens there.
            Err(why) if Errno::from_io_error(&why) == Some(Errno::PROTOTYPE) => {
                let stream = connect::unix(path, timeout)?;
                Ok(Self::Lines(stream))
            }
            connected => {
                connected?;
                datagram.set_write_timeout(Some(timeout))?;
                Ok(Self::Datagram(datagram))
            }
        }
    }

    /// The socket, unless its receiver has closed it.
    fn if_open(mut self) -> Option<Self> {
        // A write to a connection that the receiver has closed succeeds once, and the message would
        // be lost without a sign.
        let is_open = match &mut self {
            Self::Datagram(_) => Ok(true),
            Self::Lines(stream) => expects_nothing(stream, UnixStream::set_nonblocking),
            Self::Tcp(stream) => expects_nothing(stream, TcpStream::set_nonblocking),
            Self::Tls(stream) => {
                expects_nothing(&mut **stream, |tls, on| tls.sock.set_nonblocking(on))
            }
        };
        is_open.unwrap_or(false).then_some(self)
    }

    /// Sends all messages; returns those that the socket can never take.
    fn send(&mut self, messages: &[Vec<u8>]) -> io::Result<Vec<Rejected>> {
        let mut rejected = Vec::new();
        let mut reject = |index: usize, reason: String| {
            rejected.push(Rejected {
                index,
                reason,
                is_temporary: false,
            });
        };

        match self {
            Self::Datagram(socket) => {
                for (index, message) in messages.iter().enumerate() {
                    match socket.send(message) {
                        // Larger than a datagram can be, now and later. The others are not held up.
                        Err(why) if Errno::from_io_error(&why) == Some(Errno::MSGSIZE) => {
                            reject(
                                index,
                                format!(
                                    "{} bytes are too many for a datagram; use a tcp or tls address",
                                    message.len()
                                ),
                            );
                        }
                        sent => _ = sent?,
                    }
                }
            }
            // A stream contains no message boundaries, so a line break within a message would end it.
            Self::Lines(stream) => {
                let mut lines = Vec::new();
                for message in messages {
                    lines.extend(Framing::Line.item(message.clone()));
                    lines.push(b'\n');
                }

                stream.write_all(&lines)?;
            }
            Self::Tcp(stream) => stream.write_all(&octet_counted(messages))?,
            Self::Tls(stream) => {
                // Buffered data would count as delivered.
                stream.write_all(&octet_counted(messages))?;
                stream.flush()?;
            }
        }
        Ok(rejected)
    }
}

/// True if a connection from which nothing is expected is open. Does not block.
fn expects_nothing<S: Read>(
    stream: &mut S,
    set_nonblocking: impl Fn(&S, bool) -> io::Result<()>,
) -> io::Result<bool> {
    set_nonblocking(stream, true)?;

    let mut answer = [0; 4096];
    let mut is_open = true;
    // Bounded, because a peer could send without end. The rest is read at the next check.
    for _ in 0..16 {
        match stream.read(&mut answer) {
            Ok(0) => {
                is_open = false;
                break;
            }
            // Syslog receivers do not respond, therefore such bytes are meaningless.
            Ok(_) => {}
            Err(why) => {
                is_open = why.kind() == ErrorKind::WouldBlock;
                break;
            }
        }
    }

    set_nonblocking(stream, false)?;
    Ok(is_open)
}

fn connect_tcp(place: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    // A name may have addresses that nobody listens at, so each is tried.
    for address in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_write_timeout(Some(timeout))?;
                stream.set_read_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn octet_counted(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(messages.iter().map(|message| message.len() + 8).sum());
    for message in messages {
        framed.extend_from_slice(message.len().to_string().as_bytes());
        framed.push(b' ');
        framed.extend_from_slice(message);
    }
    framed
}

/// A field of the header: printable ASCII without spaces, of limited length, `-` for none.
fn header((text, max): (&str, usize)) -> String {
    let printable = |c: char| if c.is_ascii_graphic() { c } else { '_' };
    let field: String = text.chars().take(max).map(printable).collect();
    if field.is_empty() {
        "-".to_owned()
    } else {
        field
    }
}

/// The value of a parameter of structured data.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace(']', "\\]")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use serde_json::json;

    use super::super::tests::{items, open};
    use super::super::{Transcript, Transport};
    use super::*;
    use crate::config::read_yaml;
    use crate::engines::event::tests::event;
    use crate::testkit::wait_for;

    fn transport(address: &str) -> Box<dyn Transport> {
        let options =
            format!("{{address: '{address}', facility: local7, severity: error, timeout: 1s}}");
        open(&KIND, &options)
    }

    const FIRST: &str = "<187>1 2026-11-18T11:06:40.123456Z web1 salt - - [saltcellar@32473 id=\"store:1\" seq=\"1\" tag=\"test/tag\"] one";

    #[test]
    fn a_peer_that_sends_without_end_is_not_read_without_end() {
        let is_open = |mut from: Box<dyn Read>| expects_nothing(&mut from, |_, _| Ok(())).unwrap();
        assert!(is_open(Box::new(io::repeat(b'x'))));
        assert!(!is_open(Box::new(io::empty())));
    }

    #[test]
    fn a_message_has_the_fields_of_the_event() {
        let options = read_yaml("{app_name: my app}").unwrap();
        let syslog: SyslogDestination = options_of(&options);
        let mut event = event(7, "a/\"b]\\", "", json!({}));
        event.fun = "f".repeat(40);
        event.jid = "20261118".to_owned();
        let item = Item::new(Arc::new(event), None, b"text".to_vec());
        let expected = format!(
            "<30>1 2026-11-18T11:06:40.123456Z master1 my_app - {} [saltcellar@32473 id=\"store:7\" seq=\"7\" \
             tag=\"a/\\\"b\\]\\\\\" jid=\"20261118\"] text",
            "f".repeat(32)
        );
        assert_eq!(String::from_utf8(syslog.message(&item)).unwrap(), expected);
    }

    fn options_of(options: &serde_json::Value) -> SyslogDestination {
        super::options(options).unwrap()
    }

    #[test]
    fn a_receiver_that_hangs_is_an_error_after_the_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // A backlog of zero leaves room for one.
        let _waiting = UnixStream::connect(&path).unwrap();
        let address = format!("unix:{}", path.display());
        let (report, outcome) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new()
            .spawn(move || {
                let failed = transport(&address).deliver(&items(&["one"]), None);
                let _ = report.send(failed.unwrap_err().to_string());
            })
            .unwrap();
        let failed = crate::testkit::receive(&outcome);
        assert!(failed.contains("accepts no messages (timeout)"), "{failed}");
    }

    #[test]
    fn a_unix_socket_gets_datagrams_or_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let address = format!("unix:{}", path.display());
        let mut syslog = transport(&address);
        let long = "x".repeat(4_000_000);
        let rejected = syslog.deliver(&items(&["one", &long]), None).unwrap();
        assert_eq!(
            (rejected.len(), rejected[0].index, rejected[0].is_temporary),
            (1, 1, false)
        );
        let mut buffer = [0; 4_096];
        let size = receiver.recv(&mut buffer).unwrap();
        assert_eq!(std::str::from_utf8(&buffer[..size]).unwrap(), FIRST);
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let mut syslog = transport(&address);
        let sent = syslog.deliver(&items(&["one", "two\nlines"]), None);
        assert_eq!(sent, Ok(vec![]));
        drop(syslog);
        let mut text = String::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_string(&mut text)
            .unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, FIRST));
        assert!(lines[1].ends_with(r"two\nlines"), "{text}");
    }

    #[test]
    fn tcp_counts_octets_and_a_closed_connection_is_made_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut syslog = transport(&format!("tcp://{}", listener.local_addr().unwrap()));
        let mut transcript = Transcript::default();
        assert_eq!(
            syslog.deliver(&items(&["one"]), Some(&mut transcript)),
            Ok(vec![])
        );
        assert_eq!(transcript.request, FIRST);
        let (mut first, _) = listener.accept().unwrap();
        let framed = format!("{} {FIRST}", FIRST.len());
        let mut text = vec![0; framed.len()];
        first.read_exact(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), framed);
        drop(first);
        wait_for("the end of the connection", || {
            assert_eq!(syslog.deliver(&items(&["one"]), None), Ok(vec![]));
            listener.set_nonblocking(true).unwrap();
            listener.accept().ok()
        });
        drop((listener, syslog));
    }

    #[test]
    fn a_receiver_that_is_absent_or_reads_nothing_is_retried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let mut syslog = transport(&address);
        let long = "x".repeat(30_000_000);
        let error = syslog
            .deliver(&items(&[&long]), None)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            format!("{address} accepts no messages (timeout); restart its service if it hangs")
        );
        drop(listener);
        let error = transport(&address)
            .deliver(&items(&["one"]), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("Connection refused"), "{error}");
        // A receiver that never responds to the greeting of TLS.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = transport(&format!("tls://{}", silent.local_addr().unwrap()))
            .check()
            .unwrap_err();
        assert!(
            error.contains("timeout") || error.contains("certificate"),
            "{error}"
        );
    }

    #[test]
    fn an_address_is_a_unix_path_tcp_or_tls() {
        for text in ["unix:/dev/log", "tcp://h:601", "tls://[::1]:6514"] {
            assert_eq!(
                Address::parse(text)
                    .and_then(|address| address.show())
                    .as_deref(),
                Some(text)
            );
        }
        for text in [
            "unix:relative",
            "udp://h:514",
            "tcp://h",
            "tls://:6514",
            "/dev/log",
            "",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }
}
