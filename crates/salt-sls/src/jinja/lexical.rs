//! Lexical checks: spellings that minijinja and Jinja read differently.

use std::collections::HashSet;

use minijinja::machinery::Token;
use minijinja::syntax::SyntaxConfig;

use super::bounded::BoundedSource;
use super::call::is_mutating;
use super::error::NotNative;
use crate::limits;

/// A syntax error of minijinja, which need not be one of Jinja.
pub(super) fn syntax_error(error: &minijinja::Error) -> NotNative {
    let line = error
        .line()
        .and_then(|line| u32::try_from(line).ok())
        .unwrap_or(0);
    NotNative {
        line,
        what: format!("this syntax ({})", error.detail().unwrap_or("unknown")),
    }
}

/// Properties of a file's tokens.
pub(super) struct Tokens<'s> {
    /// Names that the file assigns.
    pub(super) assigned: HashSet<&'s str>,
    /// Whether the file calls a method that changes its object.
    pub(super) mutates: bool,
}

/// The text as a source for minijinja, unless its expressions nest too deeply.
pub(super) fn source<'s>(
    text: &'s str,
    syntax: &SyntaxConfig,
) -> Result<BoundedSource<'s>, NotNative> {
    BoundedSource::template(text, syntax.clone()).map_err(|error| NotNative {
        line: line_at(text, error.offset),
        what: error.what,
    })
}

fn line_at(text: &str, byte: usize) -> u32 {
    let before = text.as_bytes().get(..byte).unwrap_or_default();
    u32::try_from(memchr::memchr_iter(b'\n', before).count() + 1).unwrap_or(0)
}

/// The properties of a file, or the first spelling that minijinja and Jinja may read differently.
pub(super) fn check<'s>(
    source: &BoundedSource<'s>,
    syntax: &SyntaxConfig,
) -> Result<Tokens<'s>, NotNative> {
    let text = source.text();
    let refuse = |byte: usize, what: &str| {
        Err(NotNative {
            line: line_at(text, byte),
            what: what.to_owned(),
        })
    };

    // minijinja and Jinja differ in what is white space, and in what ends a line.
    let rare = |c: char| {
        (c.is_control() && c != '\n' && c != '\t') || (!c.is_ascii() && c.is_whitespace())
    };
    if let Some(byte) = text.find(rare) {
        return refuse(byte, "control characters, or white space outside ASCII");
    }

    // Jinja knows the `+` only at the end of a block tag.
    if let Some(byte) = text.find("+}}") {
        return refuse(byte, "`+}}`");
    }

    // Where a raw text begins depends on these spellings, and on the options for white space.
    for (byte, _) in text.match_indices("{%") {
        let tag = text.get(byte..).unwrap_or_default();
        let word = tag
            .trim_start_matches("{%")
            .trim_start_matches(['-', '+'])
            .trim_start();

        // Longer words are also rejected, which is safe.
        let is_raw = word.starts_with("raw") || word.starts_with("endraw");
        let plain = (tag.starts_with("{% raw %}") || tag.starts_with("{% endraw %}"))
            && !syntax.trim_blocks()
            && !syntax.lstrip_blocks();

        if is_raw && !plain {
            return refuse(byte, "this spelling of a raw block");
        }
    }

    let mut tokens = Tokens {
        assigned: HashSet::new(),
        mutates: false,
    };

    let (mut nested, mut elifs) = (0, 0);
    let mut before = Token::BlockEnd;
    let mut at_start = false;
    // In `for`, `set` and `with`: the following names are assigned.
    let mut setting = false;
    let mut with = false;

    for token in source.tokens() {
        let (token, span) = token.map_err(|error| syntax_error(&error))?;
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let spelled = text.get(start..end).unwrap_or_default();
        let rest = text.get(end..).unwrap_or_default();

        match &token {
            Token::BlockStart | Token::VariableStart => nested = 0,
            // These do not nest in the syntax tree.
            Token::Comma | Token::Colon | Token::TemplateData(_) => {}
            _ => nested += 1,
        }

        if nested > limits::JINJA_TAG_TOKENS_MAX {
            return refuse(start, "a tag of this length");
        }

        match &token {
            Token::Ident(name) => {
                // The translation uses such names for its filters, and Python gives them a special
                // meaning.
                if name.starts_with("__") {
                    return refuse(start, "a name that begins with two underscores");
                }
                if at_start {
                    setting = ["for", "set", "with"].contains(name);
                    with = *name == "with";
                    // Each `elif` nests in the syntax tree.
                    elifs += u32::from(*name == "elif");
                    if elifs > 100 {
                        return refuse(start, "this many `elif`");
                    }
                } else if setting && *name == "in" {
                    setting = false;
                } else if setting && !matches!(before, Token::Dot) {
                    tokens.assigned.insert(name);
                }
                tokens.mutates |= matches!(before, Token::Dot) && is_mutating(name) == Some(true);
            }
            Token::Assign => {
                if matches!(before, Token::ParenClose) && !setting {
                    return refuse(start, "`)=`");
                }
                setting = false;
            }
            Token::Comma if with => setting = true,
            Token::BlockEnd => (setting, with) = (false, false),
            Token::Int(_) | Token::Int128(_) | Token::Float(_) => {
                let (whole, fraction) = spelled.split_once('.').unwrap_or((spelled, "0"));
                let digits =
                    |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                let plain =
                    digits(whole) && digits(fraction) && (whole == "0" || !whole.starts_with('0'));
                let ends = !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');

                // Longer numbers may not be exact, and the two read other spellings differently.
                if !plain
                    || !ends
                    || matches!(before, Token::Dot)
                    || whole.len() + fraction.len() > 15
                {
                    return refuse(start, "this spelling of a number");
                }
            }
            Token::Str(_) | Token::String(_) => {
                let mut chars = spelled.chars();
                while let Some(c) = chars.next() {
                    if c == '\\' && !chars.next().is_some_and(|c| "\\'\"nt".contains(c)) {
                        return refuse(start, "this escape in a string");
                    }
                }
            }
            _ => {}
        }

        at_start = matches!(token, Token::BlockStart);
        before = token;
    }

    Ok(tokens)
}
