//! Compression of complete responses, as the peer accepts it: zstd or gzip.
//!
//! It is a part of the work for a response: it takes the reader's processor time, and the response
//! takes the reader's room in its compressed form. Streams are not compressed, because an event
//! must not wait for the end of a block.
//!
//! # Invariant
//!
//! The length of a compressed response tells how much of its text is repeated. No response that is
//! compressed here has a secret of this daemon: tokens and sessions are in headers and in the forms
//! of signing in, and what protects forms is the origin of a request and not a secret in the page.
//! Stored text next to text of an attacker is left, which another site could only choose by leading
//! a browser to an address: see [`Asked::of_visit`].

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use xxhash_rust::xxh3::xxh3_128;

use super::answer::{Answer, plain};
use crate::base::limits::HTTP_COMPRESSED_BYTES_MIN;

/// zstd's default. Level 1 is hardly faster, level 6 takes three times as long for a tenth less.
const ZSTD_LEVEL: i32 = 3;

/// Half the time of gzip's default, for a twentieth more.
const GZIP_LEVEL: u32 = 4;

/// An encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }

    /// The encoding that a request prefers, of those that this listener has; at equal weight the
    /// one with the shorter answer.
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get_all(header::ACCEPT_ENCODING).iter();
        let given = given.filter_map(|value| value.to_str().ok());
        let weights: Vec<(String, u16)> = given
            .flat_map(|list| list.split(','))
            .filter_map(weighted)
            .collect();

        let weight = |names: &[&str]| {
            let named = weights
                .iter()
                .find(|(known, _)| names.contains(&known.as_str()));
            // `*` stands for all that the request does not name.
            named.or_else(|| weights.iter().find(|(known, _)| known == "*"))
        };
        let weight_of = |names: &[&str]| weight(names).map_or(0, |(_, weight)| *weight);

        let identity = weights
            .iter()
            .find(|(known, _)| known == "identity")
            .map_or(1, |(_, weight)| *weight);
        let (zstd, gzip) = (weight_of(&["zstd"]), weight_of(&["gzip", "x-gzip"]));

        match zstd.max(gzip) {
            // Whatever the request says of it, a response without encoding is better than none.
            0 => Self::Identity,
            best if best < identity => Self::Identity,
            best if best == zstd => Self::Zstd,
            _ => Self::Gzip,
        }
    }

    fn encode(self, text: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Identity => Ok(text.to_vec()),
            Self::Zstd => zstd::bulk::compress(text, ZSTD_LEVEL),
            Self::Gzip => {
                let mut to = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
                to.write_all(text)?;
                to.finish()
            }
        }
    }
}

/// A name of `Accept-Encoding` with its weight in thousandths; `None` if it is malformed.
fn weighted(one: &str) -> Option<(String, u16)> {
    let mut parts = one.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;

    let mut weight = 1000;
    for part in parts {
        let Some(value) = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")) else {
            continue;
        };
        let (whole, rest) = value.split_once('.').unwrap_or((value, ""));
        // RFC 9110 allows three digits at most.
        let is_valid = matches!(whole, "0" | "1")
            && rest.len() <= 3
            && rest.bytes().all(|byte| byte.is_ascii_digit());
        let thousandths: u16 = format!("{whole}{rest:0<3}").parse().ok()?;
        weight = thousandths.min(1000);
        if !is_valid {
            return None;
        }
    }
    Some((name.to_ascii_lowercase(), weight))
}

/// What a request says of the form of its response.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    encoding: Encoding,
    /// Entity tags of versions that the peer has.
    known: Vec<String>,
}

