//! Warnings that Salt lacks; the conformance cases check the calls.

use salt_sls::yaml;

use super::*;
use crate::reactor::NoSalt;

fn notes(chunk: &str) -> Vec<String> {
    let master = SaltMaster::read(std::path::Path::new("/no/such/master"));
    let settings = DispatchSettings::of(&master);
    let dispatch = Dispatch {
        settings: &settings,
        salt: &NoSalt,
        pool_full: false,
    };
    let Value::Map(chunk) = yaml::load(chunk).unwrap() else {
        panic!("a chunk is a mapping")
    };
    let mut notes = Vec::new();
    dispatch.call(chunk, &mut notes);
    notes.iter().map(ToString::to_string).collect()
}

#[test]
fn silent_mistakes_cause_warnings_with_file_and_id() {
    let check = |rest: &str, expected: &[&str]| {
        let chunk = format!(
            "{{state: local, __id__: i, __sls__: /f.sls, name: i, fun: a.b, tgt: t, order: 1, {rest}}}"
        );
        let expected: Vec<String> = expected
            .iter()
            .map(|what| format!("/f.sls: ID 'i': {what}"))
            .collect();
        assert_eq!(notes(&chunk), expected, "{rest}");
    };
    check(
        "arg: [a], kwarg: {b: c}, ret: smtp, require: [], metadata: {}",
        &[],
    );
    check("args: {x: 1}, mods: y", &[]);
    check(
        "expr_form: grain",
        &["`expr_form` is ignored and the target is a glob; use `tgt_type`"],
    );
    check(
        "kwarg: [{a: b}]",
        &["`kwarg` is not a mapping and is ignored; use `args`, or one mapping"],
    );
    check(
        "arg: text",
        &["`arg` is a string, so each character is an argument; use a list"],
    );
    check(
        "mods: x, queue: true",
        &[
            "`mods`, `queue` next to the target are not passed to the function; put them below `args`",
        ],
    );
}

#[test]
fn an_unknown_type_names_its_file() {
    let found =
        notes("{state: Local, __id__: i, __sls__: /f.sls, name: i, fun: a.b, tgt: t, order: 1}");
    assert_eq!(
        found,
        [
            "ReactWrap is missing a wrapper function for 'Local': /f.sls: ID 'i': unknown reaction type `Local`, \
          expected local, runner, wheel or caller"
        ]
    );
}

#[test]
fn the_old_form_without_salts_python_names_the_option() {
    let found = notes(
        "{state: wheel, __id__: i, __sls__: /f.sls, name: i, fun: key.accept, match: m, order: 1}",
    );
    let [one] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(
        one.contains("failed to execute wheel 'key.accept'") && one.contains("reactor.python"),
        "{one}"
    );
}
