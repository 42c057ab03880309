//! Conventions of the source tree as ordinary tests: layers of the daemon, circles of imports, first lines, generated pages, links. What a
//! package below `crates/` may import of others is checked by the compiler.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The packages below `crates/` that the daemon names as modules, each with the lowest layer whose modules may import it.
const CRATES: &[(&str, &str)] = &[
    ("base", "settings"),
    ("model", "settings"),
    ("store", "gates"),
    ("wire", "settings"),
];

/// The package that only tests import: `src/lib.rs` names it for them alone.
const OF_TESTS: &str = "testkit";

/// The layers of `src/` and their modules, from the lowest up. A file imports from lower layers and its own module; modules of
/// a layer do not import each other. `lib.rs` and `main.rs` may import everything.
const LAYERS: &[(&str, &[&str])] = &[
    ("settings", &["config"]),
    ("clients", &["client"]),
    ("gates", &["bus", "cluster", "policy"]),
    ("services", &["engines", "ingest", "reactor"]),
    ("interfaces", &["api"]),
    ("process", &["daemon"]),
    ("commands", &["cli"]),
];

/// Parts of a module or of a package, as paths without `.rs`, that import nothing else of it.
const PARTS: &[&str] = &[
    "api/query",
    "base/clock",
    "base/limits",
    "base/metrics",
    "base/shutdown",
    "reactor/master",
    "wire/unix_listener",
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS
        .iter()
        .position(|(_, modules)| modules.contains(&module))
}

/// The lowest layer that may import a package.
fn lowest_above(package: &str) -> Option<usize> {
    let (_, lowest) = CRATES.iter().find(|(name, _)| *name == package)?;
    let layer = LAYERS.iter().position(|(name, _)| name == lowest);
    Some(layer.unwrap_or_else(|| panic!("{lowest} is no layer")))
}

fn layer_name(layer: usize) -> &'static str {
    LAYERS.get(layer).map_or("no layer", |(name, _)| name)
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|found| found == extension)
}

/// A file begins with its responsibility and its invariant. `path` is relative to the repository.
fn complaint_of_beginning(path: &str, source: &str) -> Option<String> {
    (!source.starts_with("//!")).then(|| {
        format!("{path}:1: a file begins with `//!`: its responsibility and its invariant")
    })
}

/// The violations in one file of the daemon, a line each: `src/a/b.rs:3: ...`. `path` is relative to `src`.
fn complaints(path: &str, source: &str) -> Vec<String> {
    let mut found = Vec::from_iter(complaint_of_beginning(&format!("src/{path}"), source));
    let code = code_of(source);
    let module = module_of(path);
    if module == "lib" || module == "main" {
        return found;
    }
    let Some(own) = layer_of(module) else {
        found.push(format!(
            "src/{path}:1: the module `{module}` is in no layer of tests/tidy.rs"
        ));
        return found;
    };
    for (number, used) in modules_used(&code, path, "") {
        let top = used.split('/').next().unwrap_or_default();
        match layer_of(top) {
            _ if top == module => found.extend(complaint_of_part(
                &format!("src/{path}"),
                path,
                number,
                &used,
            )),
            _ if top == OF_TESTS || lowest_above(top).is_some_and(|lowest| lowest <= own) => {}
            _ if lowest_above(top).is_some() => found.push(format!(
                "src/{path}:{number}: `{module}` ({}) may not import the package `{top}`",
                layer_name(own)
            )),
            Some(layer) if layer < own => {}
            Some(layer) => found.push(format!(
                "src/{path}:{number}: `{module}` ({}) may not import `{top}` ({})",
                layer_name(own),
                layer_name(layer)
            )),
            None => {
                found.push(format!(
                    "src/{path}:{number}: `crate::{top}` is in no layer of tests/tidy.rs"
                ));
            }
        }
    }
    // By another path an import would not be seen above.
    for (name, _) in CRATES {
        let package = format!("saltcellar_{name}");
        if let Some(at) = code.find(&package) {
            let number = code[..at].matches('\n').count() + 1;
            found.push(format!(
                "src/{path}:{number}: `{package}` is `crate::{name}` here"
            ));
        }
    }
    found
}

/// An import `used` of a file out of the part that `path` is in.
fn complaint_of_part(file: &str, path: &str, number: usize, used: &str) -> Option<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let part = PARTS.iter().find(|part| is_within(path, part))?;
    (!is_within(used, part)).then(|| format!("{file}:{number}: `{part}` may not import `{used}`"))
}

/// The violations in one file of a package below `crates/`. `path` is relative to `crates`: `base/src/clock/mod.rs`.
fn complaints_of_crate(path: &str, source: &str) -> Vec<String> {
    let mut found = Vec::from_iter(complaint_of_beginning(&format!("crates/{path}"), source));
    let (package, _) = path.split_once('/').unwrap_or_default();
    let in_package = path.replacen("/src/", "/", 1);
    for (number, used) in modules_used(&code_of(source), &in_package, package) {
        found.extend(complaint_of_part(
            &format!("crates/{path}"),
            &in_package,
            number,
            &used,
        ));
    }
    found
}

/// `store/log.rs` and `store.rs` belong to the module `store`.
fn module_of(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or(path);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Whether a path is `part` or below it.
fn is_within(path: &str, part: &str) -> bool {
    path.strip_prefix(part)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path after each `crate::`, below `package`, and that of each `use super::` of the file `path`, as `a/b/c`, with its line; a
/// group (`crate::{a, b::c}`) yields each item.
fn modules_used(code: &str, path: &str, package: &str) -> Vec<(usize, String)> {
    let mut used = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` counts, `mycrate::` does not.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let line = code[..at].matches('\n').count() + 1;
        let rest = code[at + "crate::".len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => {
                used.extend(
                    group_heads(group)
                        .into_iter()
                        .map(|(down, head)| (line + down, head)),
                );
            }
            None => used.push((line, path_at(rest))),
        }
    }
    if !package.is_empty() {
        for (_, path) in &mut used {
            *path = format!("{package}/{path}");
        }
    }
    for (number, line) in (1..).zip(code.lines()) {
        // An indented `use` is in a module of the file, one level deeper.
        let Some((_, mut rest)) = line
            .split_once("use super::")
            .filter(|_| !line.starts_with(' '))
        else {
            continue;
        };
        let mut module: Vec<_> = path
            .strip_suffix(".rs")
            .unwrap_or(path)
            .split('/')
            .collect();
        module.pop_if(|last| *last == "mod");
        module.pop();
        while let Some(above) = rest.strip_prefix("super::") {
            module.pop();
            rest = above;
        }
        let target = path_at(rest);
        used.push((
            number,
            module
                .into_iter()
                .chain((!target.is_empty()).then_some(&*target))
                .collect::<Vec<_>>()
                .join("/"),
        ));
    }
    used.retain(|(_, head)| !head.is_empty());
    used
}

/// The paths of the items of a `{...}` group, of which `group` is the text after `{`; lines count from there.
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
                heads.push((line, path_at(&group[at..])));
                expects = false;
            }
            _ => {}
        }
    }
    heads
}

/// The Rust path at the start of `text`, as `a/b/c`.
fn path_at(text: &str) -> String {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        .unwrap_or(text.len());
    text[..end].trim_end_matches(':').replace("::", "/")
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
        } else if is_punctuation(rest) {
            3
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

/// Whether `text` begins with a literal of a character that could be taken for code, such as `'{'`.
fn is_punctuation(text: &str) -> bool {
    matches!(text.as_bytes(), [b'\'', c, b'\'', ..] if c.is_ascii_punctuation())
}

/// Length of the string literal at the start of `text`.
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

/// Length of the raw string literal at the start of `text`.
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

/// Compares a page with its generator; `UPDATE_EXPECT=1` rewrites it.
fn check_page(page: &str, expected: &str) {
    let path = repository().join(page);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{page} is out of date; run with UPDATE_EXPECT=1 and check the diff"
    );
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files below `path`, or `path` itself, relative to the repository, sorted.
fn files(path: &str) -> Vec<String> {
    let absolute = repository().join(path);
    if absolute.is_file() {
        return vec![path.to_owned()];
    }
    let names = std::fs::read_dir(&absolute).unwrap_or_else(|error| panic!("{path}: {error}"));
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<_> = names
        .filter(|name| name != "__pycache__")
        .flat_map(|name| files(&format!("{path}/{name}")))
        .collect();
    found.sort();
    found
}

/// The directories below `crates/`, sorted.
fn crates() -> Vec<String> {
    let names = std::fs::read_dir(repository().join("crates")).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The Rust sources of the daemon and of the crates, without those of tests and examples.
fn sources() -> Vec<String> {
    let mut found = files("src");
    found.extend(
        files("crates")
            .into_iter()
            .filter(|file| file.split('/').nth(2) == Some("src")),
    );
    found.retain(|file| has_extension(file, "rs"));
    found
}

fn is_text(file: &str) -> bool {
    const ENDINGS: [&str; 8] = [
        ".md", ".py", ".rs", ".rst", ".service", ".sh", ".toml", "Makefile",
    ];

    ENDINGS.iter().any(|ending| file.ends_with(ending))
}

/// The code without what only tests have: items and fields below `#[cfg(test)]`. Adds the names of modules among them.
fn without_tests(code: &str, modules: &mut Vec<String>) -> String {
    const ATTRIBUTE: &str = "#[cfg(test)]";

    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(ATTRIBUTE) {
        kept.push_str(&rest[..at]);
        rest = &rest[at + ATTRIBUTE.len()..];

        // It ends with its braces, or with a `;` or a `,` outside of them.
        let mut depth = 0_u32;
        let end = rest.char_indices().find_map(|(at, c)| {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' if depth == 1 => return Some(at + 1),
                '}' | ')' | ']' if depth > 0 => depth -= 1,
                ';' | ',' if depth == 0 => return Some(at + 1),
                '}' if depth == 0 => return Some(at),
                _ => {}
            }
            None
        });
        let (item, after) = rest.split_at(end.unwrap_or(rest.len()));
        if let Some((_, name)) = item.rsplit_once("mod ") {
            modules.extend(name.strip_suffix(';').map(str::to_owned));
        }
        rest = after;
    }
    kept.push_str(rest);
    kept
}

/// Takes the modules within a file out of its code, and adds each with its path, the file itself last.
fn take_modules(code: &str, module: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut own = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("mod ") {
        let (before, after) = rest.split_at(at + 4);
        own.push_str(before);
        rest = after;
        if !is_word_at(code, code.len() - after.len() - 4, 3) {
            continue;
        }

        // The name of a file of its own is no use of it.
        let name = after.split([' ', ';']).next().unwrap_or_default();
        rest = &after[name.len()..];
        let Some(body) = rest.strip_prefix(" {") else {
            continue;
        };
        let mut depth = 1;
        let end = body.find(|c| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            depth == 0
        });
        let (body, after) = body.split_at(end.unwrap_or(body.len()));
        take_modules(body, &[module, &[name.to_owned()]].concat(), found);
        rest = after.strip_prefix('}').unwrap_or(after);
    }
    own.push_str(rest);
    found.push((module.to_vec(), own));
}

/// Whether the `len` bytes at `at` are a word of their own.
fn is_word_at(code: &str, at: usize, len: usize) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    !code[..at].ends_with(is_part) && !code[at + len..].starts_with(is_part)
}

fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word)
        .any(|(at, _)| is_word_at(code, at, word.len()))
}

