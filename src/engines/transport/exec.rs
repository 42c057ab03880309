//! The transport `exec`: a long-running program that reads items from standard input and
//! acknowledges each on standard output.
//!
//! ```text
//! to the program     one line per item
//! from the program   one line per item, in the same order:
//!                    ok                 accepted
//!                    retry REASON       send it again later
//!                    reject REASON      never acceptable: a dead letter
//! ```
//!
//! Any other line, a missing line within the timeout, and the end of the program are failures: the
//! program is killed with all processes of its group, and the batch is redelivered to a new
//! one. Lines on standard error go to the daemon's log.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use serde::Deserialize;

use super::deliver::{
    BoxedDestination, DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript,
    Transport,
};
use super::item::Item;
use crate::client::secret::Revealed;
use crate::config::within;
use crate::engines::framing::Framing;
use crate::engines::kind::{Kind, options};
use crate::engines::program::{self, Variables, check_command, read_lines, spawn};
use crate::model::word::{self, MIB};

const DOC: &str = r#"A long-running program that reads lines and acknowledges each.

| option | value | default |
|---|---|---|
| `command` | a list: the absolute path of a program, and its arguments | required |
| `environment` | variables, whose values may be secrets; the environment is empty otherwise but for `PATH` | none |
| `timeout` | longest wait for one acknowledgement | 30s |

The program reads one item per line from standard input (a line break in an item is written as `\n` or `\r`, two characters), and writes one line for each to standard output, in the same order: `ok`, `retry REASON` or `reject REASON`. It must flush each line. Standard error goes to the
daemon's log. Any other reply, a timeout or its end kills the program with its process group; a new one gets the events again.

```python
import sys
for line in sys.stdin:
    print("ok", flush=True)
```"#;

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "exec",
    doc: DOC,
    example: "{command: [/usr/local/bin/to-kafka, --topic, salt], timeout: 30s, \
              environment: {KAFKA_PASSWORD: 'file:/etc/saltcellar/kafka.password'}}",
    build: |given| {
        let exec: ExecDestination = options(given)?;
        check_command(&exec.command)?;
        within(
            "timeout",
            &exec.timeout,
            Duration::from_secs(1)..=Duration::from_secs(3_600),
        )?;
        Ok(Box::new(exec))
    },
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecDestination {
    /// Program and arguments.
    command: Vec<String>,
    /// Variables of the program's environment, which is empty otherwise but for `PATH`.
    #[serde(default)]
    environment: Variables,
    /// Longest wait for one acknowledgement.
    #[serde(default = "thirty_seconds", with = "word")]
    timeout: Duration,
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

impl Destination for ExecDestination {
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport> {
        Box::new(ExecTransport {
            settings: self.clone(),
            secrets: deps.secrets.clone(),
            program: None,
        })
    }

    fn framing(&self) -> Framing {
        Framing::Line
    }

    fn describe(&self) -> String {
        self.command.first().cloned().unwrap_or_default()
    }

    fn limits(&self) -> RequestLimits {
        let bytes = usize::try_from(MIB).unwrap_or(usize::MAX);
        RequestLimits {
            count: 500,
            bytes,
            time: Duration::ZERO,
        }
    }
}

struct ExecTransport {
    settings: ExecDestination,
    secrets: Revealed,
    program: Option<Program>,
}

/// A running program. Its process group ends with it.
struct Program {
    child: Child,
    /// Batches of lines to the thread that writes; a program that reads nothing must not block the
    /// sink.
    input: Option<Sender<Vec<u8>>>,
    /// Lines of its standard output.
    output: Receiver<String>,
}

impl Transport for ExecTransport {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        let mut lines = Vec::new();
        for item in items {
            lines.extend_from_slice(&item.bytes);
            lines.push(b'\n');
        }

        // Copied for a test only, because the exchange takes the lines.
        let request = transcript
            .is_some()
            .then(|| String::from_utf8_lossy(&lines).into_owned());

        // After an error the program is in an unknown state, so it is dropped, which kills it.
        let mut program = match self.program.take() {
            Some(program) => program,
            None => Program::start(&self.settings, &self.secrets).map_err(DeliverError::retry)?,
        };

        let mut answers = String::new();
        let result = program.exchange(lines, items.len(), self.settings.timeout, &mut answers);
        // Even after an error: the responses so far are what a test is made for.
        if let (Some(transcript), Some(request)) = (transcript, request) {
            *transcript = Transcript {
                request,
                response: answers,
            };
        }

        let result = result.map_err(DeliverError::retry)?;
        self.program = Some(program);
        Ok(result)
    }

    fn check(&mut self) -> Result<String, String> {
        let path = PathBuf::from(self.settings.describe());
        let place = path.display();
        rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).map_err(|why| {
            format!("{place} is not executable: {why}; correct `command`, or run `chmod +x` on it")
        })?;
        Ok(format!("{place} is executable"))
    }

    fn reopen(&mut self) {
        self.program = None;
    }
}

