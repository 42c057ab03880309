//! The values of secrets, which are only in memory.
//!
//! # Invariant
//!
//! A value is in no status, log line, error, dead letter or rendered configuration: settings hold
//! references ([`Secret`]), and each message about a connection passes [`Revealed::scrub`] before
//! anyone else sees it. Texts about a sink do so in `engines::transport::open`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;

use crate::base::limits::SINK_SECRET_BYTES_MAX;
use crate::config::{Secret, Text};
use crate::model::REDACTED;
use crate::model::word::Word as _;

#[derive(Debug, thiserror::Error)]
#[error("cannot read the secret {}: {why}", secret.show().unwrap_or_default())]
pub(crate) struct SecretError {
    secret: Secret,
    /// With the remedy.
    why: String,
}

/// Reads the value. systemd's credentials directory is the directory of this process.
fn read(secret: &Secret) -> Result<String, SecretError> {
    let failed = |why: String| SecretError {
        secret: secret.clone(),
        why,
    };

    let (path, remedy) = match secret {
        Secret::File(path) => (
            path.clone(),
            "check the path and the permissions of the file".to_owned(),
        ),
        Secret::Credential(name) => {
            let remedy = format!("set `LoadCredential={name}:PATH` in the daemon's unit");
            let dir = std::env::var_os("CREDENTIALS_DIRECTORY")
                .ok_or_else(|| failed(format!("CREDENTIALS_DIRECTORY is not set; {remedy}")))?;
            (Path::new(&dir).join(name), remedy)
        }
    };
    let unread = |error: io::Error| failed(format!("{error}; {remedy}"));

    let mut text = String::new();
    // One byte more than allowed shows that the file is longer.
    let file = File::open(path).map_err(unread)?;
    file.take(SINK_SECRET_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unread)?;

    // An editor ends a file with a line break, which is no part of the secret.
    text.truncate(text.trim_end().len());
    if text.is_empty() {
        return Err(failed("it is empty; write the secret into it".to_owned()));
    }

    // Rejected instead of cut, because no peer would accept a part of the value.
    if text.len() as u64 > SINK_SECRET_BYTES_MAX {
        return Err(failed(format!(
            "longer than {SINK_SECRET_BYTES_MAX} bytes; it must contain the secret only"
        )));
    }

    Ok(text)
}

/// The values of settings that nobody may see. Clones share them. Lock order: no other
/// lock is taken under it.
#[derive(Clone, Default)]
pub(crate) struct Revealed(Arc<Mutex<Vec<Vec<char>>>>);

/// Values of at least this many bytes are also found in other spellings. A shorter value is part of
/// ordinary words.
const ENCODED_BYTES_MIN: usize = 4;

/// Parts of an address, and of a header with a scheme, from this length on are secret of
/// themselves.
const PART_BYTES_MIN: usize = 6;

/// A string that is scrubbed ends here. What is shown of it is far shorter.
const SCRUBBED_BYTES_MAX: usize = 64 * 1024;

impl Revealed {
    pub(crate) fn secret(&self, secret: &Secret) -> Result<String, SecretError> {
        let value = read(secret)?;
        self.hide(&value);
        Ok(value)
    }

    pub(crate) fn text(&self, text: &Text) -> Result<String, SecretError> {
        match text {
            Text::Plain(text) => Ok(text.clone()),
            Text::Secret(secret) => self.secret(secret),
        }
    }

    /// The value of an option, a header or a variable with this name. A plain value is hidden as
    /// well if the name suggests a secret.
    pub(crate) fn named(&self, name: &str, text: &Text) -> Result<String, SecretError> {
        let value = self.text(text)?;
        if is_secret_name(name) {
            self.hide(&value);
        }
        Ok(value)
    }

    /// An address. The login and the query of a plain address are secret as well.
    pub(crate) fn url(&self, text: &Text) -> Result<String, SecretError> {
        let value = self.text(text)?;
        if matches!(text, Text::Plain(_)) {
            let parts = UrlParts::of(&value);
            for part in parts.login.into_iter().chain(parts.query) {
                if part.len() >= PART_BYTES_MIN {
                    self.add(part);
                }
            }
        }
        Ok(value)
    }

    /// Hides a value, its parts, and other spellings of them.
    pub(crate) fn hide(&self, value: &str) {
        self.add(value);

        let parts = UrlParts::of(value);
        // The words after a scheme, such as `Bearer`.
        let words = value.split_whitespace().skip(1);
        let parts = parts.login.into_iter().chain(parts.path).chain(parts.query);
        for part in parts.chain(words) {
            if part.len() >= PART_BYTES_MIN {
                self.add(part);
            }
        }
    }

