//! The command line's client of the local socket: one connection, one call at a time, with limits
//! for time, response size and nesting depth. `docs/WIRE.md` defines the format.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rmpv::Value;

use super::call::Call;
use super::trust;
use crate::base::{connect, limits};
use crate::wire::{call, msgpack};

/// The reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon is listening, or access is denied: start the daemon, or name another socket.
    #[error("no daemon responds at {}: {source}; {}", path.display(), remedy(source))]
    Unreachable {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The listener is a user that is not trusted: nothing was sent.
    #[error("cannot trust the socket {}: {why}", path.display())]
    Untrusted {
        /// The path of the socket.
        path: PathBuf,
        /// The listening user, and the remedy.
        why: String,
    },
    /// The daemon rejected the call; `code` is one of the table in `docs/WIRE.md`.
    #[error("the daemon rejected the call: {message} ({code})")]
    Refused {
        /// The stable code.
        code: String,
        /// The daemon's message.
        message: String,
    },
    /// A malformed response: a bug, another program's socket, or a daemon of another version.
    #[error(
        "malformed response from the daemon: {0}; client and daemon may have different versions (`saltcellar version`)"
    )]
    Protocol(String),
    /// No response in time; retry later.
    #[error("the daemon did not respond within {} seconds: look for disk errors in `dmesg` and run `saltcellar doctor`", .0.as_secs())]
    TimedOut(Duration),
}

/// What helps if no connection to the daemon comes about.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "use sudo, or join the group of the socket",
        _ => "start it with `systemctl start saltcellar`",
    }
}

/// A connection to the daemon.
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    timeout: Duration,
    id_next: u64,
}

