//! A minion that says anything over HTTPS: an envelope is read and can be written again, or is refused; so is its payload.
#![no_main]

use libfuzzer_sys::fuzz_target;
use saltcellar::wire::call::Request;
use saltcellar::wire::der::{not_after, rsa_public_key};
use saltcellar::wire::signed::{ENVELOPE_LEN_MAX, Envelope, Opened, frames};

fuzz_target!(|body: &[u8]| {
    let _ = (rsa_public_key(body), not_after(body));
    // The first byte tells how much has arrived: what more bytes say must not contradict what fewer said.
    let Some((cut, body)) = body.split_first() else { return };
    let some = body.get(..usize::from(*cut)).unwrap_or(body);
    let (early, late) = (Envelope::read(some), Envelope::read(body));
    match early {
        Ok(None) => assert!(some.len() < ENVELOPE_LEN_MAX),
        early => assert_eq!(early, late),
    }
    let Ok(Some(Opened { envelope, signature, len: end })) = late else { return };
    assert_eq!(envelope.write(signature), body[..end]);
    assert!(!envelope.id.contains('/') && envelope.signed_text(&[0; 32]).len() < ENVELOPE_LEN_MAX);
    let mut seen = 0;
    for frame in frames(&body[end..]).flatten() {
        seen += 4 + frame.len();
        if let Ok(request) = Request::read(frame) {
            let _ = (request.args.required_map("load"), request.args.int("at"));
        }
    }
    assert!(seen <= body.len() - end);
});
