//! Configurations in temporary directories, compared with the results of Salt's loader.

use salt_sls::yaml;

use super::*;

fn read(files: &[(&str, &str)]) -> (tempfile::TempDir, SaltMaster) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let master = SaltMaster::read(&dir.path().join("master"));
    (dir, master)
}

fn messages(master: &SaltMaster) -> Vec<&str> {
    master
        .notes
        .iter()
        .map(|note| note.message.as_str())
        .collect()
}

#[test]
fn without_files_salts_defaults_apply() {
    let (_dir, master) = read(&[]);
    assert_eq!(master.cachedir, Path::new("/var/cache/salt/master"));
    assert_eq!(
        master.key_file(),
        Path::new("/var/cache/salt/master/.root_key")
    );
    assert_eq!(master.text("renderer"), Some("jinja|yaml"));
    assert_eq!(master.int("ret_port"), Some(4506));
    assert_eq!(
        master.file_roots.get("base").unwrap()[0],
        Path::new("/srv/salt")
    );
    assert!(master.id.ends_with("_master"));
    assert!(master.files.is_empty());
    assert!(master.notes.is_empty(), "{:?}", master.notes);
    assert!(!master.runs_reactor());
}

#[test]
fn included_lists_are_merged_and_replace_the_main_files() {
    let (_dir, master) = read(&[
        (
            "master",
            "id: m\nreactor:\n- main: [/main.sls]\nnodegroups: {a: x}\n",
        ),
        (
            "master.d/b.conf",
            "reactor:\n- b: [/b.sls]\n- a: [/a.sls]\nnodegroups: {b: y}\n",
        ),
        (
            "master.d/a.conf",
            "reactor:\n- a: [/a.sls]\nnodegroups: {c: z}\n",
        ),
        ("master.d/ignored.txt", "id: wrong\n"),
    ]);
    let expected = yaml::load("[{a: [/a.sls]}, {b: [/b.sls]}]").unwrap();
    assert_eq!(master.option("reactor"), Some(&expected));
    assert_eq!(
        master.option("nodegroups"),
        Some(&yaml::load("{c: z, b: y}").unwrap())
    );
    assert_eq!(master.id, "m");
    assert_eq!(master.files.len(), 3);
    assert!(master.runs_reactor());
}

#[test]
fn include_is_relative_to_its_file_and_warns_without_a_match() {
    let (dir, master) = read(&[
        ("master", "include: [extra/*.conf, none/*]\nuser: salt\n"),
        ("extra/one.conf", "include: deeper/two.conf\nid: 5\n"),
        ("extra/deeper/two.conf", "timeout: 9\n"),
    ]);
    assert_eq!(master.id, "5");
    assert_eq!(master.int("timeout"), Some(9));
    assert_eq!(
        master.key_file(),
        Path::new("/var/cache/salt/master/.salt_key")
    );
    let none = format!(
        "Warning parsing configuration file: \"include\" path/glob '{}/none/*' matches no files",
        dir.path().display()
    );
    assert_eq!(messages(&master), [none]);
}

#[test]
fn root_dir_is_prepended_to_paths_outside_of_it() {
    let (_dir, master) = read(&[(
        "master",
        "root_dir: /tmp/r\ncachedir: /tmp/r/c\nsock_dir: s\npki_dir: /p\n",
    )]);
    assert_eq!(master.cachedir, Path::new("/tmp/r/c"));
    assert_eq!(master.sock_dir, Path::new("/tmp/r/s"));
    assert_eq!(master.pki_dir, Path::new("/tmp/r/p"));
}

#[test]
fn values_of_a_wrong_type_are_used() {
    let (_dir, master) = read(&[(
        "master",
        "reactor: /etc/salt/map\ntimeout: '7'\norder_masters: yes\nrenderer: [a]\nnodegroups: [{a: x}, {b: y}]\n\
         saltenv: 5\nret_port: true\n",
    )]);
    assert_eq!(messages(&master), [""; 0]);
    assert_eq!(master.option("reactor"), Some(&"/etc/salt/map".into()));
    assert_eq!(
        master.option("nodegroups"),
        Some(&yaml::load("{a: x, b: y}").unwrap())
    );
}

#[test]
fn an_unreadable_file_is_reported_and_the_others_are_used() {
    let (_dir, master) = read(&[
        ("master", "id: m\n"),
        ("master.d/a.conf", "id: [\n"),
        ("master.d/b.conf", "- a list\n"),
        ("master.d/c.conf", "timeout: 8\n"),
    ]);
    assert_eq!(master.int("timeout"), Some(8));
    let levels: Vec<NoteLevel> = master.notes.iter().map(|note| note.level).collect();
    assert_eq!(levels, [NoteLevel::Error, NoteLevel::Error]);
    assert!(master.notes.iter().all(|note| {
        note.message
            .starts_with("Error parsing configuration file: ")
    }));
}

#[test]
fn file_roots_have_text_names_and_lists() {
    let (_dir, master) = read(&[(
        "master",
        "file_roots:\n  base: [/a, /b]\n  1: [/c]\n  odd: /d\n",
    )]);
    let envs: Vec<(&str, usize)> = master
        .file_roots
        .iter()
        .map(|(env, dirs)| (env.as_str(), dirs.len()))
        .collect();
    assert_eq!(envs, [("base", 2), ("1", 1), ("odd", 0)]);
}