impl Asked {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let known = headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(|tag| tag.trim().trim_start_matches("W/").to_owned());
        Self {
            encoding: Encoding::of(headers),
            known: known.collect(),
        }
    }

    /// As [`Asked::of`], of a view.
    ///
    /// A site that leads a browser here chooses the address, and so text in the view's form. Whoever
    /// also sees the lengths of encrypted answers could find out stored text of the view by many
    /// such visits. They begin without a click, which browsers tell: those are not compressed.
    pub(super) fn of_visit(headers: &HeaderMap) -> Self {
        let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
        let mut asked = Self::of(headers);
        if is("sec-fetch-mode", "navigate") && !is("sec-fetch-user", "?1") {
            asked.encoding = Encoding::Identity;
        }
        asked
    }

    /// A response in the form that was asked for; without a body if the peer has it.
    pub(super) fn tagged(&self, text: Vec<u8>) -> Encoded {
        // A hash of the content needs no versions of what it was made from, and survives a restart.
        let hash = xxh3_128(&text);
        // Each encoding is a representation, with a tag of its own.
        let tag = |encoding: Encoding| match encoding.name() {
            Some(name) => format!("\"{hash:032x}-{name}\""),
            None => format!("\"{hash:032x}\""),
        };

        // The body was made nevertheless: this saves the transfer, not the work.
        let known = [Encoding::Identity, Encoding::Gzip, Encoding::Zstd]
            .map(tag)
            .into_iter()
            .find(|tag| self.known.contains(tag));
        if let Some(tag) = known {
            return Encoded {
                status: StatusCode::NOT_MODIFIED,
                encoding: Encoding::Identity,
                tag: Some(tag),
                bytes: Vec::new(),
            };
        }

        let encoded = self.plain(text);
        Encoded {
            tag: Some(tag(encoded.encoding)),
            ..encoded
        }
    }

    /// Like [`Asked::tagged`], without an entity tag.
    pub(super) fn plain(&self, text: Vec<u8>) -> Encoded {
        // Short responses fit into a packet as they are.
        let encoding = if text.len() < HTTP_COMPRESSED_BYTES_MIN {
            Encoding::Identity
        } else {
            self.encoding
        };
        let encoded = match encoding {
            Encoding::Identity => None,
            // Only memory that runs out fails here; the text is a response as well.
            encoding => encoding.encode(&text).ok(),
        };

        let (encoding, bytes) = match encoded.filter(|encoded| encoded.len() < text.len()) {
            Some(encoded) => (encoding, encoded),
            None => (Encoding::Identity, text),
        };
        Encoded {
            status: StatusCode::OK,
            encoding,
            tag: None,
            bytes,
        }
    }
}

/// A response in its form, whose bytes have no room yet.
#[derive(Debug)]
pub(super) struct Encoded {
    status: StatusCode,
    encoding: Encoding,
    tag: Option<String>,
    pub(super) bytes: Vec<u8>,
}

impl Encoded {
    /// The response. `room` makes a body of the bytes.
    pub(super) fn answer<E>(
        self,
        kind: &'static str,
        room: impl FnOnce(Vec<u8>) -> Result<Bytes, E>,
    ) -> Result<Answer, E> {
        let mut answer = plain(self.status, kind, room(self.bytes)?);
        let headers = answer.headers_mut();

        // Even if it is not encoded: a cache must not give it to a peer that asks for another form.
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if let Some(name) = self.encoding.name() {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
        }
        if let Some(tag) = self.tag.and_then(|tag| HeaderValue::from_str(&tag).ok()) {
            headers.insert(header::ETAG, tag);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::Read as _;

    use super::*;

    fn accepting(lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static(line));
        }
        headers
    }

    #[test]
    fn a_request_chooses_the_encoding() {
        use Encoding::{Gzip, Identity, Zstd};
        for (line, expected) in [
            ("gzip, deflate, br, zstd", Zstd),
            ("gzip", Gzip),
            ("x-gzip;q=0.5", Gzip),
            ("ZSTD ; q=0.9, gzip", Gzip),
            ("zstd;q=0, gzip;q=0.001", Gzip),
            ("zstd;q=0.5, gzip;q=0.5", Zstd),
            ("*", Zstd),
            ("*;q=0.5, zstd;q=0", Gzip),
            ("gzip;q=0.5, identity", Identity),
            ("gzip;q=0.5, identity;q=0.5", Gzip),
            ("identity;q=0", Identity),
            ("br", Identity),
            ("gzip;q=0", Identity),
            ("gzip;q=x, zstd;q=0.00001, br", Identity),
            ("", Identity),
        ] {
            assert_eq!(Encoding::of(&accepting(&[line])), expected, "{line}");
        }
        assert_eq!(Encoding::of(&accepting(&["br", "gzip"])), Gzip, "two lines");
        assert_eq!(Encoding::of(&HeaderMap::new()), Identity);
    }

