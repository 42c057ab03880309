//! The store id, with which a sender could put valid frames into bodies, is in no answer.

use crate::fake_daemon::program;
use crate::harness::Cellar;
use crate::http::{LISTENER, address, get, token};
use crate::http_api::put;

/// The forms in which the id could be shown: hexadecimal in both byte orders, decimal, and its bytes.
fn forms(id: u64) -> Vec<Vec<u8>> {
    let texts = [
        format!("{id:016x}"),
        format!("{:016x}", id.swap_bytes()),
        id.to_string(),
        id.cast_signed().to_string(),
    ];
    let bytes = [id.to_le_bytes().to_vec(), id.to_be_bytes().to_vec()];
    texts
        .map(String::into_bytes)
        .into_iter()
        .chain(bytes)
        .collect()
}

#[test]
fn no_answer_contains_the_store_id() {
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
    put(&cellar, 0..20);
    let format = std::fs::read_to_string(cellar.state_dir().join("FORMAT")).unwrap();
    let digits = format
        .lines()
        .nth(1)
        .unwrap()
        .strip_prefix("store id ")
        .unwrap();
    let id = u64::from_str_radix(digits.get(..16).unwrap(), 16).unwrap();

    let mut answers: Vec<(String, Vec<u8>)> = Vec::new();
    let state = cellar.state_dir().to_str().unwrap().to_owned();
    let to = cellar
        .dir
        .path()
        .join("backup")
        .to_str()
        .unwrap()
        .to_owned();
    let new = cellar.dir.path().join("new").to_str().unwrap().to_owned();
    let tokens = token(&cellar, &["a", "--scope", "admin"]);
    let mut run = |args: &[&str]| {
        let mut command = program();
        command.args(args);
        if args[0] != "store" || args[1] == "stats" {
            command.arg("--socket").arg(cellar.socket());
        }
        let output = command.output().unwrap();
        answers.push((args.join(" "), [output.stdout, output.stderr].concat()));
    };
    for verb in [
        &["status", "--output", "json"][..],
        &["doctor", "--output", "json"],
        &["events", "list", "--output", "json"],
        &["consumers", "create", "audit", "--from", "oldest"],
        &["consumers", "list", "--output", "json"],
        &["store", "stats", "--output", "json"],
        &["store", "verify", "--state-dir", &state, "--output", "json"],
        &[
            "store",
            "backup",
            "--state-dir",
            &state,
            &to,
            "--output",
            "json",
        ],
        &["store", "backup", "--state-dir", &state, &to],
        &["export", "jsonl"],
    ] {
        run(verb);
    }
    let manifest = cellar.dir.path().join("backup/MANIFEST");
    answers.push(("MANIFEST".to_owned(), std::fs::read(manifest).unwrap()));

    let http = address(&cellar);
    for path in [
        "/api/v1/events",
        "/api/v1/events?limit=1",
        "/api/v1/status",
        "/api/v1/jobs",
        "/metrics",
        "/",
    ] {
        let answer = get(&http, path, &tokens);
        answers.push((path.to_owned(), answer.text().into_bytes()));
    }
    let events = answers.iter().find(|(name, _)| name == "/api/v1/events");
    let text = String::from_utf8_lossy(&events.unwrap().1).into_owned();
    assert!(text.contains("\"id\":\""), "ids are shown: {text}");

    // A log that belongs to another store is named without its id.
    assert!(cellar.terminate());
    let salvaged = program()
        .args(["store", "salvage", &state, &new])
        .output()
        .unwrap();
    answers.push((
        "salvage".to_owned(),
        [salvaged.stdout, salvaged.stderr].concat(),
    ));
    let path = cellar.state_dir().join("FORMAT");
    std::fs::write(&path, "").unwrap();
    cellar.restart();
    assert!(cellar.terminate());
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        format,
        "made again"
    );
    std::fs::remove_file(&path).unwrap();
    let refused = program()
        .args(["serve", "--state-dir", &state, "--socket", &new])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    answers.push((
        "serve".to_owned(),
        [refused.stdout, refused.stderr].concat(),
    ));
    answers.push(("log".to_owned(), cellar.log().into_bytes()));

    for (name, answer) in answers {
        for form in forms(id) {
            let found = memchr::memmem::find(&answer, &form);
            assert_eq!(found, None, "{name}: {}", String::from_utf8_lossy(&answer));
        }
    }
}