/// One name of a `use`.
struct Import {
    /// As the module calls it; `None` for `as _` and `*`.
    name: Option<String>,
    /// What it stands for, from the root of the crate.
    path: Vec<String>,
    /// Other modules can have it from here.
    is_public: bool,
    /// Its first name is one of the module, or a package.
    is_relative: bool,
}

/// Separates the imports of a module from its other code.
fn imports_of(code: &str, module: &[String]) -> (Vec<Import>, String) {
    let mut imports = Vec::new();
    let mut others = String::with_capacity(code.len());
    let mut from = 0;
    while let Some(at) = code[from..].find("use ").map(|at| from + at) {
        // `use<..>` of a type has no space, a word that ends with `use` is no word of its own.
        let end = code[at..].find(';').map(|end| at + end);
        let Some(end) = end.filter(|_| is_word_at(code, at, 3)) else {
            others.push_str(&code[from..at + 4]);
            from = at + 4;
            continue;
        };
        others.push_str(&code[from..at]);
        from = end;

        let before = code[..at].rsplit(['\n', ';', '}']).next();
        let is_public = before.is_some_and(|before| before.trim_start().starts_with("pub"));
        let text = &code[at + 4..end];
        let (base, tree) = start_of(text, module);
        let mut paths = Vec::new();
        read_tree(tree, &base, &mut paths);
        imports.extend(paths.into_iter().map(|(path, other_name)| Import {
            name: match other_name {
                None => path.last().cloned(),
                other => other.filter(|name| name != "_"),
            },
            path,
            is_public,
            is_relative: tree.len() == text.len(),
        }));
    }
    others.push_str(&code[from..]);
    (imports, others)
}

/// What a path begins at, from the root of the crate, and the rest of it.
fn start_of<'a>(path: &'a str, module: &[String]) -> (Vec<String>, &'a str) {
    if let Some(rest) = path.strip_prefix("crate::") {
        return (Vec::new(), rest);
    }

    let mut base = module.to_vec();
    let mut rest = path.strip_prefix("self::").unwrap_or(path);
    while let Some(above) = rest.strip_prefix("super::") {
        base.pop();
        rest = above;
    }
    (base, rest)
}

/// The paths in code whose first name is `first`, from the root of the crate.
fn paths_from(code: &str, first: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&format!("{first}::")) {
        // `::super` is not the beginning of a path.
        if code[..at].ends_with(':') || !is_word_at(code, at, first.len()) {
            continue;
        }
        let (base, rest) = start_of(&code[at..], module);
        let mut paths = Vec::new();
        read_tree(rest, &base, &mut paths);
        found.extend(paths.into_iter().map(|(path, _)| path));
    }
    found
}

/// Reads `a::b`, `a::{b, c::d}` or `{a, b as c}`, and adds each path, with its other name. Returns its length.
fn read_tree(text: &str, base: &[String], found: &mut Vec<(Vec<String>, Option<String>)>) -> usize {
    let word_at = |at: usize| {
        let end = text[at..].find(|c: char| !c.is_alphanumeric() && c != '_');
        &text[at..end.map_or(text.len(), |end| at + end)]
    };
    let spaces_at = |at: usize| text[at..].len() - text[at..].trim_start().len();

    let mut path = base.to_vec();
    let mut at = 0;
    loop {
        at += spaces_at(at);
        if text[at..].starts_with('{') {
            at += 1;
            loop {
                at += spaces_at(at);
                // After the last comma of a list there is nothing.
                if !text[at..].starts_with('}') {
                    at += read_tree(&text[at..], &path, found);
                }
                let Some(next) = text[at..].find([',', '}']) else {
                    return text.len();
                };
                at += next + 1;
                if text[..at].ends_with('}') {
                    return at;
                }
            }
        }

        let name = word_at(at);
        if !matches!(name, "" | "self") {
            path.push(name.to_owned());
        }
        at += name.len();
        match text[at..].strip_prefix("::") {
            Some(_) => at += 2,
            None => break,
        }
    }

    let other_name = if text[at..].starts_with('*') {
        Some("_".to_owned())
    } else {
        text[at..]
            .strip_prefix(" as ")
            .map(|_| word_at(at + 4).to_owned())
    };
    found.push((path, other_name));
    at
}

/// The code without the paths of visibilities, which are no imports.
fn without_visibility(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| {
        let after = part.split_once(')').map_or("", |(_, after)| after);
        code + "pub" + after
    })
}

/// In [`uses`] all that another package has.
const PACKAGE: &str = "::";

/// In [`circles`] the file of a module itself, beside its children.
const ITSELF: &str = "mod.rs";

/// The module of a file, as its path from the root of the crate.
fn module_at(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/')
        .filter(|name| !matches!(*name, "lib" | "main"))
        .map(str::to_owned)
        .collect()
}

/// What each module uses of the modules of its crate: module, and item. A name that a module only passes on to others is not used by
/// it, and one that it has by `use` is used where that is defined.
fn uses(sources: &[(String, String)]) -> Vec<(Vec<String>, Vec<String>)> {
    // Tests may import whatever they need.
    let mut of_tests = BTreeSet::new();
    let mut code_by_file = BTreeMap::new();
    for (path, source) in sources {
        let (file, mut tests) = (module_at(path), Vec::new());
        let code = without_tests(&code_of(source), &mut tests);
        of_tests.extend(tests.into_iter().map(|name| [&*file, &[name]].concat()));
        code_by_file.insert(file, code);
    }
    code_by_file.retain(|file, _| !of_tests.iter().any(|module| file.starts_with(module)));
    let known: BTreeSet<_> = code_by_file.keys().cloned().collect();

    let mut modules = Vec::new();
    for (file, code) in &code_by_file {
        let mut found = Vec::new();
        take_modules(&without_visibility(code), file, &mut found);
        for (module, code) in found {
            let (mut imports, code) = imports_of(&code, &module);
            for import in &mut imports {
                let first = import.path.get(..=module.len()).unwrap_or_default();
                if import.is_relative && !known.contains(first) {
                    import.path = vec![PACKAGE.to_owned()];
                }
            }
            modules.push((file, module, imports, code));
        }
    }

    let by_use: BTreeMap<Vec<String>, _> = modules
        .iter()
        .flat_map(|(_, module, imports, _)| {
            let of_module = |import: &Import| {
                let name = module.iter().cloned().chain(import.name.clone());
                (name.collect(), import.path.clone())
            };
            imports.iter().map(of_module).collect::<Vec<_>>()
        })
        .collect();
    let meant = |mut path: Vec<String>| {
        // A name can stand for another one, but not for long.
        for _ in 0..8 {
            let by_use = (1..=path.len()).find_map(|len| {
                let (name, rest) = path.split_at(len);
                let target = by_use.get(name).filter(|_| !known.contains(name))?;
                Some([target, rest].concat())
            });
            match by_use {
                Some(target) => path = target,
                None => break,
            }
        }
        path
    };

    let mut used = Vec::new();
    for (file, module, imports, code) in &modules {
        let mut paths: Vec<_> = ["crate", "self", "super"]
            .into_iter()
            .flat_map(|first| paths_from(code, first, module))
            .collect();

        for import in imports {
            let target = meant(import.path.clone());
            let is_passed_on = import.is_public && target.starts_with(file);
            let name = import.name.as_deref();
            let mut inside: Vec<_> = name
                .into_iter()
                .flat_map(|name| paths_from(code, name, &[]))
                .collect();
            for path in &mut inside {
                path.splice(..1, target.iter().cloned());
            }

            if known.contains(&target) && !inside.is_empty() {
                paths.extend(inside);
            } else if !is_passed_on || name.is_some_and(|name| has_word(code, name)) {
                paths.push(target);
            }
        }

        // Of its children also by their names alone.
        for child in &known {
            if let Some((name, parent)) = child.split_last()
                && parent == module
            {
                let inside = paths_from(code, name, &[]).into_iter();
                paths.extend(inside.map(|path| [parent, &path].concat()));
            }
        }

        let of_crate = |path: &Vec<String>| path.first().is_none_or(|first| first != PACKAGE);
        let paths = paths.into_iter().map(&meant).filter(of_crate);
        used.extend(paths.map(|path| ((*file).clone(), path)));
    }
    used
}