impl Client {
    /// Connects to the daemon at `path`.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_within(path, limits::CLI_ANSWER_TIMEOUT)
    }

    /// Connects, with `timeout` for the connection and for each response.
    pub fn connect_within(path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let stream = connect::unix(path, timeout).map_err(|error| match error.kind() {
            // A full backlog: the daemon is running but does not accept.
            io::ErrorKind::TimedOut => ClientError::TimedOut(timeout),
            _ => ClientError::Unreachable {
                path: path.to_owned(),
                source: error,
            },
        })?;

        // Before anything is sent, because another user may have made this socket.
        match trust::objection(&stream, path) {
            Ok(None) => {}
            Ok(Some(why)) => {
                return Err(ClientError::Untrusted {
                    path: path.to_owned(),
                    why,
                });
            }
            Err(source) => {
                return Err(ClientError::Unreachable {
                    path: path.to_owned(),
                    source,
                });
            }
        }

        Self::begin(stream, path, timeout)
    }

    /// A client of a test, over a connection that it has.
    #[cfg(test)]
    pub(crate) fn over(stream: UnixStream) -> Result<Self, ClientError> {
        // The host that tests run on may be busy.
        Self::begin(stream, Path::new("a pair"), 10 * limits::CLI_ANSWER_TIMEOUT)
    }

    fn begin(stream: UnixStream, path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let mut client = Self {
            stream,
            path: path.to_owned(),
            timeout,
            id_next: 1,
        };

        // Immediately, because the daemon closes a connection on which nothing arrives: the first
        // call may be made much later.
        client.send(&call::preamble(), 0)?;
        Ok(client)
    }

    /// Makes a call and waits for its response.
    pub(crate) fn make<C: Call>(&mut self, args: &C::Args<'_>) -> Result<C::Answer, ClientError> {
        let answer = self.ask_packed(C::NAME, &arguments::<C>(args)?)?;
        decoded_as::<C>(&answer)
    }

    /// Sends a call without waiting; [`Client::next_made`] returns its response with the id returned
    /// here, see [`Client::post`].
    pub(crate) fn start<C: Call>(&mut self, args: &C::Args<'_>) -> Result<u64, ClientError> {
        self.post(C::NAME, &arguments::<C>(args)?)
    }

    /// Waits for the next response to a call of this type, and returns it with the call's id.
    pub(crate) fn next_made<C: Call>(
        &mut self,
    ) -> Result<(u64, Result<C::Answer, ClientError>), ClientError> {
        let (id, answer) = self.next_packed()?;
        Ok((id, answer.and_then(|answer| decoded_as::<C>(&answer))))
    }

    /// Makes a call by its name, and waits for the result. `args` is a map with str keys, see
    /// [`args`].
    pub fn call(&mut self, name: &str, args: Value) -> Result<Value, ClientError> {
        self.ask(name, &packed(args)?)
    }

    /// Makes a call with arguments as msgpack, and waits for the result.
    pub fn ask(&mut self, name: &str, args: &[u8]) -> Result<Value, ClientError> {
        let answer = self.ask_packed(name, args)?;
        decoded(&answer)
    }

    /// Makes a call with arguments as msgpack, and returns the result as msgpack.
    pub fn ask_packed(&mut self, name: &str, args: &[u8]) -> Result<Vec<u8>, ClientError> {
        let id = self.post(name, args)?;
        let frame = self.receive_frame()?;
        read_answer(&frame, id).map(<[u8]>::to_vec)
    }

    /// Sends a call without waiting; [`Client::next_answer`] returns its result with the id
    /// returned here. `args` is a msgpack map. Callers must read responses in between, or both
    /// sides block.
    pub fn post(&mut self, name: &str, args: &[u8]) -> Result<u64, ClientError> {
        let id = self.id_next;
        self.id_next += 1;
        self.send(&call::request_frame(id, name, args), id)?;
        Ok(id)
    }

    /// Writes a part of the call `id`.
    fn send(&mut self, bytes: &[u8], id: u64) -> Result<(), ClientError> {
        let Err(error) = self.stream.write_all(bytes) else {
            return Ok(());
        };

        // A daemon that rejects a peer or a call early may have sent the reason before it closed.
        let reason = self
            .receive_frame()
            .and_then(|frame| read_answer(&frame, id).map(|_| ()));
        Err(match reason {
            Err(reason @ ClientError::Refused { .. }) => reason,
            _ => self.broken(error),
        })
    }

    /// Waits for the next response to a posted call, and returns it with the call's id. Responses
    /// arrive in any order.
    pub fn next_answer(&mut self) -> Result<(u64, Result<Value, ClientError>), ClientError> {
        let (id, answer) = self.next_packed()?;
        Ok((id, answer.and_then(|answer| decoded(&answer))))
    }

    /// As [`Self::next_answer`], as msgpack.
    pub(crate) fn next_packed(
        &mut self,
    ) -> Result<(u64, Result<Vec<u8>, ClientError>), ClientError> {
        let frame = self.receive_frame()?;
        // A response without an id is about the connection: no other responses follow.
        let Some(id) = Parts::read(&frame)?.id else {
            let what = read_answer(&frame, 0).err();
            return Err(what.unwrap_or_else(|| {
                ClientError::Protocol("a response without a call id".to_owned())
            }));
        };

        Ok((id, read_answer(&frame, id).map(<[u8]>::to_vec)))
    }

    fn receive_frame(&mut self) -> Result<Vec<u8>, ClientError> {
        // One deadline for the whole frame: a peer that sends a byte at a time must not extend it.
        let deadline = Instant::now() + self.timeout;
        let mut header = [0; 4];
        self.fill(&mut header, deadline)?;
        let bytes = u32::from_be_bytes(header) as usize;
        // The length is the peer's statement: another program may serve this path.
        if bytes > limits::WIRE_ANSWER_BYTES_MAX {
            return Err(ClientError::Protocol(format!("a frame of {bytes} bytes")));
        }
        // The buffer grows with the received data, not with the announced length.
        let mut frame = Vec::new();
        let mut chunk = vec![0; 64 * 1024];

        while frame.len() < bytes {
            let wanted = chunk.len().min(bytes - frame.len());
            let Some(part) = chunk.get_mut(..wanted) else {
                break;
            };
            self.fill(part, deadline)?;
            frame.extend_from_slice(part);
        }

        Ok(frame)
    }

    fn fill(&mut self, mut part: &mut [u8], deadline: Instant) -> Result<(), ClientError> {
        while !part.is_empty() {
            // A timeout of zero would mean none.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::TimedOut(self.timeout));
            }

            self.stream
                .set_read_timeout(Some(left))
                .map_err(|error| self.broken(error))?;

            match self.stream.read(part) {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => part = part.get_mut(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    fn broken(&self, error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::TimedOut(self.timeout)
            }
            _ => ClientError::Unreachable {
                path: self.path.clone(),
                source: error,
            },
        }
    }
}

