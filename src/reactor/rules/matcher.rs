//! Matching of a tag against all patterns together, in the order of the configuration.
//!
//! Most patterns begin with literal text (`salt/minion/*/start`). These prefixes form a tree of
//! bytes. A tag is looked up once, and only the patterns with whose prefix it begins are checked
//! further. Therefore a tag without a match costs a few bytes, independent of the number of
//! patterns.

use salt_sls::Glob;

/// Compiled patterns.
#[derive(Debug, Default)]
pub struct Matcher {
    patterns: Vec<Pattern>,
    /// The tree; the root is the first node.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Pattern {
    rest: Rest,
    /// Minimum length of a matching tag.
    bytes_min: usize,
}

/// The part of a pattern after its literal prefix.
#[derive(Debug)]
enum Rest {
    /// Nothing.
    End,
    /// A star at the end.
    All,
    /// A star, then a literal suffix.
    Ending(String),
    /// Anything else: the whole pattern is matched.
    Other(Glob),
}

#[derive(Debug, Default)]
struct Node {
    /// Children by byte, sorted.
    children: Vec<(u8, usize)>,
    /// Patterns whose prefix ends here.
    here: Vec<usize>,
}

impl Matcher {
    /// Compiles patterns; the index of a pattern is its number.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut matcher = Self {
            patterns: Vec::new(),
            nodes: vec![Node::default()],
        };
        for text in patterns {
            let glob = Glob::new(text);
            let literals = glob.literals();

            // A pattern without a literal beginning belongs to the root of the tree.
            let beginning = literals
                .first()
                .filter(|literal| literal.begins)
                .map_or("", |literal| &literal.text);

            // A shorter tag than all literal parts together cannot match.
            let whole: String = literals
                .iter()
                .map(|literal| literal.text.as_str())
                .collect();

            let rest = rest_of(text, beginning, &glob);
            matcher.insert(
                beginning.as_bytes(),
                Pattern {
                    rest,
                    bytes_min: whole.len(),
                },
            );
        }

        matcher
    }

    fn insert(&mut self, beginning: &[u8], pattern: Pattern) {
        let number = self.patterns.len();
        self.patterns.push(pattern);

        let mut at = 0;
        for &byte in beginning {
            // The number of the new node, if no pattern before had this byte here.
            let fresh = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else {
                return;
            };
            at = match node.children.binary_search_by_key(&byte, |child| child.0) {
                Ok(found) => node.children.get(found).map_or(0, |child| child.1),
                Err(index) => {
                    node.children.insert(index, (byte, fresh));
                    self.nodes.push(Node::default());
                    fresh
                }
            };
        }

        if let Some(node) = self.nodes.get_mut(at) {
            node.here.push(number);
        }
    }

    /// The numbers of the matching patterns, ascending.
    pub fn matching(&self, tag: &str) -> Vec<usize> {
        let mut found = Vec::new();
        self.walk(tag, |number| {
            found.push(number);
            true
        });
        found.sort_unstable();
        found
    }

    /// True if any pattern matches.
    pub fn matches(&self, tag: &str) -> bool {
        let mut any = false;
        self.walk(tag, |_| {
            any = true;
            false
        });
        any
    }

    /// Passes each matching pattern to `visit`, until that returns false.
    fn walk(&self, tag: &str, mut visit: impl FnMut(usize) -> bool) {
        let mut bytes = tag.bytes().enumerate();
        let mut at = 0;
        let mut depth = 0;

        while let Some(node) = self.nodes.get(at) {
            // The prefixes of these patterns end here, so the rest of each decides.
            for &number in &node.here {
                let matches_after = self
                    .patterns
                    .get(number)
                    .is_some_and(|pattern| pattern.matches_after(tag, depth));
                if matches_after && !visit(number) {
                    return;
                }
            }

            // The tag ends, or no pattern goes on with its next byte.
            let Some((index, byte)) = bytes.next() else {
                return;
            };
            let Ok(child) = node.children.binary_search_by_key(&byte, |child| child.0) else {
                return;
            };

            at = node.children.get(child).map_or(usize::MAX, |child| child.1);
            depth = index + 1;
        }
    }

    /// Number of patterns.
    pub fn len(&self) -> usize {
        self.patterns.len()
    }

    /// True without patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }
}

fn rest_of(text: &str, beginning: &str, glob: &Glob) -> Rest {
    // With a bracket the text is not literal, because a bracket may stand for itself.
    if text.contains('[') {
        return Rest::Other(glob.clone());
    }

    match text.strip_prefix(beginning) {
        Some("") => Rest::End,
        Some(rest) => {
            let after = rest.trim_start_matches('*');
            // The first wildcard is not a star, or there is another one.
            if after.len() == rest.len() || after.contains(['*', '?']) {
                return Rest::Other(glob.clone());
            }
            if after.is_empty() {
                Rest::All
            } else {
                Rest::Ending(after.to_owned())
            }
        }
        None => Rest::Other(glob.clone()),
    }
}

impl Pattern {
    /// True if a tag matches whose first `depth` bytes are the prefix.
    fn matches_after(&self, tag: &str, depth: usize) -> bool {
        match &self.rest {
            Rest::End => tag.len() == depth,
            Rest::All => true,
            Rest::Ending(ending) => {
                tag.len() >= depth + ending.len() && tag.ends_with(ending.as_str())
            }
            Rest::Other(glob) => tag.len() >= self.bytes_min && glob.matches(tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_finds_the_same_matches_as_single_patterns() {
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

    /// Lines of `[pattern, text, matches]`: results of Python 3.11's `fnmatch.fnmatchcase` for random patterns.
    #[test]
    fn random_patterns_match_as_in_python() {
        let file = include_str!("../../../tests/data/fnmatch.jsonl");
        let rows: Vec<(String, String, bool)> = file
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        assert_eq!(rows.len(), file.lines().count());
        for (pattern, text, matches) in &rows {
            assert_eq!(
                Glob::new(pattern).matches(text),
                *matches,
                "{pattern:?} {text:?}"
            );
            assert_eq!(
                Matcher::new([pattern.as_str()]).matches(text),
                *matches,
                "{pattern:?} {text:?} in the tree"
            );
        }
    }

    /// `cargo test --release -- --ignored --nocapture a_tag_without` prints the rate (`benches/NOTES.md`).
    #[test]
    #[ignore = "a measurement"]
    fn a_tag_without_a_match_is_cheap() {
        let patterns: Vec<String> = (0..100)
            .map(|n| format!("site{n}/service/*/changed"))
            .collect();
        let matcher = Matcher::new(patterns.iter().map(String::as_str));
        let begin = std::time::Instant::now();
        let rounds = 20_000_000_u32;
        for _ in 0..rounds {
            assert!(!matcher.matches(std::hint::black_box(
                "salt/job/20300101000000000000/ret/web1"
            )));
        }
        println!(
            "{:.0} tags/s",
            f64::from(rounds) / begin.elapsed().as_secs_f64()
        );
    }
}
