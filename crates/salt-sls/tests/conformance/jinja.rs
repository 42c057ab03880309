//! Templates with Salt's results: native renderings equal them.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use salt_sls::jinja::{
    Ambient, Context, Data, Engine, EngineOptions, NoFunctions, RenderError, RenderErrorKind,
    RenderLimits, SaltFunctions, Source,
};
use salt_sls::{Key, Map, Value, yaml};
use serde_json::Value as Json;

use crate::json_form::read;
use crate::lines;

fn map(pairs: &[(&str, &str)]) -> Arc<Value> {
    Arc::new(Value::Map(
        pairs
            .iter()
            .map(|(key, of)| (Key::from(*key), Value::from(*of)))
            .collect(),
    ))
}

pub(crate) fn ambient() -> Arc<Ambient> {
    Arc::new(Ambient::new(
        map(&[
            ("id", "saltmaster_master"),
            ("kernel", "Linux"),
            ("os", "Debian"),
        ]),
        map(&[
            ("id", "saltmaster_master"),
            ("file_client", "local"),
            ("__role", "master"),
        ]),
        false,
    ))
}

fn no_functions() -> Arc<dyn SaltFunctions> {
    Arc::new(NoFunctions)
}

pub(crate) fn engine(options: &Value) -> Engine {
    engine_with(options, RenderLimits::default())
}

/// A thirtieth of the limits, which a debug build reaches quickly.
const FEW: RenderLimits = RenderLimits {
    steps: 60_000,
    bytes: 2 << 20,
};

fn engine_with(options: &Value, limits: RenderLimits) -> Engine {
    let options = options.as_map().cloned().unwrap_or_default();
    let jinja_env = options
        .get("jinja_env")
        .and_then(|env| env.as_map())
        .cloned()
        .unwrap_or_default();
    Engine::new(EngineOptions {
        jinja_env,
        allow_undefined: options.get("allow_undefined").is_some_and(Value::truthy),
        limits,
        functions: [
            "pillar.get",
            "grains.get",
            "environ.get",
            "test.ping",
            "log.info",
        ]
        .map(str::to_owned)
        .to_vec(),
    })
}

/// The difference of a native rendering from Salt's result. A template that is not native has none.
pub(crate) fn difference(
    got: &Result<String, RenderError>,
    expected: Option<&str>,
) -> Option<String> {
    match (got, expected) {
        (Ok(text), Some(expected)) if text == expected => None,
        (Ok(text), Some(expected)) => Some(format!("renders {text:?}, Salt {expected:?}")),
        (Ok(text), None) => Some(format!("renders {text:?}, Salt fails")),
        (Err(error), _) if error.not_native() => None,
        (Err(error), _) => Some(format!("fails with {error}, which is not `not native`")),
    }
}

