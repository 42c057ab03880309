//! A bus that says anything, cut anywhere: frames come out whole, or an error does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use saltcellar::wire::frame::{Splitter, body};

fuzz_target!(|input: (Vec<u8>, u8)| {
    let (bytes, step) = input;
    let run = |step: usize| {
        let mut splitter = Splitter::new(4096);
        let mut bodies = Vec::new();
        for piece in bytes.chunks(step) {
            splitter.feed(piece);
            loop {
                match splitter.next_frame() {
                    Ok(Some(frame)) => bodies.push(body(frame).map(<[u8]>::to_vec)),
                    Ok(None) => break,
                    Err(_) => return (bodies, true),
                }
            }
        }
        (bodies, false)
    };
    // Where the stream is cut changes nothing.
    assert_eq!(run(bytes.len().max(1)), run(usize::from(step) + 1));
});
