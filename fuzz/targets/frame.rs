//! A bus stream of arbitrary bytes, split anywhere, yields the same frames and the same error; its frames can
//! be fired again.
//!
//! Input: a byte that selects the split, then the stream.

use saltcellar::wire::frame::{FrameError, FrameSplitter, Framing, body, fired};
use saltcellar::wire::salt_event::split;

const FRAME_BYTES_MAX: usize = 4096;

pub(crate) fn frame(data: &[u8]) {
    let Some((step, stream)) = data.split_first() else { return };
    let (whole, error) = cut(stream, stream.len().max(1));
    // The split changes neither the frames nor the error.
    let (pieces, cut_error) = cut(stream, usize::from(*step) + 1);
    assert_eq!(pieces, whole);
    assert_eq!(cut_error.is_some(), error.is_some(), "{cut_error:?} {error:?}");
    for found in &whole {
        assert!(found.len() <= FRAME_BYTES_MAX);
        let Some((tag, data)) = body(found).and_then(split) else { continue };
        for framing in [Framing::Plain, Framing::Len32] {
            let mut splitter = FrameSplitter::new(FRAME_BYTES_MAX * 2);
            splitter.feed(&fired(framing, tag, data));
            let again = splitter.next_frame().expect("what is fired is a frame").map(<[u8]>::to_vec);
            assert_eq!(again.as_deref().and_then(body).and_then(split), Some((tag, data)));
            assert_eq!((splitter.framing(), splitter.next_frame()), (Some(framing), Ok(None)));
        }
    }
}

fn cut(stream: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let mut splitter = FrameSplitter::new(FRAME_BYTES_MAX);
    let mut frames = Vec::new();
    for piece in stream.chunks(step) {
        splitter.feed(piece);
        loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => frames.push(frame.to_vec()),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}