/// `tests/lab/jinja_oracle.py` writes this file by running Salt. Most rows test rare filters, which are not native.
#[test]
fn expressions_render_as_in_salt() {
    let mut lines = lines("jinja-3008.3.jsonl").into_iter();
    let first = lines.next().unwrap();
    let (ambient, salt) = (ambient(), no_functions());
    let (mut count, mut native, mut wrong) = (0, 0, Vec::new());
    for case in lines {
        count += 1;
        let engine = engine(&read(&case["opts"]));
        let data = Data::from_value(&read(&first["data"]));
        let context = Context {
            tag: "test/tag",
            data: &data,
            ambient: &ambient,
            salt: &salt,
        };
        let text = case["t"].as_str().unwrap();
        let got = engine
            .render(
                &Source {
                    path: "${ROOT}/srv/reactor/r.sls",
                    text,
                },
                &context,
            )
            .map(|rendered| rendered.text);
        native += usize::from(got.is_ok());
        wrong
            .extend(difference(&got, case["text"].as_str()).map(|what| format!("{text:?} {what}")));
    }
    assert!(count > 1500, "only {count} expressions");
    println!("{native} of {count} native");
    assert!(
        native * 100 > count * 15,
        "only {native} of {count} are native"
    );
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Native functions that return their default.
struct Defaults;

impl SaltFunctions for Defaults {
    fn call(&self, fun: &str, args: &[Value], _: &Map) -> Option<Value> {
        match (fun, args) {
            ("log.info", _) => Some(Value::Bool(true)),
            ("pillar.get" | "environ.get", [_, default]) => Some(default.clone()),
            _ => None,
        }
    }
}

/// Files in the style of public repositories; `tests/lab/jinja_oracle.py` writes Salt's results.
#[test]
fn realistic_files_are_native() {
    let mut lines = lines("realistic.jsonl").into_iter();
    let first = lines.next().unwrap();
    let engine = engine(&Value::Null);
    let (ambient, salt): (_, Arc<dyn SaltFunctions>) = (ambient(), Arc::new(Defaults));
    let (mut not_native, mut wrong, mut count) = (Vec::new(), Vec::new(), 0);
    for case in lines {
        count += 1;
        let data = Data::from_value(&read(&first["data"]));
        let context = Context {
            tag: "test/tag",
            data: &data,
            ambient: &ambient,
            salt: &salt,
        };
        let (path, text) = (case["name"].as_str().unwrap(), case["t"].as_str().unwrap());
        let got = engine
            .render(&Source { path, text }, &context)
            .map(|rendered| rendered.text);
        if let Some(what) = difference(&got, case["text"].as_str()) {
            wrong.push(format!("{path}: {what}"));
        }
        not_native.extend(got.err().map(|error| error.to_string()));
    }
    assert!(
        count >= 60 && wrong.is_empty(),
        "{count} files, differences:\n{}",
        wrong.join("\n")
    );
    assert!(
        not_native.len() * 20 <= count,
        "{} of {count}:\n{}",
        not_native.len(),
        not_native.join("\n")
    );
}

/// A part of `make fuzz-sls`: renders the templates of `$SLS_FUZZ/templates.jsonl`, and writes those that are native to `native.jsonl`.
#[test]
#[ignore = "a part of make fuzz-sls"]
fn write_native_renderings() {
    let dir = PathBuf::from(std::env::var_os("SLS_FUZZ").expect("SLS_FUZZ names a directory"));
    let lines = fs::read_to_string(dir.join("templates.jsonl")).unwrap();
    let mut lines = lines.lines();
    let first = lines.next().unwrap();
    let json: Json = serde_json::from_str(first).unwrap();
    let data = read(&json["data"]);
    let (ambient, salt) = (ambient(), no_functions());
    let plain = engine(&Value::Null);
    let (mut out, mut count) = (format!("{first}\n"), 0);
    for line in lines {
        count += 1;
        let mut case: Json = serde_json::from_str(line).unwrap();
        let own = case.get("opts").map(|opts| engine(&read(opts)));
        let data = Data::from_value(&data);
        let context = Context {
            tag: "test/tag",
            data: &data,
            ambient: &ambient,
            salt: &salt,
        };
        let source = Source {
            path: "r.sls",
            text: case["t"].as_str().unwrap(),
        };
        match own.as_ref().unwrap_or(&plain).render(&source, &context) {
            Ok(rendered) => {
                case["native"] = rendered.text.into();
                out.push_str(&case.to_string());
                out.push('\n');
            }
            Err(error) => assert!(!error.message.is_empty(), "{source:?}"),
        }
    }
    println!(
        "{} of {count} templates are native",
        out.lines().count() - 1
    );
    fs::write(dir.join("native.jsonl"), out).unwrap();
}

/// An event of one minion.
fn web1() -> Data {
    Data::from_value(&yaml::load("{id: web1}").unwrap())
}

fn rendered(text: &str) -> Result<String, RenderError> {
    rendered_within(RenderLimits::default(), text)
}

fn rendered_within(limits: RenderLimits, text: &str) -> Result<String, RenderError> {
    let engine = engine_with(&Value::Null, limits);
    let data = web1();
    let (ambient, salt) = (Arc::new(Ambient::default()), no_functions());
    let context = Context {
        tag: "salt/key",
        data: &data,
        ambient: &ambient,
        salt: &salt,
    };
    engine
        .render(
            &Source {
                path: "r.sls",
                text,
            },
            &context,
        )
        .map(|rendered| rendered.text)
}

/// The template exceeds a limit or is not native; Salt's process has different limits.
fn assert_bounded(text: &str) {
    let error = rendered_within(FEW, text).expect_err(text);
    assert!(
        error.kind == RenderErrorKind::Limit || error.not_native(),
        "{text}: {error}"
    );
}

#[test]
fn time_and_memory_of_a_template_are_limited() {
    for text in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'x' * 999999999999 }}",
        "{{ [1] * 999999999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.ljust(9999999999) }}",
        "{{ 'x'|center(9999999999) }}",
        "{{ 'x\ny'|indent(9999999999) }}",
        "{{ range(9999)|product(range(9999), range(9999))|list }}",
        "{{ range(60)|permutations|list }}",
        "{{ range(60)|combinations(30)|list }}",
        "{{ lipsum(999999999) }}",
        "{{ '10.0.0.0/8'|network_hosts }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    ] {
        assert_bounded(text);
    }
}