/// Makes the arguments of a call; nil values are left out.
pub fn args<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    let set = pairs.into_iter().filter(|(_, value)| !value.is_nil());
    Value::Map(set.map(|(key, value)| (Value::from(key), value)).collect())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "arguments are made for one call"
)]
fn packed(args: Value) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &args)
        .map_err(|error| ClientError::Protocol(error.to_string()))?;
    Ok(bytes)
}

fn decoded(answer: &[u8]) -> Result<Value, ClientError> {
    let mut rest = answer;
    rmpv::decode::read_value_with_max_depth(&mut rest, limits::RMPV_ANSWER_DEPTH_MAX)
        .map_err(|error| ClientError::Protocol(format!("not msgpack: {error}")))
}

/// The arguments of a call, without those that are nil: the daemon has to look at each.
fn arguments<C: Call>(args: &C::Args<'_>) -> Result<Vec<u8>, ClientError> {
    let all = msgpack::encode(args).map_err(|error| of_call::<C>(&error))?;

    let given = || msgpack::pairs(&all).filter(|(_, value)| !msgpack::is_nil(value));
    let mut given_only = msgpack::Writer::new();
    given_only.map(given().count());
    for (name, value) in given() {
        given_only.raw(name).raw(value);
    }
    Ok(given_only.into_bytes())
}

fn decoded_as<C: Call>(answer: &[u8]) -> Result<C::Answer, ClientError> {
    msgpack::decode(answer).map_err(|error| of_call::<C>(&error))
}

/// An error of this call's arguments or response.
fn of_call<C: Call>(error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Protocol(format!("{}: {error}", C::NAME))
}

/// The parts of a response frame. The value is not decoded: `rmpv` cannot hold every value, and
/// answers can be long.
struct Parts<'a> {
    /// `None` for a response about the connection.
    id: Option<u64>,
    is_good: bool,
    value: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(frame: &'a [u8]) -> Result<Self, ClientError> {
        let read = || -> Result<_, msgpack::DecodeError> {
            let mut reader = msgpack::Reader::new(frame);
            let parts = (
                reader.array()?,
                reader.value()?,
                reader.value()?,
                reader.value()?,
            );
            Ok((parts, reader.rest().is_empty()))
        };

        let ((count, id, good, value), is_whole) =
            read().map_err(|error| ClientError::Protocol(format!("not a response: {error}")))?;
        let is_good = msgpack::as_bool(good);
        // An error about the connection itself has no id.
        let number = msgpack::as_int(id).and_then(|id| u64::try_from(id).ok());

        match is_good {
            Some(is_good)
                if count == 3 && is_whole && (number.is_some() || msgpack::is_nil(id)) =>
            {
                Ok(Self {
                    id: number,
                    is_good,
                    value,
                })
            }
            _ => Err(ClientError::Protocol(
                "neither a response nor an error".to_owned(),
            )),
        }
    }
}

