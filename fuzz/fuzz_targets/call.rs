//! A peer that says anything: a request is read or refused, and so is what a writing call would store of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use saltcellar::clock::Micros;
use saltcellar::limits::NAME_BYTES_MAX;
use saltcellar::model::{Drafts, Source};
use saltcellar::wire::call::{Request, refusal_frame};
use saltcellar::wire::msgpack::pairs;
use saltcellar::wire::salt_event::{fired, peek};

fuzz_target!(|payload: &[u8]| match Request::read(payload) {
    Ok(request) => {
        let _ = (request.args.id("jid"), request.args.count("count"));
        if let Ok(load) = request.args.required_map("load") {
            let _ = (peek(load), pairs(load).count());
        }
        let Ok(Some(events)) = request.args.array("events") else { return };
        let mut drafts = Drafts::within(payload);
        let mut stored = Vec::new();
        for event in fired(events) {
            let Ok(Some(event)) = event else { continue };
            let (entry, prints) = event.entry(Source::EventReturn, Micros(1));
            assert!(entry.jid.len() <= NAME_BYTES_MAX && entry.minion.len() <= NAME_BYTES_MAX);
            drafts.push(&entry, Some(prints));
            stored.push((entry.tag.to_vec(), entry.body.to_vec()));
        }
        // What the appender gets is what was read.
        let batch = drafts.loose().into_batch(payload.to_vec());
        let entries = batch.entries().map(|(entry, _)| (entry.tag.to_vec(), entry.body.to_vec()));
        assert!(entries.eq(stored));
    }
    Err(error) => assert!(refusal_frame(None, &error).len() > 4),
});