#[test]
fn limits_are_the_documented_ones_or_those_of_the_options() {
    let RenderLimits { steps, bytes } = RenderLimits::default();
    assert_eq!((steps, bytes), (2_000_000, 64 << 20));
    for (text, stated) in [
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            format!("{steps} steps"),
        ),
        ("{{ 'x' * 99999999 }}", format!("{bytes} bytes")),
    ] {
        let error = rendered(text).expect_err(text);
        assert!(
            error.kind == RenderErrorKind::Limit && error.to_string().contains(&stated),
            "{error}"
        );
        let error = rendered_within(FEW, text).expect_err(text);
        assert!(
            error.kind == RenderErrorKind::Limit && !error.to_string().contains(&stated),
            "{error}"
        );
    }
}

#[test]
fn loops_with_much_output_exceed_a_limit() {
    for text in [
        format!("{{% for a in range(9999) %}}{{% for b in range(9999) %}}{}{{% endfor %}}{{% endfor %}}", "x".repeat(4096)),
        "{% set l = [] %}{% for a in range(9999) %}{% do l.append('x' * 100000) %}{% endfor %}".to_owned(),
        "{% set ns = namespace(v='xxxxxxxx') %}{% for a in range(40) %}{% set ns.v = ns.v + ns.v %}{% endfor %}".to_owned(),
        "{% set l = range(5000)|list %}{% for a in range(9999) %}{% set x = l == l %}{% endfor %}".to_owned(),
        "{% set l = range(5000)|list %}{% for a in range(9999) %}{% set x = l|sort %}{% endfor %}".to_owned(),
        "{% set t = 'xy' * 500000 %}{% for a in range(9999) %}{% set x = t.replace('x', 'z') %}{% endfor %}".to_owned(),
    ] {
        let error = rendered_within(FEW, &text).expect_err(&text);
        assert_eq!(error.kind, RenderErrorKind::Limit, "{text}: {error}");
    }
}

#[test]
fn templates_that_include_files_are_not_native() {
    for text in [
        "a\n{% include 'itself' %}",
        "a\n{% extends 'its parent' %}",
        "a\n{% import 'itself' as x %}",
        "a\n{% from 'itself' import x %}",
        "a\n{% import_yaml 'file' as x %}",
        "a\n{% macro m() %}{% endmacro %}",
    ] {
        let error = rendered(text).expect_err(text);
        assert!(error.not_native() && error.line == 2, "{text}: {error}");
    }
}

#[test]
fn unsupported_functions_of_salt_are_not_native() {
    for asks in [
        "'pkg.version' in salt",
        "salt['pkg.version']('x')",
        "salt.get('pkg.version')",
        "salt.pkg.version('x')",
        "salt['pillar.get'](data.id)",
    ] {
        let text = format!("a\n{{% set x = {asks} %}}");
        let error = rendered(&text).expect_err(asks);
        assert!(error.not_native() && error.line == 2, "{asks}: {error}");
    }
}

