//! Tests of journald entries.

use std::io::{Read as _, Seek as _};
use std::path::Path;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::super::Transport;
use super::super::tests::{items, open};
use super::*;

fn transport(path: &Path) -> Box<dyn Transport> {
    open(
        &KIND,
        &format!("{{socket: {}, severity: warning}}", path.display()),
    )
}

#[test]
fn an_entry_has_the_item_and_fields_of_the_event() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let journal = UnixDatagram::bind(&path).unwrap();
    let mut transport = transport(&path);
    assert_eq!(
        transport.deliver(&items(&["one", "two\nlines"]), None),
        Ok(vec![])
    );
    let mut buffer = [0; 4_096];
    let size = journal.recv(&mut buffer).unwrap();
    let expected = "MESSAGE=one\nPRIORITY=4\nSYSLOG_IDENTIFIER=salt\nSALT_ID=store:1\nSALT_SEQ=1\n\
                    SALT_TIME=2026-11-18T11:06:40.123456Z\nSALT_TAG=test/tag\nSALT_MINION=web1\nSALT_MASTER_ID=master1\n";
    assert_eq!(std::str::from_utf8(&buffer[..size]).unwrap(), expected);
    let size = journal.recv(&mut buffer).unwrap();
    assert!(buffer[..size].starts_with(b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\nPRIORITY=4\n"));
    assert!(transport.check().unwrap().ends_with("accepts connections"));
}

#[test]
fn an_entry_over_the_limit_of_a_datagram_is_a_sealed_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let journal = UnixDatagram::bind(&path).unwrap();
    let long = "x".repeat(4_000_000);
    assert_eq!(transport(&path).deliver(&items(&[&long]), None), Ok(vec![]));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&journal, &mut [], &mut control, RecvFlags::empty()).unwrap();
    let Some(RecvAncillaryMessage::ScmRights(mut files)) = control.drain().next() else {
        panic!("no file")
    };
    let mut file = File::from(files.next().unwrap());
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("MESSAGE=xxx") && text.ends_with("SALT_MASTER_ID=master1\n"));
    assert!(text.len() > long.len());
    assert!(file.write_all(b"more").is_err(), "it is sealed");
}

#[test]
fn a_journal_that_is_absent_or_ends_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut transport = transport(&path);
    let error = transport
        .deliver(&items(&["one"]), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("socket: No such file"), "{error}");
    let journal = UnixDatagram::bind(&path).unwrap();
    assert_eq!(transport.deliver(&items(&["one"]), None), Ok(vec![]));
    drop(journal);
    std::fs::remove_file(&path).unwrap();
    assert!(transport.deliver(&items(&["two"]), None).is_err());
    let journal = UnixDatagram::bind(&path).unwrap();
    assert_eq!(
        transport.deliver(&items(&["two"]), None),
        Ok(vec![]),
        "connected anew"
    );
    assert!(journal.recv(&mut [0; 4_096]).unwrap() > 0);
}
