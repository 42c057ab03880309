//! Tests of the file of consumers, damage included.

use super::*;
use crate::model::SeqNo;
use crate::store::vfs::Disk;

fn open(dir: &Path) -> (ConsumerFile, BTreeMap<String, ConsumerRecord>) {
    ConsumerFile::open(dir, Arc::new(Disk)).unwrap()
}

fn record(name: &str, cursor: u64) -> ConsumerRecord {
    ConsumerRecord {
        name: name.to_owned(),
        cursor: SeqNo(cursor),
        ..ConsumerRecord::default()
    }
}

fn save(
    file: &mut ConsumerFile,
    all: &mut BTreeMap<String, ConsumerRecord>,
    record: ConsumerRecord,
) {
    file.save(&record.name, Some(&record), all.values(), true)
        .unwrap();
    all.insert(record.name.clone(), record);
}

#[test]
fn a_cut_or_a_flipped_bit_yields_earlier_cursors_and_never_later_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (mut file, mut all) = open(dir.path());
    for cursor in 1..=5 {
        save(&mut file, &mut all, record("audit", cursor));
        save(&mut file, &mut all, record("sns", cursor * 10));
    }
    assert_eq!(open(dir.path()).1, all);
    let path = dir.path().join("CONSUMERS");
    let bytes = std::fs::read(&path).unwrap();
    let cursors = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        ConsumerFile::open(dir.path(), Arc::new(Disk))
            .ok()
            .map(|(_, found)| {
                let cursor = |name| {
                    found
                        .get(name)
                        .map_or(0, |record: &ConsumerRecord| record.cursor.0)
                };
                [cursor("audit"), cursor("sns")]
            })
    };
    let mut before = [0, 0];
    for cut in TITLE.len()..=bytes.len() {
        let found = cursors(&bytes[..cut]).unwrap();
        assert!(
            found[0] >= before[0] && found[1] >= before[1],
            "cut at {cut}"
        );
        before = found;
    }
    assert_eq!(before, [5, 50]);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        let Some(found) = cursors(&bad) else {
            assert!(
                at < TITLE.len() + 1,
                "only a damaged title is an error: {at}"
            );
            continue;
        };
        assert!(
            found[0] <= 5 && found[1] <= 50 && found[0] >= 3 && found[1] >= 30,
            "{at}: {found:?}"
        );
    }
}

#[test]
fn a_deleted_consumer_stays_deleted_and_a_foreign_line_is_preserved() {
    let dir = tempfile::tempdir().unwrap();
    let (mut file, mut all) = open(dir.path());
    save(&mut file, &mut all, record("audit", 1));
    save(&mut file, &mut all, record("sns", 1));
    file.save("sns", None, all.values(), true).unwrap();
    all.remove("sns");
    assert_eq!(open(dir.path()).1, all);
    let foreign =
        line(&serde_json::json!({ "name": "later", "cursor": "of another type" })).unwrap();
    let path = dir.path().join("CONSUMERS");
    let text = std::fs::read_to_string(&path).unwrap() + &foreign;
    std::fs::write(&path, text).unwrap();
    let (mut file, mut all) = open(dir.path());
    assert_eq!(all.len(), 1);
    save(&mut file, &mut all, record("audit", 2));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.contains(&foreign) && text.lines().count() == 3,
        "{text}"
    );
}

#[test]
fn the_file_is_rewritten_when_it_has_grown() {
    let dir = tempfile::tempdir().unwrap();
    let (mut file, mut all) = open(dir.path());
    let mut rewritten = 0;
    for cursor in 1..20_000 {
        let before = file.len;
        save(&mut file, &mut all, record("audit", cursor));
        rewritten += u32::from(file.len < before);
        assert!(file.len <= 2 * file.base + CONSUMER_FILE_GROWTH);
    }
    assert!((1..100).contains(&rewritten), "{rewritten}");
    assert_eq!(open(dir.path()).1, all);
}
