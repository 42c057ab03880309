//! References and templates in temporary directories.

use super::*;

fn settings(root: &Path) -> FileSettings {
    let mut roots = Roots::new();
    roots.insert("base".to_owned(), vec![root.join("base"), root.join("more")]);
    roots.insert("__env__".to_owned(), vec![root.join("envs/__env__")]);
    FileSettings {
        roots,
        saltenv: "base".to_owned(),
        cachedir: "/cache".to_owned(),
        ignored: vec![Glob::new("*.swp")],
        beyond_roots: None,
        renderers: RendererSettings { default: "jinja|yaml".to_owned(), ..Default::default() },
    }
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn salt_references_look_through_the_roots() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for name in
        ["base/a.sls", "more/a.sls", "more/b.sls", "envs/dev/a.sls", "more/x.swp", "base/d/f", "secret"]
    {
        write(root, name, "x");
    }
    let settings = settings(root);
    let check = |reference: &str, expected: Option<(&str, &str)>| {
        let mut notes = Vec::new();
        let found = resolve(reference, "t", &settings, &mut notes);
        let found = found.first().map(|found| (found.path.clone(), found.source.clone()));
        let expected = expected.map(|(shown, source)| (shown.to_owned(), root.join(source)));
        assert_eq!(found, expected, "{reference}");
        assert_eq!(notes.len(), if found.is_some() { 0 } else { 2 }, "{notes:?}");
    };
    check("salt://a.sls", Some(("/cache/files/base/a.sls", "base/a.sls")));
    check("salt://b.sls", Some(("/cache/files/base/b.sls", "more/b.sls")));
    check("salt://a.sls?saltenv=dev", Some(("/cache/files/dev/a.sls", "envs/dev/a.sls")));
    check("salt://b.sls?saltenv=dev", None);
    check("salt://./d//f", Some(("/cache/files/base/d/f", "base/d/f")));
    check("salt://x.swp", None);
    check("salt://d", None);
    check("salt://*.sls", None);
    check("salt://../secret", None);
    check("salt:///etc/passwd", None);
    check("salt://", None);
}

#[test]
fn missing_files_are_told_in_salt_s_words() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let told = |reference: &str| {
        let mut notes = Vec::new();
        assert!(resolve(reference, "a/tag", &settings, &mut notes).is_empty());
        notes.into_iter().map(|note| note.message).collect::<Vec<_>>()
    };
    assert_eq!(told("/no/x.sls"), ["Can not render SLS /no/x.sls for tag a/tag. File missing or not found."]);
    assert_eq!(
        told("salt://no.sls?saltenv=qa"),
        [
            "Unable to cache file 'salt://no.sls' from saltenv 'qa'.",
            "Can not render SLS  for tag a/tag. File missing or not found."
        ]
    );
}

#[test]
fn a_template_is_read_again_when_its_file_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sls");
    let found = Found { path: path.display().to_string(), source: path.clone(), remote: None };
    let settings = settings(dir.path());
    let templates = Templates::default();
    let get = || templates.get(&found, &settings.renderers);
    let told = |unusable: Unusable| match unusable {
        Unusable::Told(note) => note.message,
        other => format!("{other:?}"),
    };
    assert!(told(get().unwrap_err()).starts_with("Template does not exist: "));
    fs::write(&path, "").unwrap();
    assert_eq!(get().unwrap_err(), Unusable::Empty);
    fs::write(&path, " \n\t").unwrap();
    assert!(told(get().unwrap_err()).starts_with("Template is nothing but whitespace: "));
    fs::write(&path, "one").unwrap();
    let one = get().unwrap();
    assert_eq!(&*one.text, "one");
    // Same size, and within one tick of the clock perhaps.
    fs::write(&path, "two").unwrap();
    assert_eq!(&*get().unwrap().text, "two");
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert_eq!(get().unwrap_err(), Unusable::Failed("not UTF-8 from byte 0".to_owned()));
    // A file that has settled is not read again.
    fs::write(&path, "old").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    let old = get().unwrap();
    assert!(Arc::ptr_eq(&old, &get().unwrap()));
}

#[test]
fn an_edit_shows_when_the_moment_of_trust_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let templates = Templates::default();
    let path = dir.path().join("x.sls");
    let reference = path.to_str().unwrap();
    let open = || {
        let mut notes = Vec::new();
        let opened = templates.open(reference, "t", &settings, &mut notes);
        (opened.first().map(|(_, template)| template.as_ref().unwrap().text.to_string()), notes.len())
    };
    let write = |text: &str| {
        fs::write(&path, text).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    };
    assert_eq!(open(), (None, 1));
    write("one");
    assert_eq!(open(), (Some("one".to_owned()), 0));
    write("two");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while open().0.as_deref() != Some("two") {
        assert!(std::time::Instant::now() < deadline, "the edit never shows");
    }
    fs::remove_file(&path).unwrap();
    while open() != (None, 1) {
        assert!(std::time::Instant::now() < deadline, "the removal never shows");
    }
}
