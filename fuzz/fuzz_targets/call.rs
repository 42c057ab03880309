//! A peer that says anything: a request is read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use saltcellar::wire::call::{Request, refusal_frame};
use saltcellar::wire::msgpack::{elements, pairs};

fuzz_target!(|payload: &[u8]| match Request::read(payload) {
    Ok(request) => {
        let _ = (request.args.id("jid"), request.args.count("count"), request.args.required_map("load"));
        if let Ok(Some(events)) = request.args.array("events") {
            let _ = elements(events).map(|event| pairs(event).count()).sum::<usize>();
        }
    }
    Err(error) => assert!(refusal_frame(None, &error).len() > 4),
});
