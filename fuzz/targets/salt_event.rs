//! An event's body of arbitrary bytes is split, inspected and packed without a panic, and a batch and a block
//! return their entries unchanged.

use std::borrow::Cow;

use saltcellar::base::clock::Micros;
use saltcellar::model::{Batch, SeqNo, Source};
use saltcellar::store::log::block::BlockView;
use saltcellar::store::log::builder::{BlockBuilder, Packer};
use saltcellar::wire::msgpack::{Reader, as_text, get, pairs};
use saltcellar::wire::salt_codec::{check_whole, repaired};
use saltcellar::wire::salt_event::{DataForm, PeerMark, read_event, split, stamp_of, stamped};

pub(crate) fn salt_event(body: &[u8]) {
    let Some((tag, data)) = split(body) else { return };
    assert_eq!([tag, b"\n\n", data].concat(), body);
    let event = read_event(tag, data, Source::Bus, Micros(1), PeerMark::Origin);
    let entry = event.entry();
    assert_eq!(entry.tag, tag);
    // Only the mark of a peer is taken out of the data.
    if entry.origin.is_empty() {
        assert_eq!(entry.body, data);
    } else {
        assert_eq!(get(data, "__peer_id").and_then(as_text).map(str::is_empty), Some(false));
        assert_eq!(pairs(entry.body).count() + 1, pairs(data).count());
    }
    let mut reader = Reader::new(data);
    let is_one = reader.value().is_ok() && reader.rest().is_empty();
    let readable = !matches!(event.form, DataForm::Unreadable(_));
    assert_eq!(check_whole(data).is_ok(), readable);
    assert!(is_one || !readable);
    match repaired(data) {
        Ok(repaired) => assert!(is_one && (!readable || matches!(repaired, Cow::Borrowed(_)))),
        Err(_) => assert!(!is_one),
    }
    if event.form == DataForm::Map && event.stamp.is_none() {
        assert_eq!(stamp_of(&stamped(data, "2026-11-21T00:00:00")), Some("2026-11-21T00:00:00"));
    }

    let mut batch = Batch::of(&entry);
    batch.push(&entry, Some(event.fingerprints));
    assert!(batch.entries().all(|(found, _)| found == entry));

    let mut builder = BlockBuilder::default();
    builder.push(SeqNo(1), &entry).unwrap();
    let mut packer = Packer::new().expect("zstd starts");
    let packed = builder.finish(&mut packer).expect("a block can be packed");
    let view = BlockView::new(packed.head, Some(packed.bodies.to_vec())).expect("and read again");
    let rows = view.rows();
    assert_eq!((rows.tag(0).as_slice(), rows.body(0)), (tag, Ok(entry.body)));
    assert_eq!((rows.jid(0).as_str(), rows.minion(0), rows.fun(0), rows.origin(0)), (entry.jid, entry.minion, entry.fun, entry.origin));
    assert_eq!(
        (rows.kind(0), rows.source(0), rows.flags(0), rows.retcode(0), rows.at(0)),
        (entry.kind, entry.source, entry.flags, entry.retcode, entry.at)
    );
}