    #[test]
    fn a_visit_without_a_click_is_not_compressed() {
        let with = |lines: &[(&'static str, &'static str)]| {
            let mut headers = accepting(&["zstd"]);
            for (name, value) in lines {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            Asked::of_visit(&headers).encoding
        };
        let (mode, user) = (("sec-fetch-mode", "navigate"), ("sec-fetch-user", "?1"));
        assert_eq!(with(&[mode, user]), Encoding::Zstd);
        assert_eq!(with(&[mode]), Encoding::Identity);
        assert_eq!(with(&[("sec-fetch-mode", "cors")]), Encoding::Zstd);
        assert_eq!(with(&[]), Encoding::Zstd, "a program");
    }

    #[test]
    fn each_encoding_has_its_text_and_its_tag() {
        let text = "one line of a response\n".repeat(100).into_bytes();
        let mut tags = Vec::new();
        for line in ["identity", "gzip", "zstd"] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(line));
            let encoded = Asked::of(&headers).tagged(text.clone());
            let decoded = match encoded.encoding {
                Encoding::Identity => encoded.bytes.clone(),
                Encoding::Zstd => zstd::bulk::decompress(&encoded.bytes, text.len()).unwrap(),
                Encoding::Gzip => {
                    let mut decoded = Vec::new();
                    let mut from = flate2::read::GzDecoder::new(&*encoded.bytes);
                    from.read_to_end(&mut decoded).unwrap();
                    decoded
                }
            };
            assert_eq!(decoded, text, "{line}");

            let answer = encoded.answer("text/plain", |bytes| Ok::<_, Infallible>(bytes.into()));
            let Ok(answer) = answer;
            assert_eq!(answer.headers()[header::VARY], "accept-encoding");
            let tag = answer.headers()[header::ETAG].clone();

            // The peer has this representation, and not another one.
            headers.insert(header::IF_NONE_MATCH, tag.clone());
            let again = Asked::of(&headers).tagged(text.clone());
            assert_eq!(again.status, StatusCode::NOT_MODIFIED, "{line}");
            tags.push(tag);
        }
        tags.dedup();
        assert_eq!(tags.len(), 3, "{tags:?}");
    }

    #[test]
    fn short_answers_and_random_bytes_are_sent_as_they_are() {
        let asked = Asked::of(&accepting(&["zstd"]));
        let short = vec![b'a'; HTTP_COMPRESSED_BYTES_MIN - 1];
        assert_eq!(asked.tagged(short).encoding, Encoding::Identity);

        let random: Vec<u8> = (0..100_u32)
            .flat_map(|n| xxh3_128(&n.to_be_bytes()).to_be_bytes())
            .collect();
        let encoded = asked.tagged(random.clone());
        assert_eq!(encoded.encoding, Encoding::Identity);
        assert_eq!(encoded.bytes, random);
        assert!(!encoded.tag.unwrap().contains("zstd"));
    }

    #[test]
    fn an_answer_that_the_peer_has_is_not_sent_again() {
        let first = Asked::of(&HeaderMap::new()).tagged(b"{}".to_vec());
        let mut headers = HeaderMap::new();
        headers.insert(
            header::IF_NONE_MATCH,
            HeaderValue::from_static("\"x\", W/\"y\""),
        );
        let status =
            |headers: &HeaderMap, text: &[u8]| Asked::of(headers).tagged(text.to_vec()).status;
        assert_eq!(status(&headers, b"{}"), StatusCode::OK);
        let tag = format!("W/{}", first.tag.unwrap());
        headers.append(header::IF_NONE_MATCH, HeaderValue::from_str(&tag).unwrap());
        assert_eq!(status(&headers, b"{}"), StatusCode::NOT_MODIFIED);
        assert_eq!(status(&headers, b"[]"), StatusCode::OK);
    }
}