/// The groups of modules that import each other, each below one parent or with it ([`ITSELF`]), with their imports.
fn circles(sources: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let known: BTreeSet<_> = sources.iter().map(|(path, _)| module_at(path)).collect();

    // By parent: its children and itself, with what each imports of the others.
    let mut imports: BTreeMap<_, BTreeMap<_, BTreeMap<_, BTreeSet<_>>>> = BTreeMap::new();
    for (from, used) in uses(sources) {
        let mut to = &*used;
        while !known.contains(to)
            && let Some((_, module)) = to.split_last()
        {
            to = module;
        }

        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let below = |path: &[String]| path.get(common).cloned().unwrap_or(ITSELF.to_owned());
        let (child, other) = (below(&from), below(to));
        if child != other {
            let parent: Vec<_> = from.iter().take(common).cloned().collect();
            let children = imports.entry(parent.join("::")).or_default();
            let others = children.entry(child).or_default().entry(other).or_default();
            others.insert(format!("{}: {}", from.join("::"), used.join("::")));
        }
    }

    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (parent, children) in &imports {
        let reached = |from: &String| {
            let mut reached = BTreeSet::new();
            let mut left = vec![from];
            while let Some(child) = left.pop() {
                for next in children.get(child).into_iter().flat_map(BTreeMap::keys) {
                    if reached.insert(next) {
                        left.push(next);
                    }
                }
            }
            reached
        };
        let all: BTreeMap<_, _> = children
            .keys()
            .map(|child| (child, reached(child)))
            .collect();

        for (child, its) in &all {
            let is_in_circle =
                |other: &&&String| all.get(**other).is_some_and(|back| back.contains(*child));
            let circle: BTreeSet<_> = its.iter().filter(is_in_circle).copied().collect();
            if circle.len() < 2 {
                continue;
            }
            let why = found.entry(format!("{parent} {circle:?}")).or_default();
            for (other, lines) in children.get(*child).into_iter().flatten() {
                if circle.contains(other) {
                    why.extend(lines.iter().cloned());
                }
            }
        }
    }
    found
}

#[test]
fn modules_import_in_one_direction() {
    let mut packages = vec!["src/".to_owned()];
    packages.extend(crates().iter().map(|name| format!("crates/{name}/src/")));
    for package in packages {
        let mut sources: Vec<_> = files(package.trim_end_matches('/'))
            .into_iter()
            .filter(|file| has_extension(file, "rs"))
            .filter_map(|file| Some((file.strip_prefix(&package)?.to_owned(), read(&file))))
            .collect();
        // A program of the package is a root of its own.
        sources.retain(|(path, _)| !path.ends_with("/main.rs"));

        let circles = circles(&sources);
        assert!(
            circles.is_empty(),
            "{package}: modules that import each other, directly or through other modules; `{ITSELF}` is the file of their parent. \
             Move what both need below both: {circles:#?}"
        );
    }
}

#[test]
fn a_circle_of_imports_is_found() {
    let circles = |sources: &[(&str, &str)]| {
        let sources: Vec<_> = sources
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        circles(&sources).into_keys().collect::<Vec<_>>()
    };
    let (a, b, c) = ("a/mod.rs", "a/b.rs", "a/c/mod.rs");
    let found = ["a {\"b\", \"c\"}"];
    for back in [
        "use super::b::B;",
        "use crate::a::{b::B, D};",
        "fn f() { crate::a::b::f() }",
        "use super::{\n    D,\n    b::{B, C},\n};",
    ] {
        assert_eq!(
            circles(&[(a, ""), (b, "use super::c::{self, C};"), (c, back)]),
            found,
            "{back}"
        );
    }
    // From a child of one to the other.
    assert_eq!(
        circles(&[
            (a, ""),
            (b, "use super::c::C;"),
            (c, ""),
            ("a/c/d.rs", "use super::super::b;")
        ]),
        found
    );
    // By a name that the parent has by `use`, or the crate.
    let named = "pub(crate) use self::b::{B, E};\nuse c::C;";
    for back in ["use super::B;", "use crate::B;", "use crate::a::B;"] {
        let lib = ("lib.rs", "pub use a::b::B;");
        assert_eq!(
            circles(&[(a, named), (b, "use super::C;"), (c, back), lib]),
            found,
            "{back}"
        );
    }
    for back in [
        "use super::c::B;",
        "#[cfg(test)]\nmod tests {\n    use crate::a::b;\n}",
        "// crate::a::b\nconst X: &str = \"crate::a::b\";",
        "pub(in crate::a::b) struct X;",
    ] {
        assert_eq!(
            circles(&[(a, named), (b, "use super::C;"), (c, back)]),
            [""; 0],
            "{back}"
        );
    }
}

#[test]
fn a_circle_of_a_module_and_its_child_is_found() {
    let circles = |parent: &str, child: &str| {
        let sources = [("a/mod.rs", parent), ("a/b.rs", child), ("a/c.rs", "")];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        circles(&sources).into_keys().collect::<Vec<_>>()
    };
    let uses_parent = [
        "use super::A;",
        "use crate::a::{A, c::C};",
        "fn f() -> super::A {}",
        "mod inner { use super::super::A; }",
    ];
    let uses_child = [
        "mod b;\nuse self::b::B;",
        "mod b;\nuse b::B as Other;",
        "mod b;\nfn f() { b::f() }",
        "mod b;\npub use b::B;\nfn f() -> B {}",
        "mod b;\npub use b::{C, f as g};\nfn f() { g() }",
    ];
    for child in uses_parent {
        for parent in uses_child {
            let found = circles(parent, child);
            assert_eq!(found, ["a {\"b\", \"mod.rs\"}"], "{parent}, {child}");
        }
    }

    // It only passes names on, or uses the child in tests.
    for parent in [
        "pub mod b;",
        "mod b;\npub(crate) use b::{B, f as g};",
        "mod b;\n#[cfg(test)]\nfn f() { b::f() }",
        "#[cfg(test)]\nmod b;\nfn f() { b::f() }",
    ] {
        assert_eq!(circles(parent, uses_parent[0]), [""; 0], "{parent}");
    }
    // What it has by `use` is not the parent's own.
    let parent = format!("use std::sync::Arc;\nuse c::C;\n{}", uses_child[0]);
    for child in ["use super::{Arc, C};", "use super::c::C;", ""] {
        assert_eq!(circles(&parent, child), [""; 0], "{child}");
    }
}

#[test]
fn every_source_file_keeps_the_conventions() {
    let mut report = String::new();
    let mut crates = 0;
    for file in sources() {
        let found = if let Some(path) = file.strip_prefix("src/") {
            complaints(path, &read(&file))
        } else {
            crates += 1;
            complaints_of_crate(file.strip_prefix("crates/").unwrap(), &read(&file))
        };
        for complaint in found {
            writeln!(report, "{complaint}").unwrap();
        }
    }
    assert!(crates > 20, "{crates} files below crates/");
    assert!(report.is_empty(), "\n{report}");
}

/// Files that make a `Command` of a program's path, each with the reason why nobody else can choose that program. All others get theirs from
/// `base/trusted.rs`, so that root runs no program which another user made it find.
const RUN_PROGRAMS: [(&str, &str); 5] = [
    (
        "crates/base/src/trusted.rs",
        "after a check of every step of the path",
    ),
    (
        "reactor/helper/account.rs",
        "absolute paths of `setpriv` and `getent`",
    ),
    ("engines/program.rs", "the configuration names it"),
    ("daemon/zeromq/mod.rs", "the program that runs already"),
    (
        "cli/format/output/sink.rs",
        "the pager of the person who runs the command line",
    ),
];

/// A `connect` without a limit waits as long as the listener hangs.
#[test]
fn every_connect_has_a_time_limit() {
    const UNLIMITED: [&str; 4] = [
        "TcpStream::connect(",
        "UnixStream::connect(",
        "UnixStream::connect_addr(",
        "net::connect(",
    ];
    // The second one never blocks: it connects while it accepts.
    const CONNECT: [&str; 2] = [
        "crates/base/src/connect.rs",
        "crates/wire/src/unix_listener.rs",
    ];
    for file in &sources() {
        let name = file.strip_prefix("src/").unwrap_or(file);
        let is_test = ["tests", "testkit"].iter().any(|part| name.contains(part));
        let source = read(file);
        let code = source
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        let code = code_of(code);
        for call in UNLIMITED {
            let may = is_test || (call == "net::connect(" && CONNECT.contains(&name));
            assert!(
                may || !code.contains(call),
                "{file}: `{call}` has no time limit: use base::connect::unix, or TcpStream::connect_timeout"
            );
        }
    }
}

/// The lines that make a lock without saying its order in the comment directly above. A reference
/// to a lock, as in parameters, is none of its own.
fn locks_without_order(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let is_lock = |line: &str| {
        let code = code_of(line);
        let code = code.trim_start();
        let code = code.strip_prefix("pub").map_or(code, |rest| {
            let rest = rest.trim_start();
            rest.strip_prefix('(')
                .and_then(|path| path.split_once(')'))
                .map_or(rest, |(_, rest)| rest)
                .trim_start()
        });

        let at = ["Mutex<", "RwLock<"]
            .iter()
            .filter_map(|lock| code.find(lock))
            .min();
        // A field, a member of a variant, a tuple struct, a static or an alias.
        at.is_some_and(|at| !code[..at].contains('&') && !code[..at].contains(" = "))
            && !["let ", "fn ", "impl", "use "]
                .iter()
                .any(|other| code.starts_with(other))
            || code.starts_with("type ") && at.is_some()
    };

    let says_order = |at: usize| {
        let above = lines.iter().take(at).rev().map(|line| line.trim_start());
        let mut comment: Vec<&str> = above
            .skip_while(|line| line.starts_with("#["))
            .map_while(|line| line.strip_prefix("///"))
            .map(str::trim)
            .collect();
        // A line may end between the two words.
        comment.reverse();
        comment.join(" ").contains("Lock order: ")
    };

    lines
        .iter()
        .enumerate()
        .filter(|(at, line)| is_lock(line) && !says_order(*at))
        .map(|(at, _)| at + 1)
        .collect()
}

