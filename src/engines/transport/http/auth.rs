//! Authentication of requests.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use crate::base::clock::Micros;
use crate::client::secret::{Revealed, SecretError};
use crate::config::Invalid;
use crate::config::{Secret, Text};
use crate::model::word;

/// Authentication of requests; at most one method.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Auth {
    /// `Authorization: Bearer SECRET`.
    #[serde(with = "word")]
    bearer: Option<Secret>,
    token: Option<Token>,
    basic: Option<Basic>,
    hmac: Option<Hmac>,
    aws: Option<Aws>,
}

/// `Authorization: SCHEME SECRET`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    #[serde(with = "word")]
    secret: Secret,
    scheme: String,
}

/// HTTP's own user and password.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Basic {
    #[serde(with = "word")]
    user: Text,
    #[serde(with = "word")]
    password: Secret,
}

/// A header with the HMAC-SHA256 of the body in hexadecimal.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hmac {
    #[serde(with = "word")]
    key: Secret,
    #[serde(default = "signature_header")]
    header: String,
    /// Nothing for none.
    #[serde(default = "sha256_prefix")]
    prefix: Option<String>,
}

/// AWS Signature Version 4.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Aws {
    region: String,
    service: String,
    #[serde(with = "word")]
    access_key_id: Text,
    #[serde(with = "word")]
    secret_access_key: Secret,
    #[serde(default, with = "word")]
    session_token: Option<Secret>,
}

fn signature_header() -> String {
    "X-Hub-Signature-256".to_owned()
}

#[expect(clippy::unnecessary_wraps, reason = "the default of an optional field")]
fn sha256_prefix() -> Option<String> {
    Some("sha256=".to_owned())
}

pub(super) enum Signer {
    /// None.
    Open,
    /// The same header for each request.
    Fixed(String),
    /// A key, and the header with its prefix.
    Hmac(Box<ring::hmac::Key>, String, String),
    Aws {
        credentials: Box<Credentials>,
        region: String,
        service: String,
    },
}