#[test]
fn values_with_shared_members_are_limited() {
    // Forty levels of two have 2^40 leaves.
    let nested = |open: &str, close: &str| {
        format!(
            "{{% set ns = namespace(v=(1, 2)) %}}{{% for i in range(40) %}}{{% set ns.v = {open}ns.v, ns.v{close} %}}{{% endfor %}}\
             {{% set v = ns.v %}}"
        )
    };
    for walk in [
        "v|pprint",
        "v|python",
        "{'k': v}|pprint",
        "v|json_encode_list",
        "v|json_decode_dict",
        "v|json",
        "v|tojson",
        "v|string",
        "v|flatten",
        "'%s' % [v]",
        "'{}'.format(v)",
    ] {
        for open in [("(", ")"), ("[", "]")] {
            let text = format!("{}{{{{ {walk} }}}}", nested(open.0, open.1));
            assert_bounded(&text);
        }
    }
    for key in [
        "{v: 1}",
        "{v: v}|pprint",
        "{v: 1} == {v: 1}",
        "v|unique|list",
        "{v: 1}|dictsort|list",
    ] {
        let text = format!("{}{{{{ {key} }}}}", nested("(", ")"));
        assert_bounded(&text);
    }
}

#[test]
fn padding_and_long_texts_are_limited() {
    for text in [
        "{{ {'a' * 1000000: range(3000)|list}|pprint }}",
        "{% set ns = namespace(v=[1]) %}{% for i in range(90) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v|tojson(indent=9000000) }}",
        "{% set v = 'x y ' * 100000 %}{% for i in range(9999) %}{% set x = v is upper %}{% endfor %}",
        "{% set v = range(5000)|list %}{% for i in range(9999) %}{% set x = v|last %}{% endfor %}",
        // Keys that differ deep inside are compared one by one.
        "{% set ns = namespace(v=[]) %}{% for i in range(2000) %}{% do ns.v.append(((i,),)) %}{% endfor %}{{ ns.v|unique|list }}",
    ] {
        assert_bounded(text);
    }
}

#[test]
fn nesting_is_limited() {
    let deep = |open: &str, middle: &str, close: &str, n: usize| {
        open.repeat(n) + middle + &close.repeat(n)
    };
    for text in [
        format!("{{{{ {} }}}}", deep("(", "1", ")", 50_000)),
        format!("{{{{ {} }}}}", deep("[", "1", "]", 50_000)),
        format!("{{{{ {} 1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(50_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(50_000)),
        format!("{{{{ x{} }}}}", ".x".repeat(50_000)),
        format!("{{{{ x{} }}}}", "|e".repeat(50_000)),
        deep("{% if 1 %}", "x", "{% endif %}", 50_000),
        "{% set ns = namespace(x=[]) %}{% for i in range(1500) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}".to_owned(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(1500) %}{% set ns.x = ns.x|map('string') %}{% endfor %}{{ ns.x|list }}".to_owned(),
    ] {
        let error = rendered(&text).expect_err("over the limit of depth");
        assert!(error.kind == RenderErrorKind::Limit || error.not_native(), "{error}");
    }
    // Deep values that are not traversed are permitted, and dropped without recursion.
    let text = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}x";
    assert_eq!(rendered(text).unwrap(), "x");
    let text = "{% set ns = namespace(x={}) %}{% for i in range(50000) %}{% set d = {} %}{% do ns.x.update(d=d) %}{% set ns.x = d %}{% endfor %}x";
    assert_eq!(rendered(text).unwrap(), "x");
}

#[test]
fn printed_collections_have_at_most_1_mib() {
    let text = |len: usize| format!("{{{{ ['x' * {len}, 'x' * {len}] }}}}");
    assert_eq!(rendered(&text(500_000)).unwrap().len(), 1_000_008);
    assert!(
        rendered(&text(600_000))
            .unwrap_err()
            .message
            .contains("1 MiB")
    );
}

#[test]
fn event_data_is_never_parsed_as_a_template() {
    let hostile = "{{ 1 + 1 }}{% set x = 2 %}{# c #}\n{{ salt['cmd.run']('id') }}";
    let data = Data::from_value(&Value::Map(Map::from_iter([
        (Key::from("x"), Value::from(hostile)),
        (Key::from("format"), Value::from("{0.__class__}")),
    ])));
    let (ambient, salt) = (Arc::new(Ambient::default()), no_functions());
    let context = Context {
        tag: hostile,
        data: &data,
        ambient: &ambient,
        salt: &salt,
    };
    let render = |text: &str| {
        engine(&Value::Null).render(
            &Source {
                path: "r.sls",
                text,
            },
            &context,
        )
    };
    for text in [
        "{{ data.x }}",
        "{{ tag }}",
        "{% set y = data.x ~ '' %}{{ y }}",
        "{{ '{}'.format(data['x']) }}",
        "{{ [tag]|first }}",
    ] {
        assert_eq!(render(text).unwrap().text, hostile, "{text}");
    }
    assert!(
        render("{{ data['format'].format(1) }}")
            .unwrap_err()
            .not_native()
    );
}