/// Whoever takes a second lock finds at the first one whether that is permitted.
#[test]
fn each_lock_says_its_order() {
    const ORDER: &str = "/// Lock order: after `b`.\n";
    for (line, is_lock) in [
        ("a: Mutex<u8>,", true),
        ("pub(super) a: Arc<RwLock<u8>>,", true),
        ("struct A(Arc<Mutex<u8>>);", true),
        ("File(Box<Mutex<u8>>),", true),
        ("static A: Mutex<u8> = Mutex::new(0);", true),
        ("type Slot = Arc<Mutex<u8>>;", true),
        ("a: &'a Mutex<u8>,", false),
        ("let a: Mutex<u8> = Mutex::default();", false),
        ("// a: Mutex<u8>", false),
    ] {
        let expected = if is_lock { vec![1] } else { vec![] };
        assert_eq!(locks_without_order(line), expected, "{line}");
        assert!(locks_without_order(&format!("{ORDER}{line}")).is_empty());
    }
    assert!(
        locks_without_order("/// Lock\n/// order: a.\n#[derive(Debug)]\nstruct A(Mutex<u8>);")
            .is_empty()
    );

    let mut report = String::new();
    for file in sources() {
        let is_test = ["tests", "testkit", "crates/bench/", "power_cut"]
            .iter()
            .any(|part| file.contains(part));
        if is_test {
            continue;
        }

        let source = read(&file);
        let code = source
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        for line in locks_without_order(code) {
            writeln!(report, "{file}:{line}: no `Lock order: ` in the comment").unwrap();
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

/// The names of minijinja's functions that parse a text, from the list for clippy.
fn parsing_functions() -> Vec<String> {
    let list = read("clippy.toml");
    let paths = list.split("path = \"minijinja::").skip(1);
    paths
        .map(|rest| {
            rest.split('"')
                .next()
                .unwrap()
                .rsplit("::")
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
}

/// The parsing functions that are named in code.
fn parsing_functions_in(code: &str, functions: &[String]) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let names = |text: &str, name: &str| text.split(|c| !is_name(c)).any(|word| word == name);
    // `parse` is also a name of other functions: minijinja's is named behind its module.
    let in_machinery = code
        .split("machinery::")
        .skip(1)
        .map(|rest| {
            rest.strip_prefix('{').map_or_else(
                || rest.split(|c| !is_name(c)).next().unwrap_or_default(),
                |group| group.split('}').next().unwrap_or_default(),
            )
        })
        .collect::<Vec<_>>()
        .join(" ");

    let is_named = |name: &&String| {
        names(
            if *name == "parse" {
                &in_machinery
            } else {
                code
            },
            name,
        )
    };
    functions.iter().filter(is_named).cloned().collect()
}

/// Minijinja's parser recurses along the text, so a text that was not measured can overflow the stack.
#[test]
fn minijinja_parses_only_texts_that_were_measured() {
    const BOUNDED: &str = "crates/salt-sls/src/jinja/bounded/";
    let functions = parsing_functions();
    assert!(functions.len() >= 10, "{functions:?}");
    for (code, expected) in [
        ("machinery::parse(text, name)", &["parse"][..]),
        (
            "use minijinja::machinery::{self, parse, Token};",
            &["parse"],
        ),
        ("machinery::parse_expr(text)", &["parse_expr"]),
        ("env.template_from_str(text)", &["template_from_str"]),
        ("Environment::render_str(&env, text, ())", &["render_str"]),
        ("text.parse(); machinery::Token; add_templates()", &[]),
    ] {
        assert_eq!(parsing_functions_in(code, &functions), expected, "{code}");
    }

    let mut in_bounded = 0;
    for file in &sources() {
        let found = parsing_functions_in(&code_of(&read(file)), &functions);
        if file.starts_with(BOUNDED) {
            in_bounded += found.len();
            continue;
        }
        assert!(
            found.is_empty(),
            "{file}: {found:?} of minijinja: use salt_sls::jinja::bounded::BoundedSource, which measures the text first"
        );
    }
    assert!(in_bounded > 0, "{BOUNDED} parses");
}

#[test]
fn programs_that_were_found_are_run_only_after_a_check() {
    let may_run = |file: &str| RUN_PROGRAMS.iter().any(|(known, _)| *known == file);
    for file in &sources() {
        let name = file.strip_prefix("src/").unwrap_or(file);
        let is_test = ["tests", "bench", "testkit"]
            .iter()
            .any(|part| name.contains(part));
        let source = read(file);
        let code = source
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        assert!(
            is_test || may_run(name) || !code.contains("Command::new("),
            "{file}: `Command::new` of a program: use base::trusted::TrustedProgram"
        );
    }
}

#[test]
fn lib_rs_and_the_architecture_page_have_the_same_layers() {
    let mut lib: Vec<(String, Vec<String>)> = Vec::new();
    for line in read("src/lib.rs").lines() {
        if let Some(layer) = line.strip_prefix("// ") {
            lib.push((layer.to_owned(), Vec::new()));
        } else if let Some((_, module)) =
            line.split_once("mod ").filter(|_| !line.starts_with("//"))
        {
            lib.last_mut()
                .unwrap()
                .1
                .push(module.trim_end_matches(';').to_owned());
        }
    }
    let mut page = Vec::new();
    let architecture = read("docs/ARCHITECTURE.md");
    for line in architecture
        .lines()
        .skip_while(|line| !line.starts_with("| layer | modules"))
        .skip(2)
    {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, layer, modules, ..] = cells[..] else {
            break;
        };
        page.push((
            layer.to_owned(),
            modules
                .split(' ')
                .map(|m| m.trim_matches('`').to_owned())
                .collect::<Vec<_>>(),
        ));
    }
    let table: Vec<_> = LAYERS
        .iter()
        .map(|(layer, modules)| {
            (
                (*layer).to_owned(),
                modules.iter().map(|&m| m.to_owned()).collect::<Vec<_>>(),
            )
        })
        .collect();
    assert_eq!(lib, table, "src/lib.rs");
    assert_eq!(page, table, "docs/ARCHITECTURE.md");

    let packages = architecture
        .lines()
        .skip_while(|line| !line.starts_with("| package | contents"))
        .skip(2)
        .map_while(|line| line.strip_prefix("| `crates/")?.split_once('`'));
    let mut packages: Vec<_> = packages.map(|(name, _)| name.to_owned()).collect();
    packages.sort();
    assert_eq!(packages, crates(), "docs/ARCHITECTURE.md: packages");
    let named = read("src/lib.rs");
    for (name, _) in CRATES {
        let line = format!("\npub use saltcellar_{name} as {name};\n");
        assert!(named.contains(&line), "src/lib.rs: {line}");
    }
    let line = format!("\n#[cfg(test)]\npub(crate) use saltcellar_{OF_TESTS} as {OF_TESTS};\n");
    assert!(named.contains(&line), "src/lib.rs: {line}");
}

#[test]
fn the_configuration_page_is_generated_from_the_comments_of_the_fields() {
    let page = read("docs/CONFIG.md");
    let preface = page.split("\n## `").next().unwrap_or_default();
    let sources: String = files("src/config").iter().map(|file| read(file)).collect();
    check_page(
        "docs/CONFIG.md",
        &format!("{preface}{}", keys_of(&sources, "Config", "")),
    );
}

/// The documentation of the keys in a struct of the configuration: the comments of its fields, and those of its sections' fields.
fn keys_of(sources: &str, name: &str, prefix: &str) -> String {
    let (_, fields) = sources
        .split_once(&format!("\npub struct {name} {{\n"))
        .unwrap_or_else(|| panic!("{name}"));
    let (fields, _) = fields.split_once("\n}\n").unwrap();
    let (mut keys, mut comment, mut renamed) = (String::new(), String::new(), None);
    let mut is_skipped = false;
    for line in fields.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            // Lines of a paragraph or of an item are joined.
            let starts = text.is_empty() || text.starts_with(" - ") || comment.ends_with("\n\n");
            comment.push_str(if starts { "\n" } else { " " });
            comment.push_str(text.trim());
            comment.push_str(if text.is_empty() { "\n" } else { "" });
        } else if let Some(attribute) = line.strip_prefix("#[serde(rename = \"") {
            renamed = attribute.split('"').next();
        } else if line == "#[serde(skip)]" {
            is_skipped = true;
        } else if let Some((field, kind)) = line.trim_end_matches(',').split_once(": ") {
            let field = renamed.take().unwrap_or(field.trim_start_matches("pub "));
            let comment = std::mem::take(&mut comment);
            if kind.ends_with("Config") {
                keys += &keys_of(sources, kind, &format!("{field}."));
            } else if !std::mem::take(&mut is_skipped) {
                let comment = comment.trim().replace("\n\n\n", "\n\n");
                writeln!(keys, "\n## `{prefix}{field}`\n\n{comment}").unwrap();
            }
        }
    }
    keys
}

#[test]
fn links_and_named_paths_exist() {
    let mut pages = vec![
        "README.md".to_owned(),
        "CHANGELOG.md".to_owned(),
        "salt/README.md".to_owned(),
        "crates/salt-sls/README.md".to_owned(),
        "crates/salt-sls/tests/data/README.md".to_owned(),
    ];
    pages.extend(
        ["docs", "salt/docs"]
            .into_iter()
            .flat_map(files)
            .filter(|file| has_extension(file, "md")),
    );
    let mut missing = Vec::new();
    for page in pages {
        let text = read(&page);
        let directory = Path::new(&page).parent().unwrap();
        let links = text
            .match_indices("](")
            .map(|(at, _)| text[at + 2..].split([')', '#']).next().unwrap());
        let links = links
            .filter(|link| !link.is_empty() && !link.contains("://"))
            .map(|link| directory.join(link));
        let named = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| has_extension(code, "rs") || has_extension(code, "md"));
        let named = named
            .filter(|code| code.contains('/') && !code.contains(['<', '*', '{', ' ']))
            .map(|code| {
                let below_src = Path::new("src").join(code);
                let below_store = Path::new("crates/store/src").join(code);
                // `base/clock/mod.rs` is a file of the package `crates/base`.
                let (package, rest) = code.split_once('/').unwrap_or_default();
                let below_crates = Path::new("crates").join(package).join("src").join(rest);
                // A page of a crate names its files from there.
                let beside = directory.join(code);
                [below_src, below_store, below_crates, beside]
                    .into_iter()
                    .find(|path| repository().join(path).exists())
                    .unwrap_or(PathBuf::from(code))
            });
        let wrong = links
            .chain(named)
            .filter(|path| !repository().join(path).exists());
        missing.extend(wrong.map(|path| format!("{page}: {}", path.display())));
    }
    for file in [
        "benches",
        "crates",
        "fuzz/targets",
        "salt/bench",
        "salt/tests",
        "src",
        "systemd",
        "tests/integration",
        "tests/it",
        "tests/lab",
    ]
    .into_iter()
    .flat_map(files)
    .filter(|file| is_text(file))
    {
        let text = read(&file);
        let named = text.match_indices("docs/").map(|(at, _)| {
            let end = text[at..].find(|c: char| !c.is_alphanumeric() && !"./-_".contains(c));
            text[at..end.map_or(text.len(), |end| at + end)].trim_end_matches('.')
        });
        let wrong =
            named.filter(|path| has_extension(path, "md") && !repository().join(path).exists());
        missing.extend(wrong.map(|path| format!("{file}: {path}")));
    }
    let index = read("docs/decisions/README.md");
    let pages = files("docs/decisions");
    let pages = pages
        .iter()
        .map(|page| page.rsplit('/').next().unwrap())
        .filter(|page| *page != "README.md");
    missing.extend(
        pages
            .filter(|page| !index.contains(&format!("({page})")))
            .map(|page| format!("decisions/README.md: {page}")),
    );
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

/// The workspace of the fuzz targets is compiled by cargo-fuzz only, and the root package, whose tests
/// include them, has more dependencies.
#[test]
fn the_packages_that_fuzz_targets_use_are_their_dependencies() {
    let manifest = read("fuzz/Cargo.toml");
    let named = |package: &str| {
        let dependency = format!("{} = ", package.replace('_', "-"));
        let as_named = format!("{package} = ");
        let mut lines = manifest.lines();
        lines.any(|line| line.starts_with(&dependency) || line.starts_with(&as_named))
    };

    let mut missing = Vec::new();
    for file in ["fuzz/targets", "fuzz/fuzz_targets"]
        .into_iter()
        .flat_map(files)
    {
        for line in read(&file).lines() {
            let Some((package, _)) = line
                .strip_prefix("use ")
                .and_then(|path| path.split_once("::"))
            else {
                continue;
            };
            let is_local = matches!(package, "std" | "core" | "crate" | "super" | "self");
            if !is_local && !named(package) {
                missing.push(format!("{file}: {package}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn an_import_against_the_layers_is_reported() {
    let found = |path: &str, source: &str| complaints(path, &format!("//! x\n{source}"));
    let up = "src/bus/log.rs:2: `bus` (gates) may not import `api` (interfaces)";
    assert_eq!(found("bus/log.rs", "use crate::api::client;"), [up]);
    assert_eq!(found("bus/log.rs", "fn f() { crate::api::f(); }"), [up]);
    assert_eq!(
        found("ingest/unix.rs", "use crate::reactor::master::Call;"),
        ["src/ingest/unix.rs:2: `ingest` (services) may not import `reactor` (services)"]
    );
    assert_eq!(
        found(
            "config/call.rs",
            "use crate::{\n    base::limits,\n    store::{a, b},\n    cli,\n};"
        ),
        [
            "src/config/call.rs:4: `config` (settings) may not import the package `store`",
            "src/config/call.rs:5: `config` (settings) may not import `cli` (commands)",
        ]
    );
    assert_eq!(
        found("config/call.rs", "use saltcellar_store::Store;"),
        ["src/config/call.rs:2: `saltcellar_store` is `crate::store` here"]
    );
    assert_eq!(
        complaints_of_crate(
            "base/src/limits.rs",
            "//! x\nuse crate::clock;\nuse super::metrics::Counter;"
        ),
        [
            "crates/base/src/limits.rs:2: `base/limits` may not import `base/clock`",
            "crates/base/src/limits.rs:3: `base/limits` may not import `base/metrics/Counter`",
        ]
    );
    assert_eq!(
        found(
            "reactor/master/mod.rs",
            "use super::run::Engine;\nuse crate::reactor::run;"
        ),
        [
            "src/reactor/master/mod.rs:3: `reactor/master` may not import `reactor/run`",
            "src/reactor/master/mod.rs:2: `reactor/master` may not import `reactor/run/Engine`",
        ]
    );
    assert_eq!(
        found("reactor/master/call.rs", "use super::super::{run, rules};"),
        ["src/reactor/master/call.rs:2: `reactor/master` may not import `reactor`"]
    );
    assert_eq!(
        found("attic/a.rs", ""),
        ["src/attic/a.rs:1: the module `attic` is in no layer of tests/tidy.rs"]
    );
    assert_eq!(
        found("cli/a.rs", "use crate::attic;"),
        ["src/cli/a.rs:2: `crate::attic` is in no layer of tests/tidy.rs"]
    );
}

#[test]
fn permitted_imports_and_names_in_text_pass() {
    for source in [
        "use crate::{base::limits, model::{Jid, Tag}, store::log};",
        "use super::x;\n/// See [`crate::cli`].\n// crate::cli\n/* crate::cli */",
        "const A: &str = \"crate::cli \\\" crate::cli\";\nconst B: &str = r#\"crate::cli\"#; const C: char = '\"';",
        "use crate::bus::segment; pub(crate) fn f() {}",
    ] {
        assert_eq!(
            complaints("bus/log/mod.rs", &format!("//! x\n{source}")),
            [""; 0],
            "{source}"
        );
    }
}

#[test]
fn a_part_imports_itself_and_lower_layers() {
    let call = "//! x\nuse super::pack::put;\nuse super::{a, b};\nuse crate::reactor::master::pack;\nuse crate::wire::zmtp;\nmod tests {\n    use super::*;\n}";
    assert_eq!(complaints("reactor/master/call.rs", call), [""; 0]);
    assert_eq!(
        complaints_of_crate("base/src/limits/store.rs", "//! x\nuse super::A;"),
        [""; 0]
    );
    assert_eq!(
        complaints_of_crate(
            "base/src/clock/mod.rs",
            "//! x\nmod tests {\n    use super::*;\n}"
        ),
        [""; 0]
    );
}

#[test]
fn a_missing_module_comment_is_reported() {
    assert_eq!(complaints("bus/a.rs", "use std::fs;").len(), 1);
}

#[test]
fn the_format_page_has_the_version_of_the_code() {
    let page = read("docs/FORMAT.md");
    let version = saltcellar::store::FORMAT_VERSION;
    assert!(
        page.starts_with(&format!("# On-disk format {version}\n")),
        "the title of docs/FORMAT.md"
    );
    let last = page
        .lines()
        .rfind(|line| line.starts_with("| "))
        .unwrap_or_default();
    assert!(
        last.starts_with(&format!("| {version} |")),
        "the last row of docs/FORMAT.md: {last}"
    );
}

/// The numbers that the page states are those of the code.
#[test]
fn the_format_page_has_the_numbers_of_the_code() {
    use saltcellar::base::limits::{
        BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, DEDUPE_REFILL_BYTES, DEDUPE_WINDOW, SEGMENT_BYTES,
        SEGMENT_ENTRIES_MAX,
    };
    use saltcellar::store::index::page::table::TABLE_VERSION;
    use saltcellar::store::log::frame::{FRAME_HEADER_LEN, FRAME_VERSION};

    // Lines of the page are wrapped anywhere.
    let page = read("docs/FORMAT.md")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);

    for stated in [
        format!("| byte | frame header, {FRAME_HEADER_LEN} bytes |"),
        format!("| 4 | version, u16: {FRAME_VERSION} |"),
        format!("| 8 | version, u32: {TABLE_VERSION} |"),
        format!(
            "Up to {} entries, closed at {} KiB of tags and bodies",
            thousands(BLOCK_ENTRIES_MAX as u64),
            BLOCK_RAW_BYTES >> 10
        ),
        format!(
            "reached {} (`store.segment_bytes_max`) or {} entries",
            mebibytes(SEGMENT_BYTES),
            thousands(SEGMENT_ENTRIES_MAX)
        ),
        format!(
            "the newest {} entries of all classes together, or from {} of their logs",
            thousands(DEDUPE_WINDOW as u64),
            mebibytes(DEDUPE_REFILL_BYTES)
        ),
    ] {
        assert!(page.contains(&stated), "docs/FORMAT.md lacks {stated:?}");
    }
}

/// 1234567 as `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Older compilers are not tested, so `rust-version` promises none.
#[test]
fn the_required_rust_version_is_the_one_that_ci_tests() {
    let manifest = read("Cargo.toml");
    let required = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .unwrap()
        .trim_matches('"');
    assert!(
        read("README.md").contains(&format!("Rust ({required} or later)")),
        "README.md: Rust ({required} or later)"
    );
    if std::env::var_os("CI").is_some() {
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = std::process::Command::new(compiler)
            .arg("--version")
            .output()
            .unwrap();
        let version = String::from_utf8(output.stdout).unwrap();
        assert!(
            version.starts_with(&format!("rustc {required}.")),
            "CI tests with {version}: set rust-version in Cargo.toml to it, or pin CI's compiler"
        );
    }
}

#[test]
fn the_page_of_metrics_is_generated_from_their_descriptions() {
    let page = read("docs/METRICS.md");
    let preface = page.split("| metric |").next().unwrap_or_default();
    check_page(
        "docs/METRICS.md",
        &format!("{preface}{}", saltcellar::api::http::metrics::reference()),
    );
}

#[test]
fn alerts_and_the_dashboard_use_only_metrics_that_exist() {
    let page = read("docs/METRICS.md");
    let known: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let mut found = 0;
    for file in [
        "docs/monitoring/alerts.yml",
        "docs/monitoring/alerts.test.yml",
        "docs/monitoring/dashboard.json",
    ] {
        let text = read(file);
        for name in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            // Other words with this beginning are labels of `up`, and names of files.
            if !name.starts_with("saltcellar_") {
                continue;
            }
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            assert!(
                known.contains(name) || base.is_some_and(|base| known.contains(base)),
                "{file}: {name}"
            );
            found += 1;
        }
    }
    assert!(found > 40, "{found}");
}

/// A page with another text between the first `from` after `heading` and the next `to`.
fn with_part(page: &str, heading: &str, from: &str, to: &str, part: &str) -> String {
    let at = |start: usize, text: &str| {
        let found = page[start..].find(text);
        start + found.unwrap_or_else(|| panic!("the page has no {text:?} after {heading:?}"))
    };
    let begin = at(at(0, heading), from);
    let end = at(begin, to);
    format!("{}{part}{}", &page[..begin], &page[end..])
}

#[test]
fn the_page_of_sinks_has_encoders_transports_and_presets_as_they_are_defined() {
    let page = read("docs/SINKS.md");
    let encoders = saltcellar::engines::reference_of_encoders();
    let page = with_part(&page, "\n## Encoders\n", "\n### `", "\n## ", &encoders);

    let transports = saltcellar::engines::reference_of_transports();
    let page = with_part(&page, "\n## Transports\n", "\n### `", "\n## ", &transports);

    let mut presets = "| preset | contents |\n|---|---|\n".to_owned();
    for (name, doc) in saltcellar::engines::preset::all() {
        writeln!(presets, "| `{name}` | {doc} |").unwrap();
    }
    let page = with_part(
        &page,
        "\n## Presets\n",
        "| preset |",
        "\n\n",
        presets.trim_end(),
    );
    check_page("docs/SINKS.md", &page);
}

/// Removes the global options, which the page has once, from the help of verbs.
fn without_global_options(command: clap::Command) -> clap::Command {
    command
        .term_width(100)
        .disable_help_subcommand(true)
        .mut_args(|arg| {
            let is_global = arg.get_help_heading() == Some("Global options");
            arg.hide(is_global)
        })
}

/// A section for each verb that the help shows, with its help text.
fn verbs(command: &clap::Command, page: &mut String) {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let name = verb.get_bin_name().unwrap();
        let about = verb.get_about().unwrap();
        writeln!(page, "\n## `{name}`\n\n{about}.").unwrap();
        if verb.has_subcommands() {
            verbs(verb, page);
        } else {
            let help = verb.clone().render_long_help().to_string();
            let (_, usage) = help.split_once("Usage:").unwrap();
            let usage: Vec<_> = usage.trim_end().lines().map(str::trim_end).collect();
            writeln!(page, "\n```text\nUsage:{}\n```", usage.join("\n")).unwrap();
        }
    }
}

#[test]
fn the_page_of_commands_is_generated_from_their_definition() {
    let page = read("docs/CLI.md");
    let preface = page.split("\n## `").next().unwrap_or_default();
    let help = saltcellar::cli::command()
        .term_width(100)
        .render_long_help()
        .to_string();
    let help: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    let mut expected = format!(
        "{preface}\n## `saltcellar`\n\n```text\n{}\n```\n",
        help.join("\n")
    );
    let mut command = without_global_options(saltcellar::cli::command());
    command.build();
    verbs(&command, &mut expected);
    check_page("docs/CLI.md", &expected);
}

/// The text of a JSON value, or nothing.
fn text_of<'a>(value: &'a serde_json::Value, key: &str) -> &'a str {
    value
        .get(key)
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default()
}

/// The type of a JSON schema, with links to the types on the page.
fn type_of(schema: &serde_json::Value) -> String {
    if let Some((_, name)) = text_of(schema, "$ref").rsplit_once('/') {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(value) = schema.get("const") {
        return format!("`{}`", value.as_str().unwrap_or_default());
    }
    if let Some(values) = schema.get("enum").and_then(serde_json::Value::as_array) {
        let value = |value: &serde_json::Value| match value.as_str() {
            Some(text) => format!("`{text}`"),
            None => value.to_string(),
        };
        return values.iter().map(value).collect::<Vec<_>>().join(" or ");
    }
    let alternatives = ["anyOf", "oneOf"]
        .iter()
        .find_map(|key| schema.get(key)?.as_array());
    if let Some(alternatives) = alternatives {
        return alternatives
            .iter()
            .map(type_of)
            .collect::<Vec<_>>()
            .join(" or ");
    }
    let of = |key: &str| {
        schema
            .get(key)
            .filter(|inner| inner.is_object())
            .map(type_of)
    };
    let one = |name: &str| match name {
        "array" => format!("array of {}", of("items").unwrap_or("any".to_owned())),
        "object" => of("additionalProperties")
            .map_or("object".to_owned(), |inner| format!("object of {inner}")),
        name => name.to_owned(),
    };
    match schema.get("type") {
        Some(serde_json::Value::String(name)) => one(name),
        Some(serde_json::Value::Array(names)) => names
            .iter()
            .filter_map(|name| name.as_str())
            .map(one)
            .collect::<Vec<_>>()
            .join(" or "),
        _ => "any".to_owned(),
    }
}

/// Rows of a table: name, type and meaning of each property.
fn properties(schema: &serde_json::Value, page: &mut String) {
    let properties = schema
        .get("properties")
        .and_then(serde_json::Value::as_object);
    for (name, schema) in properties.into_iter().flatten() {
        let meaning = text_of(schema, "description").replace('|', "\\|");
        writeln!(page, "| `{name}` | {} | {meaning} |", type_of(schema)).unwrap();
    }
}

/// A section for each type: its fields.
fn types(schemas: &serde_json::Value, heading: &str, page: &mut String) {
    for (name, schema) in schemas.as_object().unwrap() {
        writeln!(page, "\n{heading} {name}").unwrap();
        let description = text_of(schema, "description");
        if !description.is_empty() {
            writeln!(page, "\n{description}").unwrap();
        }
        if schema.get("properties").is_some() {
            *page += "\n| field | type | meaning |\n|---|---|---|\n";
            properties(schema, page);
        } else {
            writeln!(page, "\nType: {}.", type_of(schema)).unwrap();
        }
    }
}

#[test]
fn the_page_of_the_http_api_is_generated_from_its_openapi_document() {
    let page = read("docs/API.md");
    let preface = page.split("\n## `").next().unwrap_or_default();
    let document = saltcellar::api::http::v1::openapi();
    let mut expected = preface.to_owned();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let (summary, scope) = (text_of(operation, "summary"), text_of(operation, "x-scope"));
            let method = method.to_uppercase();
            write!(
                expected,
                "\n## `{method} {path}`\n\n{summary}.\n\n- scope: {scope}\n"
            )
            .unwrap();
            let content = operation["responses"]["200"]["content"]
                .as_object()
                .unwrap();
            let answers: Vec<_> = content
                .iter()
                .map(|(kind, answer)| format!("`{kind}`: {}", type_of(&answer["schema"])))
                .collect();
            writeln!(expected, "- response: {}", answers.join("; ")).unwrap();
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            let parameters = operation["parameters"].as_array().unwrap();
            if !parameters.is_empty() || body.is_object() {
                expected += "\n| parameter | type | meaning |\n|---|---|---|\n";
            }
            for parameter in parameters {
                let (name, kind) = (text_of(parameter, "name"), type_of(&parameter["schema"]));
                let meaning = match text_of(parameter, "description") {
                    "" => format!("in the {}", text_of(parameter, "in")),
                    described => described.replace('|', "\\|"),
                };
                writeln!(expected, "| `{name}` | {kind} | {meaning} |").unwrap();
            }
            properties(body, &mut expected);
        }
    }
    expected += "\n## Types\n";
    types(&document["components"]["schemas"], "###", &mut expected);
    check_page("docs/API.md", &expected);
}

