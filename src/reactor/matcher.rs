//! Many patterns, one tag: which match, in the order of the configuration.
//!
//! A pattern begins with literal text more often than not (`salt/minion/*/start`). These beginnings form a tree of bytes;
//! a tag walks down it once, and only the patterns whose beginning it passes are looked at further. So a tag that nothing
//! matches costs a few bytes' walk, however many patterns there are.

use crate::model::Glob;

/// Patterns, compiled together.
#[derive(Debug, Default)]
pub struct Matcher {
    patterns: Vec<Pattern>,
    /// The tree; the root is the first, if there is any pattern.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Pattern {
    rest: Rest,
    /// A tag shorter than this cannot match.
    bytes_min: usize,
}

/// What follows the literal beginning.
#[derive(Debug)]
enum Rest {
    /// Nothing.
    End,
    /// A star, which takes all.
    All,
    /// A star, then literal text up to the end.
    Ending(String),
    /// Something else; the whole pattern is asked.
    Other(Glob),
}

#[derive(Debug, Default)]
struct Node {
    /// Children by their byte, sorted.
    children: Vec<(u8, usize)>,
    /// Patterns whose literal beginning ends here.
    here: Vec<usize>,
}

impl Matcher {
    /// Compiles patterns; each keeps its place in the sequence as its number.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut matcher = Self { patterns: Vec::new(), nodes: vec![Node::default()] };
        for text in patterns {
            let glob = Glob::new(text);
            let literals = glob.literals();
            let beginning =
                literals.first().filter(|literal| literal.begins).map_or("", |literal| &literal.text);
            let whole: String = literals.iter().map(|literal| literal.text.as_str()).collect();
            let rest = rest_of(text, beginning, &glob);
            matcher.insert(beginning.as_bytes(), Pattern { rest, bytes_min: whole.len() });
        }
        matcher
    }

    fn insert(&mut self, beginning: &[u8], pattern: Pattern) {
        let number = self.patterns.len();
        self.patterns.push(pattern);
        let mut at = 0;
        for &byte in beginning {
            let fresh = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else { return };
            at = match node.children.binary_search_by_key(&byte, |child| child.0) {
                Ok(found) => node.children.get(found).map_or(0, |child| child.1),
                Err(place) => {
                    node.children.insert(place, (byte, fresh));
                    self.nodes.push(Node::default());
                    fresh
                }
            };
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.here.push(number);
        }
    }

    /// The numbers of the patterns that match, rising.
    pub fn matching(&self, tag: &str) -> Vec<usize> {
        let mut found = Vec::new();
        self.walk(tag, |number| {
            found.push(number);
            true
        });
        found.sort_unstable();
        found
    }

    /// Does any pattern match?
    pub fn matches(&self, tag: &str) -> bool {
        let mut any = false;
        self.walk(tag, |_| {
            any = true;
            false
        });
        any
    }

    /// Tells each pattern that matches, until told to stop.
    fn walk(&self, tag: &str, mut tell: impl FnMut(usize) -> bool) {
        let mut bytes = tag.bytes().enumerate();
        let mut at = 0;
        let mut depth = 0;
        while let Some(node) = self.nodes.get(at) {
            for &number in &node.here {
                let takes = self.patterns.get(number).is_some_and(|pattern| pattern.takes(tag, depth));
                if takes && !tell(number) {
                    return;
                }
            }
            let Some((place, byte)) = bytes.next() else { return };
            let Ok(child) = node.children.binary_search_by_key(&byte, |child| child.0) else { return };
            at = node.children.get(child).map_or(usize::MAX, |child| child.1);
            depth = place + 1;
        }
    }

    /// How many patterns there are.
    pub fn len(&self) -> usize {
        self.patterns.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }
}

fn rest_of(text: &str, beginning: &str, glob: &Glob) -> Rest {
    // Only what is written without brackets can be split by its text; a bracket may stand for itself.
    if text.contains('[') {
        return Rest::Other(glob.clone());
    }
    match text.strip_prefix(beginning) {
        Some("") => Rest::End,
        Some(rest) => {
            let after = rest.trim_start_matches('*');
            if after.len() == rest.len() || after.contains(['*', '?']) {
                return Rest::Other(glob.clone());
            }
            if after.is_empty() { Rest::All } else { Rest::Ending(after.to_owned()) }
        }
        None => Rest::Other(glob.clone()),
    }
}

impl Pattern {
    /// Does a tag match whose first `depth` bytes are the literal beginning?
    fn takes(&self, tag: &str, depth: usize) -> bool {
        match &self.rest {
            Rest::End => tag.len() == depth,
            Rest::All => true,
            Rest::Ending(ending) => tag.len() >= depth + ending.len() && tag.ends_with(ending.as_str()),
            Rest::Other(glob) => tag.len() >= self.bytes_min && glob.matches(tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_finds_what_each_pattern_finds() {
        let patterns = [
            "*",
            "salt/*",
            "salt/minion/*/start",
            "salt/minion/*/st?rt",
            "salt/[mj]*",
            "salt/minion/web1/start",
            "a[b",
            "[!s]*",
            "",
            "?",
            "**",
            "salt/**/start",
            "*start",
            "gerät/*",
            "salt/key",
            "salt/ke",
            "salt/*/*/start",
            "[s]alt/key",
            "s*",
            "a*a",
            "aa",
        ];
        let tags = [
            "salt/minion/web1/start",
            "salt/key",
            "salt/job/1/ret/x",
            "",
            "x",
            "a[b",
            "gerät/ä",
            "start",
            "salt/start",
            "salt/minion/start",
            "s",
            "a",
            "aa",
            "aaa",
            "ä",
            "a\nb",
            "salt/",
        ];
        let matcher = Matcher::new(patterns);
        for tag in tags {
            let expected: Vec<usize> = (0..)
                .zip(patterns)
                .filter(|(_, pattern)| Glob::new(pattern).matches(tag))
                .map(|(n, _)| n)
                .collect();
            assert_eq!(matcher.matching(tag), expected, "{tag:?}");
        }
        assert!(Matcher::new([]).matching("x").is_empty());
    }

    /// `[pattern, text, matches]` a line, as Python 3.11's `fnmatch.fnmatchcase` answered for patterns made by chance.
    #[test]
    fn patterns_made_by_chance_match_as_in_python() {
        let file = include_str!("../../tests/data/fnmatch.jsonl");
        let rows: Vec<(String, String, bool)> =
            file.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(rows.len(), file.lines().count());
        for (pattern, text, matches) in &rows {
            assert_eq!(Glob::new(pattern).matches(text), *matches, "{pattern:?} {text:?}");
            assert_eq!(
                Matcher::new([pattern.as_str()]).matches(text),
                *matches,
                "{pattern:?} {text:?} in the tree"
            );
        }
    }

    /// `cargo test --release -- --ignored --nocapture a_tag_that` prints the rate (`docs/MEASUREMENTS.md`).
    #[test]
    #[ignore = "a measurement"]
    fn a_tag_that_nothing_matches_costs_little() {
        let patterns: Vec<String> = (0..100).map(|n| format!("site{n}/service/*/changed")).collect();
        let matcher = Matcher::new(patterns.iter().map(String::as_str));
        let begin = std::time::Instant::now();
        let rounds = 20_000_000_u32;
        for _ in 0..rounds {
            assert!(!matcher.matches(std::hint::black_box("salt/job/20300101000000000000/ret/web1")));
        }
        println!("{:.0} tags/s", f64::from(rounds) / begin.elapsed().as_secs_f64());
    }
}
