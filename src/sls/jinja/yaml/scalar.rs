//! Scalars in YAML: what is quoted, and how.

use std::sync::LazyLock;

use base64::Engine as _;
use regex::Regex;

use crate::sls::jinja::exc;
use crate::sls::jinja::exc::Res;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::Val;
use crate::sls::python;

/// Plain text that is something else than text.
static NOT_TEXT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
        r"|[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?",
        r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        r"|[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+",
        r"|[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+|<<|~|null|Null|NULL||=|[!&*]",
        r"|[0-9]{4}-[0-9]{2}-[0-9]{2}",
        r"|[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?(?:[Tt]|[ \t]+)[0-9][0-9]?:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?",
        r"(?:[ \t]*(?:Z|[-+][0-9][0-9]?(?::?[0-9]{2})?))?)$"
    ))
    .ok()
});

/// Whether plain text is read as text again.
pub(super) fn reads_as_text(text: &str) -> bool {
    // The `$` of Python is also before a newline at the end, but such text is never plain.
    NOT_TEXT.as_ref().is_none_or(|pattern| !pattern.is_match(text))
}

pub(super) fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

pub(crate) fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

pub(crate) fn escape(c: char, out: &mut String) {
    let short = match c {
        '\0' => '0',
        '\x07' => 'a',
        '\x08' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\x0b' => 'v',
        '\x0c' => 'f',
        '\r' => 'r',
        '\x1b' => 'e',
        '"' => '"',
        '\\' => '\\',
        '\u{85}' => 'N',
        '\u{a0}' => '_',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        c => {
            let code = u32::from(c);
            out.push_str(&match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            });
            return;
        }
    };
    out.push('\\');
    out.push(short);
}

/// Text between double quotes on one line, as Salt prints it in mappings.
pub(crate) fn double_quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        if !is_printable(c) || is_break(c) || matches!(c, '"' | '\\') { escape(c, out) } else { out.push(c) }
    }
    out.push('"');
}

/// `yaml_dquote`: what is not ASCII is escaped, too.
pub(crate) fn dquote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        if !(' '..='~').contains(&c) || matches!(c, '"' | '\\') { escape(c, &mut out) } else { out.push(c) }
    }
    out.push('"');
    out
}

/// `yaml_squote`: each run of newlines gets one more.
pub(crate) fn squote(text: &str) -> String {
    let is_break = |c: char| matches!(c, '\n' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut out = String::from("'");
    let mut in_breaks = false;
    for c in text.chars() {
        if c == '\n' && !in_breaks {
            out.push('\n');
        }
        in_breaks = is_break(c);
        if c == '\'' {
            out.push('\'');
        }
        out.push(c);
    }
    out.push('\'');
    out
}

/// What a scalar is written as, plain.
pub(super) enum Scalar {
    Text(String),
    /// Something that reads as what it is.
    Plain(String),
    Binary(String),
}

pub(super) fn scalar(val: &Val) -> Res<Option<Scalar>> {
    Ok(Some(match val {
        Val::Str(text) => Scalar::Text(text.to_string()),
        Val::None => Scalar::Plain("null".to_owned()),
        Val::Bool(b) => Scalar::Plain(b.to_string()),
        Val::Int(_) | Val::Big(_) => Scalar::Plain(repr::str(val)?),
        Val::Float(f) => Scalar::Plain(float(*f)),
        Val::Bytes(bytes) => Scalar::Binary(binary(bytes)),
        Val::List(_) | Val::Tuple(_) | Val::Dict(_) | Val::Set(_) => return Ok(None),
        // Also for `Markup`, which is no `str` to PyYAML.
        Val::Markup(_) | Val::Undef(_) | Val::Object(_) => Scalar::Plain("NULL".to_owned()),
    }))
}

fn float(f: f64) -> String {
    if f.is_nan() {
        return ".nan".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let mut text = String::new();
    python::write_float(f, &mut text);
    if text.contains('.') { text } else { text.replacen('e', ".0e", 1) }
}

/// `base64.encodebytes`
fn binary(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(57) {
        out.push_str(&base64::engine::general_purpose::STANDARD.encode(line));
        out.push('\n');
    }
    out
}

/// `yaml_encode`: one scalar.
pub(crate) fn encode(val: &Val) -> Res<String> {
    match (val, scalar(val)?) {
        (Val::Str(text), _) => Ok(dquote(text)),
        (Val::Markup(_) | Val::Undef(_) | Val::Object(_), _) => {
            Err(exc::other_error(format!("cannot represent an object of type {}", val.type_name())))
        }
        (_, Some(Scalar::Text(text) | Scalar::Plain(text) | Scalar::Binary(text))) => Ok(text),
        (_, None) => Err(exc::type_error(format!(
            "yaml_encode() only works with YAML scalar data; failed for {}",
            val.type_name()
        ))),
    }
}

/// In which ways a text can be written.
#[expect(clippy::struct_excessive_bools, reason = "four answers to one question")]
pub(super) struct Analysis {
    pub(crate) multiline: bool,
    pub(super) flow_plain: bool,
    pub(super) block_plain: bool,
    pub(crate) single: bool,
}

impl Analysis {
    pub(crate) fn of(text: &str) -> Self {
        if text.is_empty() {
            return Analysis { multiline: false, flow_plain: false, block_plain: true, single: true };
        }
        let (mut block_indicators, mut flow_indicators) = (false, false);
        let (mut line_breaks, mut special) = (false, false);
        let (mut leading, mut trailing) = (false, false);
        let (mut break_space, mut space_break) = (false, false);
        let (mut previous_space, mut previous_break) = (false, false);
        if text.starts_with("---") || text.starts_with("...") {
            (block_indicators, flow_indicators) = (true, true);
        }
        let is_blank = |c: Option<&char>| c.is_none_or(|c| matches!(c, ' ' | '\t' | '\0') || is_break(*c));
        let mut preceded = true;
        let mut chars = text.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            let followed = is_blank(chars.peek());
            let last = chars.peek().is_none();
            if first {
                match c {
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%'
                    | '@' | '`' => {
                        (flow_indicators, block_indicators) = (true, true);
                    }
                    '?' | ':' => {
                        flow_indicators = true;
                        block_indicators |= followed;
                    }
                    '-' if followed => (flow_indicators, block_indicators) = (true, true),
                    _ => {}
                }
            } else {
                match c {
                    ',' | '?' | '[' | ']' | '{' | '}' => flow_indicators = true,
                    ':' => {
                        flow_indicators = true;
                        block_indicators |= followed;
                    }
                    '#' if preceded => (flow_indicators, block_indicators) = (true, true),
                    _ => {}
                }
            }
            if !is_printable(c) {
                special = true;
            }
            if is_break(c) {
                line_breaks = true;
            }
            if c == ' ' {
                leading |= first;
                trailing |= last;
                break_space |= previous_break;
                (previous_space, previous_break) = (true, false);
            } else if is_break(c) {
                leading |= first;
                trailing |= last;
                space_break |= previous_space;
                (previous_space, previous_break) = (false, true);
            } else {
                (previous_space, previous_break) = (false, false);
            }
            preceded = matches!(c, ' ' | '\t' | '\0') || is_break(c);
            first = false;
        }
        let plain = !leading && !trailing && !break_space && !space_break && !special && !line_breaks;
        Analysis {
            multiline: line_breaks,
            flow_plain: plain && !flow_indicators,
            block_plain: plain && !block_indicators,
            single: !break_space && !space_break && !special,
        }
    }
}