    fn add(&self, value: &str) {
        if value.is_empty() {
            return;
        }

        let mut spellings = vec![value.to_owned()];
        if value.len() >= ENCODED_BYTES_MIN {
            spellings.extend(in_base64(value.as_bytes()));
            spellings.push(in_hex(value.as_bytes(), ""));
        }

        let mut known = self.0.lock();
        for spelling in spellings {
            let spelling: Vec<char> = spelling.chars().collect();
            // A value may be hidden several times, and each spelling costs a search of every
            // scrubbed string.
            if !known.contains(&spelling) {
                known.push(spelling);
            }
        }
    }

    /// The string without the values, however they are spelled: as they are, in percent encoding,
    /// as JSON or HTML, in base64 or hexadecimal. It ends after [`SCRUBBED_BYTES_MAX`].
    pub(crate) fn scrub(&self, text: &str) -> String {
        let text = text
            .get(..text.floor_char_boundary(SCRUBBED_BYTES_MAX))
            .unwrap_or_default();

        let mut ranges = Vec::new();
        // Each value is searched in the original string, because a placeholder must not make or
        // hide a match.
        for value in self.0.lock().iter() {
            find(text, value, &mut ranges);
        }

        ranges.sort_unstable();

        let mut clean = String::with_capacity(text.len());
        let mut done = 0;
        for (from, to) in ranges {
            // A value within another one, or next to it, is a part of what is replaced already.
            if from >= done {
                clean.push_str(text.get(done..from).unwrap_or_default());
                clean.push_str(REDACTED);
            }
            done = done.max(to);
        }

        clean.push_str(text.get(done..).unwrap_or_default());
        clean
    }
}

/// True if the value of a header, a variable or an option of this name is a secret.
fn is_secret_name(name: &str) -> bool {
    const WORDS: [&str; 10] = [
        "authorization",
        "cookie",
        "token",
        "secret",
        "passw",
        "passphrase",
        "credential",
        "apikey",
        "accesskey",
        "privatekey",
    ];

    let mut name = name.to_ascii_lowercase();
    name.retain(|c| c.is_ascii_alphanumeric());
    // A name that is taken for a secret by mistake hides a harmless string; the opposite would show
    // a secret.
    WORDS.iter().any(|word| name.contains(word)) || name.ends_with("key")
}

/// The parts of an address that can be secret; all empty for any other string.
#[derive(Debug, Default)]
struct UrlParts<'a> {
    /// The login as a whole, and its password.
    login: Vec<&'a str>,
    /// The path as a whole, and its segments.
    path: Vec<&'a str>,
    /// The query as a whole, and its values.
    query: Vec<&'a str>,
}

impl<'a> UrlParts<'a> {
    fn of(text: &'a str) -> Self {
        let mut parts = Self::default();
        let Some((_, rest)) = text.split_once("://") else {
            return parts;
        };

        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));

        if let Some((login, _)) = authority.rsplit_once('@') {
            parts.login.push(login);
            parts.login.extend(login.split_once(':').map(|(_, of)| of));
        }

        // Kept as a whole and in segments: what is too short to be hidden alone is hidden within
        // the whole.
        parts.path.push(path);
        parts.path.extend(path.split('/'));
        parts.query.push(query);

        let value = |pair: &'a str| pair.split_once('=').map_or(pair, |(_, value)| value);
        parts.query.extend(query.split(['&', ';']).map(value));
        parts
    }
}

/// The characters that are the same in each base64 string that contains these bytes, for each of
/// three offsets and both alphabets.
fn in_base64(bytes: &[u8]) -> impl Iterator<Item = String> {
    let at_offset = |offset: usize| {
        let mut padded = vec![0; offset];
        padded.extend_from_slice(bytes);
        let from = (offset * 4).div_ceil(3);
        let to = padded.len() * 8 / 6;
        [STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|alphabet| {
            let text = alphabet.encode(&padded);
            text.get(from..to).unwrap_or_default().to_owned()
        })
    };
    let all: Vec<String> = (0..3).flat_map(at_offset).collect();
    // Of a short value too little is left to be found.
    all.into_iter()
        .filter(|text| text.len() >= ENCODED_BYTES_MIN)
}

/// Each byte as two digits, after a prefix.
fn in_hex(bytes: &[u8], prefix: &str) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{prefix}{byte:02x}");
        text
    })
}

