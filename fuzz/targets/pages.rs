//! Pages of an index, or a manifest of a backup, of arbitrary bytes are rejected, or read without a panic in
//! bounded time; encoding them again gives equal data.

use saltcellar::store::index::page::code::FieldReader;
use saltcellar::store::index::job::Decoder;
use saltcellar::store::index::{Blocks, SegmentMetadata, TagTemplates, latest, minion};
use saltcellar::store::tools::backup::manifest::Manifest;
use xxhash_rust::xxh3::xxh3_128;

pub(crate) fn pages(bytes: &[u8]) {
    let mut decoder = Decoder::new(bytes);
    while let Some(Some((record, entries))) = decoder.next(|_| true) {
        let _ = (record.row(), entries.len());
    }
    let mut blocks = Blocks::default();
    if blocks.read(bytes).is_some() {
        let _ = (0..blocks.entries().min(1000)).filter_map(|n| blocks.position(n)).count();
        let mut again = Blocks::default();
        for page in blocks.pages() {
            assert_eq!(again.read(&page.expect("blocks are archived")), Some(()));
        }
        assert_eq!(again.metas(), blocks.metas());
        assert!((0..blocks.metas().len()).all(|n| again.templates(n) == blocks.templates(n)));
    }
    if let Some(templates) = TagTemplates::from_bytes(bytes) {
        let again = TagTemplates::from_bytes(&templates.to_bytes().expect("templates are archived")).expect("what was written is read");
        assert!(again.each().eq(templates.each()));
    }
    if let Some(facts) = SegmentMetadata::from_bytes(bytes) {
        let written = facts.to_bytes().expect("metadata are archived");
        let again = SegmentMetadata::from_bytes(&written).expect("what was written is read");
        assert_eq!(again, facts);
    }
    if let Some(rows) = latest::read(bytes, &|_, _| true) {
        assert!(rows.len() <= bytes.len(), "each row has at least a byte");
    }
    let (mut reader, mut name) = (FieldReader(bytes), Vec::new());
    while let Some(found) = minion::read_record(&mut reader, &mut name) {
        assert!(found.is_sorted_by(|one, next| one < next), "{found:?}");
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        manifest(text);
    }
}

/// A manifest with a corrected last line: no path in it may leave the backup.
fn manifest(text: &str) {
    let Some((lines, _)) = text.trim_end_matches('\n').rsplit_once('\n') else { return };
    let body = format!("{lines}\n");
    let end = format!("end {} {:032x}\n", body.lines().count(), xxh3_128(body.as_bytes()));
    let Ok(manifest) = Manifest::parse(&format!("{body}{end}")) else { return };
    let logs = manifest.logs.iter().map(|log| &log.file);
    for file in logs.chain(manifest.smalls.iter().map(|small| &small.file)) {
        assert!(!file.starts_with('/') && file.split('/').all(|part| part != ".."), "{file}");
    }
}
