//! Numbers and text by a format: what `%` and `str.format` share.

use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{self, Res, limit_error, not_native, overflow_error, type_error, value_error};
use crate::sls::jinja::methods::text::padded;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::Val;
use crate::sls::python;
use crate::sls::python::text;

/// Width to which a number may be filled up with zeros in groups.
const GROUPED_WIDTH_MAX: usize = 1_000;

/// Digits after the point that a format may ask for.
const PRECISION_MAX: usize = 10_000;

/// `%.{precision}f`
pub(super) fn fixed(f: f64, precision: usize) -> String {
    format!("{f:.precision$}")
}

/// `%.{precision}e`
pub(super) fn scientific(f: f64, precision: usize) -> String {
    let plain = format!("{f:.precision$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// `%.{precision}g`; `alternate` keeps the zeros at the end.
pub(super) fn general(f: f64, precision: usize, alternate: bool) -> String {
    let precision = precision.max(1);
    let by_exponent = scientific(f, precision - 1);
    let exponent: i64 =
        by_exponent.rsplit_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let strip = |text: &str| -> String {
        if alternate || !text.contains('.') {
            text.to_owned()
        } else {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    };
    if exponent < -4 || exponent >= num::len(precision) {
        let (mantissa, exponent) = by_exponent.split_once('e').unwrap_or((&by_exponent, "+00"));
        return format!("{}e{exponent}", strip(mantissa));
    }
    strip(&fixed(f, num::size(num::len(precision) - 1 - exponent)))
}

/// A float by a type letter of a format, without its sign.
pub(super) fn float_digits(f: f64, kind: char, precision: usize, alternate: bool) -> Res<String> {
    if precision > PRECISION_MAX {
        return Err(value_error("precision too big"));
    }
    let f = f.abs();
    if f.is_nan() || f.is_infinite() {
        let word = if f.is_nan() { "nan" } else { "inf" };
        return Ok(if kind.is_uppercase() { word.to_uppercase() } else { word.to_owned() });
    }
    let mut digits = match kind.to_ascii_lowercase() {
        'e' => scientific(f, precision),
        'g' => general(f, precision, alternate),
        _ => fixed(f, precision),
    };
    if alternate && !digits.contains('.') {
        let at = digits.find('e').unwrap_or(digits.len());
        digits.insert(at, '.');
    }
    if kind.is_uppercase() {
        digits.make_ascii_uppercase();
    }
    Ok(digits)
}

/// A format as Python writes it: `*>+#010,.2f`.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

fn number(rest: &mut &str) -> Res<Option<usize>> {
    let len = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, after) = rest.split_at(len);
    *rest = after;
    if digits.is_empty() {
        return Ok(None);
    }
    digits.parse().map(Some).map_err(|_| value_error("Too many decimal digits in format string"))
}

fn parse(spec: &str, of: &Val) -> Res<Spec> {
    let mut parsed = Spec::default();
    let mut rest = spec;
    let mut chars = rest.chars();
    let (first, second) = (chars.next(), chars.next());
    let is_align = |c: char| matches!(c, '<' | '>' | '=' | '^');
    if let (Some(fill), Some(align)) = (first, second.filter(|c| is_align(*c))) {
        (parsed.fill, parsed.align) = (Some(fill), Some(align));
        rest = chars.as_str();
    } else if let Some(align) = first.filter(|c| is_align(*c)) {
        parsed.align = Some(align);
        rest = rest.get(1..).unwrap_or_default();
    }
    if let Some(sign) = rest.chars().next().filter(|c| matches!(c, '+' | '-' | ' ')) {
        parsed.sign = Some(sign);
        rest = rest.get(1..).unwrap_or_default();
    }
    if let Some(after) = rest.strip_prefix('z') {
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('#') {
        parsed.alternate = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('0').filter(|_| parsed.fill.is_none()) {
        parsed.zero = true;
        rest = after;
    }
    parsed.width = number(&mut rest)?.unwrap_or(0);
    if let Some(grouping) = rest.chars().next().filter(|c| matches!(c, ',' | '_')) {
        parsed.grouping = Some(grouping);
        rest = rest.get(1..).unwrap_or_default();
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        parsed.precision =
            Some(number(&mut rest)?.ok_or_else(|| value_error("Format specifier missing precision"))?);
    }
    let mut chars = rest.chars();
    parsed.kind = chars.next();
    if chars.next().is_some() {
        return Err(value_error(format!(
            "Invalid format specifier '{spec}' for object of type '{}'",
            of.type_name()
        )));
    }
    Ok(parsed)
}

/// `format(value, spec)`
pub(crate) fn format(val: &Val, spec: &str) -> Res<String> {
    if let Val::Undef(undef) = val {
        undef.check()?;
    }
    if spec.is_empty() {
        return repr::str(val);
    }
    let parsed = parse(spec, val)?;
    match val {
        Val::Str(text) | Val::Markup(text) => text_by(text, &parsed),
        Val::Float(f) => float_by(*f, &parsed),
        Val::Bool(b) if parsed.kind.is_none_or(|kind| kind == 's') && parsed.kind.is_some() => {
            Err(value_error(format!("Unknown format code 's' for object of type 'bool' ({b})")))
        }
        Val::Int(_) | Val::Big(_) | Val::Bool(_) => int_by(val, &parsed),
        Val::Undef(_) => text_by("", &parsed),
        other => {
            Err(type_error(format!("unsupported format string passed to {}.__format__", other.type_name())))
        }
    }
}

fn unknown(kind: char, of: &str) -> exc::Exc {
    value_error(format!("Unknown format code '{kind}' for object of type '{of}'"))
}

fn text_by(text: &str, spec: &Spec) -> Res<String> {
    if let Some(kind) = spec.kind.filter(|kind| *kind != 's') {
        return Err(unknown(kind, "str"));
    }
    if spec.sign.is_some() {
        return Err(value_error("Sign not allowed in string format specifier"));
    }
    if spec.alternate {
        return Err(value_error("Alternate form (#) not allowed in string format specifier"));
    }
    if spec.align == Some('=') {
        return Err(value_error("'=' alignment not allowed in string format specifier"));
    }
    if let Some(grouping) = spec.grouping {
        return Err(value_error(format!("Cannot specify '{grouping}' with 's'.")));
    }
    let cut = match spec.precision {
        Some(precision) => text.get(..text::byte_of(text, precision)).unwrap_or(text),
        None => text,
    };
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    align(cut, spec.width, spec.align.unwrap_or('<'), fill)
}

fn align(text: &str, width: usize, align: char, fill: char) -> Res<String> {
    let pad = width.saturating_sub(text::len(text));
    let before = match align {
        '>' => pad,
        '^' => pad / 2,
        _ => 0,
    };
    padded(text, before, pad - before, fill)
}

fn grouped(digits: &str, by: char, size: usize) -> String {
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(size) {
            out.push(by);
        }
        out.push(c);
    }
    out
}

/// A number's sign, prefix and digits, to its width.
fn number_by(
    negative: bool,
    prefix: &str,
    whole: &str,
    rest: &str,
    group: usize,
    spec: &Spec,
) -> Res<String> {
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let zero = spec.zero && spec.align.is_none();
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    let side = spec.align.unwrap_or(if zero { '=' } else { '>' });
    budget::room(spec.width.saturating_mul(4))?;
    let mut whole = whole.to_owned();
    if let Some(by) = spec.grouping {
        if side == '=' && fill == '0' {
            // The zeros are grouped, too.
            if spec.width > GROUPED_WIDTH_MAX {
                return Err(limit_error(format!(
                    "a number is grouped to a width of more than {GROUPED_WIDTH_MAX}"
                )));
            }
            let taken = sign.len() + prefix.len() + rest.len();
            while grouped(&whole, by, group).len() + taken < spec.width {
                whole.insert(0, '0');
            }
            let mut out = grouped(&whole, by, group);
            // One zero more than fits is how CPython keeps a separator from standing first.
            if out.starts_with(by) {
                out.insert(0, '0');
            }
            return Ok(format!("{sign}{prefix}{out}{rest}"));
        }
        whole = grouped(&whole, by, group);
    }
    if side == '=' {
        let body = format!("{whole}{rest}");
        let pad = spec.width.saturating_sub(sign.len() + prefix.len() + body.len());
        return Ok(format!("{sign}{prefix}{}", padded(&body, pad, 0, fill)?));
    }
    align(&format!("{sign}{prefix}{whole}{rest}"), spec.width, side, fill)
}

fn int_by(val: &Val, spec: &Spec) -> Res<String> {
    let i = val.as_int().unwrap_or(0);
    let kind = spec.kind.unwrap_or('d');
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') {
        return float_by(num::float(i), spec);
    }
    if spec.precision.is_some() {
        return Err(value_error("Precision not allowed in integer format specifier"));
    }
    let positive = i.unsigned_abs();
    let (digits, prefix) = match kind {
        'd' | 'n' => (positive.to_string(), ""),
        'b' => (format!("{positive:b}"), "0b"),
        'o' => (format!("{positive:o}"), "0o"),
        'x' => (format!("{positive:x}"), "0x"),
        'X' => (format!("{positive:X}"), "0X"),
        'c' => {
            if spec.sign.is_some() {
                return Err(value_error("Sign not allowed with integer format specifier 'c'"));
            }
            let c = u32::try_from(i)
                .ok()
                .and_then(char::from_u32)
                .ok_or_else(|| overflow_error("%c arg not in range(0x110000)"))?;
            return align(&c.to_string(), spec.width, spec.align.unwrap_or('<'), spec.fill.unwrap_or(' '));
        }
        other => return Err(unknown(other, "int")),
    };
    if spec.grouping == Some(',') && !matches!(kind, 'd' | 'n') {
        return Err(value_error(format!("Cannot specify ',' with '{kind}'.")));
    }
    let prefix = if spec.alternate { prefix } else { "" };
    number_by(
        i < 0,
        prefix,
        &digits,
        "",
        if prefix.is_empty() && matches!(kind, 'd' | 'n') { 3 } else { 4 },
        spec,
    )
}

fn float_by(f: f64, spec: &Spec) -> Res<String> {
    let negative = f.is_sign_negative() && !f.is_nan();
    let digits = match spec.kind {
        None => match spec.precision {
            None => {
                let mut out = String::new();
                python::write_float(f.abs(), &mut out);
                out
            }
            Some(precision) => {
                // Like `g`, but with a digit after the point, and with the exponent one earlier.
                let mut out = general(f.abs(), precision.clamp(1, PRECISION_MAX), spec.alternate);
                let exponent = scientific(f.abs(), precision.clamp(1, PRECISION_MAX) - 1);
                let exponent: i64 = exponent.rsplit_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
                if f.is_finite() && exponent >= num::len(precision.max(1)) - 1 && !out.contains('e') {
                    let by_exponent = scientific(f.abs(), precision.max(1) - 1);
                    let (mantissa, e) = by_exponent.split_once('e').unwrap_or((&by_exponent, "+00"));
                    let mantissa = if mantissa.contains('.') {
                        mantissa.trim_end_matches('0').trim_end_matches('.')
                    } else {
                        mantissa
                    };
                    out = format!("{mantissa}e{e}");
                }
                if f.is_finite() && !out.contains(['.', 'e']) {
                    out.push_str(".0");
                }
                out
            }
        },
        Some('%') => {
            format!("{}%", float_digits(f * 100.0, 'f', spec.precision.unwrap_or(6), spec.alternate)?)
        }
        Some('n') => float_digits(f, 'g', spec.precision.unwrap_or(6), spec.alternate)?,
        Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
            float_digits(f, kind, spec.precision.unwrap_or(6), spec.alternate)?
        }
        Some(kind) => return Err(unknown(kind, "float")),
    };
    let split = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(split);
    if f.is_finite() {
        number_by(negative, "", whole, rest, 3, spec)
    } else {
        number_by(negative, "", "", &digits, 3, spec)
    }
}

/// What cannot be formatted here.
pub(crate) fn unsupported(what: &str) -> exc::Exc {
    not_native(format!("a format with {what}"))
}
