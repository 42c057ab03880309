//! Evaluation of a tag pattern for a tag template, and for the minions and jids that fill it.
//!
//! Most tags of a store have one of a few dozen templates. A pattern is evaluated once per
//! template; what remains per entry is usually a prefix test of its minion. Results are necessary
//! conditions: a candidate is still matched against the pattern.

use memchr::memmem;
use salt_sls::{Glob, Literal};

use crate::log::columns::{JID_PLACEHOLDER, LITERAL, MINION_PLACEHOLDER};

/// The condition under which tags of a template can match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TagCondition {
    Never,
    /// Every tag matches: the template has no placeholder.
    Always,
    /// A tag can match only if all of these hold; an empty list means no restriction.
    AllOf(Vec<Need>),
}

/// The condition for one literal of the pattern: at least one test holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Need {
    /// Tests of the minion id.
    pub(crate) minion: Vec<Test>,
    /// Tests of the jid.
    pub(crate) jid: Vec<Test>,
}

/// A test of a minion id or a jid.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    kind: MatchKind,
    /// The text, prepared once: a search by pattern tests the ids of all segments.
    finder: memmem::Finder<'static>,
}

impl PartialEq for Test {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.text()) == (other.kind, other.text())
    }
}

impl Eq for Test {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatchKind {
    Equals,
    Prefix,
    Suffix,
    Contains,
}

impl Test {
    fn text(&self) -> &[u8] {
        self.finder.needle()
    }

    pub(crate) fn holds(&self, text: &[u8]) -> bool {
        match self.kind {
            MatchKind::Equals => text == self.text(),
            MatchKind::Prefix => text.starts_with(self.text()),
            MatchKind::Suffix => text.ends_with(self.text()),
            MatchKind::Contains => self.finder.find(text).is_some(),
        }
    }

    /// Marks the strings that pass. `strings` are concatenated; `ends` has the end offset of each.
    pub(crate) fn mark(&self, texts: &[u8], ends: &[usize], passing: &mut [bool]) {
        // All strings are searched as one, because a call per text costs more than most strings are
        // long.
        let mut from = 0;
        while let Some(at) = texts.get(from..).and_then(|rest| self.finder.find(rest)) {
            let number = ends.partition_point(|&end| end <= from + at);
            let Some(&end) = ends.get(number) else { break };
            let begin = number
                .checked_sub(1)
                .and_then(|n| ends.get(n))
                .copied()
                .unwrap_or(0);
            // A hit across the end of a string is not a hit in it, and none can follow in the same
            // text.
            if self.holds(texts.get(begin..end).unwrap_or_default()) {
                passing
                    .get_mut(number)
                    .into_iter()
                    .for_each(|passes| *passes = true);
            }

            // The rest of this text cannot add anything.
            from = end;
        }
    }

    /// Whether a jid of digits, optionally with a pid suffix, could pass.
    pub(crate) fn fits_digits(&self) -> bool {
        self.text().iter().all(|b| b.is_ascii_digit() || *b == b'_')
    }
}

impl Need {
    /// Whether only the minion can satisfy it, unless the jid is arbitrary text.
    pub(crate) fn is_of_minion(&self) -> bool {
        !self.jid.iter().any(Test::fits_digits)
    }

    pub(crate) fn minion_holds(&self, minion: &[u8]) -> bool {
        self.minion.iter().any(|test| test.holds(minion))
    }
}

/// A part of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a [u8]),
    Jid,
    Minion,
}

