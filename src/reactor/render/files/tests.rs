//! References and templates in temporary directories.

use parking_lot::Mutex;

use super::*;
use crate::reactor::helper::salt::{NoSalt, SaltError};

fn no_salt() -> Arc<dyn Salt> {
    Arc::new(NoSalt)
}

fn settings(root: &Path) -> FileSettings {
    let mut roots = Roots::new();
    roots.insert(
        "base".to_owned(),
        vec![root.join("base"), root.join("more")],
    );
    roots.insert("__env__".to_owned(), vec![root.join("envs/__env__")]);
    FileSettings {
        roots,
        saltenv: "base".to_owned(),
        cachedir: "/cache".to_owned(),
        ignored: vec![Glob::new("*.swp")],
        beyond_roots: None,
        renderers: RendererSettings {
            default: "jinja|yaml".to_owned(),
            ..Default::default()
        },
    }
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn salt_references_are_searched_in_the_roots() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for name in [
        "base/a.sls",
        "more/a.sls",
        "more/b.sls",
        "envs/dev/a.sls",
        "more/x.swp",
        "base/d/f",
        "secret",
    ] {
        write(root, name, "x");
    }
    let settings = settings(root);
    let check = |reference: &str, expected: Option<(&str, &str)>| {
        let mut notes = Vec::new();
        let found = resolve(reference, "t", &settings, &NoSalt, &mut notes);
        let found = found
            .first()
            .map(|found| (found.path.clone(), found.source.clone()));
        let expected = expected.map(|(shown, source)| (shown.to_owned(), root.join(source)));
        assert_eq!(found, expected, "{reference}");
        assert_eq!(
            notes.len(),
            if found.is_some() { 0 } else { 2 },
            "{notes:?}"
        );
    };
    check(
        "salt://a.sls",
        Some(("/cache/files/base/a.sls", "base/a.sls")),
    );
    check(
        "salt://b.sls",
        Some(("/cache/files/base/b.sls", "more/b.sls")),
    );
    check(
        "salt://a.sls?saltenv=dev",
        Some(("/cache/files/dev/a.sls", "envs/dev/a.sls")),
    );
    check("salt://b.sls?saltenv=dev", None);
    check("salt://./d//f", Some(("/cache/files/base/d/f", "base/d/f")));
    check("salt://x.swp", None);
    check("salt://d", None);
    check("salt://*.sls", None);
    check("salt://../secret", None);
    for env in [
        "..",
        ".",
        "../..",
        "dev/..",
        "dev/../..",
        "/etc",
        "./dev",
        "dev/",
        "%00/../..",
        "dev\0",
    ] {
        check(&format!("salt://a.sls?saltenv={env}"), None);
        check(&format!("salt://|a.sls?saltenv={env}"), None);
    }
    check("salt:///etc/passwd", None);
    check("salt://", None);
}

#[test]
fn a_saltenv_cannot_leave_the_directories_of_environments() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for name in ["secret/a.sls", "envs/dev/a.sls", "envs/feature/x/a.sls"] {
        write(root, name, "x");
    }
    let settings = settings(root);
    let salt = Fetching(root.join("secret"), Mutex::default());
    let beyond = BeyondRoots {
        what: "git".to_owned(),
        roots_first: true,
    };
    let with_git = FileSettings {
        beyond_roots: Some(beyond),
        ..settings.clone()
    };
    for settings in [&settings, &with_git] {
        let mut notes = Vec::new();
        assert!(
            resolve(
                "salt://a.sls?saltenv=../secret",
                "t",
                settings,
                &salt,
                &mut notes
            )
            .is_empty()
        );
        let why = notes[0].cause.as_deref().unwrap();
        assert_eq!(
            why,
            "the saltenv \"../secret\" is not a relative path without `.` and `..`"
        );
        // Names of git branches may contain slashes.
        assert_eq!(
            resolve(
                "salt://a.sls?saltenv=feature/x",
                "t",
                settings,
                &salt,
                &mut notes
            )
            .len(),
            1
        );
    }
    assert_eq!(*salt.1.lock(), [""; 0], "no fetch by Salt");
}

#[test]
fn files_over_the_size_limit_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let max = usize::try_from(limits::REACTOR_TEMPLATE_BYTES_MAX).unwrap();
    write(root, "base/most.sls", &"x".repeat(max));
    write(root, "base/more.sls", &"x".repeat(max + 1));
    let settings = settings(root);
    let found = |name: &str| Found {
        path: name.to_owned(),
        source: root.join(name),
        remote: None,
    };
    let templates = Templates::default();
    assert!(
        templates
            .get(&found("base/most.sls"), &settings.renderers, &no_salt())
            .is_ok()
    );
    assert_eq!(
        templates
            .get(&found("base/more.sls"), &settings.renderers, &no_salt())
            .unwrap_err(),
        Unusable::Failed("the file contains more than 4194304 bytes".to_owned())
    );
}

