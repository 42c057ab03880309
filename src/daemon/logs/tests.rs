//! Tests of log lines.

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn line_to<W: Write>(form: LineForm, to: W) -> OneLine<W> {
    OneLine {
        form,
        to,
        lost: Box::leak(Box::default()),
    }
}

/// Accepts `room` bytes, then fails with `StorageFull`.
struct Full<'a> {
    kept: &'a Mutex<Vec<u8>>,
    room: &'a Mutex<usize>,
}

impl Write for Full<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut room = self.room.lock();
        let n = bytes.len().min(*room);
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *room -= n;
        self.kept.lock().extend(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn lost_lines_are_counted_and_reported_by_the_next_line() {
    for form in [LineForm::Text, LineForm::Json] {
        let (kept, room) = (Mutex::default(), Mutex::new(8));
        let mut line = line_to(
            form,
            Full {
                kept: &kept,
                room: &room,
            },
        );
        for text in ["first\n", "second\n", "third\n"] {
            assert_eq!(line.write(text.as_bytes()).unwrap(), text.len());
        }
        line.flush().unwrap();
        *room.lock() = 1_000;
        assert_eq!(line.write(b"fourth\n").unwrap(), 7);
        assert_eq!(line.write(b"fifth\n").unwrap(), 6);
        let kept = String::from_utf8(kept.lock().clone()).unwrap();
        let lines: Vec<&str> = kept.lines().collect();
        assert_eq!(
            (lines[0], lines[1], &lines[3..]),
            ("first", "se", &["fourth", "fifth"][..]),
            "{kept}"
        );
        assert!(
            lines[2].contains("could not be written") && lines[2].contains('2'),
            "{kept}"
        );
    }
}

/// The log of one warning whose values contain line ends and escape sequences.
fn logged(form: LineForm) -> String {
    let kept = Kept::default();
    let to = kept.clone();
    let log = tracing_subscriber::fmt().with_writer(move || line_to(form, to.clone()));
    let tag = "evil\n2026-11-22T00:00:00Z  INFO forged\r\x1b[2J\u{202e}\u{200b}";
    let warn = || tracing::warn!(%tag, minion = tag, "an event of {tag}");
    match form {
        LineForm::Json => tracing::subscriber::with_default(log.json().finish(), warn),
        LineForm::Text => tracing::subscriber::with_default(log.with_ansi(false).finish(), warn),
        LineForm::Coloured => tracing::subscriber::with_default(log.with_ansi(true).finish(), warn),
    }
    String::from_utf8(kept.0.lock().clone()).unwrap()
}

#[test]
fn a_newline_in_a_tag_cannot_forge_a_log_line() {
    for form in [LineForm::Text, LineForm::Coloured, LineForm::Json] {
        let log = logged(form);
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.ends_with('\n') && log.contains("forged"), "{log}");
        assert!(
            !log.contains(['\r', '\u{202e}', '\u{200b}']) && !log.contains("\x1b[2J"),
            "{log}"
        );
    }
    let json: serde_json::Value = serde_json::from_str(&logged(LineForm::Json)).unwrap();
    assert!(
        json["fields"]["tag"]
            .as_str()
            .unwrap()
            .starts_with("evil\n2026")
    );
}
