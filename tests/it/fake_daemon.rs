//! A fake daemon with canned answers, and helpers to run the program.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use parking_lot::Mutex;
use rmpv::Value;

/// A response, or the code and the message of an error.
type Answered = Result<Value, (&'static str, &'static str)>;
/// Answers a call, given its name and its arguments.
type Answer = Box<dyn Fn(&str, &Value) -> Answered + Send + Sync>;

/// A listening socket in its own directory. The thread runs until the test process exits.
pub(crate) struct FakeDaemon {
    pub(crate) socket: PathBuf,
    pub(crate) dir: tempfile::TempDir,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl FakeDaemon {
    /// Answers `call` with `answer`, and other calls with `unknown_call`.
    pub(crate) fn answering(
        call: &'static str,
        answer: impl Fn(&Value) -> Answered + Send + Sync + 'static,
    ) -> Self {
        Self::answering_all(move |name, args| {
            if name == call {
                answer(args)
            } else {
                Err(("unknown_call", "no such call"))
            }
        })
    }

    /// Answers every call, by its name.
    pub(crate) fn answering_all(
        answer: impl Fn(&str, &Value) -> Answered + Send + Sync + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let answer: Answer = Box::new(answer);
        let seen = Arc::clone(&requests);
        std::thread::Builder::new()
            .name("fake-daemon".to_owned())
            .spawn(move || {
                for peer in listener.incoming() {
                    serve(peer.unwrap(), &answer, &seen);
                }
            })
            .unwrap();
        Self {
            socket,
            dir,
            requests,
        }
    }

    /// Runs the program against this daemon.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        program()
            .arg("--socket")
            .arg(&self.socket)
            .args(args)
            .output()
            .unwrap()
    }

    /// The calls so far, with their arguments.
    pub(crate) fn requests(&self) -> Vec<(String, Value)> {
        self.requests.lock().clone()
    }
}

/// The program, isolated from the environment of the test run.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saltcellar"));
    for name in [
        "SALTCELLAR_SOCKET",
        "SALTCELLAR_STATE_DIR",
        "SALTCELLAR_LOG",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
    ] {
        command.env_remove(name);
    }
    command
        .env("TZ", "UTC")
        .env_remove("PAGER")
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env("HOME", "/nonexistent");
    command
}

/// Standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A map with str keys.
pub(crate) fn map<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    Value::Map(
        pairs
            .into_iter()
            .map(|(key, value)| (Value::from(key), value))
            .collect(),
    )
}

fn serve(mut peer: UnixStream, answer: &Answer, seen: &Mutex<Vec<(String, Value)>>) {
    let mut preamble = [0; 8];
    if peer.read_exact(&mut preamble).is_err() {
        return;
    }
    assert_eq!(&preamble, b"SCWIRE\x00\x01");
    let mut header = [0; 4];
    while peer.read_exact(&mut header).is_ok() {
        let mut body = vec![0; u32::from_be_bytes(header) as usize];
        peer.read_exact(&mut body).unwrap();
        let request = rmpv::decode::read_value(&mut body.as_slice()).unwrap();
        let [id, name, args] = request.as_array().unwrap().as_slice() else {
            panic!("{request}")
        };
        let name = name.as_str().unwrap();
        seen.lock().push((name.to_owned(), args.clone()));
        let (good, value) = match answer(name, args) {
            Ok(value) => (true, value),
            Err((code, message)) => (
                false,
                map([("code", code.into()), ("message", message.into())]),
            ),
        };
        let mut body = Vec::new();
        rmpv::encode::write_value(
            &mut body,
            &Value::Array(vec![id.clone(), good.into(), value]),
        )
        .unwrap();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        // Some tests disconnect early.
        if peer.write_all(&[&length[..], &body].concat()).is_err() {
            return;
        }
    }
}
