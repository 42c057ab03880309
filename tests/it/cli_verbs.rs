//! Verbs with a fake daemon, and without a daemon.

use std::io::Read;
use std::process::Stdio;

use rmpv::Value;
use serde_json::{Value as Json, json};

use crate::fake_daemon::{FakeDaemon, map, program, stderr, stdout};

/// 2026-11-21T05:47:28.123456Z
const TIME: i64 = 1_795_240_048_123_456;

fn job_row(jid: &str) -> Vec<(Value, Value)> {
    let Value::Map(row) = map([
        ("jid", jid.into()),
        ("time", TIME.into()),
        ("fun", "cmd.run".into()),
        ("arg", Value::Array(vec!["uptime".into()])),
        ("tgt", "*".into()),
        ("tgt_type", "glob".into()),
        ("user", "root".into()),
        ("expected", 3.into()),
        ("returned", 2.into()),
        ("failed", 1.into()),
    ]) else {
        unreachable!()
    };
    row
}

fn jobs() -> FakeDaemon {
    FakeDaemon::answering("jobs_list", |_| {
        let rows = vec![Value::Map(job_row("20261121054728123456"))];
        Ok(map([("jobs", Value::Array(rows)), ("more", true.into())]))
    })
}

fn job() -> FakeDaemon {
    FakeDaemon::answering_all(|name, args| {
        // Why it failed is not known to this daemon.
        if name == "causes" {
            return Ok(Value::Nil);
        }
        assert_eq!(name, "job_show");
        if args["jid"].as_str() != Some("20261121054728123456") {
            return Ok(Value::Nil);
        }
        let answer = |minion: &str, value: Value, code: u8| {
            map([
                ("minion", minion.into()),
                ("seq", 7.into()),
                ("time", TIME.into()),
                ("return", value),
                ("retcode", code.into()),
                ("success", (code == 0).into()),
                ("failed", (code != 0).into()),
                ("fun", "cmd.run".into()),
                ("duplicates", 0.into()),
            ])
        };
        let mut row = job_row("20261121054728123456");
        let data = map([
            (
                "list",
                Value::Array(vec![1.into(), Value::Binary(vec![255])]),
            ),
            ("on", true.into()),
        ]);
        row.extend([
            ("load".into(), Value::Nil),
            (
                "minions".into(),
                Value::Array(vec!["web1".into(), "web2".into(), "web3".into()]),
            ),
            ("missing".into(), Value::Array(vec!["web3".into()])),
            (
                "returns".into(),
                Value::Array(vec![
                    answer("web1", data, 0),
                    answer("web2", "no\x1b[2J\nsuch".into(), 1),
                ]),
            ),
        ]);
        Ok(Value::Map(row))
    })
}

/// An archive of `count` events, served as the daemon does: newest first, `limit` at a time, by `cursor`.
fn events(count: u64) -> FakeDaemon {
    FakeDaemon::answering("events_list", move |args| {
        let limit = usize::try_from(args["limit"].as_u64().unwrap()).unwrap();
        let end = args["cursor"].as_str().map_or(count + 1, |cursor| {
            cursor.trim_start_matches("store:").parse().unwrap()
        });
        let event = |seq: u64| {
            map([
                ("seq", seq.into()),
                ("time", TIME.into()),
                ("tag", format!("salt/job/{seq}\x1b]0;owned\x07").into()),
                ("source", "bus".into()),
                ("minion", "web1".into()),
                ("data", map([("id", "web1".into())])),
            ])
        };
        let rows: Vec<_> = (1..end).rev().take(limit).map(event).collect();
        let more = (rows.len() as u64) < end - 1;
        let next = format!("store:{}", end - rows.len() as u64);
        Ok(map([
            ("events", Value::Array(rows)),
            ("more", more.into()),
            ("next", next.into()),
        ]))
    })
}