fn parts(template: &[u8]) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = template;
    while !rest.is_empty() {
        let mark = rest
            .iter()
            .position(|&b| b == JID_PLACEHOLDER || b == MINION_PLACEHOLDER)
            .unwrap_or(rest.len());

        let (text, after) = rest.split_at(mark);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }

        rest = match after.split_first() {
            Some((&JID_PLACEHOLDER, after)) => {
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

/// Evaluates a pattern for a template.
pub(crate) fn condition(glob: &Glob, template: &[u8]) -> TagCondition {
    // Without placeholders there is nothing to fill in, and the result is final.
    let whole = |tag: &[u8]| {
        if glob.matches_bytes(tag) {
            TagCondition::Always
        } else {
            TagCondition::Never
        }
    };
    if let Some((&LITERAL, tag)) = template.split_first() {
        return whole(tag);
    }

    let parts = parts(template);
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        return whole(template);
    }

    // A tag that matches must contain every literal of the pattern. Each can come from the
    // template, or from a minion or jid.
    let mut needs = Vec::new();
    for literal in glob.literals() {
        // Invalid UTF-8 in a tag is compared as the replacement character.
        if literal.text.contains(char::REPLACEMENT_CHARACTER) {
            continue;
        }
        let mut search = LiteralSearch {
            parts: &parts,
            to_end: literal.ends,
            need: Need::default(),
            found: false,
        };

        search.try_everywhere(&literal);
        // Found in the template itself, so it restricts nothing.
        if search.found {
            continue;
        }
        // Neither the template nor a placeholder can supply it.
        if search.need == Need::default() {
            return TagCondition::Never;
        }
        needs.push(search.need);
    }
    TagCondition::AllOf(needs)
}

/// Tries a literal at every position of a template and collects the tests that the placeholders
/// must pass.
struct LiteralSearch<'a> {
    parts: &'a [Part<'a>],
    /// Whether the literal must end at the end of the tag.
    to_end: bool,
    need: Need,
    /// Whether it matches unconditionally.
    found: bool,
}

impl LiteralSearch<'_> {
    fn try_everywhere(&mut self, literal: &Literal) {
        // At every part, and at every byte of a string: the pattern may begin anywhere.
        let text = literal.text.as_bytes();
        for (at, part) in self.parts.iter().enumerate() {
            // It is anchored at the beginning of the tag.
            if literal.begins && at > 0 {
                break;
            }
            match part {
                Part::Text(own) => {
                    let last = if literal.begins { 1 } else { own.len() };
                    for from in 0..last {
                        self.try_text(at, own.get(from..).unwrap_or_default(), text);
                    }
                }
                _ if literal.begins => self.try_placeholder(at, text),
                _ => self.try_within(at, text),
            }
        }
    }

    /// Tries `text` at the start of `own`, the rest of part `at`.
    fn try_text(&mut self, at: usize, own: &[u8], text: &[u8]) {
        let is_last = at + 1 == self.parts.len();
        if text.len() <= own.len() {
            let fits = if self.to_end {
                is_last && own == text
            } else {
                own.starts_with(text)
            };
            self.found |= fits;
        } else if text.starts_with(own) {
            // The text of the template ends first, so the rest must be in what follows.
            self.try_rest(at + 1, text.get(own.len()..).unwrap_or_default());
        }
    }

    /// Tries the nonempty rest `text` at the start of part `at`.
    fn try_rest(&mut self, at: usize, text: &[u8]) {
        match self.parts.get(at) {
            Some(Part::Text(own)) => self.try_text(at, own, text),
            Some(_) => self.try_placeholder(at, text),
            None => {}
        }
    }

    /// Tries `text` at the start of the placeholder that is part `at`.
    fn try_placeholder(&mut self, at: usize, text: &[u8]) {
        let is_last = at + 1 == self.parts.len();

        // The literal may end inside the value, at its end, or in a part behind it.
        if !self.to_end {
            self.test(at, MatchKind::Prefix, text);
        } else if is_last {
            self.test(at, MatchKind::Equals, text);
        }

        for (name, rest) in splits(text) {
            if self.rest_may_match(at + 1, rest) {
                self.test(at, MatchKind::Equals, name);
            }
        }
    }

    /// Tries `text` anywhere in the placeholder that is part `at`.
    fn try_within(&mut self, at: usize, text: &[u8]) {
        let is_last = at + 1 == self.parts.len();

        if !self.to_end {
            self.test(at, MatchKind::Contains, text);
        } else if is_last {
            self.test(at, MatchKind::Suffix, text);
        }

        for (name, rest) in splits(text) {
            if self.rest_may_match(at + 1, rest) {
                self.test(at, MatchKind::Suffix, name);
            }
        }
    }

    /// Whether `text` could match at the start of part `at` for any values of the placeholders.
    fn rest_may_match(&self, at: usize, text: &[u8]) -> bool {
        // Tried with a copy, because its tests are of no interest here.
        let mut search = LiteralSearch {
            need: Need::default(),
            found: false,
            ..*self
        };
        search.try_rest(at, text);
        search.found || search.need != Need::default()
    }

    fn test(&mut self, at: usize, kind: MatchKind, text: &[u8]) {
        // Owned, because a condition outlives the pattern's literals.
        let test = Test {
            kind,
            finder: memmem::Finder::new(text).into_owned(),
        };

        match self.parts.get(at) {
            Some(Part::Minion) => self.need.minion.push(test),
            Some(Part::Jid) => self.need.jid.push(test),
            _ => {}
        }
    }
}

