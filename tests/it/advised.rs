//! Every command that a message, a finding, the page or an error advises exists, and does something on a host where what it names exists.
//!
//! The commands are found in the source. Each is run as a process beside a daemon whose store has something of everything. The placeholders
//! stand for names in that store, and [`RUNS`] says for each verb which names it takes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use rmpv::Value;
use saltcellar_testkit::program as executable;
use serde_json::json;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, map, wait_for};
use crate::http::LISTENER;
use crate::reactor::{FakeMaster, Lab, lab};
use crate::sinks::{service, status};

// Finding.

/// The files with strings of the program.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, found);
        } else if [".rs", ".html", ".py"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            found.push(path);
        }
    }
}

/// The text between each `open` and the next `close`.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open)
        .skip(1)
        .filter_map(move |rest| rest.split(close).next())
}

/// The commands of this program in a line for a shell; none if it is not one.
fn of_shell(line: &str) -> Vec<String> {
    let line = line.replace("\\\n", "").replace("\\\"", "\"");
    let is_shell = ["saltcellar ", "sudo saltcellar ", "systemctl "]
        .iter()
        .any(|start| line.starts_with(start));
    if !is_shell || line.len() >= 300 {
        return Vec::new();
    }
    let commands = line.split(" && ").map(|command| {
        let command = command.strip_prefix("sudo ").unwrap_or(command);
        command.to_owned()
    });
    commands
        .filter(|command| command.starts_with("saltcellar "))
        .collect()
}

/// A command's words: placeholders of formats stand for a number, and what follows in a shell is left out.
fn words(command: &str) -> Vec<String> {
    let mut text = String::new();
    let mut depth = 0;
    for c in command.chars() {
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

/// All advised commands, with the first file that advises each.
fn advised() -> BTreeMap<Vec<String>, PathBuf> {
    let mut files = Vec::new();
    for dir in ["src", "salt/src"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut files);
    }
    let mut found = BTreeMap::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let lines = between(&text, "`", "`")
            .chain(between(&text, "<code>", "</code>"))
            .chain(between(&text, "run: ", "\""));
        for command in lines.flat_map(of_shell) {
            found.entry(words(&command)).or_insert_with(|| path.clone());
        }
    }
    found
}

// Understanding.

/// A command as the program's definition reads it.
struct Read {
    /// The verb, as in `jobs show`.
    verb: String,
    /// Whether it is a group of verbs, named as a whole.
    is_group: bool,
    options: Vec<String>,
    /// Whether it has more words than those of the verb.
    has_arguments: bool,
}

/// A value that stands for one of its kind.
fn is_placeholder(word: &str) -> bool {
    word == "1" || (word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()))
}

/// Reads a command, and fills its options. The error names what the program would not understand.
fn read(words: &[String]) -> Result<Read, String> {
    let mut command = saltcellar::cli::command();
    command.build();
    let mut verb = Vec::new();
    let mut rest = words.iter().skip(1).peekable();
    while let Some(sub) = rest.peek().and_then(|word| command.find_subcommand(word)) {
        verb.push(sub.get_name().to_owned());
        command = sub.clone();
        rest.next();
    }
    let has_arguments = rest.peek().is_some();
    if command.has_subcommands() && has_arguments {
        return Err(format!("`{}` has no such verb", verb.join(" ")));
    }

    let mut options = Vec::new();
    while let Some(word) = rest.next() {
        let Some(name) = word.strip_prefix("--") else {
            continue;
        };
        options.push(word.clone());
        let option = command
            .get_arguments()
            .find(|option| option.get_long() == Some(name))
            .ok_or_else(|| format!("`{}` has no option {word}", verb.join(" ")))?;
        if option.get_action().takes_values() {
            // An option at the end is named without its value.
            let value = rest.next().map_or("1", String::as_str);
            let url = "https://127.0.0.1:4580";
            options.push(if value == "URL" { url } else { value }.to_owned());
        }
    }
    Ok(Read {
        verb: verb.join(" "),
        is_group: command.has_subcommands(),
        options,
        has_arguments,
    })
}

