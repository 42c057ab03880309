//! A YAML 1.1 parser like PyYAML with libyaml and Salt's loader, with Salt's rules for integers, dates and duplicates.
//!
//! A YAML 1.2 parser differs from libyaml in plain text, errors and tabs, and its events do not
//! show the difference. The scanner is therefore a part of this module.
//!
//! ```text
//! text -> scan, scalar, tag: tokens -> parse: nodes -> construct: values
//!                                                   -> nodes: as they are written
//! ```

mod base64;
mod construct;
mod error;
pub mod nodes;
mod parse;
mod resolve;
mod scalar;
mod scan;
mod tag;

use crate::limits::SLS_BYTES_MAX;
use crate::value::Value;
use construct::Constructor;
pub use error::YamlError;
use parse::Parser;

/// Objects that anchors share: for each pair of a root mapping, the number of its value and, if that is a mapping, the numbers of
/// its values. Equal numbers are one object.
pub(crate) type Sharing = Vec<(u32, Vec<u32>)>;

/// Parses the only document of `text`; `Null` without a document.
pub fn load(text: &str) -> Result<Value, YamlError> {
    load_shared(text).map(|(value, _)| value)
}

/// [`load`], with shared objects if the document has anchors.
pub(crate) fn load_shared(text: &str) -> Result<(Value, Option<Sharing>), YamlError> {
    check(text)?;
    let mut parser = Parser::new(text);
    let Some(root) = parser.document()? else {
        return Ok((Value::Null, None));
    };
    let mut constructor = Constructor::new(parser.nodes, text);
    let value = constructor.value(root)?;
    let sharing = constructor
        .nodes
        .has_anchors
        .then(|| constructor.sharing(root));
    Ok((value, sharing))
}

/// Rejects text beyond the size limit, and control characters.
fn check(text: &str) -> Result<(), YamlError> {
    if text.len() > SLS_BYTES_MAX {
        let message = format!("larger than {SLS_BYTES_MAX} bytes");
        return Err(YamlError {
            line: 1,
            column: 1,
            message,
        });
    }

    // Without early exit, which lets the compiler compare several bytes together.
    let fine = |fine, byte: &u8| fine & matches!(byte, 0x20..0x7f | b'\n');
    if text.as_bytes().iter().fold(true, fine) {
        return Ok(());
    }

    // PyYAML's printable characters.
    let printable = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    let Some((at, c)) = text.char_indices().find(|(_, c)| !printable(*c)) else {
        return Ok(());
    };

    let before = text.get(..at).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);

    Err(YamlError {
        line: before.matches('\n').count() + 1,
        column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
        message: format!("control characters are not allowed: {}", c.escape_unicode()),
    })
}
