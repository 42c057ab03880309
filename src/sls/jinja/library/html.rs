//! HTML, as `markupsafe` handles it.

use crate::sls::jinja::exc::{Res, not_native};
use crate::sls::jinja::values::object;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::Val;
use crate::sls::python::text;

/// `markupsafe.escape`
pub(crate) fn escape(val: &Val) -> Res<Val> {
    match val {
        Val::Markup(_) => Ok(val.clone()),
        Val::Object(object) if matches!(&**object, object::Object::Module(_)) => {
            Ok(Val::markup(repr::str(val)?))
        }
        other => Ok(Val::markup(text::escaped(&repr::str(other)?))),
    }
}

/// `Markup.unescape`; only the entities that are common.
pub(crate) fn unescape(html: &str) -> Res<String> {
    let mut out = String::with_capacity(html.len());
    let mut rest = html;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '#').unwrap_or(after.len());
        let (name, tail) = after.split_at(end);
        let c = if let Some(number) = name.strip_prefix('#') {
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => number.parse().ok(),
            };
            code.and_then(char::from_u32)
        } else {
            match name {
                "amp" => Some('&'),
                "lt" => Some('<'),
                "gt" => Some('>'),
                "quot" => Some('"'),
                "apos" => Some('\''),
                "nbsp" => Some('\u{a0}'),
                "raquo" => Some('»'),
                "laquo" => Some('«'),
                "copy" => Some('©'),
                _ if tail.starts_with(';') && !name.is_empty() => {
                    return Err(not_native(format!("the HTML entity &{name};")));
                }
                _ => None,
            }
        };
        match c {
            Some(c) => {
                out.push(c);
                rest = tail.strip_prefix(';').unwrap_or(tail);
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// `Markup.striptags`
pub(crate) fn striptags(html: &str) -> Res<String> {
    let mut plain = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let (before, tag) = rest.split_at(start);
        let end = match tag.strip_prefix("<!--") {
            Some(comment) => comment.find("-->").map(|i| i + 7),
            None => tag.find('>').map(|i| i + 1),
        };
        let Some(end) = end else { break };
        plain.push_str(before);
        rest = tag.get(end..).unwrap_or_default();
    }
    plain.push_str(rest);
    unescape(&text::words(&plain, None).join(" "))
}
