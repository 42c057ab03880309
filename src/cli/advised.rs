//! Every command that a message, a finding, the page or an error advises exists, with its arguments.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap::error::ErrorKind;

use super::Cli;

/// The files with texts of the program.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, found);
        } else if [".rs", ".html", ".py"]
            .iter()
            .any(|end| name.ends_with(end))
            && name != "advised.rs"
        {
            found.push(path);
        }
    }
}

/// The text between each `open` and the next `close`, if it begins with the program's name.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open)
        .skip(1)
        .filter_map(move |rest| rest.split(close).next())
        .filter(|found| found.starts_with("saltcellar "))
}

/// A command's words: placeholders of formats stand for a number, and what follows in a shell is left out.
fn words(command: &str) -> Vec<String> {
    let mut text = String::new();
    let mut depth = 0;
    for c in command.replace("\\\n", "").replace("\\\"", "\"").chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                // One that is part of a word, as in `serve{flags}`, may be empty.
                if text.ends_with([' ', '=', '\'']) {
                    text.push('1');
                }
            }
            c if depth == 0 => text.push(c),
            _ => {}
        }
    }
    let text = text.split(" && ").next().unwrap_or_default();
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in text.chars().chain([' ']) {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, c) if c.is_whitespace() => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
            }
            _ => word.push(c),
        }
    }
    let end = words
        .iter()
        .position(|word| matches!(word.as_str(), "|" | ">" | ";"));
    words.truncate(end.unwrap_or(words.len()));
    // A comment's next line, and the dots of a sentence.
    words.retain(|word| !matches!(word.as_str(), "//!" | "///" | "//" | "..."));
    words
}

/// Why the program would not understand a command. One without its required arguments names a verb, as in a sentence.
fn misunderstood(words: &[String]) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    let is_known = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::MissingRequiredArgument
    );
    // `SHELL` or `URL` stands for a value of that kind.
    let is_of_value = matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation
    );
    let is_placeholder =
        |word: &String| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    // An option at the end is named without its value.
    let ends_with_option = words.last().is_some_and(|word| word.starts_with("--"));
    let stands_for_a_value = is_of_value && (ends_with_option || words.iter().any(is_placeholder));

    (!is_known && !stands_for_a_value).then(|| {
        error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    })
}

#[test]
fn every_advised_command_exists() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let (mut count, mut wrong) = (0, Vec::new());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let commands = between(&text, "`", "`")
            .chain(between(&text, "<code>", "</code>"))
            .chain(between(&text, "run: ", "\""));
        for command in commands.filter(|command| command.len() < 300) {
            count += 1;
            let words = words(command);
            if let Some(why) = misunderstood(&words) {
                wrong.push(format!("{}: {words:?}: {why}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 30, "only {count} commands were found");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    for (command, is_known) in [
        ("saltcellar sinks dead-letters list {name}", true),
        ("saltcellar sinks dead-letters {name}", false),
        ("saltcellar sinks letters", false),
        ("saltcellar store verify --fast", false),
        ("saltcellar token create NAME --scope read", true),
        ("saltcellar events list --tag 'salt/auth*' | head", true),
    ] {
        assert_eq!(
            misunderstood(&words(command)).is_none(),
            is_known,
            "{command}"
        );
    }
}
