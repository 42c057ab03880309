//! A ZeroMQ peer that sends arbitrary bytes, split anywhere: the same items or the same error result, no more
//! bytes than a message's limit are requested, and the items can be sent again.
//!
//! Input: a byte that selects the split, then the stream.

use saltcellar::wire::zmtp::{
    GREETING_LEN, Message, ZmtpItem, SocketType, Splitter, ZmtpError, check_greeting, put_message, read_command,
};

const MAX: usize = 4096;

/// A command's body and 0, or the first two frames of a message and their number.
type Found = (usize, Vec<u8>, Option<Vec<u8>>);

pub(crate) fn zmtp(data: &[u8]) {
    let Some((step, stream)) = data.split_first() else { return };
    if let Some(greeting) = stream.first_chunk::<GREETING_LEN>() {
        let _ = check_greeting(greeting);
    }
    // The split changes nothing.
    let (whole, error) = cut(stream, stream.len().max(1));
    assert_eq!(cut(stream, usize::from(*step) + 1), (whole.clone(), error));
    for (frames, first, _) in whole {
        if frames == 1 {
            let mut sent = Vec::new();
            let (tag, data) = first.split_at(first.len() / 2);
            put_message(&mut sent, &[tag, data]);
            assert_eq!(cut(&sent, sent.len()), (vec![(1, first, None)], None));
        }
    }
}

fn cut(stream: &[u8], step: usize) -> (Vec<Found>, Option<ZmtpError>) {
    let mut splitter = Splitter::new(MAX);
    let mut pieces = Vec::new();
    for piece in stream.chunks(step) {
        splitter.feed(piece);
        loop {
            match splitter.next_item() {
                Ok(Some(ZmtpItem::Command(body))) => {
                    let _ = (read_command(body), SocketType::Pull.check_ready(body));
                    pieces.push((0, body.to_vec(), None));
                }
                Ok(Some(ZmtpItem::Message(message))) => {
                    let Message { first, second, frames } = message;
                    assert!(frames > 0 && first.len() + second.map_or(0, <[u8]>::len) <= MAX);
                    pieces.push((frames, first.to_vec(), second.map(<[u8]>::to_vec)));
                }
                Ok(None) => break,
                Err(error) => return (pieces, Some(error)),
            }
        }
        assert!(splitter.missing() <= MAX);
    }
    (pieces, None)
}
