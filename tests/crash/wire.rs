//! A client that preserves the received bytes and supports pipelined requests.

use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use saltcellar::wire::call::{preamble, request_frame};
use saltcellar::wire::msgpack::{Reader, Writer, as_bool, as_int};

/// A connection.
pub(crate) struct Wire {
    to: UnixStream,
    from: BufReader<UnixStream>,
    next_id: u64,
}

/// A response: the request's id, and the value or the daemon's error.
pub(crate) type Answer = (u64, Result<Vec<u8>, String>);

impl Wire {
    pub(crate) fn connect(socket: &Path) -> std::io::Result<Self> {
        let mut to = UnixStream::connect(socket)?;
        to.set_read_timeout(Some(Duration::from_secs(60)))?;
        to.write_all(&preamble())?;
        Ok(Self {
            from: BufReader::new(to.try_clone()?),
            to,
            next_id: 0,
        })
    }

    pub(crate) fn send(&mut self, call: &str, args: &[u8]) -> std::io::Result<u64> {
        self.next_id += 1;
        self.to
            .write_all(&request_frame(self.next_id, call, args))?;
        Ok(self.next_id)
    }

    pub(crate) fn receive(&mut self) -> std::io::Result<Answer> {
        let mut header = [0; 4];
        self.from.read_exact(&mut header)?;
        let mut frame = vec![0; u32::from_be_bytes(header) as usize];
        self.from.read_exact(&mut frame)?;
        let mut reader = Reader::new(&frame);
        reader.array().unwrap();
        let id = as_int(reader.value().unwrap())
            .and_then(|id| u64::try_from(id).ok())
            .unwrap_or(0);
        let good = as_bool(reader.value().unwrap()).unwrap();
        let value = reader.value().unwrap().to_vec();
        let text = || {
            rmpv::decode::read_value(&mut value.as_slice())
                .unwrap()
                .to_string()
        };
        Ok((id, if good { Ok(value) } else { Err(text()) }))
    }

    /// Sends a request and waits for its response.
    pub(crate) fn ask(
        &mut self,
        call: &str,
        args: &Args,
    ) -> std::io::Result<Result<Vec<u8>, String>> {
        self.send(call, &args.bytes())?;
        Ok(self.receive()?.1)
    }
}

/// Arguments of a call, under construction.
#[derive(Default)]
pub(crate) struct Args {
    pairs: usize,
    body: Vec<u8>,
}

impl Args {
    pub(crate) fn with(mut self, key: &str, write: impl FnOnce(&mut Writer)) -> Self {
        let mut w = Writer::new();
        w.str(key);
        write(&mut w);
        self.pairs += 1;
        self.body.extend_from_slice(&w.into_bytes());
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(self.pairs).raw(&self.body);
        w.into_bytes()
    }
}