#[test]
fn without_a_daemon_verbs_name_the_socket_and_the_remedy() {
    for verb in [
        &["jobs", "list"][..],
        &["jobs", "show", "1"],
        &["events", "list"],
        &["status"],
    ] {
        let output = program()
            .args(verb)
            .args(["--socket", "/no/such.sock"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(69), "{verb:?}");
        assert_eq!(
            stderr(&output),
            "saltcellar: daemon unreachable at /no/such.sock (set by --socket): No such file or directory (os error 2)\n\
             saltcellar: start one with `saltcellar serve --socket /no/such.sock`, or the installed service with \
             `systemctl start saltcellar`; if it listens elsewhere, set --socket or SALTCELLAR_SOCKET\n"
        );
    }
    let output = program()
        .arg("status")
        .env("SALTCELLAR_SOCKET", "/no/such.sock")
        .output()
        .unwrap();
    assert!(stderr(&output).contains("(set by SALTCELLAR_SOCKET)"));
}

#[test]
fn jobs_are_listed_as_a_table() {
    let output = jobs().run(&["jobs", "list", "--limit", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "JID                   TIME (UTC)               FUN      TGT  USER  RETURNED  FAILED  ARG\n\
         20261121054728123456  2026-11-21 05:47:28.123  cmd.run  *    root       2/3       1  uptime\n"
    );
}

#[test]
fn jobs_are_listed_as_json_with_times_as_text() {
    let daemon = jobs();
    let output = daemon.run(&[
        "jobs",
        "list",
        "--output",
        "json",
        "--limit",
        "1",
        "--fun",
        "cmd.*",
        "--include-polling",
    ]);
    let document: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["more"], true);
    assert_eq!(document["jobs"][0]["time"], "2026-11-21T05:47:28.123456Z");
    assert_eq!(document["jobs"][0]["arg"], json!(["uptime"]));
    let (_, args) = daemon.requests().remove(0);
    assert_eq!(
        args.to_string(),
        r#"{"limit": 1, "fun": "cmd.*", "include_polling": true}"#
    );

    let output = jobs().run(&["--output=jsonl", "jobs", "list", "--limit=1"]);
    assert_eq!(stdout(&output).lines().count(), 1);
    assert!(stdout(&output).starts_with(r#"{"jid":"20261121054728123456","time":"2026-11-21T05"#));
}

#[test]
fn filters_of_time_reach_the_daemon_as_microseconds() {
    let daemon = jobs();
    daemon.run(&[
        "jobs",
        "list",
        "--limit=1",
        "--since",
        "2026-11-21T05:47:28.123456",
        "--until=1970-01-02",
    ]);
    let (_, args) = daemon.requests().remove(0);
    assert_eq!(args["since"].as_i64(), Some(TIME));
    assert_eq!(args["until"].as_i64(), Some(86_400_000_000));
}

#[test]
fn a_job_is_shown_in_full() {
    let output = job().run(&["jobs", "show", "20261121054728123456"]);
    assert_eq!(
        stdout(&output),
        "\
jid       20261121054728123456
time      2026-11-21 05:47:28.123 UTC
fun       cmd.run
arg       uptime
tgt       * (glob)
user      root
returned  2 of 3, 1 failed

missing:
    web3

web1: (2026-11-21 05:47:28.123, retcode 0)
    list:
        - 1
        - {\"$bin\":\"/w==\"}
    on: true

web2: (2026-11-21 05:47:28.123, retcode 1, failed)
    no\\x1b[2J
    such
"
    );
    let output = job().run(&["jobs", "show", "20261121054728123456", "--output", "json"]);
    let document: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        document["returns"][0]["return"]["list"][1],
        json!({"$bin": "/w=="})
    );
    assert_eq!(
        document["returns"][1]["time"],
        "2026-11-21T05:47:28.123456Z"
    );

    let output = job().run(&["jobs", "show", "20261121054728123456", "--output", "jsonl"]);
    let lines: Vec<Json> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["jid"], "20261121054728123456");
    assert_eq!(lines[1]["minion"], "web2");
}

#[test]
fn an_unknown_job_is_a_one_line_error() {
    let output = job().run(&["jobs", "show", "7"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "saltcellar: cannot show the job: unknown job 7; `saltcellar jobs list` lists the known jobs\n"
    );
}

#[test]
fn events_are_listed_newest_first_without_terminal_control_characters() {
    let output = events(30).run(&["events", "list", "--limit", "2", "--show-data"]);
    assert_eq!(
        stdout(&output),
        "\
SEQ  TIME (UTC)               TAG                          MINION  FUN
 30  2026-11-21 05:47:28.123  salt/job/30\\x1b]0;owned\\x07  web1
    id: web1
 29  2026-11-21 05:47:28.123  salt/job/29\\x1b]0;owned\\x07  web1
    id: web1
"
    );
    let output = events(30).run(&["events", "list", "--output", "json"]);
    let document: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["events"].as_array().unwrap().len(), 20);
    assert_eq!(document["events"][0]["seq"], 30);
    assert_eq!(document["events"][0]["time"], "2026-11-21T05:47:28.123456Z");
    assert_eq!(
        document["events"][0]["tag"],
        "salt/job/30\u{1b}]0;owned\u{7}"
    );
    assert!(!stdout(&output).contains('\u{1b}'));
}

#[test]
fn all_events_are_read_page_by_page_each_once() {
    let daemon = events(2_500);
    let output = daemon.run(&["events", "list", "--no-limit", "--output", "jsonl"]);
    let text = stdout(&output);
    let seqs = text
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap()["seq"].as_u64());
    assert!(seqs.flatten().eq((1..=2_500).rev()));
    assert_eq!(daemon.requests().len(), 3);

    let output = daemon.run(&["events", "list", "--no-limit", "--output", "json"]);
    let document: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["events"].as_array().unwrap().len(), 2_500);
    assert_eq!(document["more"], false);
    assert_eq!(
        stdout(&daemon.run(&["events", "list", "--no-limit"]))
            .lines()
            .count(),
        2_501
    );
    assert_eq!(
        stdout(&daemon.run(&["events", "list", "--limit", "1500"]))
            .lines()
            .count(),
        1_501
    );
}

