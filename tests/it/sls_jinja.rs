//! Templates rendered by Salt, compared with our rendering: the reactor's cases, and expressions of every kind.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use saltcellar::sls::jinja::{
    Ambient, Context, Data, Engine, EngineOptions, Loaded, Loader, NoFiles, NoFunctions, RenderError,
    RenderErrorKind, RenderLimits, SaltFunctions, Source,
};
use saltcellar::sls::value::{Key, Map};
use saltcellar::sls::{Value, yaml};
use serde_json::Value as Json;

fn data_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Decodes a value of the cases: types without a JSON equivalent are a mapping of one key that starts with `$`.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::String(text) => Value::Str(text.clone()),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(i), _) => Value::Int(i),
            (None, Some(i)) => Value::BigInt(i.to_string()),
            _ => Value::Float(number.as_f64().unwrap()),
        },
        Json::Array(items) => Value::List(items.iter().map(value).collect()),
        Json::Object(items) => match items.iter().next() {
            Some((key, of)) if items.len() == 1 && key.starts_with('$') => match key.as_str() {
                "$bytes" => Value::Bytes(
                    base64::engine::general_purpose::STANDARD.decode(of.as_str().unwrap()).unwrap(),
                ),
                "$int" => {
                    let digits = of.as_str().unwrap();
                    digits.parse().map_or_else(|_| Value::BigInt(digits.to_owned()), Value::Int)
                }
                "$float" => Value::Float(of.as_str().unwrap().parse().unwrap()),
                "$map" => Value::Map(
                    of.as_array()
                        .unwrap()
                        .iter()
                        .map(|pair| (Key(value(&pair[0])), value(&pair[1])))
                        .collect(),
                ),
                "$tuple" => Value::Tuple(of.as_array().unwrap().iter().map(value).collect()),
                _ => Value::Str(of.to_string()),
            },
            _ => {
                Value::Map(items.iter().map(|(key, of)| (Key(Value::Str(key.clone())), value(of))).collect())
            }
        },
    }
}

fn map(pairs: &[(&str, &str)]) -> Arc<Value> {
    Arc::new(Value::Map(pairs.iter().map(|(key, of)| (Key::from(*key), Value::from(*of))).collect()))
}

fn ambient() -> Ambient {
    Ambient::new(
        map(&[("id", "saltmaster_master"), ("kernel", "Linux"), ("os", "Debian")]),
        map(&[("id", "saltmaster_master"), ("file_client", "local"), ("__role", "master")]),
    )
}

/// The files of environment base.
struct Files(HashMap<String, String>);

impl Loader for Files {
    fn load(&self, name: &str) -> Result<Option<Loaded>, String> {
        let text = self.0.get(name);
        Ok(text.map(|text| Loaded {
            path: format!("${{CACHE}}/files/base/{name}"),
            text: Arc::from(text.as_str()),
        }))
    }
}

/// The functions that a case called in Salt, with their results.
struct Recorded(Vec<Json>);

impl SaltFunctions for Recorded {
    fn has(&self, fun: &str) -> Result<bool, String> {
        Ok(fun == "test.ping" || self.0.iter().any(|call| call["fun"] == fun))
    }

    fn call(&self, fun: &str, args: &[Value], kwargs: &[(String, Value)]) -> Result<Value, String> {
        let args = Value::List(args.to_vec());
        let kwargs =
            Value::Map(kwargs.iter().map(|(name, of)| (Key::from(name.as_str()), of.clone())).collect());
        let call = self
            .0
            .iter()
            .find(|call| {
                call["fun"] == fun
                    && value(&call["args"]).python_eq(&args)
                    && value(&call["kwargs"]).python_eq(&kwargs)
            })
            .unwrap_or_else(|| panic!("{fun} was not called with {args:?}, {kwargs:?}"));
        match call.get("raised") {
            Some(raised) => Err(raised["message"].as_str().unwrap().to_owned()),
            None => Ok(value(&call["return"])),
        }
    }
}

fn engine(options: &Value) -> Engine {
    engine_with(options, RenderLimits::default())
}

/// A thirtieth of the limit: enough to show that the cost is counted, also in a debug build.
const FEW: RenderLimits = RenderLimits { steps: 60_000, bytes: 2 << 20 };

fn engine_with(options: &Value, limits: RenderLimits) -> Engine {
    let options = options.as_map().cloned().unwrap_or_default();
    let jinja_env = options.get("jinja_env").and_then(|env| env.as_map()).cloned().unwrap_or_else(Map::new);
    Engine::new(EngineOptions {
        jinja_env,
        allow_undefined: options.get("allow_undefined").is_some_and(Value::truthy),
        limits,
    })
}