/// Why the program would not understand a command as it is written, with any value for a placeholder. One that consists of a verb only may lack its
/// arguments: it names the verb, as in a sentence.
fn misunderstood(words: &[String]) -> Option<String> {
    use clap::error::ErrorKind;

    let read = match read(words) {
        Ok(read) => read,
        Err(why) => return Some(why),
    };
    let error = saltcellar::cli::command()
        .try_get_matches_from(words)
        .err()?;
    let is_fine = match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        ErrorKind::MissingRequiredArgument => !read.has_arguments,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            words.iter().any(|word| is_placeholder(word))
                || words.last().is_some_and(|word| word.starts_with("--"))
        }
        _ => false,
    };
    (!is_fine).then(|| {
        error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    })
}

// Running.

/// Where a verb is run.
enum Place {
    /// Beside the daemon.
    Live,
    /// With a state directory that no daemon has.
    Stopped,
    /// Not at all; only its help is shown, for this reason.
    Help(&'static str),
}
use Place::{Help, Live, Stopped};

/// For each verb: where, the arguments instead of the advised ones (options only if they are not given, after the others), and the exit codes
/// beside 0.
const RUNS: &[(&str, Place, &str, &[i32])] = &[
    ("cluster init", Live, "--masters a,b,c", &[]),
    // Without a shared history.
    ("cluster join", Live, "{dir}/backup --peer m2", &[64]),
    ("completions", Live, "bash", &[]),
    ("config check", Live, "", &[]),
    ("config show", Live, "", &[]),
    ("consumers create", Live, "audit", &[]),
    ("consumers delete", Live, "{consumer}", &[]),
    ("consumers list", Live, "", &[]),
    ("consumers pin", Live, "audit", &[]),
    ("consumers show", Live, "audit", &[]),
    // Findings are expected.
    ("doctor", Live, "", &[1]),
    ("events list", Live, "", &[]),
    ("events tail", Live, "--since 1d --limit 1", &[]),
    ("export jsonl", Live, "{dir}/{new}.jsonl", &[]),
    // The export of a reactor's daemon has its reactions, which are skipped.
    ("import jsonl", Live, "{dir}/salt.jsonl", &[65]),
    ("jobs causes", Live, "{jid}", &[]),
    ("jobs diff", Live, "{earlier} {jid}", &[]),
    ("jobs list", Live, "", &[]),
    ("jobs missing", Live, "{jid}", &[]),
    ("jobs show", Live, "{jid}", &[]),
    ("jobs states", Live, "{jid}", &[]),
    ("jobs watch", Live, "{jid}", &[]),
    ("man", Live, "{dir}", &[]),
    ("minions list", Live, "", &[]),
    ("page", Live, "", &[]),
    ("reactor diff", Live, "", &[]),
    ("reactor history", Live, "", &[]),
    // It finds the file that fails.
    ("reactor lint", Live, "", &[1]),
    ("reactor render", Live, "{dir}/good.sls --tag b/1", &[]),
    ("reactor replay", Live, "{seq}", &[]),
    ("reactor rules", Live, "", &[]),
    ("reactor show", Live, "{seq}", &[]),
    ("reactor why", Live, "b/1", &[]),
    (
        "serve",
        Help("it never ends; the harness runs it in every test"),
        "",
        &[],
    ),
    // Something is missing on the host of a test. That it is carried out is tested in `setup_system.rs`.
    ("setup", Live, "--salt-config {dir} --dry-run", &[1]),
    ("sinks dead-letters list", Live, "hook", &[]),
    ("sinks dead-letters retry", Live, "hook --all", &[]),
    ("sinks list", Live, "", &[]),
    ("sinks resume", Live, "hook", &[]),
    ("sinks show", Live, "hook", &[]),
    ("sinks test", Live, "file", &[]),
    ("status", Live, "", &[1]),
    // Nothing is lost. That a loss is accepted is tested in `told.rs`.
    ("store accept-loss", Live, "", &[1]),
    ("store backup", Live, "{dir}/backup", &[]),
    ("store holds add", Live, "{jid}", &[]),
    ("store holds list", Live, "", &[]),
    ("store holds remove", Live, "{held}", &[]),
    ("store prune", Live, "", &[]),
    ("store rebuild", Stopped, "", &[]),
    ("store restore", Stopped, "{dir}/backup {dir}/{new}", &[]),
    ("store salvage", Stopped, "{dir}/stopped {dir}/{new}", &[]),
    ("store stats", Live, "", &[]),
    ("store verify", Live, "", &[]),
    ("tokens create", Live, "{new} --scope read", &[]),
    ("tokens list", Live, "", &[]),
    ("top", Help("it needs a terminal"), "", &[]),
    ("version", Live, "", &[]),
];

/// A refusal because something does not exist.
const REFUSALS: [&str; 6] = [
    "does not exist",
    "no such",
    "not found",
    "unknown",
    "unexpected argument",
    "required arguments",
];

/// A daemon with something of everything.
struct Machine {
    lab: Lab,
    _master: FakeMaster,
    seq: String,
    count: u32,
}

const JID: &str = "20261121054728123456";
const EARLIER: &str = "20261121054528123456";

impl Machine {
    fn start() -> Self {
        let (port, _) = service(|_, _| status("400 Bad Request", ""));
        let master = FakeMaster::start();
        let files = [
            ("bad.sls", "{{ nothing.here }}\n"),
            ("good.sls", "ping:\n  local.test.ping:\n    - tgt: '*'\n"),
        ];
        let more = format!(
            "{LISTENER}sinks:\n  hook:\n    match: [{{tag: 'test/*'}}]\n    encoder: json\n    transport: {{http: {{url: \
             'http://127.0.0.1:{port}/'}}}}\n  file:\n    match: [{{tag: 'test/*'}}]\n    encoder: json\n    \
             transport: {{file: {{path: DIR/out.jsonl}}}}\n"
        );
        let mut lab = lab(master.port, "[{'b/*': DIR/bad.sls}]", &files, &more);
        lab.fire_one("b/1", "web1");
        let record = wait_for("the failed reaction", || lab.history().first().cloned());

        let cellar = &lab.cellar;
        for jid in [EARLIER, JID] {
            cellar.publish(jid, "test.ping", &["web1"]);
            cellar.answer(jid, "web1", "test.ping", &json!(true), 0);
        }
        let event = map(vec![("tag", "test/1".into()), ("data", map(vec![]))]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
        // What `store prune --accept-salt` accepts.
        let keep = ("keep_jobs_seconds", 86_400.into());
        cellar.ask("clean_old_jobs", vec![keep]);

        let machine = Self {
            seq: record["seq"].to_string(),
            count: 0,
            lab,
            _master: master,
        };
        machine.prepare();
        machine
    }

    /// Makes what the commands take, by commands of the program.
    fn prepare(&self) {
        let dir = self.cellar().dir.path().display().to_string();
        for line in [
            "consumers create audit".to_owned(),
            "tokens create ci --scope read".to_owned(),
            format!("export jsonl {dir}/salt.jsonl"),
            format!("store backup {dir}/backup"),
            format!("store restore {dir}/backup {dir}/stopped"),
        ] {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let output = self.run(&words, &Live);
            assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
        }
        wait_for("the dead letter", || {
            let args = ["sinks", "dead-letters", "list", "hook", "--output", "jsonl"];
            let output = self.run(&args.map(str::to_owned), &Live);
            stdout(&output).contains("test/1").then_some(())
        });

        // A systemd in which everything is in place.
        executable(self.cellar().dir.path(), "bin/systemctl", "#!/bin/sh\n");
    }

    fn cellar(&self) -> &Cellar {
        &self.lab.cellar
    }

    fn run(&self, words: &[String], place: &Place) -> Output {
        let dir = self.cellar().dir.path();
        let (socket, state) = match place {
            Stopped => (dir.join("no.sock"), dir.join("stopped")),
            Live | Help(_) => (self.cellar().socket(), self.cellar().state_dir()),
        };
        let path = format!("{}/bin:{}", dir.display(), std::env::var("PATH").unwrap());
        program()
            .env("PATH", path)
            .args(words)
            .arg("--config")
            .arg(dir.join("c.yaml"))
            .env("SALTCELLAR_SOCKET", socket)
            .env("SALTCELLAR_STATE_DIR", state)
            .current_dir(dir)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The arguments of a verb, with names of this store, and without the options that are given anyway.
    fn fill(&mut self, arguments: &str, given: &[String]) -> Vec<String> {
        self.count += 1;
        let new = format!("new{}", self.count);
        if arguments.contains("{consumer}") {
            let create = ["consumers", "create", &new].map(str::to_owned);
            assert_eq!(self.run(&create, &Live).status.code(), Some(0));
        }
        if arguments.contains("{held}") {
            let hold = ["store", "holds", "add", JID].map(str::to_owned);
            assert_eq!(self.run(&hold, &Live).status.code(), Some(0));
        }
        let names = [
            ("{dir}", self.cellar().dir.path().display().to_string()),
            ("{jid}", JID.to_owned()),
            ("{held}", JID.to_owned()),
            ("{earlier}", EARLIER.to_owned()),
            ("{seq}", self.seq.clone()),
            ("{consumer}", new.clone()),
            ("{new}", new),
        ];

        let mut filled = Vec::new();
        let mut is_given = false;
        for word in arguments.split_whitespace() {
            // The value of an option that is given is also given.
            is_given = if word.starts_with("--") {
                given.iter().any(|option| option == word)
            } else {
                is_given
            };
            if !is_given {
                let word = names.iter().fold(word.to_owned(), |word, (name, value)| {
                    word.replace(name, value)
                });
                filled.push(word);
            }
        }
        filled
    }

    /// Runs an advised command; returns what is wrong with it.
    fn try_out(&mut self, words: &[String]) -> Result<(), String> {
        let read = read(words)?;
        let mut line: Vec<_> = read.verb.split(' ').map(str::to_owned).collect();
        if read.is_group {
            line.push("--help".to_owned());
            return Self::judge(&self.run(&line, &Live), &[]);
        }
        let (_, place, arguments, codes) = RUNS
            .iter()
            .find(|(verb, ..)| *verb == read.verb)
            .ok_or("the test does not know how to run it: add it to RUNS")?;

        line.extend(self.fill(arguments, &read.options));
        line.extend(read.options);
        if matches!(place, Help(_)) {
            line.push("--help".to_owned());
        }
        let output = self.run(&line, place);
        Self::judge(&output, codes).map_err(|why| match place {
            Help(reason) => format!("run as {line:?}, because {reason}: {why}"),
            Live | Stopped => format!("run as {line:?}: {why}"),
        })
    }

    fn judge(output: &Output, codes: &[i32]) -> Result<(), String> {
        let code = output.status.code().unwrap_or(-1);
        let said = stderr(output);
        let refusal = said
            .lines()
            .find(|line| REFUSALS.iter().any(|refusal| line.contains(refusal)));
        if (code == 0 || codes.contains(&code)) && refusal.is_none() {
            return Ok(());
        }
        Err(format!("exit code {code}: {said}{}", stdout(output)))
    }
}

#[test]
fn every_advised_command_is_understood_and_runs() {
    let mut machine = Machine::start();
    let advised = advised();
    let mut wrong = Vec::new();
    for (words, path) in &advised {
        let tried = match misunderstood(words) {
            Some(why) => Err(why),
            None => machine.try_out(words),
        };
        if let Err(why) = tried {
            wrong.push(format!("{}: {words:?}: {why}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        advised.len() > 60,
        "only {} commands were found",
        advised.len()
    );
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let one = |line: &str| of_shell(line).last().map(|command| words(command)).unwrap();
    for (command, is_known) in [
        ("saltcellar sinks dead-letters list {name}", true),
        ("saltcellar sinks dead-letters {name}", false),
        ("saltcellar sinks letters", false),
        ("saltcellar store verify --fast", false),
        ("saltcellar tokens create", true),
        ("saltcellar tokens create NAME", false),
        ("saltcellar tokens create NAME --scope read", true),
        ("saltcellar events list --tag 'salt/auth*' | head", true),
        ("sudo saltcellar page", true),
        (
            "systemctl stop saltcellar && saltcellar store redact-key && systemctl start saltcellar",
            false,
        ),
    ] {
        assert_eq!(
            misunderstood(&one(command)).is_none(),
            is_known,
            "{command}"
        );
    }
    assert!(of_shell("saltcells are small").is_empty());
}

/// The page and the findings of a daemon with dead letters once advised `sinks dead-letters NAME`.
#[test]
fn a_command_that_is_refused_is_found() {
    let mut machine = Machine::start();
    for command in [
        "saltcellar sinks dead-letters hook",
        "saltcellar sinks letters",
    ] {
        assert!(machine.try_out(&words(command)).is_err(), "{command}");
    }
    let output = machine.run(
        &["jobs", "show", "20200101000000000000"].map(str::to_owned),
        &Live,
    );
    assert!(Machine::judge(&output, &[]).is_err());
}
