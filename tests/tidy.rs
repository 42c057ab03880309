//! The shape of the source, held by an ordinary test: layers, file sizes, first lines, generated pages.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The rooms of `src/`, from the ground up. A file may use rooms of lower layers and its own room; neighbours
/// in a layer do not know each other. `lib.rs` and `main.rs` stand on top.
const LAYERS: &[&[&str]] = &[
    &["limits", "metrics", "clock", "shutdown", "testing"],
    &["model", "channel", "door"],
    &["wire", "sls"],
    &["config"],
    &["store", "master"],
    &["ingest", "query", "reactor", "sink"],
    &["api", "zeromq"],
    &["daemon"],
    &["cli"],
];

/// Lines of a file's code, its tests excluded.
const FILE_LINES_MAX: usize = 600;

/// The one file in which `unsafe` may stand.
const UNSAFE_FILE: &str = "store/archive.rs";

fn layer_of(room: &str) -> Option<usize> {
    LAYERS.iter().position(|rooms| rooms.contains(&room))
}

/// What is wrong with one file, a line each: `src/a/b.rs:3: ...`. `path` is relative to `src`.
fn complaints(path: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !source.starts_with("//!") {
        found.push(format!("src/{path}:1: a file begins with `//!`: what it owns and what always holds"));
    }
    let code = code_of(source);
    let lines = code.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
    if lines > FILE_LINES_MAX {
        found.push(format!("src/{path}:{lines}: {lines} lines before the tests, more than {FILE_LINES_MAX}"));
    }
    for (number, line) in (1..).zip(code.lines()) {
        if path != UNSAFE_FILE && words(line).any(|word| word == "unsafe") {
            found.push(format!("src/{path}:{number}: `unsafe` belongs into src/{UNSAFE_FILE}"));
        }
    }
    let room = room_of(path);
    if room == "lib" || room == "main" {
        return found;
    }
    let Some(own) = layer_of(room) else {
        found.push(format!("src/{path}:1: the room `{room}` is in no layer of tests/tidy.rs"));
        return found;
    };
    for (number, used) in rooms_used(&code) {
        match layer_of(&used) {
            _ if used == room => {}
            Some(layer) if layer < own => {}
            Some(layer) => found.push(format!(
                "src/{path}:{number}: `{room}` (layer {own}) may not use `{used}` (layer {layer})"
            )),
            None => {
                found.push(format!("src/{path}:{number}: `crate::{used}` is in no layer of tests/tidy.rs"));
            }
        }
    }
    found
}

