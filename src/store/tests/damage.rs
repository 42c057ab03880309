//! What damaged files may and may not do to readers.

use super::super::{builder, log};
use super::*;

#[test]
fn a_frame_inside_a_body_is_nothing_but_bytes_when_the_frame_around_it_is_damaged() {
    let forged = {
        let mut builder = builder::BlockBuilder::default();
        builder.push(SeqNo(900), &event_entry(b"forged/event", b"\x80", Source::Bus, Micros(0)));
        let mut packer = builder::Packer::new().unwrap();
        let mut frame = Vec::new();
        log::write_frame(&mut frame, &builder.finish(&mut packer).unwrap(), SeqNo(900), 1, 77);
        frame
    };
    // Noise, so that the body lies in the log as it is.
    let noise =
        (0..8192_u64).flat_map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_le_bytes());
    let body: Vec<u8> = forged.iter().copied().chain(noise).collect();
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path(), Limits::default());
    rig.put(Batch::of(&event_entry(b"first", b"\x80", Source::Bus, Micros(0)))).unwrap();
    rig.put(Batch::of(&event_entry(b"carrier", &body, Source::Bus, Micros(0)))).unwrap();
    rig.put(Batch::of(&event_entry(b"last", b"\x80", Source::Bus, Micros(0)))).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[0];
    let mut bytes = fs::read(path).unwrap();
    let at = memchr::memmem::find(&bytes, &forged).expect("the body is not compressed");
    assert_eq!(at % 16, 0, "where a frame is looked for");
    let around = memchr::memmem::rfind(&bytes[..at], b"SCB1").unwrap();
    bytes[around] ^= 1;
    fs::write(path, &bytes).unwrap();
    let rig = Rig::open(dir.path(), Limits::default());
    let tags: Vec<_> = rig.events(&EventFilter::default()).into_iter().map(|(_, tag)| tag).collect();
    assert_eq!(tags, ["first", "last"]);
    assert_eq!(rig.metrics.frames_damaged.get(), 1);
    rig.close();
}