/// Adds the ranges of a string that spell a value.
fn find(text: &str, value: &[char], ranges: &mut Vec<(usize, usize)>) {
    let bytes = text.as_bytes();
    let Some((&first, rest)) = value.split_first() else {
        return;
    };
    let mut buffer = [0; 4];
    let own = first.encode_utf8(&mut buffer).as_bytes();
    let own = own.first().copied().unwrap_or_default();

    let mut from = 0;

    while from < bytes.len() {
        // Most characters begin no spelling, and the search for one is costly.
        let begins = bytes.get(from).is_some_and(|byte| {
            byte.eq_ignore_ascii_case(&own) || matches!(byte, b'%' | b'\\' | b'&' | b'+')
        });
        let end = begins.then(|| end_of(bytes, from, first, rest)).flatten();
        match end {
            Some(to) => {
                ranges.push((from, to));
                // Spellings of one value do not overlap.
                from = to;
            }
            None => from += 1,
        }
    }
}

/// The end of a spelling of a value that begins here. All spellings of a character are followed, as
/// a value can contain backslashes.
fn end_of(text: &[u8], from: usize, first: char, rest: &[char]) -> Option<usize> {
    let mut now = vec![from];
    let mut next = Vec::new();
    for &want in std::iter::once(&first).chain(rest) {
        next.clear();
        for &at in &now {
            spellings(text, at, want, &mut next);
        }

        if next.is_empty() {
            return None;
        }
        // Escapes of different lengths can end at the same place; without this each character could
        // double the list.
        next.sort_unstable();
        next.dedup();
        std::mem::swap(&mut now, &mut next);
    }

    // The longest spelling, because no part of the value may be left.
    now.last().copied()
}

/// Adds the ends of all spellings of a character at this position.
fn spellings(text: &[u8], at: usize, want: char, ends: &mut Vec<usize>) {
    let rest = text.get(at..).unwrap_or_default();
    let mut buffer = [0; 4];
    let own = want.encode_utf8(&mut buffer).as_bytes();

    let begins = |rest: &[u8]| {
        rest.get(..own.len())
            .is_some_and(|part| part.eq_ignore_ascii_case(own))
    };

    if begins(rest) {
        ends.push(at + own.len());
    }

    match rest.first() {
        Some(b'+') if want == ' ' => ends.push(at + 1),
        // Each encoding of an encoding adds a `25`. Where it ends cannot be told from here: the
        // value itself may continue with these digits.
        Some(b'%') if want == '%' => {
            let levels = rest.get(1..).unwrap_or_default().chunks_exact(2);
            let levels = levels.take_while(|digits| digits == b"25").count();
            ends.extend((1..=levels).map(|levels| at + 1 + 2 * levels));
        }
        Some(b'%') => ends.extend(percent(rest, own).map(|len| at + len)),
        Some(b'&') => ends.extend(entity(rest, want).map(|len| at + len)),
        Some(b'\\') => {
            // A string within a string within a string: each level doubles the backslashes.
            let run = rest.iter().take_while(|byte| **byte == b'\\').count();
            if want == '\\' {
                ends.extend([2, 4, 8].into_iter().filter(|n| *n <= run).map(|n| at + n));
            }
            let after = rest.get(run..).unwrap_or_default();
            if want != '\\' && begins(after) {
                ends.push(at + run + own.len());
            }
            ends.extend(escape(after, want).map(|len| at + run + len));
        }
        _ => {}
    }
}

/// The length of these bytes, none of them `%`, in percent encoding, which may be encoded itself.
fn percent(text: &[u8], bytes: &[u8]) -> Option<usize> {
    let mut len = 0;
    for byte in bytes {
        len += usize::from(text.get(len) == Some(&b'%'));
        while text.get(len..len + 2) == Some(b"25") {
            len += 2;
        }
        if hex(text.get(len..len + 2)?)? != u32::from(*byte) {
            return None;
        }
        len += 2;
    }
    Some(len)
}

/// The length of an escape after its backslash, as in JSON, Python and Rust.
fn escape(text: &[u8], want: char) -> Option<usize> {
    let number = |digits: &[u8], len: usize| (hex(digits)? == u32::from(want)).then_some(len);
    match text.first()? {
        b'n' if want == '\n' => Some(1),
        b'r' if want == '\r' => Some(1),
        b't' if want == '\t' => Some(1),
        b'x' => number(text.get(1..3)?, 3),
        b'u' if text.get(1) == Some(&b'{') => {
            let len = memchr::memchr(b'}', text.get(..12).unwrap_or(text))?;
            number(text.get(2..len)?, len + 1)
        }
        b'u' => number(text.get(1..5)?, 5),
        _ => None,
    }
}