/// `store/log.rs` and `store.rs` are of the room `store`.
fn room_of(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or(path);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// The first segment after each `crate::`, with its line; `crate::{a, b::c}` counts for each.
fn rooms_used(code: &str) -> Vec<(usize, String)> {
    let mut used = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` counts too; `mycrate::` does not.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let line = code[..at].matches('\n').count() + 1;
        let rest = code[at + "crate::".len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => {
                used.extend(group_heads(group).into_iter().map(|(down, head)| (line + down, head)));
            }
            None => used.push((line, identifier(rest))),
        }
    }
    used.retain(|(_, head)| !head.is_empty());
    used
}

/// The first segments of the items of a `{...}` group that has just been opened, with lines counted from it.
fn group_heads(group: &str) -> Vec<(usize, String)> {
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut expects = true;
    let mut line = 0;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => expects = true,
            '\n' => line += 1,
            c if expects && !c.is_whitespace() => {
                heads.push((line, identifier(&group[at..])));
                expects = false;
            }
            _ => {}
        }
    }
    heads
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The source with comments and the content of strings blanked, lines kept.
fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = raw_string(rest) {
            raw
        } else if c == '"' {
            string(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("'\\\"'") {
            4
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        let (blank, after) = rest.split_at(skipped);
        code.extend(blank.chars().filter(|c| *c == '\n'));
        code.push(' ');
        rest = after;
    }
    code
}

/// Length of the string literal that begins here.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the raw string literal that begins here, if one does.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.strip_prefix('r')?;
    let inner = hashes.trim_start_matches('#');
    let count = hashes.len() - inner.len();
    let close = format!("\"{}", "#".repeat(count));
    let body = inner.strip_prefix('"')?;
    let end = body.find(&close)?;
    Some(1 + count + 1 + end + close.len())
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Compares a page with what it is made from; `UPDATE_EXPECT=1` renews it.
fn check_page(page: &str, expected: &str) {
    let path = repository().join(page);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{page} is behind its source; renew it with UPDATE_EXPECT=1 and look at the diff"
    );
}

#[test]
fn every_source_file_keeps_its_place() {
    let src = repository().join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    assert!(files.len() > 5, "found the sources");
    files.sort();
    let mut report = String::new();
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        let path = file.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        for complaint in complaints(&path, &source) {
            writeln!(report, "{complaint}").unwrap();
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

#[test]
fn the_configuration_page_is_what_the_keys_say() {
    check_page("docs/CONFIG.md", &saltcellar::config::markdown());
}

#[test]
fn an_import_against_the_layers_is_caught() {
    let found = |path: &str, source: &str| complaints(path, &format!("//! x\n{source}"));
    let up = "src/store/log.rs:2: `store` (layer 4) may not use `api` (layer 6)";
    assert_eq!(found("store/log.rs", "use crate::api::client;"), [up]);
    assert_eq!(found("store/log.rs", "fn f() { crate::api::f(); }"), [up]);
    assert_eq!(
        found("ingest/unix.rs", "use crate::query;"),
        ["src/ingest/unix.rs:2: `ingest` (layer 5) may not use `query` (layer 5)"]
    );
    assert_eq!(
        found("wire/call.rs", "use crate::{\n    limits,\n    store::{a, b},\n    cli,\n};"),
        [
            "src/wire/call.rs:4: `wire` (layer 2) may not use `store` (layer 4)",
            "src/wire/call.rs:5: `wire` (layer 2) may not use `cli` (layer 8)",
        ]
    );
    assert_eq!(
        found("limits.rs", "use crate::clock;"),
        ["src/limits.rs:2: `limits` (layer 0) may not use `clock` (layer 0)"]
    );
    assert_eq!(
        found("attic/a.rs", ""),
        ["src/attic/a.rs:1: the room `attic` is in no layer of tests/tidy.rs"]
    );
    assert_eq!(
        found("cli/a.rs", "use crate::attic;"),
        ["src/cli/a.rs:2: `crate::attic` is in no layer of tests/tidy.rs"]
    );
}

#[test]
fn imports_with_the_layers_and_mere_words_pass() {
    for source in [
        "use crate::{limits, model::{Jid, Tag}, store::log};",
        "use super::x;\n/// See [`crate::cli`].\n// crate::cli\n/* crate::cli */",
        "const A: &str = \"crate::cli \\\" crate::cli\";\nconst B: &str = r#\"crate::cli\"#; const C: char = '\"';",
        "use crate::store::segment; pub(crate) fn f() {}",
        "#![forbid(unsafe_code)] // unsafe",
    ] {
        assert_eq!(complaints("store/mod.rs", &format!("//! x\n{source}")), [""; 0], "{source}");
    }
}

#[test]
fn a_long_file_an_unsafe_block_and_a_missing_preface_are_caught() {
    let long = format!("//! x\n{}", "fn f() {}\n".repeat(FILE_LINES_MAX));
    assert_eq!(complaints("store/a.rs", &long).len(), 1);
    let tests = format!("//! x\n#[cfg(test)]\n{}", "fn f() {}\n".repeat(FILE_LINES_MAX));
    assert_eq!(complaints("store/a.rs", &tests), [""; 0]);

    let source = "//! x\nfn f() { unsafe { g() } }";
    assert_eq!(
        complaints("store/log.rs", source),
        ["src/store/log.rs:2: `unsafe` belongs into src/store/archive.rs"]
    );
    assert_eq!(complaints("store/archive.rs", source), [""; 0]);
    assert_eq!(complaints("store/a.rs", "use std::fs;").len(), 1);
}

#[test]
fn the_format_page_names_the_version_in_the_code() {
    let page = std::fs::read_to_string(repository().join("docs/FORMAT.md")).unwrap();
    let version = saltcellar::store::FORMAT_VERSION;
    assert!(
        page.starts_with(&format!("# What is on disk, format {version}\n")),
        "the title of docs/FORMAT.md"
    );
    let last = page.lines().rfind(|line| line.starts_with("| ")).unwrap_or_default();
    assert!(last.starts_with(&format!("| {version} |")), "the last row of docs/FORMAT.md: {last}");
}
