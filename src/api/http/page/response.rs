//! Responses with a page: their policy, and where they lead.

use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{StatusCode, Uri};

use crate::api::http::answer::{Answer, plain};

/// The content type of views.
pub(super) const HTML: &str = "text/html; charset=utf-8";

/// Scripts, styles and requests only from this listener.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

pub(super) fn html(status: StatusCode, body: Bytes) -> Answer {
    with_policy(plain(status, HTML, body))
}

/// A page with what a browser may do with it.
pub(super) fn with_policy(mut answer: Answer) -> Answer {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("cross-origin-opener-policy", "same-origin"),
        // With `no-referrer` a browser sends forms with `Origin: null`.
        ("referrer-policy", "same-origin"),
    ] {
        answer.headers_mut().insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    answer
}

/// A path of this listener, to which the page may lead a browser. Other addresses, which a link on
/// a foreign site may name, cannot be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalPath(String);

impl LocalPath {
    /// The overview.
    pub(super) fn root() -> Self {
        Self("/".to_owned())
    }

    /// A path with its query; the overview instead of another address. A browser reads `//` and
    /// `/\` at the beginning as another host, and skips tabs and line breaks.
    pub(super) fn or_root(text: &str) -> Self {
        let is_local = text.starts_with('/')
            && !text.starts_with("//")
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        if is_local {
            Self(text.to_owned())
        } else {
            Self::root()
        }
    }

    /// The path of a request.
    pub(super) fn of(uri: &Uri) -> Self {
        Self::or_root(uri.path_and_query().map_or("/", |of| of.as_str()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

pub(super) fn see_other(to: &LocalPath) -> Answer {
    let mut answer = html(StatusCode::SEE_OTHER, Bytes::new());
    if let Ok(to) = HeaderValue::from_str(to.as_str()) {
        answer.headers_mut().insert(header::LOCATION, to);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_leads_to_this_listener_only() {
        for path in [
            "/",
            "/jobs?fun=state.*",
            "/jobs/1",
            "/a//b",
            "/?next=//evil.example",
        ] {
            assert_eq!(LocalPath::or_root(path).as_str(), path);
        }
        for other in [
            "",
            "jobs",
            "//evil.example",
            "///evil.example",
            "https://evil.example",
            "javascript:alert(1)",
            "/\\evil.example",
            "/jobs\\..\\evil",
            "/a\r\nx: y",
            "/\t/evil",
            "/\u{2f}/evil",
            " /jobs",
            "/é",
        ] {
            assert_eq!(LocalPath::or_root(other), LocalPath::root(), "{other:?}");
        }
        for uri in [
            "//evil.example",
            "//evil.example/jobs?x=1",
            "/\\evil.example",
        ] {
            let arrived = uri.parse::<Uri>().map(|uri| LocalPath::of(&uri));
            assert!(
                arrived.is_ok_and(|path| path == LocalPath::root()) || uri.contains('\\'),
                "{uri}"
            );
        }
    }
}