/// The length of an entity of HTML.
fn entity(text: &[u8], want: char) -> Option<usize> {
    let len = memchr::memchr(b';', text.get(..12).unwrap_or(text))?;
    let name = text.get(1..len)?;

    let found = match name {
        b"amp" => u32::from('&'),
        b"lt" => u32::from('<'),
        b"gt" => u32::from('>'),
        b"quot" => u32::from('"'),
        b"apos" => u32::from('\''),
        [b'#', b'x' | b'X', digits @ ..] => hex(digits)?,
        [b'#', digits @ ..] => std::str::from_utf8(digits).ok()?.parse().ok()?,
        _ => return None,
    };

    (found == u32::from(want)).then_some(len + 1)
}

fn hex(digits: &[u8]) -> Option<u32> {
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_hex)?;
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_its_file_and_removed_from_texts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "s3cret\n").unwrap();
        let secret = Secret::parse(&format!("file:{}", path.display())).unwrap();
        let revealed = Revealed::default();
        assert_eq!(revealed.secret(&secret).unwrap(), "s3cret");
        assert_eq!(
            revealed.scrub("bad key s3cret!"),
            format!("bad key {REDACTED}!")
        );
        assert!(!format!("{secret:?} {}", secret.show().unwrap()).contains("s3cret"));
        std::fs::write(&path, " \n").unwrap();
        let error = revealed.secret(&secret).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read the secret file:/") && error.contains("it is empty"),
            "{error}"
        );
        std::fs::write(&path, "x".repeat(70_000)).unwrap();
        assert!(
            revealed
                .secret(&secret)
                .unwrap_err()
                .to_string()
                .contains("longer than")
        );
    }

    #[test]
    fn a_secret_is_removed_in_every_spelling() {
        let secret = "p\u{e4}ss/w0r%d+%25\"&<\\ x=";
        let revealed = Revealed::default();
        revealed.hide(secret);
        let json = serde_json::to_string(secret).unwrap();
        let twice = serde_json::to_string(&json).unwrap();
        let percent = in_hex(secret.as_bytes(), "%");
        let unicode = secret.chars().fold(String::new(), |text, c| {
            format!("{text}\\u{:04x}", u32::from(c))
        });
        let html = secret
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('"', "&#34;");
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        for spelled in [
            secret.to_owned(),
            secret.to_ascii_uppercase(),
            json.trim_matches('"').to_owned(),
            twice,
            json.replace('/', "\\/"),
            percent.clone(),
            percent.to_uppercase(),
            percent.replace('%', "%25"),
            percent.replace('%', "%2525"),
            secret.replace('%', "%2525"),
            secret.replace(' ', "+").replace('/', "%2f"),
            unicode,
            html,
            format!("{secret:?}"),
            in_hex(secret.as_bytes(), "").to_uppercase(),
        ] {
            let clean = revealed.scrub(&format!("<{spelled}>"));
            assert!(
                clean.contains(REDACTED) && !clean.contains("w0"),
                "{spelled}: {clean}"
            );
        }
        for around in ["", "u:", "us:", "use:"] {
            let spelled = base64(&format!("{around}{secret}"));
            let clean = revealed.scrub(&spelled);
            assert!(
                clean.contains(REDACTED) && clean.len() < REDACTED.len() + 12,
                "{spelled}: {clean}"
            );
        }
        assert_eq!(revealed.scrub("nothing of it"), "nothing of it");
    }

    #[test]
    fn parts_of_an_address_and_of_a_header_are_secret_too() {
        let revealed = Revealed::default();
        revealed
            .hide("https://me:hunter22@hooks.example/services/T0001/Zz9secret?key=abcd1234&n=1");
        revealed.hide("Bearer eyJhbGciOi");
        for text in [
            "no such hook: /services/T0001/Zz9secret",
            "no hook Zz9secret here",
            "login me:hunter22 failed, hunter22",
            "query key=abcd1234&n=1, key abcd1234",
            "token eyJhbGciOi expired",
        ] {
            let clean = revealed.scrub(text);
            for part in ["Zz9", "hunter22", "abcd1234", "eyJ"] {
                assert!(!clean.contains(part), "{clean}");
            }
        }
        assert_eq!(
            revealed.scrub("hooks.example is down"),
            "hooks.example is down"
        );
        let plain = Revealed::default();
        let url = Text::Plain("https://me:hunter22@h.example/public/path?sig=abcd1234".to_owned());
        plain.url(&url).unwrap();
        let value = Text::Plain("hunter33".to_owned());
        plain.named("X-Api-Key", &value).unwrap();
        assert_eq!(
            plain.scrub("/public/path?sig=abcd1234 hunter22 hunter33"),
            format!("/public/path?{REDACTED} {REDACTED} {REDACTED}")
        );
    }
}