#[test]
fn an_empty_archive_is_an_empty_list() {
    assert_eq!(
        stdout(&events(0).run(&["events", "list", "--output=json"])),
        "{\"events\": [], \"more\": false}\n"
    );
    assert_eq!(
        stdout(&events(0).run(&["events", "list"])),
        "SEQ  TIME (UTC)  TAG  MINION  FUN\n"
    );
}

#[test]
fn a_closed_pipe_ends_the_program_without_an_error() {
    let daemon = events(100_000);
    let mut child = program()
        .arg("--socket")
        .arg(&daemon.socket)
        .args(["events", "list", "--no-limit"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut start = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
}

#[test]
fn errors_of_the_daemon_map_to_exit_codes() {
    for (code, exit) in [
        ("bad_args", 64),
        ("unavailable", 75),
        ("internal", 70),
        ("version", 1),
    ] {
        let daemon = FakeDaemon::answering("status", move |_| Err((code, "because\x1b")));
        let output = daemon.run(&["status"]);
        assert_eq!(output.status.code(), Some(exit), "{code}");
        let expected = format!(
            "saltcellar: cannot query the status: the daemon rejected the call: because\\x1b ({code})\n"
        );
        assert_eq!(stderr(&output), expected);
    }
}

/// A daemon with one reason of this level.
fn a_status(state: &'static str) -> FakeDaemon {
    FakeDaemon::answering("status", move |_| {
        let reason = map([
            ("level", state.into()),
            ("part", "disk".into()),
            ("message", "nearly\x1bfull".into()),
        ]);
        let bus = map([
            ("path", "/var/run/salt/master".into()),
            ("connected", true.into()),
            ("framing", "len32".into()),
            ("events", 12.into()),
        ]);
        Ok(map([
            ("version", "0.1.0".into()),
            ("pid", 7.into()),
            ("bus", Value::Array(vec![bus])),
            (
                "counters",
                map([("bus_events", 12.into()), ("calls", 0.into())]),
            ),
            (
                "health",
                map([
                    ("state", state.into()),
                    ("reasons", Value::Array(vec![reason])),
                ]),
            ),
            ("classes", Value::Array(vec![])),
        ]))
    })
}

#[test]
fn the_status_is_shown() {
    let daemon = a_status("warning");
    let output = daemon.run(&["status"]);
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
    let text = stdout(&output);
    for line in [
        "saltcellar 0.1.0, up 0s: 1 warning",
        "warning  disk: nearly\\x1bfull",
        "failure  none since the start",
        "PART  NAME                  STATE      LAG",
        "bus   /var/run/salt/master  connected  -",
    ] {
        assert!(
            text.lines().any(|shown| shown == line),
            "{line:?} in {text}"
        );
    }
    assert!(
        text.lines().count() < 25 && !text.contains("bus_events"),
        "{text}"
    );
    let counters = stdout(&daemon.run(&["status", "--counters"]));
    assert!(
        counters
            .lines()
            .any(|line| line == "bus      bus_events     12"),
        "{counters}"
    );
    assert!(!counters.contains("calls"), "no zeros: {counters}");
    let document: Json =
        serde_json::from_str(&stdout(&daemon.run(&["status", "--output=json"]))).unwrap();
    assert_eq!(document["counters"]["bus_events"], 12);
    assert_eq!(
        (&document["health"]["state"], &document["https"]),
        (&json!("warning"), &Json::Null)
    );
}

#[test]
fn problems_end_status_with_1() {
    for args in [&["status"][..], &["status", "--output=json"]] {
        let output = a_status("problem").run(args);
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(1), "saltcellar: 1 problem\n")
        );
    }
}

