//! A ZeroMQ peer that says anything, cut anywhere: the same pieces come out, or the same error does, and never more than a
//! message may have is asked for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use saltcellar::wire::zmtp::{
    GREETING_LEN, Message, Piece, SocketType, Splitter, check_greeting, read_command,
};
use saltcellar::zeromq::pull::event;

const MAX: usize = 4096;

fuzz_target!(|input: (Vec<u8>, u8)| {
    let (bytes, step) = input;
    if let Some(greeting) = bytes.first_chunk::<GREETING_LEN>() {
        let _ = check_greeting(greeting);
    }
    let run = |step: usize| {
        let mut splitter = Splitter::new(MAX);
        let mut pieces = Vec::new();
        for piece in bytes.chunks(step) {
            splitter.feed(piece);
            loop {
                match splitter.next_piece() {
                    Ok(Some(Piece::Command(body))) => {
                        let _ = (read_command(body), SocketType::Pull.check_ready(body));
                        pieces.push((0, body.to_vec(), None));
                    }
                    Ok(Some(Piece::Message(message))) => {
                        if let Some((tag, data)) = event(&message) {
                            assert!(!tag.is_empty() && !data.is_empty());
                        }
                        let Message { first, second, frames } = message;
                        assert!(frames > 0);
                        pieces.push((frames, first.to_vec(), second.map(<[u8]>::to_vec)));
                    }
                    Ok(None) => break,
                    Err(error) => return (pieces, Some(error)),
                }
            }
            assert!(splitter.missing() <= MAX);
        }
        (pieces, None)
    };
    // Where the stream is cut changes nothing.
    assert_eq!(run(bytes.len().max(1)), run(usize::from(step) + 1));
});
