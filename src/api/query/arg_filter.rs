//! A filter over the arguments of a job, whatever they are nested in.

use salt_sls::Glob;

use crate::wire::msgpack::{as_bool, as_int, as_text, elements, pairs};

/// Levels of lists and maps in which strings are found.
const DEPTH_MAX: usize = 32;

/// A glob for an argument, or a part of it.
///
/// Text in lists and maps counts as well, and an entry of a map also as `KEY=VALUE`, as on the
/// command line.
#[derive(Debug, Clone)]
pub(crate) enum ArgFilter {
    Glob(Glob),
    Part(String),
}

impl ArgFilter {
    /// A string with `*`, `?` or `[` is a glob.
    pub(crate) fn new(text: &str) -> Self {
        if text.contains(['*', '?', '[']) {
            Self::Glob(Glob::new(text))
        } else {
            Self::Part(text.to_owned())
        }
    }

    fn matches_text(&self, text: &str) -> bool {
        match self {
            Self::Glob(glob) => glob.matches(text),
            Self::Part(part) => text.contains(part.as_str()),
        }
    }

    /// Whether any string in a stored value matches.
    pub(crate) fn matches(&self, value: &[u8]) -> bool {
        // A list of what is left instead of recursion: senders choose how deep arguments are.
        let mut left = vec![(value, 0)];
        while let Some((value, depth)) = left.pop() {
            // Each level is walked to find its end, therefore deep nesting would cost the square of
            // the length.
            if depth > DEPTH_MAX {
                continue;
            }
            if scalar(value).is_some_and(|text| self.matches_text(&text)) {
                return true;
            }
            left.extend(elements(value).map(|one| (one, depth + 1)));

            for (key, value) in pairs(value) {
                let named = scalar(key)
                    .zip(scalar(value))
                    .map(|(key, value)| format!("{key}={value}"));
                if named.is_some_and(|text| self.matches_text(&text)) {
                    return true;
                }
                left.extend([key, value].map(|one| (one, depth + 1)));
            }
        }
        false
    }
}

/// A scalar as it is written on the command line.
fn scalar(value: &[u8]) -> Option<String> {
    let flag = || as_bool(value).map(|flag| (if flag { "True" } else { "False" }).to_owned());
    as_text(value)
        .map(str::to_owned)
        .or_else(flag)
        .or_else(|| as_int(value).map(|number| number.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::msgpack::encode;

    #[test]
    fn a_part_of_any_text_matches_and_a_glob_matches_all_of_one() {
        let args =
            json!(["web.nginx", "rm -rf /srv", {"test": true, "pillar": {"tier": ["gold", 7]}}]);
        let args = encode(&args).unwrap();
        for (text, expected) in [
            ("rm -rf", true),
            ("rm *", true),
            ("rm", true),
            ("r?", false),
            ("web.nginx", true),
            ("test=True", true),
            ("test=False", false),
            ("gold", true),
            ("pillar", true),
            ("7", true),
            ("*srv", true),
            ("silver", false),
            ("Web", false),
        ] {
            assert_eq!(ArgFilter::new(text).matches(&args), expected, "{text}");
        }
        assert!(!ArgFilter::new("x").matches(b""), "no arguments");
    }

    #[test]
    fn deep_arguments_need_no_stack() {
        // Lists of one element, each in the one before.
        let mut deep = vec![0x91; 200_000];
        deep.extend(b"\xa1x");
        assert!(ArgFilter::new("x").matches(&deep) || !ArgFilter::new("y").matches(&deep));
    }
}
