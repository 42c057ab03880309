//! Bytes of a block, of either version, that say anything: refused, or read without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rkyv::util::AlignedVec;
use saltcellar::store::block::BlockView;
use saltcellar::store::block_v1;

fuzz_target!(|bytes: &[u8]| {
    let mut aligned = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    if let Ok(view) = block_v1::view(&aligned) {
        read(&view);
    }
    if let Ok(view) = BlockView::new(aligned, Some(bytes.to_vec())) {
        read(&view);
    }
});

fn read(view: &BlockView) {
    let rows = view.rows();
    let _ = rows.shapes();
    for i in 0..view.len() {
        let _ = (rows.seq(i), rows.at(i), rows.tag(i), rows.jid_key(i), rows.jid(i), rows.minion(i), rows.fun(i));
        let _ = (rows.kind(i), rows.source(i), rows.flags(i), rows.retcode(i), rows.body(i).is_ok());
    }
}