/// Removes addresses of objects, which differ.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split(" at 0x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(" at 0x");
        let rest = part.trim_start_matches("ADDRESS").trim_start_matches(|c: char| c.is_ascii_hexdigit());
        out.push_str(rest);
    }
    out
}

/// The difference of a rendering from Salt's, if any.
fn difference(got: &Result<String, RenderError>, expected: Option<&str>) -> Option<String> {
    match (got, expected) {
        (Ok(text), Some(expected)) if without_addresses(text) == without_addresses(expected) => None,
        (Ok(text), Some(expected)) => Some(format!("gives {text:?}, Salt {expected:?}")),
        (Ok(text), None) => Some(format!("gives {text:?}, Salt fails")),
        // A date from a number depends on the time zone in Salt.
        (Err(error), _) if error.message.contains("local time is not UTC") => None,
        (Err(error), Some(expected)) => Some(format!("fails with {error}, Salt gives {expected:?}")),
        (Err(_), None) => None,
    }
}

#[test]
fn the_cases_of_the_reactor_render_as_in_salt() {
    let mut paths: Vec<_> =
        fs::read_dir(data_dir().join("reactor-cases")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    paths.sort();
    assert!(paths.len() > 300);
    let (mut rendered, mut wrong) = (0, Vec::new());
    for path in &paths {
        let case: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let input = &case["input"];
        let files = input["files"].as_object().cloned().unwrap_or_default();
        let config = yaml::load(input["master_config"].as_str().unwrap_or_default()).unwrap_or(Value::Null);
        let engine = engine(&config);
        let base = files.iter().filter_map(|(name, text)| {
            Some((name.strip_prefix("srv/salt/")?.to_owned(), text.as_str()?.to_owned()))
        });
        let loader = Files(base.collect());
        let ambient = ambient();
        let none = Vec::new();
        for (event, expected) in
            input["events"].as_array().unwrap().iter().zip(case["expect"]["events"].as_array().unwrap())
        {
            let data = Data::from_value(&value(&event["data"]));
            let functions = Recorded(expected["salt_calls"].as_array().cloned().unwrap_or_default());
            let context = Context::new(event["tag"].as_str().unwrap(), &data, &ambient, &loader, &functions);
            for render in expected["renders"].as_array().unwrap_or(&none) {
                let Some(path) = render["file"].as_str() else { continue };
                let name = path
                    .replace("${ROOT}/", "")
                    .replace("${CACHE}/files/base/", "srv/salt/")
                    .replace("${CACHE}/files/dev/", "srv/salt-dev/");
                // Files that are not text are rejected earlier.
                let Some(text) = files.get(&name).and_then(Json::as_str) else { continue };
                let got = engine.render(&Source { path, text }, &context).map(|rendered| rendered.text);
                rendered += 1;
                let id = case["id"].as_str().unwrap();
                wrong.extend(
                    difference(&got, render["text"].as_str()).map(|what| format!("{id}: {name} {what}")),
                );
            }
        }
    }
    assert!(rendered > 330, "only {rendered} files were rendered");
    assert!(wrong.is_empty(), "{} of {rendered}:\n{}", wrong.len(), wrong.join("\n"));
}

/// `tests/lab/jinja_oracle.py` writes this file by running Salt.
#[test]
fn expressions_have_the_results_of_salt() {
    let lines = fs::read_to_string(data_dir().join("jinja-3008.3.jsonl")).unwrap();
    let mut lines = lines.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let first = lines.next().unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for case in lines {
        count += 1;
        let engine = engine(&value(&case["opts"]));
        let files = case["files"].as_object().into_iter().flatten();
        let loader =
            Files(files.map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned())).collect());
        let data = Data::from_value(&value(&first["data"]));
        let ambient = ambient();
        let functions = Recorded(Vec::new());
        let context = Context::new("test/tag", &data, &ambient, &loader, &functions);
        let text = case["t"].as_str().unwrap();
        let got = engine
            .render(&Source { path: "${ROOT}/srv/reactor/r.sls", text }, &context)
            .map(|rendered| rendered.text);
        wrong.extend(difference(&got, case["text"].as_str()).map(|what| format!("{text:?} {what}")));
    }
    assert!(count > 1500, "only {count} expressions");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

fn rendered(text: &str) -> Result<String, RenderError> {
    rendered_within(RenderLimits::default(), text)
}

fn rendered_within(limits: RenderLimits, text: &str) -> Result<String, RenderError> {
    let engine = engine_with(&Value::Null, limits);
    let data = Data::from_msgpack(b"\x81\xa2id\xa4web1").unwrap();
    let ambient = Ambient::default();
    let context = Context::new("salt/key", &data, &ambient, &NoFiles, &NoFunctions);
    engine.render(&Source { path: "r.sls", text }, &context).map(|rendered| rendered.text)
}

