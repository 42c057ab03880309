//! A rendered SLS file, as YAML and as JSON, from text to low chunks: the result is bounded and complete, an
//! error has a position in the text, and compiling again gives the same result.
//!
//! Input: the text; invalid UTF-8 counts as replacement characters.

use salt_sls::{Map, Value, json, python, yaml};
use salt_sls::compile::{self, FileError, Refused};
use salt_sls::limits::{SLS_DEPTH_MAX, YAML_ALIASED_BYTES_MAX, YAML_ALIASED_VALUES_MAX};




pub(crate) fn sls_yaml(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() + 1;
    match yaml::load(&text) {
        Ok(value) => {
            let (mut values, mut bytes) = (0, 0);
            measure(&value, 0, &mut values, &mut bytes);
            assert!(values <= 2 * text.len() + 2 + YAML_ALIASED_VALUES_MAX, "{values} values");
            assert!(bytes <= 2 * text.len() + YAML_ALIASED_BYTES_MAX, "{bytes} bytes");
        }
        Err(error) => assert!((1..=lines).contains(&error.line) && error.column > 0, "{error}"),
    }
    match json::load(&text) {
        Ok(value) => {
            let _ = compile::pad(value, "/srv/r.sls").map(|high| compile(&high));
        }
        Err(error) => assert!((1..=lines).contains(&error.line), "{error}"),
    }
    match compile::high(&text, "/srv/r.sls") {
        Ok(high) => compile(&high),
        Err(FileError::Yaml(error)) => assert_eq!(yaml::load(&text), Err(error)),
        Err(FileError::Shape(what)) => assert!(!what.is_empty()),
    }
}

fn compile(high: &Map) {
    let low = compile::low(vec![high.clone()]);
    // Ignoring `nan`, which is not equal to itself.
    let shown = |low: &Result<Vec<Map>, Refused>| format!("{low:?}");
    assert_eq!(shown(&low), shown(&compile::low(vec![high.clone(), high.clone()])));
    match low {
        Ok(low) => {
            for chunk in low {
                assert!(chunk.get("fun").is_some_and(|fun| fun.as_str().is_some()), "{chunk:?}");
                for key in ["state", "name", "__id__", "__sls__", "order"] {
                    assert!(chunk.contains_key(key), "{key} in {chunk:?}");
                }
            }
        }
        Err(Refused::Errors(errors)) => assert!(!errors.is_empty()),
        Err(Refused::Exception(what)) => assert!(!what.is_empty()),
    }
}

fn measure(value: &Value, depth: usize, values: &mut usize, bytes: &mut usize) {
    assert!(depth <= SLS_DEPTH_MAX);
    *values += 1;
    if depth == 0 {
        assert!(!python::repr(value).is_empty());
    }
    match value {
        Value::Str(text) => *bytes += text.len(),
        Value::Bytes(data) => *bytes += data.len(),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
            for item in items {
                measure(item, depth + 1, values, bytes);
            }
        }
        Value::Map(map) => {
            for (key, value) in map {
                assert!(key.0.is_hashable());
                measure(&key.0, depth + 1, values, bytes);
                measure(value, depth + 1, values, bytes);
            }
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_) => {}
        Value::Object(object) => panic!("YAML has no {}", object.type_name),
    }
}