#[test]
fn bad_usage_is_64_and_help_is_0() {
    for args in [
        &["jobs", "lits"][..],
        &["events", "list", "--since", "soon"],
        &["jobs", "list", "--limit", "0"],
        &[],
    ] {
        assert_eq!(
            program().args(args).output().unwrap().status.code(),
            Some(64),
            "{args:?}"
        );
    }
    for verb in [
        &[][..],
        &["serve"],
        &["config", "check"],
        &["jobs", "list"],
        &["jobs", "show"],
        &["events", "list"],
        &["status"],
    ] {
        let output = program().args(verb).arg("--help").output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(
            stdout(&output).contains("Examples:\n  saltcellar "),
            "{verb:?} teaches with examples"
        );
    }
}

#[test]
fn the_version_names_program_and_formats() {
    let version = env!("CARGO_PKG_VERSION");
    let output = program().arg("version").output().unwrap();
    assert!(stdout(&output).starts_with(&format!(
        "saltcellar {version}\nstore format 5\nwire format 1\n"
    )));
    let output = program()
        .args(["version", "--output", "json"])
        .output()
        .unwrap();
    let document: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&document["version"], &document["formats"]["wire"]),
        (&json!(version), &json!(1))
    );
    assert_eq!(
        stdout(&program().arg("--version").output().unwrap()),
        format!("saltcellar {version}\n")
    );
}

#[test]
fn completions_are_printed_for_each_shell() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef saltcellar"),
        ("fish", "complete -c saltcellar"),
    ] {
        let output = program().args(["completions", shell]).output().unwrap();
        assert!(stdout(&output).contains(sign), "{shell}");
    }
}