impl Program {
    fn start(settings: &ExecDestination, secrets: &Revealed) -> Result<Self, String> {
        let mut child = program::start(
            &settings.command,
            &settings.environment,
            Stdio::piped(),
            secrets,
        )?;
        // One batch at a time is written; more would only wait in memory.
        let (input, batches) = bounded(1);
        // Bounded: a program that writes without end waits instead of filling memory.
        let (lines, output) = bounded(1_000);

        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on a failure drops `started`, which kills the program.
        let started = Self {
            child,
            input: Some(input),
            output,
        };

        let secrets = secrets.clone();
        let name = settings.command.first().cloned().unwrap_or_default();

        let threads = [
            stdin.map(|to| spawn("sc-exec-in", move || write_batches(to, &batches))),
            stdout.map(|from| {
                spawn("sc-exec-out", move || {
                    read_lines(from, |line| lines.send(line).is_ok());
                })
            }),
            stderr.map(|from| {
                spawn("sc-exec-err", move || {
                    read_lines(from, |line| {
                        let line = secrets.scrub(&line);
                        tracing::warn!(program = name, line, "message of a sink's program");
                        true
                    });
                })
            }),
        ];

        threads
            .into_iter()
            .flatten()
            .collect::<io::Result<()>>()
            .map_err(|why| why.to_string())?;
        Ok(started)
    }

    /// Sends lines and reads the acknowledgement of each. Adds them to `answers`.
    fn exchange(
        &mut self,
        lines: Vec<u8>,
        count: usize,
        timeout: Duration,
        answers: &mut String,
    ) -> Result<Vec<Rejected>, String> {
        // A response left from before would count for the first item.
        self.expect_silence()?;

        let ended = "the program has ended";
        let input = self.input.as_ref().ok_or(ended)?;
        input
            // The limit holds for a program that reads nothing: its pipe is full.
            .send_timeout(lines, timeout)
            .map_err(|_| "the program does not read its input; raise `timeout`, or correct it")?;

        let mut rejected = Vec::new();
        for index in 0..count {
            // For each item: a program may take its time as long as it makes progress.
            let line = match self.output.recv_timeout(timeout) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = timeout.as_secs();
                    return Err(format!(
                        "no acknowledgement of line {} within {seconds} s; raise `timeout`, or correct the program",
                        index + 1
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self
                        .child
                        .wait()
                        .map(|status| status.to_string())
                        .unwrap_or_default();
                    return Err(format!(
                        "{ended} before it acknowledged line {}: {status}",
                        index + 1
                    ));
                }
            };

            answers.push_str(&line);
            answers.push('\n');
            let (word, reason) = line.split_once(' ').unwrap_or((&line, ""));
            let reason = reason.to_owned();

            match word {
                "ok" => {}
                "retry" => rejected.push(Rejected {
                    index,
                    reason,
                    is_temporary: true,
                }),
                "reject" => rejected.push(Rejected {
                    index,
                    reason,
                    is_temporary: false,
                }),
                // The order of responses is the only link to the items, so after an unknown line
                // nothing is certain.
                _ => {
                    return Err(format!(
                        "the program answered {line:?}; expected ok, retry REASON or reject REASON"
                    ));
                }
            }
        }

        self.expect_silence()?;
        Ok(rejected)
    }

