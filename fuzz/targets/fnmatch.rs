//! A pattern and a name match by the rules of `fnmatch`, alone and among other patterns, in bounded time.
//!
//! Input: patterns, each ended by a line feed; the rest after the last line feed is the name.

use salt_sls::Glob;
use saltcellar::reactor::Matcher;

/// Sizes that the quadratic oracle below handles in reasonable time.
const CHARS_MAX: usize = 2_000;

pub(crate) fn fnmatch(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (patterns, name) = text.rsplit_once('\n').unwrap_or(("*", &text));
    let patterns: Vec<&str> = patterns.split('\n').collect();
    let globs: Vec<Glob> = patterns.iter().map(|pattern| Glob::new(pattern)).collect();
    let alone: Vec<bool> = globs.iter().map(|glob| glob.matches(name)).collect();
    for (glob, matched) in globs.iter().zip(&alone) {
        assert_eq!(Glob::new(glob.as_str()), *glob);
        if text.len() <= CHARS_MAX {
            assert_eq!(*matched, oracle(glob.as_str(), name), "{:?} on {name:?}", glob.as_str());
        }
        let mut steps = 0_usize;
        let counted = glob.matches_within(name, || {
            steps += 1;
            Ok::<(), ()>(())
        });
        assert_eq!(counted, Ok(*matched));
        let most = (name.len() + 2) * (glob.as_str().len() + 2);
        assert!(steps <= most, "{steps} steps for {:?} on {name:?}", glob.as_str());
        for literal in glob.literals().iter().filter(|_| *matched) {
            assert!(name.contains(&literal.text) && !literal.text.is_empty());
            assert!(!literal.begins || name.starts_with(&literal.text));
            assert!(!literal.ends || name.ends_with(&literal.text));
        }
    }
    let numbers: Vec<usize> = (0..).zip(&alone).filter(|(_, matched)| **matched).map(|(at, _)| at).collect();
    let matcher = Matcher::new(patterns.iter().copied());
    assert_eq!(matcher.matching(name), numbers, "{patterns:?} on {name:?}");
    assert_eq!(matcher.matches(name), !numbers.is_empty());
}

/// The oracle, by a table of matched prefixes of the name.
fn oracle(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let mut fits = vec![false; name.len() + 1];
    fits[0] = true;
    let mut at = 0;
    while at < pattern.len() {
        let mut next = vec![false; name.len() + 1];
        let mut len = 1;
        if pattern[at] == '*' {
            let mut any = false;
            for place in 0..=name.len() {
                any |= fits[place];
                next[place] = any;
            }
        } else {
            let set = if pattern[at] == '[' { closed(&pattern, at) } else { None };
            len = set.map_or(1, |end| end + 1 - at);
            for place in (0..name.len()).filter(|place| fits[*place]) {
                next[place + 1] = match (pattern[at], set) {
                    ('?', _) => true,
                    (_, Some(end)) => is_in(&pattern[at + 1..end], name[place]),
                    (c, None) => c == name[place],
                };
            }
        }
        fits = next;
        at += len;
    }
    fits[name.len()]
}

/// The end of the set that starts here, if it is closed.
fn closed(pattern: &[char], at: usize) -> Option<usize> {
    let first = at + 1 + usize::from(pattern.get(at + 1) == Some(&'!'));
    (first + 1..pattern.len()).find(|end| pattern[*end] == ']')
}

fn is_in(set: &[char], c: char) -> bool {
    let (not, set) = if set[0] == '!' { (true, &set[1..]) } else { (false, set) };
    let (mut found, mut at) = (false, 0);
    while at < set.len() {
        if at + 2 < set.len() && set[at + 1] == '-' {
            found |= set[at] <= c && c <= set[at + 2];
            at += 3;
        } else {
            found |= set[at] == c;
            at += 1;
        }
    }
    found != not
}