#[test]
fn the_calls_in_the_page_of_the_wire_are_generated_from_their_types() {
    const START: &str = "\n# Calls\n";
    let page = read("docs/WIRE.md");
    let (preface, _) = page.split_once(START).unwrap();
    let document = saltcellar::api::calls();

    let mut expected = format!("{preface}{START}");
    for call in document["calls"].as_array().unwrap() {
        let (name, doc, right) = (
            text_of(call, "name"),
            text_of(call, "doc"),
            text_of(call, "right"),
        );
        write!(
            expected,
            "\n## `{name}`\n\n{doc}.\n\n- right: {right}\n- response: {}\n",
            type_of(&call["answer"])
        )
        .unwrap();

        let args = &call["args"];
        if args.get("properties").is_none() {
            continue;
        }
        let required: BTreeSet<_> = args["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str())
            .collect();
        expected += "\n| argument | type | meaning |\n|---|---|---|\n";
        for (name, schema) in args["properties"].as_object().unwrap() {
            let kind = match text_of(schema, "format") {
                "date-time" => "time".to_owned(),
                "glob" => "glob".to_owned(),
                _ => type_of(schema).replace(" or null", ""),
            };
            let needed = if required.contains(name.as_str()) {
                ", required"
            } else {
                ""
            };
            let meaning = text_of(schema, "description").replace('|', "\\|");
            let meaning = meaning.replace('\n', " ");
            writeln!(expected, "| `{name}` | {kind}{needed} | {meaning} |").unwrap();
        }
    }

    expected += "\n# Response types\n\nA time is an integer: microseconds since 1970 UTC. A field without a value is nil or absent.\n";
    types(&document["types"], "##", &mut expected);
    check_page("docs/WIRE.md", &expected);
}

/// The string literals of a source file before its tests, without comments, with escapes as they are.
fn literals(source: &str) -> Vec<String> {
    let (mut found, mut rest) = (
        Vec::new(),
        source.split("#[cfg(test)]").next().unwrap_or_default(),
    );
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if rest.starts_with("'\"'") {
            rest = &rest[3..];
        } else if c == '"' {
            let end = string(rest);
            found.push(rest[1..end - 1].to_owned());
            rest = &rest[end..];
        } else {
            rest = &rest[c.len_utf8()..];
        }
    }
    found
}