    /// Fails if the program wrote a line without an item: it would be taken for the next
    /// acknowledgement.
    fn expect_silence(&self) -> Result<(), String> {
        match self.output.try_recv() {
            Ok(line) => Err(format!(
                "the program answered {line:?} without an item; it must write one line for each item"
            )),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Program {
    /// Ends the program: its input is closed; after a time its process group is killed.
    fn drop(&mut self) {
        // The end of the input is the request to end.
        self.input = None;
        // A program with unread responses has failed, and gets no time.
        let Self { child, output, .. } = self;
        program::end(child, || output.is_empty());
    }
}

fn write_batches(mut to: ChildStdin, batches: &Receiver<Vec<u8>>) {
    for lines in batches {
        // The reader of the responses notices that the program has ended.
        if to.write_all(&lines).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{items, open};
    use super::*;

    /// A transport to a shell script.
    fn script(text: &str, more: &str) -> Box<dyn Transport> {
        let command = serde_json::to_string(&["/bin/sh", "-c", text]).unwrap();
        open(&KIND, &format!("{{command: {command}{more}}}"))
    }

    fn error(transport: &mut dyn Transport) -> String {
        transport
            .deliver(&items(&["a", "b"]), None)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn each_line_is_acknowledged_and_the_program_stays() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let text = format!(
            "echo start >> {0}; while read -r line; do echo \"$line\" >> {0}; case $line in \
             bad) echo reject no good;; later) echo retry busy;; *) echo ok;; esac; done; echo end >> {0}",
            out.display()
        );
        let mut program = script(&text, "");
        assert_eq!(program.deliver(&items(&["a", "b"]), None), Ok(vec![]));
        let rejected = |index, reason: &str, is_temporary| Rejected {
            index,
            reason: reason.to_owned(),
            is_temporary,
        };
        let mut transcript = Transcript::default();
        let found = program.deliver(&items(&["bad", "c", "later"]), Some(&mut transcript));
        assert_eq!(
            found,
            Ok(vec![
                rejected(0, "no good", false),
                rejected(2, "busy", true)
            ])
        );
        assert_eq!(
            (transcript.request.as_str(), transcript.response.as_str()),
            ("bad\nc\nlater\n", "reject no good\nok\nretry busy\n")
        );
        drop(program);
        assert_eq!(
            std::fs::read_to_string(out).unwrap(),
            "start\na\nb\nbad\nc\nlater\nend\n"
        );
    }

    #[test]
    fn garbage_an_end_and_silence_are_failures_and_a_new_program_is_started() {
        let garbage = "while read -r line; do echo '<html>'; done";
        assert!(
            error(&mut *script(garbage, ""))
                .starts_with("the program answered \"<html>\"; expected ok")
        );
        let extra = "while read -r line; do echo ok; echo ok; done";
        let mut program = script(extra, "");
        let found = crate::testkit::wait_for("an error", || {
            program.deliver(&items(&["a", "b"]), None).err()
        });
        assert!(found.to_string().contains("without an item"), "{found}");
        let ended = error(&mut *script("read -r line; exit 3", ""));
        assert!(
            ended
                .starts_with("the program has ended before it acknowledged line 1: exit status: 3"),
            "{ended}"
        );
        let endless = error(&mut *script("read -r line; yes | tr -d '\\n'", ""));
        assert!(
            endless.starts_with("the program answered \"yyy"),
            "{endless}"
        );
        let silent = error(&mut *script("sleep 1000", ", timeout: 1s"));
        assert_eq!(
            silent,
            "no acknowledgement of line 1 within 1 s; raise `timeout`, or correct the program"
        );
        let mut missing = script(":", "");
        let found = error(&mut *missing);
        assert!(found.starts_with("the program has ended"), "{found}");
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let text = format!(
            "read -r line; if [ -e {0} ]; then echo ok; read -r l; echo ok; read -r l; else touch {0}; exit 1; fi",
            mark.display()
        );
        let mut program = script(&text, "");
        assert!(program.deliver(&items(&["a", "b"]), None).is_err());
        assert_eq!(program.deliver(&items(&["a", "b"]), None), Ok(vec![]));
    }

    #[test]
    fn the_children_of_a_program_end_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let text = format!(
            "sleep 1000 & echo $! > {}; read -r line; echo what",
            pid.display()
        );
        let mut program = script(&text, "");
        assert!(program.deliver(&items(&["a"]), None).is_err());
        let pid: i32 = std::fs::read_to_string(pid)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        crate::testkit::wait_for("the end of the child", || match state() {
            None => Some(()),
            // A zombie that its new parent has not collected yet.
            Some(stat) => stat.contains(") Z ").then_some(()),
        });
    }

    #[test]
    fn variables_may_be_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "s3cret").unwrap();
        let more = format!(
            ", environment: {{KEY: 'file:{}', PLAIN: x}}",
            path.display()
        );
        let mut program = script("read -r line; echo \"reject $KEY $PLAIN $HOME.\"", &more);
        let found = program.deliver(&items(&["a"]), None).unwrap();
        assert_eq!(found[0].reason, "[redacted] x .");
        for options in [
            "{command: []}",
            "{command: [sh]}",
            "{command: [/bin/sh], timeout: 0s}",
        ] {
            let options = crate::config::read_yaml(options).unwrap();
            assert!((KIND.build)(&options).is_err());
        }
    }
}
