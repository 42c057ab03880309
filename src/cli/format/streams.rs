//! Standard output and standard error. A test replaces both.

use std::cell::Cell;
use std::io::{self, IsTerminal as _, Write};

#[cfg(test)]
use self::capture::{Stream, is_captured};
use crate::base::visible::plain;

pub(in crate::cli) fn stdout() -> Box<dyn Write> {
    #[cfg(test)]
    if is_captured() {
        return Box::new(Stream::Output);
    }
    Box::new(io::stdout())
}

pub(in crate::cli) fn stderr() -> Box<dyn Write> {
    #[cfg(test)]
    if is_captured() {
        return Box::new(Stream::Error);
    }
    Box::new(io::stderr())
}

thread_local! {
    // Of the thread that runs a command, because a test runs several at a time.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether progress and confirmations are left out.
pub(in crate::cli) fn set_quiet(is_quiet: bool) {
    QUIET.set(is_quiet);
}

/// Whether progress and confirmations are left out.
pub(in crate::cli) fn is_quiet() -> bool {
    QUIET.get()
}

/// Whether a person sees what is printed.
pub(in crate::cli) fn is_terminal() -> bool {
    #[cfg(test)]
    if is_captured() {
        return capture::columns().is_some();
    }
    io::stdout().is_terminal()
}

/// Columns and lines of the terminal, if standard output is one that knows them.
pub(in crate::cli) fn size() -> Option<(usize, usize)> {
    // Without lines nothing is paged.
    #[cfg(test)]
    if is_captured() {
        return Some((capture::columns()?, 0));
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some((usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// Writes one line to standard error. A failed write is ignored: the exit code remains.
pub(in crate::cli) fn print_error(text: &str) {
    print_error_of("saltcellar", text);
}

/// As [`print_error`], for another program.
pub(in crate::cli) fn print_error_of(program: &str, text: &str) {
    let _ = writeln!(stderr(), "{program}: {}", plain(text));
}

/// What replaces the streams for a verb of a test.
#[cfg(test)]
pub(in crate::cli) mod capture {
    use std::cell::RefCell;
    use std::io::{self, Write};

    use crate::api::client::Client;

    /// The streams and the connection of the verb that runs on this thread.
    struct Captured {
        connect: Box<dyn Fn() -> Client>,
        stdout: Vec<u8>,
        stderr: Vec<u8>,
        /// If standard output is a terminal.
        columns: Option<usize>,
    }

    thread_local! {
        static CAPTURED: RefCell<Option<Captured>> = const { RefCell::new(None) };
    }

    /// Whether a test runs a verb on this thread.
    pub(in crate::cli) fn is_captured() -> bool {
        CAPTURED.with_borrow(Option::is_some)
    }

    /// Standard output or standard error of the verb.
    pub(super) enum Stream {
        Output,
        Error,
    }

    impl Write for Stream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            CAPTURED.with_borrow_mut(|captured| {
                let captured = captured.as_mut().unwrap();
                match self {
                    Self::Output => captured.stdout.write(bytes),
                    Self::Error => captured.stderr.write(bytes),
                }
            })
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A connection of the verb; none if no test runs one on this thread.
    pub(in crate::cli) fn client() -> Option<Client> {
        CAPTURED.with_borrow(|captured| captured.as_ref().map(|captured| (captured.connect)()))
    }

    /// The columns of the verb's terminal.
    pub(super) fn columns() -> Option<usize> {
        CAPTURED.with_borrow(|captured| captured.as_ref().and_then(|captured| captured.columns))
    }

    /// Captures what a verb on this thread prints, and gives it connections. With columns it is on a
    /// terminal.
    pub(in crate::cli) fn begin(connect: Box<dyn Fn() -> Client>, columns: Option<usize>) {
        let before = CAPTURED.replace(Some(Captured {
            connect,
            stdout: Vec::new(),
            stderr: Vec::new(),
            columns,
        }));
        assert!(before.is_none(), "a verb within a verb");
    }

    /// Ends this, and returns what was printed.
    pub(in crate::cli) fn end() -> (Vec<u8>, Vec<u8>) {
        let captured = CAPTURED.take().unwrap();
        (captured.stdout, captured.stderr)
    }
}