#[test]
fn templates_are_limited_in_time_and_memory() {
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
        let error = rendered_within(FEW, text).expect_err(text);
        assert_eq!(error.kind, RenderErrorKind::Limit, "{text}: {error}");
    }
}

#[test]
fn a_rendering_has_the_documented_default_limits() {
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
        assert!(error.kind == RenderErrorKind::Limit && error.to_string().contains(&stated), "{error}");
        let error = rendered_within(FEW, text).expect_err(text);
        assert!(error.kind == RenderErrorKind::Limit && !error.to_string().contains(&stated), "{error}");
    }
}

#[test]
fn imported_files_count_towards_the_limits_of_a_template() {
    struct Endless;
    impl Loader for Endless {
        fn load(&self, name: &str) -> Result<Option<Loaded>, String> {
            let text = match name {
                "itself" => "{% include 'itself' %}".to_owned(),
                "its parent" => "{% extends 'its parent' %}".to_owned(),
                _ => format!("{{# {} #}}", "x".repeat(1 << 15)),
            };
            Ok(Some(Loaded { path: name.to_owned(), text: Arc::from(text) }))
        }
    }
    let engine = engine_with(&Value::Null, FEW);
    let data = Data::from_msgpack(b"\x80").unwrap();
    let ambient = Ambient::default();
    let context = Context::new("salt/key", &data, &ambient, &Endless, &NoFunctions);
    let render =
        |text: &str| engine.render(&Source { path: "r.sls", text }, &context).map(|rendered| rendered.text);
    for text in [
        "{% include 'itself' %}",
        "{% extends 'its parent' %}",
        "{% import 'itself' as x %}",
        "{% for n in range(100) %}{% include 'file' ~ n %}{% endfor %}",
        "{% for n in range(100) %}{% import 'file' ~ n as x %}{% endfor %}",
    ] {
        assert_eq!(render(text).expect_err(text).kind, RenderErrorKind::Limit, "{text}");
    }
    let often = "{% for n in range(100) %}{% include 'file' ~ (n % 10) %}{% endfor %}x";
    assert_eq!(render(often).unwrap(), "x", "a file is loaded once");
}

#[test]
fn a_function_was_treated_as_unknown_while_salt_was_unavailable() {
    struct Dying;
    impl SaltFunctions for Dying {
        fn has(&self, _: &str) -> Result<bool, String> {
            Err("its process died 3 times".to_owned())
        }

        fn call(&self, _: &str, _: &[Value], _: &[(String, Value)]) -> Result<Value, String> {
            panic!("Salt is unavailable")
        }
    }
    let engine = engine(&Value::Null);
    let data = Data::from_msgpack(b"\x80").unwrap();
    let ambient = Ambient::default();
    let context = Context::new("salt/key", &data, &ambient, &NoFiles, &Dying);
    for asks in [
        "'pkg.version' in salt",
        "salt['pkg.version']('x')",
        "salt.get('pkg.version')",
        "salt.pkg.version('x')",
    ] {
        let text = format!("a\n{{% set x = {asks} %}}");
        let error = engine.render(&Source { path: "r.sls", text: &text }, &context).expect_err(asks);
        assert!(error.message.contains("its process died 3 times") && !error.not_native(), "{asks}: {error}");
        assert_eq!(error.line, 2, "{asks}");
    }
}

#[test]
fn a_value_with_shared_parts_was_walked_forever() {
    // Forty levels of two: 2^40 steps.
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
            let error = rendered_within(FEW, &text).expect_err(&text);
            assert_eq!(error.kind, RenderErrorKind::Limit, "{text}: {error}");
        }
    }
    for key in ["{v: 1}", "{v: v}|pprint", "{v: 1} == {v: 1}", "v|unique|list", "{v: 1}|dictsort|list"] {
        let text = format!("{}{{{{ {key} }}}}", nested("(", ")"));
        let error = rendered_within(FEW, &text).expect_err(&text);
        assert_eq!(error.kind, RenderErrorKind::Limit, "{text}: {error}");
    }
}

#[test]
fn a_template_filled_the_memory_with_spaces_and_the_time_with_long_texts() {
    for text in [
        "{{ {'a' * 1000000: range(3000)|list}|pprint }}",
        "{% set ns = namespace(v=[1]) %}{% for i in range(90) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v|tojson(indent=9000000) }}",
        "{% set v = 'x y ' * 100000 %}{% for i in range(9999) %}{% set x = v is upper %}{% endfor %}",
        "{% set v = range(5000)|list %}{% for i in range(9999) %}{% set x = v|last %}{% endfor %}",
        // Keys that differ deep inside are compared one by one.
        "{% set ns = namespace(v=[]) %}{% for i in range(2000) %}{% do ns.v.append(((i,),)) %}{% endfor %}{{ ns.v|unique|list }}",
    ] {
        let error = rendered_within(FEW, text).expect_err(text);
        assert_eq!(error.kind, RenderErrorKind::Limit, "{text}: {error}");
    }
}

