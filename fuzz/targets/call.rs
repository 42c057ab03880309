//! A request of arbitrary bytes is rejected with a protocol error, or decoded; encoding it again gives the same
//! bytes. The entries of a writing call equal the data that was sent.

use std::collections::BTreeMap;

use saltcellar::base::clock::Micros;
use saltcellar::base::limits::NAME_BYTES_MAX;
use saltcellar::model::{FrameBatch, Source};
use saltcellar::wire::call::{Args, Id, Request, refusal_frame, request_frame};
use saltcellar::wire::msgpack::{PackedMap, Reader, pairs};
use saltcellar::wire::salt_event::{PeerMark, SaltEvent, fired, peek};

const KEYS: [&str; 9] = ["jid", "load", "events", "minions", "id", "count", "return", "limit", "x"];

pub(crate) fn call(payload: &[u8]) {
    unwalked(payload);
    let request = match Request::read(payload) {
        Ok(request) => request,
        Err(error) => {
            let refusal = refusal_frame(Some(7), &error);
            let (len, rest) = refusal.split_first_chunk::<4>().expect("a frame has a length");
            assert_eq!(u32::from_be_bytes(*len) as usize, rest.len());
            assert_eq!(Reader::new(rest).value().map(<[u8]>::len), Ok(rest.len()), "one value");
            return;
        }
    };
    same_again(payload, &request);
    let args = &request.args;
    // As types: most arguments are none of these.
    let _ = (args.read::<BTreeMap<String, u64>>(), args.read::<BTreeMap<&str, PackedMap<'_>>>());
    let ids = args.read::<BTreeMap<String, Id>>().unwrap_or_default();
    assert!(ids.values().all(|Id(id)| id.len() <= NAME_BYTES_MAX));
    if let Some(load) = args.raw("load") {
        let _ = (peek(load), pairs(load).count());
    }
    let Some(events) = args.raw("events").filter(|events| Reader::new(events).array().is_ok()) else { return };
    let mut drafts = FrameBatch::within(payload);
    let mut stored = Vec::new();
    for event in fired(events) {
        let Ok(Some(event)) = event else { continue };
        let event = event.event(Source::EventReturn, Micros(1), PeerMark::Origin);
        let entry = event.entry();
        assert!(entry.jid.len() <= NAME_BYTES_MAX && entry.minion.len() <= NAME_BYTES_MAX);
        drafts.push(&entry, Some(event.fingerprints));
        stored.push(event);
    }
    // The appender gets the decoded data unchanged.
    let batch = drafts.detach().into_batch(payload.to_vec());
    assert!(batch.entries().map(|(entry, _)| entry).eq(stored.iter().map(SaltEvent::entry)));
}

/// The same request, written by the client's encoder.
fn same_again(payload: &[u8], request: &Request<'_>) {
    let mut reader = Reader::new(payload);
    let skipped = reader.array().is_ok() && reader.value().is_ok() && reader.value().is_ok();
    assert!(skipped && Args::of(reader.rest()).is_some(), "a request is [id, call, args]");
    let frame = request_frame(request.id, request.call, reader.rest());
    let (_, written) = frame.split_first_chunk::<4>().expect("a frame has a length");
    let again = Request::read(written).expect("what the client writes is a request");
    assert_eq!((again.id, again.call), (request.id, request.call));
    for key in KEYS {
        assert_eq!(again.args.raw(key), request.args.raw(key));
        assert_eq!(again.args.raw(key), first_of(reader.rest(), key));
    }
}

/// Reference for `Args::raw`: the first pair of that name, unless it is nil.
fn first_of<'a>(map: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let is_it = |name: &[u8]| Reader::new(name).bytes() == Ok(key.as_bytes());
    pairs(map).find(|(name, _)| is_it(name)).map(|(_, value)| value).filter(|value| value.first() != Some(&0xc0))
}

/// What the call that walks its last argument takes for whole, a walk of the request takes for whole.
fn unwalked(payload: &[u8]) {
    let Ok(request) = Request::read_for(payload, |_| true) else { return };
    let Some(events) = request.args.raw("events").filter(|events| Reader::new(events).array().is_ok()) else { return };
    let mut read = fired(events);
    let _ = read.by_ref().count();
    // Another argument may be the last one.
    if read.is_whole() && payload.ends_with(events) && request.args.map().ends_with(events) {
        let same = Request::read(payload).expect("a whole request");
        assert_eq!(same.args.raw("events"), Some(events));
    }
}
