//! What Salt does not say and this program does; what calls look like is held by the conformance cases.

use super::*;
use crate::sls::yaml;

fn notes(chunk: &str) -> Vec<String> {
    let master = SaltMaster::read(std::path::Path::new("/no/such/master"));
    let settings = DispatchSettings::of(&master);
    let dispatch = Dispatch { settings: &settings, signatures: Signatures::built_in(), pool_full: false };
    let Value::Map(chunk) = yaml::load(chunk).unwrap() else { panic!("a chunk is a mapping") };
    let mut notes = Vec::new();
    dispatch.call(chunk, &mut notes);
    notes.iter().map(ToString::to_string).collect()
}

#[test]
fn silent_mistakes_are_warned_about_by_file_and_id() {
    let check = |rest: &str, expected: &[&str]| {
        let chunk = format!(
            "{{state: local, __id__: i, __sls__: /f.sls, name: i, fun: a.b, tgt: t, order: 1, {rest}}}"
        );
        let expected: Vec<String> = expected.iter().map(|what| format!("/f.sls: ID 'i': {what}")).collect();
        assert_eq!(notes(&chunk), expected, "{rest}");
    };
    check("arg: [a], kwarg: {b: c}, ret: smtp, require: [], metadata: {}", &[]);
    check("args: {x: 1}, mods: y", &[]);
    check("expr_form: grain", &["`expr_form` is not used: the target is taken as a glob; write `tgt_type`"]);
    check("kwarg: [{a: b}]", &["`kwarg` is no mapping and is not used; write `args`, or one mapping"]);
    check("arg: text", &["`arg` is text, of which every character is an argument; write a list"]);
    check(
        "mods: x, queue: true",
        &["`mods`, `queue` given beside the target reach no function; write them below `args`"],
    );
}

#[test]
fn an_unknown_type_names_its_file() {
    let told = notes("{state: Local, __id__: i, __sls__: /f.sls, name: i, fun: a.b, tgt: t, order: 1}");
    assert_eq!(
        told,
        [
            "ReactWrap is missing a wrapper function for 'Local': /f.sls: ID 'i': `Local` is no reaction type; there are \
          local, runner, wheel and caller"
        ]
    );
}