#[test]
fn collections_cannot_contain_themselves() {
    for text in [
        "{% set l = [] %}{% do l.append(l) %}",
        "{% set d = {} %}{% do d.update({'d': [d]}) %}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}",
        "{% do data.update(x=data) %}",
    ] {
        assert_eq!(
            rendered(text).expect_err(text).kind,
            RenderErrorKind::NotNative,
            "{text}"
        );
    }
}

#[test]
fn errors_have_file_line_and_construct() {
    let error = rendered("a\nb {{ nope }}\n").unwrap_err();
    assert_eq!(
        (error.file.as_str(), error.line, error.message.as_str()),
        ("r.sls", 2, "the name \"nope\"")
    );
    let error = rendered("a\n{% if %}").unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("r.sls", 2), "{error}");
    let error = rendered("{% if true %}\n\n{{ data.id / 0 }}{% endif %}\n").unwrap_err();
    assert_eq!(
        (error.line, error.message.as_str()),
        (3, "the operator `/`")
    );
    assert!(
        error.to_string().starts_with("r.sls:3: ") && error.not_native(),
        "{error}"
    );
}

#[test]
fn check_lists_the_constructs_that_are_not_native() {
    let text = "{% if data.x %}{{ 1|custom }}{% endif %}\n{{ salt['pillar.get']('x') }} {{ salt.mine.get('y') }} {% if 1 is odder %}{% endif %}";
    let engine = engine(&Value::Null);
    let found = engine.check(&Source {
        path: "r.sls",
        text,
    });
    let found: Vec<_> = found
        .iter()
        .map(|found| (found.line, found.what.as_str()))
        .collect();
    let expected = [
        (1, "filter \"custom\""),
        (2, "salt[\"mine.get\"]"),
        (2, "test \"odder\""),
    ];
    assert_eq!(found, expected);
    for text in [
        "{{ 1|custom }}",
        "{{ salt['pillar.get']('x') }}",
        "{{ salt.pillar.get('x') }}",
        "{{ 2 ** 1000 }}",
    ] {
        assert!(rendered(text).expect_err(text).not_native(), "{text}");
    }
}

/// Constructs with a different result in minijinja or in an earlier engine, and features that are left to Salt.
#[test]
fn constructs_that_differ_from_jinja_are_not_native() {
    for text in [
        "{% for x in data.l %}{% break %}{% else %}e{% endfor %}",
        "{{ range(3)[3:] }}",
        "{{ 'x' % data.items() }}",
        "{{ {} in data.keys() }}",
        "a {# b",
        "{% if false %}{{ [1][5] }}{% endif %}",
        "{% for x in [1] if data.x %}{% set y = 1 %}{% endfor %}{% for x in [1] if y %}{% endfor %}",
        "{% set data = 1 %}",
        "{% for x, in [[1]] %}{% endfor %}",
        "{{ 2 ** 2 }}",
        "{{ 1_000 }}",
        "{{ 0x10 }}",
        "{{ 1e3 }}",
        "{{ '\\x41' }}",
        "{{ 1 is defined is true }}",
        "{{ 1 +}}",
        "{%raw%}{% endraw %}",
        "{{\u{a0}1 }}",
        "{% set m = data.values()|map('string') %}{% do data.update(a=1) %}{{ m|list }}",
        "{{ (data|json) + '<' }}",
        "{{ data.items }}",
        "{{ data['items'] }}",
        "{{ data|unique }}",
        "#jinja2: {}\n{{ 1 }}",
        "{% do grains.update(a=1) %}",
        "{% for x in data %}{% do data.update(a=1) %}{% endfor %}",
        "{{ opts }}",
        "{{ opts.nope is defined }}",
        "{{ data.id[::2] }}",
        "{{ 4 / 2 }}",
        "{{ 1.5 + 1 }}",
        "{{ range(3) }}",
        "{{ 'abc'|sort(reverse=[1])|join }}",
        "{{ data|yaml }}",
        "{% for x in data %}{% break %}{% endfor %}",
        "{{ [1].index(1) }}",
        "{{ '{0.x}'.format(data) }}",
    ] {
        let error = rendered(text).expect_err(text);
        assert!(error.not_native(), "{text}: {error}");
    }
}

