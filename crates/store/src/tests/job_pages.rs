//! The entries of one job, in parts.

use super::*;
use crate::read::JobPart;
use saltcellar_base::work;
use saltcellar_model::{ClassRule, ClassRules, ReadLimits};

const COUNT: u64 = 84;

/// Returns and progress events of a job in turn, stored seven at a time: blocks of the two classes overlap.
fn job_in_two_classes() -> (tempfile::TempDir, Rig) {
    let dir = tempfile::tempdir().unwrap();
    let steps = ClassRules {
        name: "steps".to_owned(),
        rules: vec![ClassRule {
            fun: None,
            tag: Some(Glob::new("salt/job/*/prog/*")),
        }],
        ..ClassRules::events()
    };
    let rig = Rig::open_with(&Options {
        classes: Classes::new(&[steps]),
        ..options(dir.path(), SMALL)
    });
    for first in (0..COUNT).step_by(7) {
        let mut batch = Batch::default();
        for n in first..first + 7 {
            let kind = if n.is_multiple_of(2) { "ret" } else { "prog" };
            let tag = format!("salt/job/{}/{kind}/web{n}", jid(0));
            let mut w = Writer::new();
            w.map(3).str("jid").str(&jid(0)).str("id");
            w.str(&format!("web{n}")).str("return").bin(&noise(n, 200));
            let (data, at) = (w.into_bytes(), Micros(i64::try_from(n).unwrap()));
            batch.push(&event_entry(tag.as_bytes(), &data, Source::Bus, at), None);
        }
        rig.put(batch).unwrap();
    }
    (dir, rig)
}

/// All pages of this size, one after the other.
fn in_pages(size: JobPart, read: impl Fn(JobPart) -> JobPage) -> Vec<StoredEntry> {
    let mut found: Vec<StoredEntry> = Vec::new();
    let mut part = size;
    loop {
        let page = read(part);
        assert!(page.entries.len() <= size.entries_max, "{part:?}");
        let bytes = page.entries.iter().map(|e| e.tag.len() + e.body.len());
        let but_last: usize = bytes.rev().skip(1).sum();
        assert!(but_last < size.bytes_max, "{part:?}");
        found.extend(page.entries);

        let Some(next) = page.next else {
            return found;
        };
        assert!(next > part.range.0, "{part:?}");
        part.range.0 = next;
    }
}

#[test]
fn a_job_is_the_same_in_pages_of_any_size() {
    let (_dir, rig) = job_in_two_classes();
    let all = rig.store.job_entries(&jid(0)).unwrap();
    assert_eq!(all.len() as u64, COUNT);
    assert!(all.is_sorted_by_key(|entry| entry.seq));

    let limits: ReadLimits = serde_json::from_str(r#"{"minions": "web1*"}"#).unwrap();
    let limited = rig.store.view(Arc::new(limits));
    let allowed = limited.job_entries(&jid(0)).unwrap();
    assert!(
        allowed.len() > 2 && allowed.len() < all.len(),
        "{allowed:?}"
    );

    let sizes = [
        (1, usize::MAX),
        (2, 700),
        (5, 700),
        (usize::MAX, 1),
        (usize::MAX, 900),
    ];
    for (entries_max, bytes_max) in sizes {
        let size = JobPart {
            entries_max,
            bytes_max,
            ..JobPart::ALL
        };
        let pages = in_pages(size, |part| rig.store.job_page(&jid(0), part).unwrap());
        assert_eq!(pages, all, "{size:?}");
        let page = |part| limited.job_page_with(&jid(0), part, |_| true).unwrap();
        assert_eq!(in_pages(size, page), allowed, "{size:?}");
    }
}

#[test]
fn a_page_of_a_job_reads_no_blocks_behind_it() {
    let (_dir, rig) = job_in_two_classes();
    let steps = |part| {
        let before = work::steps();
        rig.store.job_page(&jid(0), part).unwrap();
        work::steps() - before
    };
    let first = JobPart {
        entries_max: 1,
        ..JobPart::ALL
    };
    let (first, all) = (steps(first), steps(JobPart::ALL));
    assert!(first * 2 < all, "{first} {all}");
}