/// The value of a response frame to the call `id`.
fn read_answer(frame: &[u8], id: u64) -> Result<&[u8], ClientError> {
    let parts = Parts::read(frame)?;
    // A response about the connection applies to this call.
    if let Some(answered) = parts.id.filter(|answered| *answered != id) {
        return Err(ClientError::Protocol(format!(
            "a response to call {answered} instead of {id}"
        )));
    }

    if !parts.is_good {
        let text = |key: &str| {
            let text = msgpack::get(parts.value, key).and_then(msgpack::as_text);
            text.unwrap_or("?").to_owned()
        };
        return Err(ClientError::Refused {
            code: text("code"),
            message: text("message"),
        });
    }

    // Only an error can be about the connection.
    match parts.id {
        Some(_) => Ok(parts.value),
        None => Err(ClientError::Protocol(
            "a response without a call id".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Calls a listener that reads the request and sends `answer`, as raw bytes.
    fn ask(answer: &[u8]) -> Result<Value, ClientError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                let mut seen = [0; 8 + 4];
                peer.read_exact(&mut seen).unwrap();
                assert_eq!(&seen[..8], b"SCWIRE\x00\x01");
                let mut body = vec![0; u32::from_be_bytes(seen[8..].try_into().unwrap()) as usize];
                peer.read_exact(&mut body).unwrap();
                let request = rmpv::decode::read_value(&mut body.as_slice()).unwrap();
                assert_eq!(request.to_string(), r#"[1, "status", {"limit": 3}]"#);
                peer.write_all(answer).unwrap();
            });
            let mut client = Client::connect_within(&path, Duration::from_millis(500)).unwrap();
            client.call(
                "status",
                args([("limit", Value::from(3)), ("tag", Value::Nil)]),
            )
        })
    }

    fn frame(value: &Value) -> Vec<u8> {
        let mut body = Vec::new();
        rmpv::encode::write_value(&mut body, value).unwrap();
        [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    }

    #[test]
    fn an_answer_is_returned_and_a_refusal_is_an_error() {
        let answer = Value::Array(vec![1.into(), true.into(), "fine".into()]);
        assert_eq!(ask(&frame(&answer)).unwrap().as_str(), Some("fine"));

        let why = Value::Map(vec![
            ("code".into(), "bad_args".into()),
            ("message".into(), "limit".into()),
        ]);
        for id in [Value::from(1), Value::Nil] {
            let refusal = Value::Array(vec![id, false.into(), why.clone()]);
            let error = ask(&frame(&refusal)).unwrap_err();
            assert!(matches!(error, ClientError::Refused { code, .. } if code == "bad_args"));
        }
    }

    #[test]
    fn malformed_answers_are_protocol_errors_and_cost_no_memory() {
        let other = Value::Array(vec![7.into(), true.into(), Value::Nil]);
        let mut deep = vec![0x91; 100_000];
        deep.push(0xc0);
        let deep = [&100_001u32.to_be_bytes()[..], &deep].concat();
        for answer in [
            frame(&other),
            frame(&Value::from(1)),
            b"\xff\xff\xff\xffxx".to_vec(),
            b"\0\0\0\x02\xc0\xc0".to_vec(),
            deep,
        ] {
            let error = ask(&answer).unwrap_err();
            assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
        }
        // A daemon that was killed.
        assert!(matches!(
            ask(&[]).unwrap_err(),
            ClientError::Unreachable { .. }
        ));
    }

    #[test]
    fn a_socket_of_an_untrusted_user_is_sent_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        const NOBODY: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            return crate::testkit::missing("root, to listen as another user");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.path().join("sock");
        let listen = || {
            // Changes only this thread, whose user the kernel records for the socket.
            let other = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(other, other, other).unwrap();
            UnixListener::bind(&path).unwrap()
        };
        let listener = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .spawn_scoped(scope, listen)
                .unwrap()
                .join()
                .unwrap()
        });
        let Err(ClientError::Untrusted { why, .. }) = Client::connect(&path) else {
            panic!("it is trusted")
        };
        assert!(
            why.starts_with("user nobody serves this socket and is not trusted, nothing was sent"),
            "{why}"
        );
        let (mut peer, _) = listener.accept().unwrap();
        assert_eq!(peer.read(&mut [0; 9]).unwrap(), 0);
        // A daemon that opened its socket as root may have dropped its privileges since.
        let own = dir.path().join("own");
        let _listener = UnixListener::bind(&own).unwrap();
        assert!(Client::connect(&own).is_ok());
    }

    #[test]
    fn a_connection_introduces_itself_before_its_first_call() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).unwrap();
        let client = Client::connect(&path).unwrap();

        let (mut peer, _) = listener.accept().unwrap();
        // Without a preamble there would be nothing but the end.
        drop(client);
        let mut seen = Vec::new();
        peer.read_to_end(&mut seen).unwrap();
        assert_eq!(seen, call::preamble());
    }

    #[test]
    fn a_silent_daemon_times_out_and_a_missing_one_is_unreachable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        assert!(matches!(
            Client::connect(&path),
            Err(ClientError::Unreachable { .. })
        ));
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = Client::connect_within(&path, Duration::from_millis(30)).unwrap();
        let error = client.call("status", args([])).unwrap_err();
        assert!(matches!(error, ClientError::TimedOut(_)), "{error:?}");
        drop(listener);
        assert!(matches!(
            Client::connect(&path),
            Err(ClientError::Unreachable { .. })
        ));
    }
}
