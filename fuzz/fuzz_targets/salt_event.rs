//! An event's body that says anything: it is split, peeked and packed without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use saltcellar::clock::Micros;
use saltcellar::model::{SeqNo, Source};
use saltcellar::store::block::BlockView;
use saltcellar::store::builder::{BlockBuilder, Packer};
use saltcellar::wire::salt_event::{event_entry, split};

fuzz_target!(|body: &[u8]| {
    let Some((tag, data)) = split(body) else { return };
    let entry = event_entry(tag, data, Source::Bus, Micros(1));
    let mut builder = BlockBuilder::default();
    builder.push(SeqNo(1), &entry);
    let mut packer = Packer::new().expect("zstd starts");
    let packed = builder.finish(&mut packer).expect("a block can be packed");
    let view = BlockView::new(packed.head, Some(packed.bodies.to_vec())).expect("and read again");
    let rows = view.rows();
    assert_eq!((rows.tag(0).as_slice(), rows.body(0)), (tag, Ok(data)));
    assert_eq!((rows.jid(0).as_str(), rows.minion(0), rows.fun(0)), (entry.jid, entry.minion, entry.fun));
});
