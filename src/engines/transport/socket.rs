//! Transports over a socket whose receiver sends no response: a message counts as delivered once
//! the kernel has accepted it.

use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::time::Duration;

use super::deliver::{
    DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript, Transport,
};
use super::item::Item;
use crate::model::word::MIB;

/// The settings of such a transport.
pub(super) trait SocketDestination: Clone + Debug + Send + Sync + 'static {
    type Socket: Send;

    /// The receiver, and the name of its messages.
    const NAMES: (&str, &str);

    fn place(&self) -> String;

    fn connect(&self) -> io::Result<Self::Socket>;

    /// The socket, unless its receiver has closed it.
    fn if_open(socket: Self::Socket) -> Option<Self::Socket> {
        Some(socket)
    }

    fn message(&self, item: &Item) -> Vec<u8>;

    /// Sends all messages; returns those that the socket can never take.
    fn send(socket: &mut Self::Socket, messages: &[Vec<u8>]) -> io::Result<Vec<Rejected>>;
}

impl<D: SocketDestination> Destination for D {
    fn open(&self, _: &Dependencies) -> Box<dyn Transport> {
        Box::new(SocketTransport {
            settings: self.clone(),
            socket: None,
        })
    }

    fn describe(&self) -> String {
        self.place()
    }

    fn limits(&self) -> RequestLimits {
        // A batch is repeated as a whole, so it bounds the duplicates after an error.
        let bytes = usize::try_from(MIB).unwrap_or(usize::MAX);
        RequestLimits {
            count: 500,
            bytes,
            time: Duration::ZERO,
        }
    }
}

struct SocketTransport<D: SocketDestination> {
    settings: D,
    socket: Option<D::Socket>,
}

impl<D: SocketDestination> Transport for SocketTransport<D> {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        let place = self.settings.place();
        let failed = |why: io::Error| DeliverError::retry(socket_error(&place, &why));
        // Taken, and put back only after success: a socket in an unknown state is not used again.
        let mut socket = match self.socket.take().and_then(D::if_open) {
            Some(socket) => socket,
            None => self.settings.connect().map_err(failed)?,
        };

        let messages: Vec<_> = items
            .iter()
            .map(|item| self.settings.message(item))
            .collect();

        let rejected = D::send(&mut socket, &messages).map_err(failed)?;

        if let Some(transcript) = transcript {
            let (receiver, unit) = D::NAMES;
            transcript.request = String::from_utf8_lossy(&messages.join(&b'\n')).into_owned();
            let count = messages.len() - rejected.len();
            transcript.response =
                format!("{count} {unit} written to {place}; {receiver} does not respond");
        }

        self.socket = Some(socket);
        Ok(rejected)
    }

    fn check(&mut self) -> Result<String, String> {
        let place = self.settings.place();
        match self.settings.connect() {
            Ok(_) => Ok(format!("{place} accepts connections")),
            Err(why) => Err(socket_error(&place, &why)),
        }
    }

    fn reopen(&mut self) {
        self.socket = None;
    }
}

fn socket_error(place: &str, why: &io::Error) -> String {
    match why.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("{place} accepts no messages (timeout); restart its service if it hangs")
        }
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("{place}: {why}; start its service, or correct the sink's address")
        }
        ErrorKind::PermissionDenied => {
            format!("{place}: {why}; let the daemon's user write to it")
        }
        _ => format!("{place}: {why}"),
    }
}
