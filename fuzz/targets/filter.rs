//! A condition and an event's data: refused with a position within the text, or evaluated, with the same result twice.
//!
//! Input: the expression, and optionally the byte 0xff and the data; the default is a map of one key.

use saltcellar::wire::filter::Condition;

pub(crate) fn filter(input: &[u8]) {
    let (text, data) = match input.iter().position(|byte| *byte == 0xff) {
        Some(at) => (input.get(..at).unwrap_or_default(), input.get(at + 1..).unwrap_or_default()),
        None => (input, &b"\x81\xa2id\xa4web1"[..]),
    };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match Condition::new(text) {
        Ok(condition) => {
            let once = || condition.holds(b"salt/fuzz", data);
            assert_eq!(once(), once());
            let again = Condition::new(condition.as_str()).expect("the same text");
            assert_eq!(again.holds(b"salt/fuzz", data), once());
        }
        Err(error) => {
            let line = text.split('\n').nth(error.line - 1).expect("a line of the text");
            assert!((1..=line.chars().count() + 1).contains(&error.column), "{error}: {line:?}");
        }
    }
}
