//! Destination of output: standard output, or a pager for text that does not fit the terminal.

use std::io::{self, BufWriter, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli::format::streams;

/// `--no-pager`
static DISABLED: AtomicBool = AtomicBool::new(false);

/// Disables the pager for this process.
pub(in crate::cli) fn disable_pager() {
    DISABLED.store(true, Ordering::Relaxed);
}

pub(super) enum Sink {
    /// Standard output, or what a test puts in its place.
    Direct(BufWriter<Box<dyn Write>>),
    /// Output that still fits the terminal, which has this number of lines.
    Waiting {
        text: String,
        lines: usize,
        pager: Vec<String>,
    },
    Pager(Child, BufWriter<ChildStdin>),
}

impl Sink {
    pub(super) fn stdout() -> Self {
        Self::direct(streams::stdout())
    }

    pub(super) fn direct(writer: Box<dyn Write>) -> Self {
        Self::Direct(BufWriter::new(writer))
    }

    /// A pager if standard output is a terminal and `PAGER` permits it.
    pub(super) fn paged() -> Self {
        let named = std::env::var("PAGER").unwrap_or_else(|_| "less".to_owned());
        let pager: Vec<String> = named.split_whitespace().map(str::to_owned).collect();

        let is_used = !DISABLED.load(Ordering::Relaxed)
            && streams::is_terminal()
            // It would show the same, and only hold it back.
            && pager.first().is_some_and(|program| program != "cat");

        match streams::size() {
            Some((_, lines)) if is_used && lines > 1 => Self::Waiting {
                text: String::new(),
                lines,
                pager,
            },
            _ => Self::stdout(),
        }
    }

    pub(super) fn write(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::Direct(writer) => writer.write_all(text.as_bytes()),
            Self::Pager(_, writer) => writer.write_all(text.as_bytes()),
            Self::Waiting {
                text: waiting,
                lines,
                pager,
            } => {
                waiting.push_str(text);
                // The last line of the terminal is for the prompt.
                if memchr::memchr_iter(b'\n', waiting.as_bytes()).count() < *lines {
                    return Ok(());
                }

                let waiting = std::mem::take(waiting);
                // Without a pager, everything is printed as it comes.
                *self = start(pager).unwrap_or_else(Self::stdout);
                self.write(&waiting)
            }
        }
    }

    /// Writes what is buffered, unless a pager may still be needed.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Direct(writer) => writer.flush(),
            Self::Pager(_, writer) => writer.flush(),
            Self::Waiting { .. } => Ok(()),
        }
    }

    /// Writes what is buffered, and waits until the pager ends.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        // Everything fits the terminal.
        if let Self::Waiting { text, .. } = self {
            let text = std::mem::take(text);
            *self = Self::stdout();
            self.write(&text)?;
        }

        self.flush()?;

        if let Self::Pager(mut child, writer) = std::mem::replace(self, Self::stdout()) {
            drop(writer);
            child.wait()?;
        }
        Ok(())
    }
}

/// Starts the pager, unless that fails. `less` exits immediately if everything fits, shows colours,
/// and starts no other programs.
fn start(pager: &[String]) -> Option<Sink> {
    let (program, args) = pager.split_first()?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env("LESSSECURE", "1")
        .stdin(Stdio::piped());

    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }

    let mut child = command.spawn().ok()?;
    let input = child.stdin.take()?;
    Some(Sink::Pager(child, BufWriter::new(input)))
}
