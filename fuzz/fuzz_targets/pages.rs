//! Pages of an index and a backup's manifest that say anything: refused, or read without a panic and without end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use saltcellar::store::index::code::Reader;
use saltcellar::store::index::job::Decoder;
use saltcellar::store::index::{Blocks, Facts, Shapes, latest, minion};
use saltcellar::store::tools::manifest::Manifest;

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::new(bytes);
    while let Some(Some((record, places))) = decoder.next(|_| true) {
        let _ = (record.row(), places.len());
    }
    let mut blocks = Blocks::default();
    if blocks.read(bytes).is_some() {
        let _ = (0..blocks.entries().min(1000)).filter_map(|n| blocks.place(n)).count();
    }
    if let Some(shapes) = Shapes::from_bytes(bytes) {
        let _ = shapes.each().count();
    }
    let _ = (Facts::from_bytes(bytes), latest::read(bytes));
    let (mut reader, mut name) = (Reader(bytes), Vec::new());
    while minion::read_record(&mut reader, &mut name).is_some() {}
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Manifest::parse(text);
    }
});