#[test]
fn engines_can_name_the_reactor() {
    let (_dir, master) = read(&[(
        "master",
        "engines:\n- logstash: {a: 1}\n- reactor: {worker_threads: 3}\n",
    )]);
    assert!(master.runs_reactor());
}

#[test]
fn a_longer_engine_name_disables_salts_reactor_and_lets_salt_run_ask() {
    let check = |text: &str, runs: bool, asks: bool| {
        let (_dir, master) = read(&[("master", text)]);
        assert_eq!(
            (master.runs_reactor(), master.sends_reactor_requests()),
            (runs, asks),
            "{text}"
        );
    };
    check("id: m\n", false, false);
    check("reactor: [{a: [/a]}]\n", true, true);
    check("reactor: [{a: [/a]}]\nengines: [logstash]\n", true, false);
    check(
        "reactor: [{a: [/a]}]\nengines: [saltcellar-reactor]\n",
        false,
        true,
    );
    check(
        "engines: [{logstash: {}}, saltcellar-reactor]\n",
        false,
        true,
    );
    check("engines: [saltcellar-reactor, reactor]\n", true, true);
    check("engines: {saltcellar-reactor: {}}\n", false, true);
    // In a mapping the master compares the exact name.
    check(
        "reactor: [{a: [/a]}]\nengines: {saltcellar-reactor: {}}\n",
        true,
        true,
    );
    check("engines: [{mine: {engine_module: reactor}}]\n", true, false);
    check(
        "engines: [{reactor: {engine_module: other}}]\n",
        false,
        true,
    );
}

#[test]
fn a_planned_file_is_read_in_its_place_and_a_removed_one_is_not() {
    let (dir, master) = read(&[
        ("master", "id: m\n"),
        ("master.d/b.conf", "timeout: 8\nid: b\n"),
    ]);
    assert_eq!((master.id.as_str(), master.int("timeout")), ("b", Some(8)));
    let with = |name: &str, text| {
        SaltMaster::read_with(
            &dir.path().join("master"),
            &dir.path().join("master.d").join(name),
            text,
        )
    };
    let planned = with("a.conf", Some("id: a\ntimeout: 9\nuser: a\n"));
    assert_eq!(
        (
            planned.id.as_str(),
            planned.int("timeout"),
            planned.user.as_str()
        ),
        ("b", Some(8), "a")
    );
    assert_eq!(planned.files.len(), 3);
    assert_eq!(with("c.conf", Some("id: c\n")).id, "c");
    assert_eq!(with("b.conf", Some("id: new\n")).id, "new");
    assert_eq!(
        (
            with("b.conf", None).id.as_str(),
            with("b.conf", None).files.len()
        ),
        ("m", 1)
    );
    let ids = planned.option_by_file("id");
    let names: Vec<_> = ids
        .iter()
        .map(|(file, _)| file.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(names, ["master", "b.conf"], "existing files only");
}

#[test]
fn accepted_keys_are_files_unless_a_driver_is_configured() {
    let keys = |text: &str| read(&[("master", text)]).1.accepted_keys();
    assert_eq!(keys("pki_dir: /p\n"), AcceptedKeys::Files("/p".into()));
    assert_eq!(
        keys("pki_dir: /p\nkeys.cache_driver: localfs_key\n"),
        AcceptedKeys::Files("/p".into())
    );
    assert_eq!(
        keys("cluster_id: c\ncluster_pki_dir: /shared\n"),
        AcceptedKeys::Files("/shared".into())
    );
    assert_eq!(
        keys("pki_dir: /p\ncluster_pki_dir: /shared\n"),
        AcceptedKeys::Files("/p".into())
    );
    assert_eq!(
        keys("keys.cache_driver: mmap_key\n"),
        AcceptedKeys::Driver("mmap_key".into())
    );
}

#[test]
fn a_minion_has_its_own_defaults_and_starts_the_configured_engines() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("minion");
    std::fs::create_dir(dir.path().join("minion.d")).unwrap();
    std::fs::write(&file, "id: web1\nfile_client: local\n").unwrap();
    std::fs::write(dir.path().join("minion.d/r.conf"), "reactor: [{a: [/a]}]\n").unwrap();
    let minion = SaltMaster::read_as(&file, Role::Minion);
    assert_eq!(
        (minion.role, minion.id.as_str(), minion.files.len()),
        (Role::Minion, "web1", 2)
    );
    assert_eq!(minion.sock_dir, Path::new("/var/run/salt/minion"));
    assert_eq!(minion.cachedir, Path::new("/var/cache/salt/minion"));
    assert!(minion.flag("reactor") && !minion.runs_reactor());
    std::fs::write(dir.path().join("minion.d/e.conf"), "engines: [reactor]\n").unwrap();
    assert!(SaltMaster::read_as(&file, Role::Minion).runs_reactor());
    let bare = SaltMaster::read_as(&dir.path().join("none"), Role::Minion);
    assert!(!bare.id.ends_with("_master"));
    assert_eq!(bare.text("file_client"), Some("remote"));
}

#[test]
fn a_large_generated_file_is_read_as_salt_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master");
    // Larger than any configuration of saltcellar may be.
    let comment = "# a generated line\n".repeat(120_000);
    std::fs::write(&path, format!("{comment}sock_dir: /s\n")).unwrap();

    let salt = SaltMaster::read(&path);
    assert_eq!(salt.notes, []);
    assert_eq!(salt.sock_dir, Path::new("/s"));
}