#[test]
fn a_finding_of_doctor_has_the_name_of_a_check() {
    let table = saltcellar::cli::reference_of_checks();
    let rows: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let mut named = BTreeSet::new();
    for file in files("src/cli/doctor") {
        let source = read(&file);
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        for before in ["const CHECK: &str = \"", "check: \"", "found.of(\""] {
            for (at, _) in code.match_indices(before) {
                let name = code[at + before.len()..].split('"').next().unwrap();
                named.insert(name.to_owned());
            }
        }
    }
    let missing: Vec<_> = named
        .iter()
        .filter(|name| !rows.contains(name.as_str()))
        .collect();
    assert!(named.len() > 25, "{named:?}");
    assert!(
        missing.is_empty(),
        "no definition of a check is named {missing:?}"
    );
}

#[test]
fn the_page_of_doctor_has_every_check_reason_of_status_and_counter() {
    let checks = saltcellar::cli::reference_of_checks();
    let page = with_part(
        &read("docs/DOCTOR.md"),
        "\n## Checks of `doctor`\n",
        "| name |",
        "\n\n",
        checks.trim_end(),
    );
    let (preface, _) = page.split_once("\n| counter | level |").unwrap();
    let mut expected = format!("{preface}\n| counter | level | meaning |\n|---|---|---|\n");
    for counter in saltcellar::api::loss_counters() {
        let word = |level| format!("{level:?}").to_lowercase();
        writeln!(
            expected,
            "| `{}` | {} | {} |",
            counter.name,
            word(counter.level),
            counter.meaning
        )
        .unwrap();
    }
    check_page("docs/DOCTOR.md", &expected);
    let source = read("src/api/call/status/health.rs");
    let (_, rules) = source.split_once("fn health(").unwrap();
    let source = read("src/api/call/status/cluster.rs");
    let (_, of_cluster) = source.split_once("fn reasons(").unwrap();
    let (of_cluster, _) = of_cluster.split_once("#[cfg(test)]").unwrap();
    // Messages are sentences; of a format string, the longest fixed part.
    let messages: Vec<_> = [literals(rules), literals(of_cluster)]
        .concat()
        .into_iter()
        .filter(|text| text.trim().contains(' '))
        .map(|text| {
            let parts = text.split('{').filter_map(|part| part.rsplit('}').next());
            parts
                .max_by_key(|part| part.len())
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
        .collect();
    let missing: Vec<_> = messages
        .iter()
        .filter(|message| !page.contains(message.as_str()))
        .collect();
    assert!(messages.len() > 15, "{messages:?}");
    assert!(missing.is_empty(), "docs/DOCTOR.md: {missing:#?}");
}

/// Files of the daemon's parts that read a whole file by themselves, each with the reason. All others use `store/vfs/read.rs`, where the three
/// outcomes of a read are told apart: bytes, damage, and an error that passes.
const READ_FILES: [(&str, &str); 5] = [
    ("store/read/consumer/record.rs", "/proc"),
    ("store/vfs/faults.rs", "a plan of faults, in a debug build"),
    ("store/vfs/power_cut/", "a simulated disk"),
    (
        "engines/transport/http/client.rs",
        "a key of the configuration",
    ),
    ("reactor/rules/mod.rs", "a file of Salt"),
];

#[test]
fn the_daemon_reads_its_files_in_one_place() {
    let may_read = |file: &str| READ_FILES.iter().any(|(known, _)| file.starts_with(known));
    let parts = ["store/", "ingest/", "engines/", "api/", "reactor/"];
    let mut looked_at = BTreeSet::new();
    for file in sources() {
        // `store/vfs/read.rs` is a file of the package `crates/store`.
        let name = match file.strip_prefix("crates/") {
            Some(in_crates) => in_crates.replacen("/src/", "/", 1),
            None => file.strip_prefix("src/").unwrap_or(&file).to_owned(),
        };
        let is_test = ["tests", "testkit", "conformance", "simulation"]
            .iter()
            .any(|part| name.contains(part));
        let Some(part) = parts.iter().find(|part| name.starts_with(**part)) else {
            continue;
        };
        if is_test || may_read(&name) {
            continue;
        }

        looked_at.insert(part);
        let source = read(&file);
        let code = code_of(source.split("#[cfg(test)]\n").next().unwrap_or_default());
        for call in ["fs::read(", "fs::read_to_string("] {
            assert!(
                !code.contains(call),
                "{file}: `{call}` makes an error that passes look like damage or absence: use store::format::open_small, or store::vfs::read::read_whole"
            );
        }
    }
    assert_eq!(looked_at.len(), parts.len(), "{looked_at:?}");
}

/// Files of the command line that read a value by a name in a string, each with what they read. None of it is an answer of the daemon: those are
/// types, so that a misspelt field does not compile.
const READ_BY_NAME: [(&str, &str); 6] = [
    ("admin/setup/plan.rs", "a document that setup makes itself"),
    ("doctor/master.rs", "an option of Salt"),
    ("doctor/python/", "the output of Salt's Python"),
    ("import/jsonl.rs", "a line of an export"),
    ("jobs/", "events and returns of Salt, as they are stored"),
    ("reactor/render.rs", "a chunk that Salt would run"),
];

/// The first place of the code of a client that reads a value by a name, or makes a call by its name.
fn read_by_name(code: &str) -> Option<&str> {
    const NAMED: [&str; 7] = [
        ".get( )",
        ".get_mut( )",
        ".pointer( )",
        // Calls by their name.
        ".call( ",
        ".ask( ",
        ".ask_packed( ",
        ".post( ",
    ];

    let named = NAMED.iter().find_map(|named| code.find(named));
    let is_value = |before: char| before.is_alphanumeric() || "_)]".contains(before);
    let indexed = code
        .match_indices("[ ]")
        .find(|(at, _)| code[..*at].chars().next_back().is_some_and(is_value))
        .map(|(at, _)| at);

    let at = named.into_iter().chain(indexed).min()?;
    let line = code[..at].lines().next_back().map_or(0, str::len);
    code[at - line..].lines().next()
}

#[test]
fn the_command_line_and_the_page_read_no_answer_by_names_of_fields() {
    for (source, expected) in [
        (r#"let jid = answer["jid"];"#, true),
        (r#"let jid = answer.get("jid");"#, true),
        (r#"client.call("status", args)?;"#, true),
        (r#"let names = ["jid"];"#, false),
        (r#"let jid = answer.jid; // answer["jid"]"#, false),
    ] {
        assert_eq!(
            read_by_name(&code_of(source)).is_some(),
            expected,
            "{source}"
        );
    }

    for file in sources() {
        // The web page and salt-api are clients of the calls as the command line is.
        let clients = ["src/cli/", "src/api/http/page/", "src/api/http/salt_api.rs"];
        let Some(name) = clients.iter().find_map(|of| file.strip_prefix(of)) else {
            continue;
        };
        if name.contains("tests")
            || READ_BY_NAME
                .iter()
                .any(|(known, _)| name.starts_with(known))
        {
            continue;
        }

        let source = read(&file);
        let code = code_of(source.split("#[cfg(test)]\n").next().unwrap_or_default());
        assert_eq!(
            read_by_name(&code),
            None,
            "{file}: read answers by the types of `api::call`, so that a misspelt field does not compile"
        );
    }
}

/// The counters that are named in a string by a file that reads the counters of `status`. Names of one word are also words of tables and options, so they are not looked for.
fn counters_in_strings(source: &str) -> Vec<&'static str> {
    let names = saltcellar::base::metrics::Metrics::COUNTERS
        .iter()
        .map(|counter| counter.name);
    let reads = source.contains(".counters");
    names
        .filter(|name| reads && name.contains('_') && source.contains(&format!("\"{name}\"")))
        .collect()
}

#[test]
fn clients_name_counters_by_constants() {
    assert_eq!(
        counters_in_strings(
            r#"["entries_stored", "commits", "entries_store"].map(|name| status.counters.get(name))"#
        ),
        ["entries_stored"]
    );
    assert_eq!(counters_in_strings(r#"("calls_failed", 1)"#), [""; 0]);

    for file in sources() {
        let clients = ["src/cli/", "src/api/http/page/", "crates/bench/src/"];
        let is_client = clients.iter().any(|of| file.starts_with(of));
        if !is_client || file.contains("tests") {
            continue;
        }

        let source = read(&file);
        let code = source.split("#[cfg(test)]\n").next().unwrap_or_default();
        assert_eq!(
            counters_in_strings(code),
            [""; 0],
            "{file}: use base::metrics::names, so that a misspelt counter does not compile"
        );
    }
}

/// The pages that may name commands. `docs/CLI.md` is generated from them, and `docs/FORMAT.md` describes bytes.
fn pages() -> Vec<String> {
    let mut pages = vec![
        "README.md".to_owned(),
        "CHANGELOG.md".to_owned(),
        "salt/README.md".to_owned(),
    ];
    pages.extend(
        ["docs", "salt/docs"]
            .into_iter()
            .flat_map(files)
            .filter(|file| has_extension(file, "md"))
            .filter(|file| !matches!(file.as_str(), "docs/CLI.md" | "docs/FORMAT.md")),
    );
    pages
}

/// The words of the first command in a line for a shell: without a comment, and without what follows a pipe or another command.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, c) if c.is_whitespace() => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
            }
            (None, ';') => {
                words.push(std::mem::take(&mut word));
                word.push(';');
            }
            _ => word.push(c),
        }
    }
    let ends = |word: &String| {
        matches!(word.as_str(), "|" | ">" | ";" | "&&" | "\\") || word.starts_with('#')
    };
    words.truncate(words.iter().position(ends).unwrap_or(words.len()));
    words
}

/// The commands of this program in a page, without `saltcellar`: in code spans, in blocks for a shell, and after a prompt.
fn commands_in(page: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut fence = None;
    for line in page.lines() {
        let trimmed = line.trim_start();
        if let Some(language) = trimmed.strip_prefix("```") {
            fence = match fence {
                None => Some(language),
                Some(_) => None,
            };
            continue;
        }

        let (in_block, prompts): (bool, &[&str]) = match fence {
            Some("sh") => (true, &["$ "]),
            Some("console") => (false, &["$ ", "# "]),
            Some(_) => (false, &["$ "]),
            None => (line.starts_with("    "), &[]),
        };
        let after_prompt = prompts
            .iter()
            .find_map(|prompt| trimmed.strip_prefix(prompt));
        let commands = match (after_prompt, in_block) {
            (Some(command), _) => vec![command],
            (None, true) => vec![trimmed],
            (None, false) if fence.is_none() => line.split('`').skip(1).step_by(2).collect(),
            (None, false) => Vec::new(),
        };

        let commands = commands
            .into_iter()
            .filter_map(|command| command.strip_prefix("saltcellar "));
        // With dots for what is not shown.
        let commands = commands
            .map(shell_words)
            .filter(|words| !words.iter().any(|word| word.contains("...")));
        found.extend(commands);
    }
    found
}

/// The first error of a command, with each of these words in place of its placeholders; none if one of them fits.
fn error_of_command(words: &[String]) -> Option<clap::Error> {
    use clap::error::ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
        MissingRequiredArgument, MissingSubcommand,
    };

    let is_placeholder = |word: &str| word.chars().all(|c| c.is_ascii_uppercase());
    let errors = ["x", "1", "20261121063920219290", "1h"].map(|value| {
        let words = words.iter().map(|word| {
            if is_placeholder(word) {
                value.to_owned()
            } else {
                word.clone()
            }
        });
        let words = ["saltcellar".to_owned()].into_iter().chain(words);
        saltcellar::cli::command().try_get_matches_from(words).err()
    });

    let mut errors = errors.into_iter().map(|error| {
        error.filter(|error| {
            // A sentence may name a command without its arguments.
            !matches!(
                error.kind(),
                DisplayHelp
                    | DisplayHelpOnMissingArgumentOrSubcommand
                    | DisplayVersion
                    | MissingRequiredArgument
                    | MissingSubcommand
            )
        })
    });
    let first = errors.next().flatten();
    first.filter(|_| errors.all(|error| error.is_some()))
}

#[test]
fn each_command_in_the_documentation_exists() {
    let words = |text: &str| -> Vec<String> { text.split(' ').map(ToOwned::to_owned).collect() };
    assert_eq!(
        commands_in(
            "Run `saltcellar jobs list`, or:\n\n    saltcellar status   # all\n    # saltcellar x\n```console\n# saltcellar top\nsaltcellar 0.1.0, up\n```\n"
        ),
        [words("jobs list"), words("status"), words("top")]
    );
    assert!(error_of_command(&words("jobs show JID")).is_none());
    assert!(error_of_command(&words("jobs shows JID")).is_some());
    assert!(error_of_command(&words("jobs list --no-such-flag")).is_some());

    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        for words in commands_in(&read(&page)) {
            count += 1;
            if let Some(error) = error_of_command(&words) {
                let error = error.to_string();
                let error = error.lines().next().unwrap_or_default();
                wrong.push(format!("{page}: saltcellar {}: {error}", words.join(" ")));
            }
        }
    }
    assert!(count > 200, "{count}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The fixed parts of a quoted message, of three words or more.
fn fixed_parts(message: &str) -> Vec<String> {
    let is_placeholder = |word: &str| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        word.is_empty() || word.chars().all(|c| c.is_ascii_uppercase())
    };
    let mut parts = vec![Vec::new()];
    let mut depth = 0;
    for word in message.split_whitespace() {
        let opens = word.matches('(').count();
        depth += opens;
        let is_variable = depth > 0 || is_placeholder(word) || word.contains("...");
        depth -= word.matches(')').count().min(depth);
        if is_variable {
            parts.push(Vec::new());
        } else {
            parts.last_mut().unwrap().push(word);
        }
    }
    let long = parts.into_iter().filter(|words| words.len() > 2);
    long.map(|words| words.join(" ").trim_end_matches(':').to_owned())
        .collect()
}

#[test]
fn each_message_in_the_page_of_troubleshooting_is_one_of_the_program() {
    assert_eq!(
        fixed_parts("... is damaged at byte ...: N entries cannot be read (or more)"),
        ["is damaged at byte", "entries cannot be read"]
    );

    let strings: String = ["src", "crates", "salt/src"]
        .into_iter()
        .flat_map(files)
        .filter(|file| has_extension(file, "rs") || has_extension(file, "py"))
        .map(|file| read(&file))
        .collect();
    // A string goes on behind a backslash at the end of a line.
    let strings: Vec<_> = strings.split("\\\n").map(str::trim_start).collect();
    let strings = strings.concat().replace('`', "");

    let page = read("docs/TROUBLESHOOTING.md");
    let cells = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let messages: Vec<_> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .flat_map(fixed_parts)
        .collect();
    let missing: Vec<_> = messages
        .iter()
        .filter(|part| !strings.contains(part.as_str()))
        .collect();
    assert!(messages.len() > 30, "{messages:#?}");
    assert!(missing.is_empty(), "docs/TROUBLESHOOTING.md: {missing:#?}");
}

/// Words of no reader's English, each with the usual one. Only words that are wrong in any sentence.
const AVOIDED: [(&str, &str); 9] = [
    ("power cut", "power loss"),
    ("look-up", "lookup"),
    ("the set-up", "the setup"),
    ("in clear text", "in plain text"),
    (", too.", "also, before the verb"),
    (", too:", "also, before the verb"),
    ("from then on", "afterwards"),
    ("HTTPS source", "minion listener"),
    ("Salt's own reactor", "Salt's reactor"),
];

/// The lines with an avoided word, as `line: word`.
fn avoided_words(text: &str) -> Vec<String> {
    let of_line = |(number, line): (usize, &str)| {
        let line = line.to_lowercase();
        AVOIDED
            .iter()
            .filter(|(word, _)| line.contains(&word.to_lowercase()))
            .map(|(word, usual)| format!("{}: `{word}`, write `{usual}`", number + 1))
            .collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(of_line).collect()
}

#[test]
fn words_of_the_field_are_used() {
    assert_eq!(
        avoided_words("It is slow.\nAfter a Power cut, too."),
        [
            "2: `power cut`, write `power loss`",
            "2: `, too.`, write `also, before the verb`"
        ]
    );

    let mut wrong = Vec::new();
    for dir in ["src", "crates", "salt/src", "docs", "systemd", "README.md"] {
        for file in files(dir) {
            // Recorded texts of others.
            if file.contains("/tests/data/") || !is_prose(&file) {
                continue;
            }
            let found = avoided_words(&read(&file));
            wrong.extend(found.iter().map(|place| format!("{file}:{place}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether people read sentences in the file.
fn is_prose(file: &str) -> bool {
    [".rs", ".py", ".md", ".html", ".yml", ".yaml"]
        .iter()
        .any(|end| file.ends_with(end))
}

#[test]
fn the_changelogs_are_of_this_version_and_of_one_day() {
    let version = env!("CARGO_PKG_VERSION");
    let module = read("salt/src/saltext/saltcellar/version.py");
    assert!(
        module.contains(&format!("__version__ = \"{version}\"")),
        "{module}"
    );

    let newest = ["CHANGELOG.md", "salt/CHANGELOG.md"].map(|file| {
        let text = read(file);
        let heading = text.lines().find_map(|line| line.strip_prefix("## "));
        heading.unwrap_or_default().to_owned()
    });
    let [of_daemon, of_extension] = newest;
    assert_eq!(of_daemon, of_extension);
    assert!(
        of_daemon.starts_with(&format!("{version} (20")),
        "{of_daemon}"
    );
    // What is released has no fragments left.
    let fragments: Vec<_> = files("salt/changelog")
        .into_iter()
        .filter(|file| !file.ends_with("README.md") && !file.contains("template"))
        .collect();
    assert!(fragments.is_empty(), "{fragments:?}");
}
