//! `fnmatch`: whole text, `*`, `?` and classes.

use super::budget;
use super::exc::Res;

/// Whether a text matches a pattern of Python's `fnmatch`.
pub(super) fn fnmatch(text: &str, pattern: &str) -> Res<bool> {
    let text: Vec<char> = text.chars().collect();
    let pattern: Vec<char> = pattern.chars().collect();
    let (mut t, mut p) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() || p < pattern.len() {
        budget::step()?;
        let here = text.get(t).copied();
        let step = match (pattern.get(p), here) {
            (Some('*'), _) => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            (Some('?'), Some(_)) => Some(1),
            (Some('['), Some(c)) => class(&pattern, p, c),
            (Some(wanted), Some(c)) if *wanted == c => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(len), _) => {
                p += len;
                t += 1;
            }
            (None, Some((at, from))) if from < text.len() => {
                star = Some((at, from + 1));
                (p, t) = (at + 1, from + 1);
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// A class at a place of a pattern: its length, if the character is in it.
fn class(pattern: &[char], at: usize, c: char) -> Option<usize> {
    let mut end = at + 1;
    if pattern.get(end) == Some(&'!') {
        end += 1;
    }
    if pattern.get(end) == Some(&']') {
        end += 1;
    }
    while pattern.get(end).is_some_and(|c| *c != ']') {
        end += 1;
    }
    if pattern.get(end).is_none() {
        // Never closed: a bracket like any other character.
        return (c == '[').then_some(1);
    }
    let mut members = pattern.get(at + 1..end)?;
    let negated = members.first() == Some(&'!');
    if negated {
        members = members.get(1..)?;
    }
    let mut found = false;
    let mut i = 0;
    while let Some(low) = members.get(i) {
        if let (Some('-'), Some(high)) = (members.get(i + 1), members.get(i + 2)) {
            found |= (*low..=*high).contains(&c);
            i += 3;
        } else {
            found |= *low == c;
            i += 1;
        }
    }
    (found != negated).then_some(end + 1 - at)
}
