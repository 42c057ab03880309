//! Values to JSON and back, as Python's `json` does it.

use std::fmt::Write as _;

use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, not_native, type_error, value_error};
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Hashed, Val};
use crate::sls::map::OrderedMap;
use crate::sls::python;

/// How JSON is written.
pub(crate) struct Style {
    pub(crate) sort_keys: bool,
    pub(crate) ascii: bool,
    /// What each level is indented with.
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
}

impl Style {
    pub(crate) fn new(sort_keys: bool, ascii: bool, indent: Option<String>) -> Self {
        // With indentation no blank stands at the end of a line.
        let item_separator = if indent.is_some() { "," } else { ", " }.to_owned();
        Style { sort_keys, ascii, indent, item_separator, key_separator: ": ".to_owned() }
    }
}

/// `json.dumps`
pub(crate) fn dumps(val: &Val, style: &Style) -> Res<String> {
    let mut out = String::new();
    write(val, style, 0, &mut out)?;
    Ok(out)
}

fn write_text(text: &str, ascii: bool, out: &mut String) {
    budget::took(text.len());
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_float(f: f64, out: &mut String) {
    if f.is_nan() {
        out.push_str("NaN");
    } else if f.is_infinite() {
        out.push_str(if f > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        python::write_float(f, out);
    }
}

fn new_line(style: &Style, depth: usize, out: &mut String) -> Res<()> {
    if let Some(indent) = &style.indent {
        budget::room(out.len().saturating_add(indent.len().saturating_mul(depth)))?;
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
    Ok(())
}

fn write(val: &Val, style: &Style, depth: usize, out: &mut String) -> Res<()> {
    let _level = budget::deeper()?;
    budget::step()?;
    budget::room(out.len())?;
    match val {
        Val::None => out.push_str("null"),
        Val::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Val::Int(_) | Val::Big(_) => out.push_str(&repr::str(val)?),
        Val::Float(f) => write_float(*f, out),
        Val::Str(text) | Val::Markup(text) => write_text(text, style.ascii, out),
        Val::List(list) => items(&list.items(), style, depth, out)?,
        Val::Tuple(tuple) => items(&tuple.items, style, depth, out)?,
        Val::Dict(dict) => {
            let mut pairs = dict.pairs();
            if pairs.is_empty() {
                out.push_str("{}");
                return Ok(());
            }
            if style.sort_keys {
                let keyed = pairs
                    .iter()
                    .map(|(key, value)| (key.clone(), Val::tuple(vec![key.clone(), value.clone()])))
                    .collect();
                pairs = ops::sort(keyed, false)?
                    .into_iter()
                    .filter_map(|pair| match pair {
                        Val::Tuple(tuple) => {
                            Some((tuple.items.first()?.clone(), tuple.items.get(1)?.clone()))
                        }
                        _ => None,
                    })
                    .collect();
            }
            out.push('{');
            for (i, (key, value)) in pairs.iter().enumerate() {
                if i > 0 {
                    out.push_str(&style.item_separator);
                }
                new_line(style, depth + 1, out)?;
                match key {
                    Val::Str(text) | Val::Markup(text) => write_text(text, style.ascii, out),
                    Val::Float(f) => {
                        let mut text = String::new();
                        write_float(*f, &mut text);
                        write_text(&text, style.ascii, out);
                    }
                    Val::None => out.push_str("\"null\""),
                    Val::Bool(b) => out.push_str(if *b { "\"true\"" } else { "\"false\"" }),
                    Val::Int(_) | Val::Big(_) => write_text(&repr::str(key)?, style.ascii, out),
                    other => {
                        return Err(type_error(format!(
                            "keys must be str, int, float, bool or None, not {}",
                            other.type_name()
                        )));
                    }
                }
                out.push_str(&style.key_separator);
                write(value, style, depth + 1, out)?;
            }
            new_line(style, depth, out)?;
            out.push('}');
        }
        Val::Undef(undef) if undef.strict => return Err(undef.fail()),
        other => {
            return Err(type_error(format!("Object of type {} is not JSON serializable", other.type_name())));
        }
    }
    Ok(())
}

fn items(items: &[Val], style: &Style, depth: usize, out: &mut String) -> Res<()> {
    if items.is_empty() {
        out.push_str("[]");
        return Ok(());
    }
    out.push('[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(style, depth + 1, out)?;
        write(item, style, depth + 1, out)?;
    }
    new_line(style, depth, out)?;
    out.push(']');
    Ok(())
}

/// `json.loads`, of what is JSON to everybody.
pub(crate) fn loads(text: &str) -> Res<Val> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => from_json(value),
        // Python also reads these.
        Err(_) if text.contains("NaN") || text.contains("Infinity") => {
            Err(not_native("JSON with NaN or Infinity"))
        }
        Err(error) => Err(value_error(error.to_string())),
    }
}

fn from_json(value: serde_json::Value) -> Res<Val> {
    Ok(match value {
        serde_json::Value::Null => Val::None,
        serde_json::Value::Bool(b) => Val::Bool(b),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(i), ..) => Val::Int(i),
            (_, Some(i), _) => Val::int(i128::from(i)),
            // Python keeps the digits of what has no point.
            (_, _, Some(f)) if f.fract() != 0.0 || f.abs() < 1e15 => Val::Float(f),
            (_, _, Some(f)) if number.to_string().contains(['.', 'e', 'E']) => Val::Float(f),
            _ => return Err(not_native("an integer of more than 64 bits in JSON")),
        },
        serde_json::Value::String(text) => Val::str(text),
        serde_json::Value::Array(items) => Val::list(items.into_iter().map(from_json).collect::<Res<_>>()?),
        serde_json::Value::Object(items) => {
            let mut map = OrderedMap::with_capacity(items.len());
            for (key, value) in items {
                map.insert(Hashed(Val::str(key)), from_json(value)?);
            }
            Val::dict(map)
        }
    })
}
