//! `reactor lint` with Salt's Python.

use serde_json::Value as Json;

use crate::cli::in_process::{cli, stdout};
use crate::daemon::in_process::Cellar;

const CHECKED: [(&str, &str, &str, &str); 11] = [
    ("jinja", "{% if %}\n", "broken", "Jinja syntax error"),
    ("filter", "a: {{ 1 | nothing }}\n", "broken", "nothing"),
    ("py", "#!py\ndef run(:\n", "broken", "SyntaxError"),
    (
        "ran",
        "#!py\nopen('DIR/ran', 'w')\ndef run():\n    return {}\n",
        "not native",
        "does not run it",
    ),
    ("yamlex", "#!yamlex\na: [\n", "broken", "expected"),
    ("yaml", "a: [\n", "broken", "did not find expected"),
    (
        "kind",
        "a: {locl.test.ping: [{tgt: x}]}\n",
        "broken",
        "unknown reaction type",
    ),
    (
        "renderer",
        "#!jinja|nope\na: {}\n",
        "broken",
        "not available",
    ),
    (
        "called",
        "{% do salt['cmd.run']('touch DIR/ran') %}\na: {}\n",
        "not native",
        "does not call salt['cmd.run']",
    ),
    (
        "data",
        "{% macro m(x) %}{{ x }}{% endmacro %}a: {{ m(data['list'].x) }}\n",
        "not native",
        "",
    ),
    (
        "good",
        "a: {local.test.ping: [{tgt: {{ data['id'] }}}]}\n",
        "ok",
        "",
    ),
];

#[test]
#[ignore = "needs SALTCELLAR_SALT_PYTHON; a part of make test-sls"]
fn a_check_finds_errors_that_need_no_event_and_runs_nothing_of_the_site() {
    let python = std::env::var("SALTCELLAR_SALT_PYTHON").expect("it names Salt's Python");
    let cellar = Cellar::start();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display().to_string();
    let mut rules = String::new();
    for (name, text, ..) in CHECKED {
        std::fs::write(
            dir.path().join(format!("{name}.sls")),
            text.replace("DIR", &at),
        )
        .unwrap();
        rules.extend(["  - 'x/", name, "': ", &at, "/", name, ".sls\n"]);
    }
    let master = dir.path().join("master");
    std::fs::write(&master, format!("root_dir: {at}\nreactor:\n{rules}")).unwrap();

    let check = || {
        let of_salt = ["--salt-config", &at, "--salt-python", &python];
        let lint = ["--output", "json", "reactor", "lint"];
        stdout(&cli(&cellar, &[lint, of_salt].concat()))
    };
    let shown = check();
    let found: Json = serde_json::from_str(&shown).unwrap();
    for (name, _, state, why) in CHECKED {
        let rows = found["files"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["rule"] == format!("x/{name}"))
            .unwrap();
        assert_eq!(row["state"], state, "{row}");
        assert!(row["why"].as_str().unwrap().contains(why), "{row}");
    }
    let says = "data.sls (x/data): it is compiled, but does not render";
    assert!(shown.contains(says), "{shown}");
    assert!(!dir.path().join("ran").exists());
    // `#!py`, of which one cannot be compiled.
    let says = "2 files are programs, for which Salt waits without limit: each may take 10m here (reactor.program_timeout)";
    assert!(shown.contains(says), "{shown}");

    // With a `yaml` of the site, which is not run either, the file that was fine is not rendered here.
    let replaced = format!("def render(*args, **kwargs):\n    open('{at}/ran', 'w')\n");
    std::fs::create_dir_all(dir.path().join("ext/renderers")).unwrap();
    std::fs::write(dir.path().join("ext/renderers/yaml.py"), replaced).unwrap();
    let rules = format!(
        "root_dir: {at}\nextension_modules: {at}/ext\nreactor:\n  - 'x/good': {at}/good.sls\n"
    );
    std::fs::write(&master, rules).unwrap();
    let shown = check();
    let found: Json = serde_json::from_str(&shown).unwrap();
    let row = &found["files"][0];
    assert_eq!(row["state"], "not native", "{row}");
    assert!(row["why"].as_str().unwrap().contains("yaml"), "{row}");
    let says = "1 file is a program, for which Salt waits without limit: it may take 10m here";
    assert!(shown.contains(says), "{shown}");
    assert!(!dir.path().join("ran").exists());
}
