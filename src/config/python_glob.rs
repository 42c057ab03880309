//! Finds files by pattern like Python's `glob.glob(pattern)`, with which Salt expands `include`, `file_roots` and the
//! reactor's references.
//!
//! No recursion: `**` is `*`. A leading dot is matched only by a dot. The order within a directory is the
//! directory's own. Names that are not UTF-8 are not found.

use std::fs;
use std::path::Path;

use salt_sls::Glob;

/// Whether the text contains a wildcard.
pub fn has_magic(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The matching files and directories.
pub fn glob(pattern: &str) -> Vec<String> {
    let (dir, name) = split(pattern);
    // Without wildcards Python only asks whether the path exists, even if it begins with a dot.
    if !has_magic(pattern) {
        // With a slash at the end only a directory matches.
        let there = if name.is_empty() {
            Path::new(dir).is_dir()
        } else {
            exists(pattern)
        };
        return if there {
            vec![pattern.to_owned()]
        } else {
            Vec::new()
        };
    }

    if dir.is_empty() {
        return names_in("", name);
    }

    // "/" is its own parent; a pattern in it would recurse forever.
    let dirs = if dir != pattern && has_magic(dir) {
        glob(dir)
    } else {
        vec![dir.to_owned()]
    };

    let mut found = Vec::new();
    for dir in dirs {
        found.extend(
            names_in(&dir, name)
                .into_iter()
                .map(|name| join(&dir, &name)),
        );
    }

    found
}

/// `os.path.split`: the part before the last slash, without trailing slashes unless it is all slashes, and the part after.
fn split(path: &str) -> (&str, &str) {
    let cut = path.rfind('/').map_or(0, |at| at + 1);
    let (head, tail) = path.split_at(cut);
    let trimmed = head.trim_end_matches('/');
    (if trimmed.is_empty() { head } else { trimmed }, tail)
}

fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() || dir.ends_with('/') {
        format!("{dir}{name}")
    } else {
        format!("{dir}/{name}")
    }
}

fn names_in(dir: &str, name: &str) -> Vec<String> {
    if !has_magic(name) {
        let there = if name.is_empty() {
            Path::new(dir).is_dir()
        } else {
            exists(&join(dir, name))
        };
        return if there {
            vec![name.to_owned()]
        } else {
            Vec::new()
        };
    }

    let pattern = Glob::new(name);
    let Ok(entries) = fs::read_dir(if dir.is_empty() { "." } else { dir }) else {
        // A directory that cannot be read has no matches, as in Python.
        return Vec::new();
    };

    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|found| {
            // Hidden files are found only by a pattern that begins with a dot.
            (name.starts_with('.') || !found.starts_with('.')) && pattern.matches(found)
        })
        .collect()
}

/// Also true for a dangling link.
fn exists(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_find_what_python_finds() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| format!("{}/{path}", root.path().display());
        for dir in ["a/x", "b/x", "c"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for file in [
            "a/x/1.sls",
            "a/x/2.sls",
            "a/x/.h.sls",
            "b/x/1.sls",
            "b/x/[z].sls",
        ] {
            fs::write(at(file), "").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", at("c/link")).unwrap();
        let check = |pattern: &str, expected: &[&str]| {
            let mut found = glob(&at(pattern));
            found.sort();
            let expected: Vec<String> = expected.iter().map(|path| at(path)).collect();
            assert_eq!(found, expected, "{pattern}");
        };
        check("a/x/1.sls", &["a/x/1.sls"]);
        check("a/x/none", &[]);
        check("c/link", &["c/link"]);
        check("*/x/1.sls", &["a/x/1.sls", "b/x/1.sls"]);
        check("a/**/1.sls", &["a/x/1.sls"]);
        check("a/**", &["a/x"]);
        check("a/x/*", &["a/x/1.sls", "a/x/2.sls"]);
        check("a/x/.*", &["a/x/.h.sls"]);
        check("a/x/[!1].sls", &["a/x/2.sls"]);
        check("b/x/[[]z].sls", &["b/x/[z].sls"]);
        check("a/x/", &["a/x/"]);
        check("a/x/1.sls/", &[]);
        check("*/", &["a/", "b/", "c/"]);
    }
}
