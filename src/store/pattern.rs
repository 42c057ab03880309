//! What a tag pattern asks of a tag's shape, and of the minion and the jid that fill it.
//!
//! Almost every tag of a store has one of a few dozen shapes. A pattern is compared with a shape once; what is left to ask of
//! a single entry is mostly whether its minion begins with some text. Each answer here is a necessary condition: what
//! it lets pass is still matched against the pattern.

use memchr::memmem;

use super::block::{JID_MARK, LITERAL, MINION_MARK};
use crate::model::{Glob, Literal};

/// What a pattern asks of the tags of one shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asks {
    /// No tag of this shape matches.
    Never,
    /// Every tag does: the shape has no marks.
    Nothing,
    /// A tag can match only if each of these holds; none means that each tag has to be looked at.
    Each(Vec<Need>),
}

/// One literal of the pattern has to be found: any of these tests holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Need {
    /// Tests of the minion id.
    pub minion: Vec<Test>,
    /// Tests of the jid.
    pub jid: Vec<Test>,
}

/// A test of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    how: How,
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Is,
    Begins,
    Ends,
    Contains,
}

impl Test {
    /// Does a text pass?
    pub fn holds(&self, text: &[u8]) -> bool {
        match self.how {
            How::Is => text == self.text,
            How::Begins => text.starts_with(&self.text),
            How::Ends => text.ends_with(&self.text),
            How::Contains => memmem::find(text, &self.text).is_some(),
        }
    }

    /// Marks those of many texts that pass. They lie one after the other in `texts`; `ends` says where each ends.
    pub fn mark(&self, texts: &[u8], ends: &[usize], passing: &mut [bool]) {
        let finder = memmem::Finder::new(&self.text);
        let mut from = 0;
        while let Some(at) = texts.get(from..).and_then(|rest| finder.find(rest)) {
            let number = ends.partition_point(|&end| end <= from + at);
            let Some(&end) = ends.get(number) else { break };
            let begin = number.checked_sub(1).and_then(|n| ends.get(n)).copied().unwrap_or(0);
            // What reaches over the end of a text is no find in it, nor is anything behind it in the same text.
            if self.holds(texts.get(begin..end).unwrap_or_default()) {
                passing.get_mut(number).into_iter().for_each(|passes| *passes = true);
            }
            from = end;
        }
    }

    /// Could a jid of digits, perhaps with a pid behind an underscore, pass?
    pub fn fits_digits(&self) -> bool {
        self.text.iter().all(|b| b.is_ascii_digit() || *b == b'_')
    }
}

impl Need {
    /// Can only the minion fulfil it, unless the jid is one that is not made of time?
    pub fn is_of_minion(&self) -> bool {
        !self.jid.iter().any(Test::fits_digits)
    }

    /// Does a minion pass?
    pub fn minion_holds(&self, minion: &[u8]) -> bool {
        self.minion.iter().any(|test| test.holds(minion))
    }
}

/// A shape's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a [u8]),
    Jid,
    Minion,
}

fn parts(shape: &[u8]) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = shape;
    while !rest.is_empty() {
        let mark = rest.iter().position(|&b| b == JID_MARK || b == MINION_MARK).unwrap_or(rest.len());
        let (text, after) = rest.split_at(mark);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        rest = match after.split_first() {
            Some((&JID_MARK, after)) => {
                parts.push(Part::Jid);
                after
            }
            Some((_, after)) => {
                parts.push(Part::Minion);
                after
            }
            None => after,
        };
    }
    parts
}

/// What a pattern asks of tags of a shape.
pub fn asks(glob: &Glob, shape: &[u8]) -> Asks {
    let whole = |tag: &[u8]| if glob.matches_bytes(tag) { Asks::Nothing } else { Asks::Never };
    if let Some((&LITERAL, tag)) = shape.split_first() {
        return whole(tag);
    }
    let parts = parts(shape);
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        return whole(shape);
    }
    let mut needs = Vec::new();
    for literal in glob.literals() {
        // What is no UTF-8 in a tag is compared as a replacement character.
        if literal.text.contains(char::REPLACEMENT_CHARACTER) {
            continue;
        }
        let mut search = Search { parts: &parts, to_end: literal.ends, need: Need::default(), found: false };
        search.everywhere(&literal);
        if search.found {
            continue;
        }
        if search.need == Need::default() {
            return Asks::Never;
        }
        needs.push(search.need);
    }
    Asks::Each(needs)
}

/// Lays a literal at every place of a shape, and collects what the marks would have to be.
struct Search<'a> {
    parts: &'a [Part<'a>],
    /// The literal has to end where the tag ends.
    to_end: bool,
    need: Need,
    /// It fits without any condition.
    found: bool,
}