impl Auth {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let given = [
            self.bearer.is_some(),
            self.token.is_some(),
            self.basic.is_some(),
            self.hmac.is_some(),
            self.aws.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Invalid::new(
                "auth",
                "give only one of bearer, token, basic, hmac and aws",
            ));
        }

        let header = self.hmac.as_ref().map(|hmac| hmac.header.as_str());
        // A header that HTTP does not allow would fail each request.
        match header.filter(|name| ureq::http::HeaderName::try_from(*name).is_err()) {
            Some(name) => Err(Invalid::new(
                "auth.hmac.header",
                format!("{name:?} is not a header of HTTP"),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn signer(&self, revealed: &Revealed) -> Result<Signer, SecretError> {
        // `check` has made sure that at most one is given, so their order means nothing.
        if let Some(secret) = &self.bearer {
            return Ok(Signer::Fixed(format!(
                "Bearer {}",
                revealed.secret(secret)?
            )));
        }

        if let Some(Token { secret, scheme }) = &self.token {
            return Ok(Signer::Fixed(format!(
                "{scheme} {}",
                revealed.secret(secret)?
            )));
        }

        if let Some(Basic { user, password }) = &self.basic {
            let pair = BASE64.encode(format!(
                "{}:{}",
                revealed.text(user)?,
                revealed.secret(password)?
            ));
            // The scrubber knows the password, and the pair is another spelling of it.
            revealed.hide(&pair);
            return Ok(Signer::Fixed(format!("Basic {pair}")));
        }

        if let Some(Hmac {
            key,
            header,
            prefix,
        }) = &self.hmac
        {
            let key =
                ring::hmac::Key::new(ring::hmac::HMAC_SHA256, revealed.secret(key)?.as_bytes());
            return Ok(Signer::Hmac(
                Box::new(key),
                header.clone(),
                prefix.clone().unwrap_or_default(),
            ));
        }

        let Some(aws) = &self.aws else {
            return Ok(Signer::Open);
        };
        let token = aws
            .session_token
            .as_ref()
            .map(|token| revealed.secret(token))
            .transpose()?;

        let id = revealed.text(&aws.access_key_id)?;
        let secret = revealed.secret(&aws.secret_access_key)?;

        Ok(Signer::Aws {
            credentials: Box::new(Credentials::new(id, secret, token, None, "saltcellar")),
            region: aws.region.clone(),
            service: aws.service.clone(),
        })
    }
}

impl Signer {
    /// The headers that authenticate a request with these headers.
    pub(super) fn headers(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: &[u8],
        now: Micros,
    ) -> Result<Vec<(String, String)>, String> {
        match self {
            Self::Open => Ok(Vec::new()),
            Self::Fixed(value) => Ok(vec![("authorization".to_owned(), value.clone())]),
            Self::Hmac(key, header, prefix) => {
                let signature = ring::hmac::sign(key, body);

                let mut value = prefix.clone();

                for byte in signature.as_ref() {
                    // Writing to a string cannot fail.
                    let _ = write!(value, "{byte:02x}");
                }
                Ok(vec![(header.clone(), value)])
            }
            // AWS signs the address, the headers and the body, so all of them are given.
            Self::Aws {
                credentials,
                region,
                service,
            } => {
                let cannot =
                    |error: &dyn std::fmt::Display| format!("cannot sign the request: {error}");

                let identity = credentials.as_ref().clone().into();
                let time = UNIX_EPOCH + Duration::from_micros(u64::try_from(now.0).unwrap_or(0));
                let params = v4::SigningParams::builder()
                    .identity(&identity)
                    .region(region)
                    .name(service)
                    .time(time)
                    .settings(SigningSettings::default())
                    .build()
                    .map_err(|error| cannot(&error))?
                    .into();

                let pairs = headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()));
                let request = SignableRequest::new(method, url, pairs, SignableBody::Bytes(body));
                let request = request.map_err(|error| cannot(&error))?;

                let (made, _) = sign(request, &params)
                    .map_err(|error| cannot(&error))?
                    .into_parts();

                Ok(made
                    .headers()
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_yaml;

    /// The headers for a request; each secret is in a file of its name.
    fn headers(auth: &str, headers: &[(&str, &str)]) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in [
            ("token", "t0ken"),
            ("password", "pa:ss"),
            ("key", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        ] {
            std::fs::write(dir.path().join(name), value).unwrap();
        }
        let auth = auth.replace("DIR", dir.path().to_str().unwrap());
        let auth: Auth = serde_json::from_value(read_yaml(&auth).unwrap()).unwrap();
        auth.check().unwrap();
        let signer = auth.signer(&Revealed::default()).unwrap();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        // 2015-08-30T12:36:00Z, the time of AWS's own test suite.
        let now = Micros(1_440_938_160_000_000);
        signer
            .headers("POST", "https://example.amazonaws.com/", &headers, b"", now)
            .unwrap()
    }

    #[test]
    fn fixed_headers() {
        let one = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(headers("{}", &[]), []);
        assert_eq!(
            headers("bearer: 'file:DIR/token'", &[]),
            one("authorization", "Bearer t0ken")
        );
        assert_eq!(
            headers("token: {secret: 'file:DIR/token', scheme: Splunk}", &[]),
            one("authorization", "Splunk t0ken")
        );
        let basic = headers("basic: {user: u, password: 'file:DIR/password'}", &[]);
        assert_eq!(basic, one("authorization", "Basic dTpwYTpzcw=="));
        // HMAC-SHA256 of the empty string with the key `t0ken`, made by
        // `openssl dgst -sha256 -hmac t0ken`.
        let hmac = headers(
            "hmac: {key: 'file:DIR/token', header: X-Sig, prefix: ~}",
            &[],
        );
        assert_eq!(hmac, one("X-Sig", HMAC_OF_NOTHING));
    }

    const HMAC_OF_NOTHING: &str =
        "bd3ca29b79776beaf7c4a3003147368ec3a3e36e746eafb7cefa9747aa98d9fd";

    #[test]
    fn a_signature_of_aws_equals_that_of_its_test_suite() {
        let auth = "aws: {region: us-east-1, service: service, access_key_id: AKIDEXAMPLE, secret_access_key: 'file:DIR/key'}";
        let found = headers(auth, &[("host", "example.amazonaws.com")]);
        let authorization = found
            .iter()
            .find(|(name, _)| name == "authorization")
            .unwrap();
        // `post-vanilla` of the suite.
        let expected = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                        SignedHeaders=host;x-amz-date, \
                        Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b";
        assert_eq!(authorization.1, expected);
        assert!(
            found
                .iter()
                .any(|(name, value)| name == "x-amz-date" && value == "20150830T123600Z")
        );
    }

    #[test]
    fn two_ways_are_rejected() {
        let auth: Auth = serde_json::from_value(
            read_yaml("{bearer: 'file:/t', basic: {user: u, password: 'file:/p'}}").unwrap(),
        )
        .unwrap();
        assert_eq!(auth.check().unwrap_err().path, "auth");
        let inline =
            serde_json::from_value::<Auth>(read_yaml("bearer: s3cret").unwrap()).unwrap_err();
        assert!(
            inline
                .to_string()
                .contains("must not be in the configuration itself")
        );
    }
}