#[test]
fn deep_nesting_is_an_error_not_a_crash() {
    let deep = |open: &str, middle: &str, close: &str, n: usize| open.repeat(n) + middle + &close.repeat(n);
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
        let error = rendered(&text).expect_err("it is too deep");
        assert_eq!(error.kind, RenderErrorKind::Limit, "{error}");
    }
    // Deep values that are not accessed are accepted and freed.
    let text = "{% set ns = namespace(x=[]) %}{% for i in range(1500) %}{% set ns.x = {'k': (ns.x, 1)|list|first} %}{% endfor %}x";
    assert_eq!(rendered(text).unwrap(), "x");
    let nested: Vec<u8> = std::iter::repeat_n(0x91, 5_000).chain([0xc0]).collect();
    assert!(Data::from_msgpack(&nested).is_err());
}

#[test]
fn a_value_cannot_contain_itself() {
    for text in [
        "{% set l = [] %}{% do l.append(l) %}",
        "{% set d = {} %}{% do d.update({'d': [d]}) %}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}",
        "{% do data.update(x=data) %}",
    ] {
        assert_eq!(rendered(text).expect_err(text).kind, RenderErrorKind::NotNative, "{text}");
    }
}

#[test]
fn errors_name_file_and_line() {
    let error = rendered("a\nb {{ nope }}\n").unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("r.sls", 2));
    assert_eq!(error.message, "Jinja variable 'nope' is undefined");
    let error = rendered("a\n{% if %}").unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("r.sls", 2), "{error}");
    let error = rendered("{% macro m() %}\n\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}").unwrap_err();
    assert_eq!((error.line, error.message.as_str()), (3, "Jinja error: division by zero"));
}

#[test]
fn use_of_salts_python_is_detected_before_and_during_rendering() {
    let text = "{% if data.x %}{{ 1|custom }}{% endif %}\n{{ salt['pillar.get']('x') }} {{ salt.mine.get('y') }} {% if 1 is odder %}{% endif %}";
    let engine = engine(&Value::Null);
    let found = engine.check(&Source { path: "r.sls", text });
    let found: Vec<_> = found.iter().map(|found| (found.line, found.what.as_str())).collect();
    let expected = [
        (1, "filter \"custom\""),
        (2, "salt[\"pillar.get\"]"),
        (2, "salt[\"mine.get\"]"),
        (2, "test \"odder\""),
    ];
    assert_eq!(found, expected);
    for text in
        ["{{ 1|custom }}", "{{ salt['pillar.get']('x') }}", "{{ salt.pillar.get('x') }}", "{{ 2 ** 1000 }}"]
    {
        assert!(rendered(text).expect_err(text).not_native(), "{text}");
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
    let data = Data::from_msgpack(b"\x81\xa2id\xa4web1").unwrap();
    let ambient = Ambient::default();
    let context = Context::new("t", &data, &ambient, &NoFiles, &NoFunctions);
    let one = engine.render(&Source { path: "a", text: "{% do data.update(n=[1]) %}" }, &context).unwrap();
    assert_eq!(one.text, "");
    let two = engine
        .render(&Source { path: "b", text: "{{ data.n }}{% do data.n.append(2) %}" }, &context)
        .unwrap();
    assert_eq!(two.text, "[1]");
    let expected = r#"{"id":"web1","n":[1,2]}"#;
    assert!(data.to_value().python_eq(&value(&serde_json::from_str(expected).unwrap())));
}

/// A measurement without a limit: `cargo test --release --test it sls_jinja::speed -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    let text = "{% if data['id'].startswith('web') and data['act'] == 'accept' %}\nrefresh_pool_{{ data['id'] }}:\n  local.state.apply:\n    \
                - tgt: 'haproxy*'\n    - args:\n      - mods: haproxy.refresh_pool\n      - pillar:\n          new_minion: {{ data['id'] }}\n{% endif %}\n";
    let event = b"\x84\xa2id\xa4web1\xa3act\xa6accept\xa6result\xc3\xa6_stamp\xb32030-01-01T00:00:00";
    let engine = engine(&Value::Null);
    let ambient = Ambient::default();
    let rounds: u32 = 200_000;
    for _ in 0..3 {
        let begin = std::time::Instant::now();
        for _ in 0..rounds {
            let data = Data::from_msgpack(event).unwrap();
            let context = Context::new("salt/key", &data, &ambient, &NoFiles, &NoFunctions);
            assert!(engine.render(&Source { path: "r.sls", text }, &context).unwrap().text.len() > 100);
        }
        println!("{:?} for one event", begin.elapsed() / rounds);
    }
}