#[test]
fn missing_files_have_salt_s_messages() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let messages = |reference: &str| {
        let mut notes = Vec::new();
        assert!(resolve(reference, "a/tag", &settings, &NoSalt, &mut notes).is_empty());
        notes
            .into_iter()
            .map(|note| note.message)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        messages("/no/x.sls"),
        ["Can not render SLS /no/x.sls for tag a/tag. File missing or not found."]
    );
    assert_eq!(
        messages("salt://no.sls?saltenv=qa"),
        [
            "Unable to cache file 'salt://no.sls' from saltenv 'qa'.",
            "Can not render SLS  for tag a/tag. File missing or not found."
        ]
    );
}

#[test]
fn a_template_is_reread_after_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sls");
    let found = Found {
        path: path.display().to_string(),
        source: path.clone(),
        remote: None,
    };
    let settings = settings(dir.path());
    let templates = Templates::default();
    let get = || templates.get(&found, &settings.renderers, &no_salt());
    let message = |unusable: Unusable| match unusable {
        Unusable::Reported(note) => note.message,
        other => format!("{other:?}"),
    };
    assert!(message(get().unwrap_err()).starts_with("Template does not exist: "));
    fs::write(&path, "").unwrap();
    assert_eq!(get().unwrap_err(), Unusable::Empty);
    fs::write(&path, " \n\t").unwrap();
    assert!(message(get().unwrap_err()).starts_with("Template is nothing but whitespace: "));
    fs::write(&path, "one").unwrap();
    let one = get().unwrap();
    assert_eq!(&*one.text, "one");
    // The same size, and possibly the same tick of the clock.
    fs::write(&path, "two").unwrap();
    assert_eq!(&*get().unwrap().text, "two");
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert_eq!(
        get().unwrap_err(),
        Unusable::Failed("not UTF-8 from byte 0".to_owned())
    );
    // A settled file is not reread.
    fs::write(&path, "old").unwrap();
    let long_ago =
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    let old = get().unwrap();
    assert!(Arc::ptr_eq(&old, &get().unwrap()));
}

#[test]
fn an_edit_takes_effect_after_the_cache_expires() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let templates = Templates::default();
    let path = dir.path().join("x.sls");
    let reference = path.to_str().unwrap();
    let open = || {
        let mut notes = Vec::new();
        let opened = templates.open(reference, "t", &settings, &no_salt(), &mut notes);
        (
            opened
                .first()
                .map(|(_, template)| template.as_ref().unwrap().text.to_string()),
            notes.len(),
        )
    };
    let write = |text: &str| {
        fs::write(&path, text).unwrap();
        let long_ago =
            std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
    };
    assert_eq!(open(), (None, 1));
    write("one");
    assert_eq!(open(), (Some("one".to_owned()), 0));
    write("two");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while open().0.as_deref() != Some("two") {
        assert!(
            std::time::Instant::now() < deadline,
            "the edit has no effect"
        );
    }
    fs::remove_file(&path).unwrap();
    while open() != (None, 1) {
        assert!(
            std::time::Instant::now() < deadline,
            "the removal has no effect"
        );
    }
}

/// A file server whose other backends have the files of a directory; records the requests.
struct Fetching(PathBuf, Mutex<Vec<String>>);

impl Salt for Fetching {
    fn fetch(&self, reference: &str) -> Result<Option<PathBuf>, SaltError> {
        self.1.lock().push(reference.to_owned());
        let name = reference
            .trim_start_matches("salt://")
            .split('?')
            .next()
            .unwrap();
        Ok(Some(self.0.join(name)).filter(|path| path.is_file()))
    }
}

#[test]
fn files_of_other_backends_are_fetched_or_cause_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for (name, text) in [
        ("base/a.sls", "roots"),
        ("git/a.sls", "git"),
        ("git/d/b.sls", "git"),
    ] {
        write(root, name, text);
    }
    let salt = Fetching(root.join("git"), Mutex::default());
    let check = |reference: &str, roots_first: bool, expected: Option<&str>, asked: &[&str]| {
        let beyond = BeyondRoots {
            what: "fileserver_backend: [roots, git]".to_owned(),
            roots_first,
        };
        let settings = FileSettings {
            beyond_roots: Some(beyond),
            ..settings(root)
        };
        let mut notes = Vec::new();
        let found = resolve(reference, "t", &settings, &salt, &mut notes);
        let source = found.first().map(|found| found.source.clone());
        assert_eq!(
            source,
            expected.map(|source| root.join(source)),
            "{reference}"
        );
        assert_eq!(std::mem::take(&mut *salt.1.lock()), asked, "{reference}");
        // Without Salt's Python there is also an error.
        let without = resolve(reference, "t", &settings, &NoSalt, &mut notes);
        if !asked.is_empty() {
            assert!(without.is_empty());
            let why = notes.iter().find_map(|note| note.cause.clone()).unwrap();
            assert!(
                why.contains("fileserver_backend") && why.contains("reactor.python"),
                "{why}"
            );
        }
    };
    check("salt://a.sls", true, Some("base/a.sls"), &[]);
    check(
        "salt://a.sls",
        false,
        Some("git/a.sls"),
        &["salt://a.sls?saltenv=base"],
    );
    check(
        "salt://d//b.sls?saltenv=dev",
        true,
        Some("git/d/b.sls"),
        &["salt://d/b.sls?saltenv=dev"],
    );
    check("salt://none", true, None, &["salt://none?saltenv=base"]);
    check("salt://../secret", true, None, &[]);
}
