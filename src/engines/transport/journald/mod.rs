//! The transport `journald`: entries of systemd's journal, by its native protocol.
//!
//! ```text
//! entry   field...                     one datagram; an entry over the socket's limit is sent as a sealed memory file
//! field   NAME "=" value "\n"          if the value has no newline
//!         NAME "\n" length value "\n"  length: u64 LE
//! ```
//!
//! `MESSAGE` is the item.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;

use super::deliver::{BoxedDestination, Rejected};
use super::item::Item;
use super::socket::SocketDestination;
use super::syslog::Severity;
use crate::engines::kind::{Kind, options};
use crate::model::word;

const DOC: &str = r"Entries of systemd's journal with structured fields.

Options: `identifier` (`SYSLOG_IDENTIFIER`, default `salt`), `severity` as above, `socket`. `MESSAGE` is the item; `SALT_ID`, `SALT_SEQ`, `SALT_TIME`, `SALT_TAG`, `SALT_MINION`, `SALT_FUN`, `SALT_JID` and
`SALT_MASTER_ID` are fields (`journalctl SALT_MINION=web1`). Entries of any size are sent. journald acknowledges nothing, and drops entries over its `RateLimitBurst`; the sink's `rate` stays below it.";

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "journald",
    doc: DOC,
    example: "{identifier: salt, severity: info, socket: /run/systemd/journal/socket}",
    build: |given| Ok(Box::new(options::<JournalDestination>(given)?)),
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalDestination {
    /// The field `SYSLOG_IDENTIFIER`.
    #[serde(default = "salt")]
    identifier: String,
    #[serde(default)]
    severity: Severity,
    #[serde(default = "journal_socket", with = "word")]
    socket: PathBuf,
}

fn salt() -> String {
    "salt".to_owned()
}

fn journal_socket() -> PathBuf {
    PathBuf::from("/run/systemd/journal/socket")
}

/// Longest wait while journald reads nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

impl SocketDestination for JournalDestination {
    type Socket = UnixDatagram;

    const NAMES: (&str, &str) = ("journald", "entries");

    fn place(&self) -> String {
        self.socket.display().to_string()
    }

    fn connect(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        socket.connect(&self.socket)?;
        Ok(socket)
    }

    fn message(&self, item: &Item) -> Vec<u8> {
        entry(self, item)
    }

    fn send(socket: &mut UnixDatagram, messages: &[Vec<u8>]) -> io::Result<Vec<Rejected>> {
        messages.iter().try_for_each(|entry| send(socket, entry))?;
        Ok(Vec::new())
    }
}

fn send(socket: &UnixDatagram, entry: &[u8]) -> io::Result<()> {
    match socket.send(entry) {
        // Linux limits a datagram to the socket's buffer.
        Err(why)
            if matches!(
                Errno::from_io_error(&why),
                Some(Errno::MSGSIZE | Errno::NOBUFS)
            ) =>
        {
            send_file(socket, entry)
        }
        sent => sent.map(drop),
    }
}

/// Sends an entry as a memory file, which journald requires to be sealed.
fn send_file(socket: &UnixDatagram, entry: &[u8]) -> io::Result<()> {
    let mut file = File::from(memfd_create(
        "saltcellar-entry",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?);
    file.write_all(entry)?;
    // journald maps the file, so nobody may change it afterwards.
    fcntl_add_seals(
        &file,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL,
    )?;

    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    // An empty datagram with a descriptor, by journald's protocol.
    sendmsg(
        socket,
        &[IoSlice::new(&[])],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

fn entry(settings: &JournalDestination, item: &Item) -> Vec<u8> {
    let event = &item.event;
    let mut entry = Vec::with_capacity(item.bytes.len() + 512);
    field(&mut entry, "MESSAGE", &item.bytes);
    // The item first; the other fields are as in the JSON form of an event.
    let (priority, seq) = (
        settings.severity.code().to_string(),
        event.seq.0.to_string(),
    );

    let fields = [
        ("PRIORITY", priority.as_str()),
        ("SYSLOG_IDENTIFIER", &settings.identifier),
        ("SALT_ID", &event.id),
        ("SALT_SEQ", &seq),
        ("SALT_TIME", &event.at.iso()),
        ("SALT_TAG", &event.tag),
        ("SALT_MINION", &event.minion),
        ("SALT_FUN", &event.fun),
        ("SALT_JID", &event.jid),
        ("SALT_MASTER_ID", &event.master_id),
    ];

    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        field(&mut entry, name, value.as_bytes());
    }

    entry
}

fn field(entry: &mut Vec<u8>, name: &str, value: &[u8]) {
    entry.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

#[cfg(test)]
mod tests;