/// All splits of a string into two nonempty parts.
fn splits(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    (1..text.len()).filter_map(|at| text.split_at_checked(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(template: &[u8], jid: &str, minion: &str) -> Vec<u8> {
        let mut tag = Vec::new();
        for part in parts(template) {
            tag.extend_from_slice(match part {
                Part::Text(text) => text,
                Part::Jid => jid.as_bytes(),
                Part::Minion => minion.as_bytes(),
            });
        }
        tag
    }

    fn allows(condition: &TagCondition, jid: &str, minion: &str) -> bool {
        match condition {
            TagCondition::Never => false,
            TagCondition::Always => true,
            TagCondition::AllOf(needs) => needs.iter().all(|need| {
                need.minion_holds(minion.as_bytes())
                    || need.jid.iter().any(|test| test.holds(jid.as_bytes()))
            }),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn a_matching_tag_is_always_allowed(
            template in "[ab/\u{1}\u{2}]{0,6}", glob in "[ab/*?1w]{0,7}", jid in "[ab1/]{1,4}", minion in "[abw/]{1,4}"
        ) {
            let glob = Glob::new(&glob);
            let tag = filled(template.as_bytes(), &jid, &minion);
            if glob.matches_bytes(&tag) {
                prop_assert!(allows(&condition(&glob, template.as_bytes()), &jid, &minion));
            }
        }

        #[test]
        fn marking_finds_exactly_the_texts_that_pass(texts in prop::collection::vec("[ab]{0,5}", 1..20), text in "[ab]{1,3}", kind in 0..4) {
            let kind = [MatchKind::Equals, MatchKind::Prefix, MatchKind::Suffix, MatchKind::Contains][usize::try_from(kind).unwrap()];
            let test = Test { kind, finder: memmem::Finder::new(text.as_bytes()).into_owned() };
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
    fn patterns_are_reduced_to_tests_of_minion_and_jid() {
        let ret = b"salt/job/\x01/ret/\x02";
        let minion = |kind, text: &str| Test {
            kind,
            finder: memmem::Finder::new(text).into_owned(),
        };
        let only = |pattern: &str| match condition(&Glob::new(pattern), ret) {
            TagCondition::AllOf(needs) => needs,
            other => panic!("{pattern}: {other:?}"),
        };
        for (pattern, kind, text) in [
            ("salt/job/*/ret/web*", MatchKind::Prefix, "web"),
            ("*/ret/web1", MatchKind::Equals, "web1"),
        ] {
            let need = &only(pattern)[0];
            assert!(
                need.is_of_minion() && need.minion.contains(&minion(kind, text)),
                "{need:?}"
            );
            assert!(need.minion_holds(b"web1") && !need.minion_holds(b"db1"));
        }
        assert!(!only("salt/job/2026*")[0].is_of_minion());
        assert_eq!(
            only("salt/job/2026*")[0].jid,
            [minion(MatchKind::Prefix, "2026")]
        );
        assert!(only("salt/job/*").is_empty() && only("*").is_empty());
        assert_eq!(
            condition(&Glob::new("salt/beacon/*"), ret),
            TagCondition::Never
        );
        assert_eq!(
            condition(&Glob::new("salt/auth"), b"salt/auth"),
            TagCondition::Always
        );
        assert_eq!(
            condition(&Glob::new("salt/?uth"), b"salt/auth"),
            TagCondition::Always
        );
    }
}