impl Search<'_> {
    fn everywhere(&mut self, literal: &Literal) {
        let text = literal.text.as_bytes();
        for (at, part) in self.parts.iter().enumerate() {
            if literal.begins && at > 0 {
                break;
            }
            match part {
                Part::Text(own) => {
                    let last = if literal.begins { 1 } else { own.len() };
                    for from in 0..last {
                        self.lay(at, own.get(from..).unwrap_or_default(), text);
                    }
                }
                _ if literal.begins => self.fill(at, text),
                _ => self.inside(at, text),
            }
        }
    }

    /// Lays `text` at the beginning of `own`, what is left of part `at`.
    fn lay(&mut self, at: usize, own: &[u8], text: &[u8]) {
        let is_last = at + 1 == self.parts.len();
        if text.len() <= own.len() {
            let fits = if self.to_end { is_last && own == text } else { own.starts_with(text) };
            self.found |= fits;
        } else if text.starts_with(own) {
            self.go_on(at + 1, text.get(own.len()..).unwrap_or_default());
        }
    }

    /// Lays `text`, of which something is left, at the beginning of part `at`.
    fn go_on(&mut self, at: usize, text: &[u8]) {
        match self.parts.get(at) {
            Some(Part::Text(own)) => self.lay(at, own, text),
            Some(_) => self.fill(at, text),
            None => {}
        }
    }

    /// The mark of part `at` begins where `text` does.
    fn fill(&mut self, at: usize, text: &[u8]) {
        let is_last = at + 1 == self.parts.len();
        if !self.to_end {
            self.test(at, How::Begins, text);
        } else if is_last {
            self.test(at, How::Is, text);
        }
        for (name, rest) in splits(text) {
            if self.may_go_on(at + 1, rest) {
                self.test(at, How::Is, name);
            }
        }
    }

    /// `text` begins somewhere in the mark of part `at`.
    fn inside(&mut self, at: usize, text: &[u8]) {
        let is_last = at + 1 == self.parts.len();
        if !self.to_end {
            self.test(at, How::Contains, text);
        } else if is_last {
            self.test(at, How::Ends, text);
        }
        for (name, rest) in splits(text) {
            if self.may_go_on(at + 1, rest) {
                self.test(at, How::Ends, name);
            }
        }
    }

    /// Could `text` lie at the beginning of part `at`, whatever the marks there are?
    fn may_go_on(&self, at: usize, text: &[u8]) -> bool {
        let mut search = Search { need: Need::default(), found: false, ..*self };
        search.go_on(at, text);
        search.found || search.need != Need::default()
    }

    fn test(&mut self, at: usize, how: How, text: &[u8]) {
        let test = Test { how, text: text.to_vec() };
        match self.parts.get(at) {
            Some(Part::Minion) => self.need.minion.push(test),
            Some(Part::Jid) => self.need.jid.push(test),
            _ => {}
        }
    }
}

/// Every way to cut a text in two that are not empty.
fn splits(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    (1..text.len()).filter_map(|at| text.split_at_checked(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(shape: &[u8], jid: &str, minion: &str) -> Vec<u8> {
        let mut tag = Vec::new();
        for part in parts(shape) {
            tag.extend_from_slice(match part {
                Part::Text(text) => text,
                Part::Jid => jid.as_bytes(),
                Part::Minion => minion.as_bytes(),
            });
        }
        tag
    }

    fn allows(asks: &Asks, jid: &str, minion: &str) -> bool {
        match asks {
            Asks::Never => false,
            Asks::Nothing => true,
            Asks::Each(needs) => needs.iter().all(|need| {
                need.minion_holds(minion.as_bytes()) || need.jid.iter().any(|test| test.holds(jid.as_bytes()))
            }),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn what_matches_is_always_allowed(
            shape in "[ab/\u{1}\u{2}]{0,6}", glob in "[ab/*?1w]{0,7}", jid in "[ab1/]{1,4}", minion in "[abw/]{1,4}"
        ) {
            let glob = Glob::new(&glob);
            let tag = filled(shape.as_bytes(), &jid, &minion);
            if glob.matches_bytes(&tag) {
                prop_assert!(allows(&asks(&glob, shape.as_bytes()), &jid, &minion));
            }
        }

        #[test]
        fn marking_finds_what_holds(texts in prop::collection::vec("[ab]{0,5}", 1..20), text in "[ab]{1,3}", how in 0..4) {
            let how = [How::Is, How::Begins, How::Ends, How::Contains][usize::try_from(how).unwrap()];
            let test = Test { how, text: text.into_bytes() };
            let mut ends = Vec::new();
            let mut all = Vec::new();
            for text in &texts {
                all.extend_from_slice(text.as_bytes());
                ends.push(all.len());
            }
            let mut passing = vec![false; texts.len()];
            test.mark(&all, &ends, &mut passing);
            let expected: Vec<bool> = texts.iter().map(|text| test.holds(text.as_bytes())).collect();
            prop_assert_eq!(passing, expected);
        }
    }

    #[test]
    fn a_pattern_asks_for_what_salt_tags_are_made_of() {
        let ret = b"salt/job/\x01/ret/\x02";
        let minion = |how, text: &str| Test { how, text: text.into() };
        let only = |pattern: &str| match asks(&Glob::new(pattern), ret) {
            Asks::Each(needs) => needs,
            other => panic!("{pattern}: {other:?}"),
        };
        for (pattern, how, text) in
            [("salt/job/*/ret/web*", How::Begins, "web"), ("*/ret/web1", How::Is, "web1")]
        {
            let need = &only(pattern)[0];
            assert!(need.is_of_minion() && need.minion.contains(&minion(how, text)), "{need:?}");
            assert!(need.minion_holds(b"web1") && !need.minion_holds(b"db1"));
        }
        assert!(!only("salt/job/2026*")[0].is_of_minion());
        assert_eq!(only("salt/job/2026*")[0].jid, [minion(How::Begins, "2026")]);
        assert!(only("salt/job/*").is_empty() && only("*").is_empty());
        assert_eq!(asks(&Glob::new("salt/beacon/*"), ret), Asks::Never);
        assert_eq!(asks(&Glob::new("salt/auth"), b"salt/auth"), Asks::Nothing);
        assert_eq!(asks(&Glob::new("salt/?uth"), b"salt/auth"), Asks::Nothing);
    }
}
