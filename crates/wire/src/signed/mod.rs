//! The envelope of a minion's batch over HTTPS: sender, connection, and a signature over all of it.
//! `docs/WIRE.md` defines the format.
//!
//! # Invariant
//!
//! All signed data precedes the payload and includes the payload's length and hash, so a signature is
//! verified before any of the payload is accepted.

pub mod der;

use saltcellar_base::clock::Micros;

/// The first bytes of an envelope, before its version.
const MAGIC: &[u8; 6] = b"SCSIGN";

/// The version of envelope and paths.
pub const SIGNED_VERSION: u16 = 1;

/// The path for posting batches.
pub const BATCH_PATH: &str = "/v1/batch";

/// The path for requesting a connection's challenge.
pub const HELLO_PATH: &str = "/v1/hello";

/// The first line of the signed text: method and path.
const SIGNED_LINE: &[u8] = b"POST /v1/batch\n";

/// Bytes of an envelope before its id.
const FIXED_LEN: usize = 80;

/// The signed part of those: all but the length of the signature.
const SIGNED_LEN: usize = 78;

/// Bytes of a minion's id, which is a file name.
const ID_LEN_MAX: usize = 255;

/// Bytes of a signature, for a key of 8,192 bits.
const SIGNATURE_LEN_MAX: usize = 1024;

/// Bytes of the longest envelope, without its payload.
pub const ENVELOPE_LEN_MAX: usize = FIXED_LEN + ID_LEN_MAX + SIGNATURE_LEN_MAX;

/// A random value per connection, signed with each of its batches.
pub type Challenge = [u8; 16];

/// A SHA-256 hash.
pub type Digest = [u8; 32];

/// The SHA-256 hash of `bytes`.
pub fn sha256(bytes: &[u8]) -> Digest {
    let found = ring::digest::digest(&ring::digest::SHA256, bytes);
    found.as_ref().first_chunk().copied().unwrap_or_default()
}

/// Why bytes are not an envelope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEnvelope {
    /// Not an envelope.
    #[error("a batch must begin with SCSIGN and a version")]
    Magic,
    /// Made by another release.
    #[error(
        "the batch has envelope version {0}, this daemon supports version {SIGNED_VERSION}: upgrade the older of the daemon and the minion's extension"
    )]
    Version(u16),
    /// Not a valid minion id.
    #[error(
        "invalid minion id in the batch: expected 1 to {ID_LEN_MAX} bytes of UTF-8 that are a valid file name"
    )]
    Id,
    /// The signature is too long, or empty.
    #[error("the batch contains a signature of {0} bytes, expected 1 to {SIGNATURE_LEN_MAX}")]
    Signature(usize),
}

/// The fields of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The minion's clock.
    pub time: Micros,
    /// The challenge of its connection.
    pub challenge: Challenge,
    /// The batch's number on its connection, increasing.
    pub number: u64,
    /// The hash of the payload.
    pub payload_digest: Digest,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// The minion's id.
    pub id: &'a str,
}

/// A received envelope with its signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedEnvelope<'a> {
    /// The envelope.
    pub envelope: Envelope<'a>,
    /// The signature.
    pub signature: &'a [u8],
    /// Offset of the payload.
    pub len: usize,
}