#[test]
fn a_line_beyond_the_columns_of_minijinja_is_not_native() {
    let error = rendered(&format!("a: 1\n{{{{ '{}", " ".repeat(65_531))).expect_err("a long line");
    let expected = (
        RenderErrorKind::NotNative,
        2,
        "a line of 65,535 bytes or more",
    );
    assert_eq!((error.kind, error.line, error.message.as_str()), expected);
}

#[test]
fn options_other_than_trimming_are_not_native() {
    let source = Source {
        path: "r.sls",
        text: "{% if true %}\nx\n  {% endif %}\ny\n",
    };
    let (ambient, salt, data) = (
        ambient(),
        no_functions(),
        Data::from_value(&Value::Map(Map::default())),
    );
    let context = Context {
        tag: "t",
        data: &data,
        ambient: &ambient,
        salt: &salt,
    };
    let render = |options: &str| engine(&yaml::load(options).unwrap()).render(&source, &context);
    let trimmed = render("jinja_env: {trim_blocks: true, lstrip_blocks: true}").unwrap();
    assert_eq!(trimmed.text, "x\ny\n");
    for options in [
        "jinja_env: {variable_start_string: '<<'}",
        "allow_undefined: true",
    ] {
        let error = render(options).expect_err(options);
        assert!(error.not_native() && error.line == 0, "{options}: {error}");
    }
}

#[test]
fn one_engine_serves_all_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&engine(&Value::Null));
}

#[test]
fn the_files_of_an_event_share_its_data() {
    let engine = engine(&Value::Null);
    let data = web1();
    let (ambient, salt) = (Arc::new(Ambient::default()), no_functions());
    let context = Context {
        tag: "t",
        data: &data,
        ambient: &ambient,
        salt: &salt,
    };
    let one = engine
        .render(
            &Source {
                path: "a",
                text: "{% do data.update(n=[1]) %}",
            },
            &context,
        )
        .unwrap();
    assert_eq!(one.text, "");
    let two = engine
        .render(
            &Source {
                path: "b",
                text: "{{ data.n }}{% do data.n.append(2) %}",
            },
            &context,
        )
        .unwrap();
    assert_eq!(two.text, "[1]");
    let expected = r#"{"id":"web1","n":[1,2]}"#;
    assert!(
        data.to_value()
            .python_eq(&read(&serde_json::from_str(expected).unwrap()))
    );
}

/// A measurement: `cargo test --release -p salt-sls --test conformance jinja::speed -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    let text = "{% if data['id'].startswith('web') and data['act'] == 'accept' %}\nrefresh_pool_{{ data['id'] }}:\n  local.state.apply:\n    \
                - tgt: 'haproxy*'\n    - args:\n      - mods: haproxy.refresh_pool\n      - pillar:\n          new_minion: {{ data['id'] }}\n{% endif %}\n";
    let event =
        yaml::load("{id: web1, act: accept, result: true, _stamp: '2030-01-01T00:00:00'}").unwrap();
    let engine = engine(&Value::Null);
    let (ambient, salt) = (Arc::new(Ambient::default()), no_functions());
    let (source, compiled) = (
        Source {
            path: "r.sls",
            text,
        },
        OnceLock::new(),
    );
    let rounds: u32 = 200_000;
    for _ in 0..3 {
        let begin = std::time::Instant::now();
        for _ in 0..rounds {
            let data = Data::from_value(&event);
            let context = Context {
                tag: "salt/key",
                data: &data,
                ambient: &ambient,
                salt: &salt,
            };
            assert!(
                engine
                    .render_cached(&source, &compiled, &context)
                    .unwrap()
                    .text
                    .len()
                    > 100
            );
        }
        println!("{:?} for one event", begin.elapsed() / rounds);
    }
}