#[test]
fn rows_are_printed_as_comma_separated_values() {
    let output = jobs().run(&["jobs", "list", "--limit=1", "--output=csv"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "JID,TIME (UTC),FUN,TGT,USER,RETURNED,FAILED,ARG,MASTER\n\
         20261121054728123456,2026-11-21 05:47:28.123,cmd.run,*,root,2/3,1,uptime,\n"
    );
}

#[test]
fn a_list_whose_later_page_fails_is_a_whole_document_with_the_error() {
    let daemon = FakeDaemon::answering("jobs_list", |args| {
        if !args["cursor"].is_nil() {
            return Err(("internal", "read the log: no disk"));
        }
        let rows = vec![Value::Map(job_row("20261121054728123456"))];
        Ok(map([
            ("jobs", Value::Array(rows)),
            ("more", true.into()),
            ("next", "store:20261121054728123456".into()),
        ]))
    });
    let output = daemon.run(&["jobs", "list", "--output=json"]);
    assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
    let document: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(document["more"], true);
    let error = document["error"].as_str().unwrap();
    assert!(error.contains("no disk"), "{error}");
    assert!(stderr(&output).contains("no disk"), "{}", stderr(&output));

    // Without any row there is only the error.
    let daemon = FakeDaemon::answering("jobs_list", |_| Err(("internal", "no disk")));
    let output = daemon.run(&["jobs", "list", "--output=json"]);
    assert_eq!(
        (stdout(&output).as_str(), output.status.code()),
        ("", Some(70))
    );
}

#[test]
fn a_command_without_rows_rejects_csv_before_it_does_anything() {
    let daemon = FakeDaemon::answering("sink_pause", |_| {
        Ok(map([("name", "audit".into()), ("paused", true.into())]))
    });
    for args in [
        &["version"][..],
        &["sinks", "pause", "audit"],
        &["store", "holds", "add", "20261121054728123456"],
        &["tokens", "create", "ci", "--scope", "read"],
        &["jobs", "watch", "20261121054728123456"],
        &["setup", "--yes"],
    ] {
        let output = daemon.run(&[args, &["--output=csv"]].concat());
        assert_eq!(
            output.status.code(),
            Some(64),
            "{args:?}: {}",
            stdout(&output)
        );
        assert_eq!(
            stderr(&output),
            "saltcellar: cannot read --output: csv is for the rows of tables, and this command prints none; use table, json or jsonl\n"
        );
    }
    assert_eq!(daemon.requests(), []);

    let output = daemon.run(&["sinks", "pause", "audit"]);
    assert_eq!(stdout(&output), "audit is paused\n");
}

#[test]
fn times_are_local_unless_utc_is_requested() {
    let daemon = jobs();
    let run = |args: &[&str]| {
        let mut command = program();
        command
            .env("TZ", "XYZ-3")
            .arg("--socket")
            .arg(&daemon.socket)
            .args(args);
        stdout(&command.output().unwrap())
    };
    let local = run(&["jobs", "list", "--limit=1"]);
    assert!(
        local.contains("TIME   ") && local.contains("2026-11-21 08:47:28.123"),
        "{local}"
    );
    let utc = run(&["jobs", "list", "--limit=1", "--utc"]);
    assert!(
        utc.contains("TIME (UTC)") && utc.contains("2026-11-21 05:47:28.123"),
        "{utc}"
    );
    let json = run(&["jobs", "list", "--limit=1", "--output=jsonl"]);
    assert!(json.contains("2026-11-21T05:47:28.123456Z"), "{json}");
    run(&[
        "jobs",
        "list",
        "--limit=1",
        "--since",
        "2026-11-21 08:47:28.123456",
        "--until",
        "-1h",
    ]);
    let (_, args) = daemon.requests().pop().unwrap();
    assert_eq!(args["since"].as_i64(), Some(TIME));
    let output = program()
        .args(["jobs", "list", "--since", "-1x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(
        stderr(&output).contains("yesterday 14:00"),
        "{}",
        stderr(&output)
    );
}