impl<'a> Envelope<'a> {
    /// Parses the start of a request body; `None` if more bytes are needed.
    pub fn read(bytes: &'a [u8]) -> Result<Option<OpenedEnvelope<'a>>, BadEnvelope> {
        // Judged from the first byte on: a peer with another protocol may send no more.
        let start = bytes.len().min(MAGIC.len());
        if bytes.get(..start) != MAGIC.get(..start) {
            return Err(BadEnvelope::Magic);
        }

        let mut at = MAGIC.len();
        let Some(version) = number(bytes, &mut at, 2) else {
            return Ok(None);
        };
        if version != u64::from(SIGNED_VERSION) {
            return Err(BadEnvelope::Version(
                u16::try_from(version).unwrap_or(u16::MAX),
            ));
        }

        // The version decides what follows, so it is checked before the rest has arrived.
        let Some(fixed) = bytes.first_chunk::<FIXED_LEN>() else {
            return Ok(None);
        };

        let time = number(fixed, &mut at, 8).unwrap_or_default().cast_signed();
        let challenge = chunk(fixed, &mut at);
        let batch = number(fixed, &mut at, 8).unwrap_or_default();
        let payload_digest = chunk(fixed, &mut at);
        // All of these lie within the fixed part, so none is missing.
        let mut small = |len| {
            u32::try_from(number(fixed, &mut at, len).unwrap_or_default()).unwrap_or_default()
        };
        let payload_len = small(4);
        let id_len = small(2) as usize;
        let signature_len = small(2) as usize;

        // Bounded before the rest is awaited: until the signature is verified, anyone may have sent
        // this.
        if id_len > ID_LEN_MAX {
            return Err(BadEnvelope::Id);
        }
        if !(1..=SIGNATURE_LEN_MAX).contains(&signature_len) {
            return Err(BadEnvelope::Signature(signature_len));
        }

        let signature_at = FIXED_LEN + id_len;
        let end = signature_at + signature_len;
        let (Some(id), Some(signature)) = (
            bytes.get(FIXED_LEN..signature_at),
            bytes.get(signature_at..end),
        ) else {
            return Ok(None);
        };

        let id = std::str::from_utf8(id)
            .ok()
            .filter(|id| is_file_name(id))
            .ok_or(BadEnvelope::Id)?;

        let envelope = Self {
            time: Micros(time),
            challenge,
            number: batch,
            payload_digest,
            payload_len,
            id,
        };

        Ok(Some(OpenedEnvelope {
            envelope,
            signature,
            len: end,
        }))
    }

    /// The text to sign. `certificate` is the hash of the daemon's certificate on this connection.
    /// It prevents a recipient from forwarding a batch to another daemon.
    pub fn signed_text(&self, certificate: &Digest) -> Vec<u8> {
        let mut text =
            Vec::with_capacity(SIGNED_LINE.len() + certificate.len() + SIGNED_LEN + self.id.len());
        text.extend_from_slice(SIGNED_LINE);
        text.extend_from_slice(certificate);
        text.extend_from_slice(&self.signed_part());
        text.extend_from_slice(self.id.as_bytes());
        text
    }

    /// The encoded envelope with its signature.
    pub fn write(&self, signature: &[u8]) -> Vec<u8> {
        let mut bytes = self.signed_part();
        bytes.extend_from_slice(
            &u16::try_from(signature.len())
                .unwrap_or(u16::MAX)
                .to_be_bytes(),
        );
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(signature);
        bytes
    }

    fn signed_part(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENVELOPE_LEN_MAX);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&SIGNED_VERSION.to_be_bytes());
        bytes.extend_from_slice(&self.time.0.to_be_bytes());
        bytes.extend_from_slice(&self.challenge);
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(&self.payload_digest);
        bytes.extend_from_slice(&self.payload_len.to_be_bytes());
        bytes.extend_from_slice(
            &u16::try_from(self.id.len())
                .unwrap_or(u16::MAX)
                .to_be_bytes(),
        );
        bytes
    }
}

/// Reads a big-endian number of `len` bytes at `at`, and advances `at`.
fn number(bytes: &[u8], at: &mut usize, len: usize) -> Option<u64> {
    let found = bytes.get(*at..*at + len)?;
    *at += len;
    Some(found.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

/// Reads the array at `at`, and advances `at`. Zeros past the end, which the fixed length rules out.
fn chunk<const N: usize>(fixed: &[u8; FIXED_LEN], at: &mut usize) -> [u8; N] {
    let found = fixed
        .get(*at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N]);
    *at += N;
    found
}

/// Salt's rule for minion ids (`salt.utils.verify.valid_id`), which are names of files directly in the directory of
/// keys.
fn is_file_name(id: &str) -> bool {
    !matches!(id, "" | "." | "..") && !id.contains(['/', '\\', '\0'])
}

/// The requests in a payload: frames as on the local socket.
pub fn frames(payload: &[u8]) -> impl Iterator<Item = Result<&[u8], CutFrame>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }

        let taken = rest.split_first_chunk().and_then(|(len, after)| {
            let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
            after.split_at_checked(len)
        });

        Some(if let Some((frame, after)) = taken {
            rest = after;
            Ok(frame)
        } else {
            // Nothing shows where a next frame would begin.
            rest = &[];
            Err(CutFrame)
        })
    })
}

