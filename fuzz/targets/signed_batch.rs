//! An envelope of arbitrary bytes over HTTPS is rejected, or decoded and encodes to the same bytes; the same
//! holds for its payload.
//!
//! Input: a byte for the length of the part that arrives first, then the body of the request.

use saltcellar::wire::call::Request;
use saltcellar::wire::signed::der::{not_after, rsa_public_key};
use saltcellar::wire::signed::{ENVELOPE_LEN_MAX, Envelope, OpenedEnvelope, frames};

pub(crate) fn signed_batch(data: &[u8]) {
    let Some((cut, body)) = data.split_first() else { return };
    let _ = not_after(body);
    if let Some(key) = rsa_public_key(body) {
        assert!(key.is_empty() || body.windows(key.len()).any(|part| part == key), "a part of it");
    }
    // More bytes must not contradict the result for fewer bytes.
    let some = body.get(..usize::from(*cut)).unwrap_or(body);
    let (early, late) = (Envelope::read(some), Envelope::read(body));
    match early {
        Ok(None) => assert!(some.len() < ENVELOPE_LEN_MAX),
        early => assert_eq!(early, late),
    }
    let Ok(Some(OpenedEnvelope { envelope, signature, len: end })) = late else { return };
    let (head, payload) = body.split_at(end);
    assert_eq!(envelope.write(signature), head);
    assert!(!envelope.id.contains('/') && envelope.signed_text(&[0; 32]).len() < ENVELOPE_LEN_MAX);
    let mut seen = Vec::new();
    let mut is_cut = false;
    for frame in frames(payload) {
        let Ok(frame) = frame else {
            is_cut = true;
            continue;
        };
        assert!(!is_cut, "nothing comes after a cut frame");
        seen.extend_from_slice(&u32::try_from(frame.len()).expect("below 4 GiB").to_be_bytes());
        seen.extend_from_slice(frame);
        if let Ok(request) = Request::read(frame) {
            let _ = (request.args.raw("load"), request.args.raw("at"));
        }
    }
    assert!(payload.starts_with(&seen) && is_cut == (seen.len() < payload.len()));
}
