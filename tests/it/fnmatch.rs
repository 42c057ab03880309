//! Random patterns and names, compared with Python's `fnmatch.fnmatchcase`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use salt_sls::Glob;
use saltcellar::reactor::Matcher;
use saltcellar_testkit::{Random, missing};

const PAIRS: usize = 40_000;

const PROGRAM: &str = "\
import fnmatch, json, sys
pairs = json.load(sys.stdin)
print(''.join('01'[fnmatch.fnmatchcase(name, pattern)] for pattern, name in pairs))
";

fn text(random: &mut Random, letters: &[&str], most: u64) -> String {
    (0..random.below(most + 1))
        .filter_map(|_| random.pick(letters).copied())
        .collect()
}

#[test]
fn patterns_match_like_fnmatch_of_python() {
    let mut random = Random::new(0x5a17_ce11);
    // Few letters, so that many patterns match; all characters special in patterns, in Python's regular expressions, or to a splitter.
    let names = [
        "a", "b", "c", "/", "-", "]", "[", "!", "^", ".", "\u{e9}", "\n",
    ];
    let mut patterns = names.to_vec();
    patterns.extend([
        "*", "*", "*", "?", "[", "[", "]", "[a", "-", "a-c", "c-a", "!", "\\", "[!", "[]", "[!]",
        "--", "&&", "||", "~~", "[a-c]", "[^a]", "[!-b]",
    ]);
    let mut pairs: Vec<(String, String)> = (0..PAIRS)
        .map(|_| {
            let name = text(&mut random, &names, 7);
            // Half of the patterns derive from the name, so that about half match.
            let pattern = if random.below(2) == 0 {
                text(&mut random, &patterns, 7)
            } else {
                let bent = |c: char| match random.below(8) {
                    0 => "*".to_owned(),
                    1 => "?".to_owned(),
                    2 => format!("[{c}]"),
                    3 => format!("[!{c}]"),
                    4 => format!("[{c}-c]"),
                    5 => String::from("**"),
                    _ => c.to_string(),
                };
                name.chars().map(bent).collect()
            };
            (pattern, name)
        })
        .collect();
    pairs.push((String::new(), String::new()));

    let mut command = Command::new("python3");
    command
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let Ok(mut python) = command.spawn() else {
        return missing("python3");
    };
    let mut input = python.stdin.take().unwrap();
    input
        .write_all(serde_json::to_string(&pairs).unwrap().as_bytes())
        .unwrap();
    drop(input);
    let output = python.wait_with_output().unwrap();
    let expected: Vec<bool> = output
        .stdout
        .trim_ascii()
        .iter()
        .map(|digit| *digit == b'1')
        .collect();
    assert_eq!(expected.len(), pairs.len(), "Python has answered");

    let yes = expected.iter().filter(|expected| **expected).count();
    assert!(
        yes > PAIRS / 10 && yes < PAIRS * 9 / 10,
        "{yes} of {PAIRS} match: the test has little significance"
    );
    for ((pattern, name), expected) in pairs.iter().zip(expected) {
        assert_eq!(
            Glob::new(pattern).matches(name),
            expected,
            "{pattern:?} on {name:?}"
        );
        assert_eq!(
            Matcher::new([pattern.as_str()]).matches(name),
            expected,
            "the tree: {pattern:?} on {name:?}"
        );
    }
}