/// The payload ends within a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the payload of a batch consists of frames with length prefixes; the last one is incomplete"
)]
pub struct CutFrame;

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(id: &str) -> Envelope<'_> {
        Envelope {
            time: Micros(-5),
            challenge: [7; 16],
            number: 9,
            payload_digest: [8; 32],
            payload_len: 1000,
            id,
        }
    }

    #[test]
    fn a_written_envelope_is_parsed() {
        let sent = envelope("web-1.example");
        let mut bytes = sent.write(&[3; 256]);
        let len = bytes.len();
        assert_eq!(len, 80 + 13 + 256);
        bytes.extend_from_slice(b"payload");
        let opened = OpenedEnvelope {
            envelope: sent,
            signature: &[3; 256],
            len,
        };
        assert_eq!(Envelope::read(&bytes), Ok(Some(opened)));
        for cut in 0..len {
            assert_eq!(Envelope::read(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
    }

    #[test]
    fn all_fields_of_an_envelope_are_signed() {
        let base = envelope("a");
        let others = [
            Envelope {
                time: Micros(0),
                ..base
            },
            Envelope {
                challenge: [0; 16],
                ..base
            },
            Envelope { number: 10, ..base },
            Envelope {
                payload_digest: [0; 32],
                ..base
            },
            Envelope {
                payload_len: 1001,
                ..base
            },
            Envelope { id: "b", ..base },
        ];
        let text = base.signed_text(&[1; 32]);
        assert!(text.starts_with(b"POST /v1/batch\n"));
        assert!(
            others
                .iter()
                .all(|other| other.signed_text(&[1; 32]) != text)
        );
        assert_ne!(base.signed_text(&[2; 32]), text, "the certificate");
    }

    #[test]
    fn malformed_envelopes_are_distinguished() {
        assert_eq!(Envelope::read(b"GET"), Err(BadEnvelope::Magic));
        assert_eq!(
            Envelope::read(b"SCSIGN\x00\x02"),
            Err(BadEnvelope::Version(2))
        );
        for id in [
            "",
            ".",
            "..",
            "a/b",
            "../a",
            "a\\b",
            "a\0",
            &"x".repeat(256),
        ] {
            let bytes = envelope(id).write(&[3; 256]);
            assert_eq!(Envelope::read(&bytes), Err(BadEnvelope::Id), "{id:?}");
        }
        let mut bytes = envelope("a").write(&[3; 256]);
        bytes[80] = 0xff;
        assert_eq!(Envelope::read(&bytes), Err(BadEnvelope::Id), "not UTF-8");
        assert_eq!(
            Envelope::read(&envelope("a").write(&[])),
            Err(BadEnvelope::Signature(0))
        );
        assert_eq!(
            Envelope::read(&envelope("a").write(&[0; 1025])),
            Err(BadEnvelope::Signature(1025))
        );
    }

    #[test]
    fn a_payload_is_split_into_frames() {
        let found: Vec<_> = frames(b"\0\0\0\x01a\0\0\0\0\0\0\0\x02bc").collect();
        assert_eq!(found, [Ok(&b"a"[..]), Ok(b""), Ok(b"bc")]);
        assert_eq!(frames(b"\0\0\0\x02a").collect::<Vec<_>>(), [Err(CutFrame)]);
        assert_eq!(frames(b"\0\0").collect::<Vec<_>>(), [Err(CutFrame)]);
        assert_eq!(frames(b"").count(), 0);
    }
}
