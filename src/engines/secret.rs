//! Secrets of sinks: references in the configuration, values only in memory.
//!
//! # Invariant
//!
//! A value is in no status, log line, error or rendered configuration: settings hold references, and [`Revealed::scrub`] removes the values
//! from each text that comes back from a destination.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::base::limits::SINK_SECRET_BYTES_MAX;
use crate::model::REDACTED;
use crate::model::word::{Word, words};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    /// A file with the value; white space at the end does not count.
    File(PathBuf),
    /// A systemd credential (`LoadCredential=` in the unit).
    Credential(String),
}

/// A text of the configuration that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Text {
    /// The text itself.
    Plain(String),
    /// The place of the text.
    Secret(Secret),
}

words! {
    Secret: "file: and an absolute path, or credential: and the name of a systemd credential; \
             a secret must not be in the configuration itself",
        |text| {
            if let Some(path) = text.strip_prefix("file:") {
                return PathBuf::parse(path).map(Self::File);
            }
            let name = text.strip_prefix("credential:")?;
            (!name.is_empty() && !name.contains('/') && !name.starts_with('.')).then(|| Self::Credential(name.to_owned()))
        },
        |secret| match secret {
            Self::File(path) => format!("file:{}", path.display()),
            Self::Credential(name) => format!("credential:{name}"),
        };
    Text: "a text; or file: and an absolute path, or credential: and the name of a systemd credential",
        |text| {
            if text.starts_with("file:") || text.starts_with("credential:") {
                return Secret::parse(text).map(Self::Secret);
            }
            Some(Self::Plain(text.to_owned()))
        },
        |text| match text {
            Self::Plain(text) => text.clone(),
            Self::Secret(secret) => secret.show().unwrap_or_default(),
        };
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read the secret {}: {why}", secret.show().unwrap_or_default())]
pub(crate) struct SecretError {
    secret: Secret,
    why: io::Error,
}

impl Secret {
    /// Reads the value. systemd's directory of credentials is that of this process.
    fn value(&self) -> Result<String, SecretError> {
        let failed = |why: io::Error| SecretError {
            secret: self.clone(),
            why,
        };
        let path = match self {
            Self::File(path) => path.clone(),
            Self::Credential(name) => {
                let dir = std::env::var_os("CREDENTIALS_DIRECTORY");
                let dir = dir
                    .ok_or_else(|| failed(io::Error::other("CREDENTIALS_DIRECTORY is not set")))?;
                Path::new(&dir).join(name)
            }
        };
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        file.take(SINK_SECRET_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        text.truncate(text.trim_end().len());
        if text.is_empty() {
            return Err(failed(io::Error::other("it is empty")));
        }
        if text.len() as u64 > SINK_SECRET_BYTES_MAX {
            return Err(failed(io::Error::other(format!(
                "longer than {SINK_SECRET_BYTES_MAX} bytes"
            ))));
        }
        Ok(text)
    }
}

/// The values that a transport uses.
#[derive(Default)]
pub(crate) struct Revealed(Vec<String>);

impl Revealed {
    pub(crate) fn secret(&mut self, secret: &Secret) -> Result<String, SecretError> {
        let value = secret.value()?;
        self.0.push(value.clone());
        Ok(value)
    }

    pub(crate) fn text(&mut self, text: &Text) -> Result<String, SecretError> {
        match text {
            Text::Plain(text) => Ok(text.clone()),
            Text::Secret(secret) => self.secret(secret),
        }
    }

    /// Hides a value that is made of secrets, such as a header with a password in base64.
    pub(crate) fn hide(&mut self, value: &str) {
        self.0.push(value.to_owned());
    }

    /// The text without the values.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for value in &self.0 {
            clean = clean.replace(value.as_str(), REDACTED);
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_its_file_and_removed_from_texts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "s3cret\n").unwrap();
        let secret = Secret::parse(&format!("file:{}", path.display())).unwrap();
        let mut revealed = Revealed::default();
        assert_eq!(revealed.secret(&secret).unwrap(), "s3cret");
        assert_eq!(
            revealed.scrub("bad key s3cret!"),
            format!("bad key {REDACTED}!")
        );
        assert!(!format!("{secret:?} {}", secret.show().unwrap()).contains("s3cret"));
        std::fs::write(&path, " \n").unwrap();
        let error = revealed.secret(&secret).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read the secret file:/") && error.ends_with("it is empty"),
            "{error}"
        );
        std::fs::write(&path, "x".repeat(70_000)).unwrap();
        assert!(
            revealed
                .secret(&secret)
                .unwrap_err()
                .to_string()
                .contains("longer than")
        );
    }

    #[test]
    fn a_secret_is_never_the_value_itself() {
        for text in [
            "s3cret",
            "file:relative",
            "credential:",
            "credential:a/b",
            "credential:../x",
            "",
        ] {
            assert!(Secret::parse(text).is_none(), "{text}");
        }
        assert_eq!(Text::parse("plain"), Some(Text::Plain("plain".to_owned())));
        assert_eq!(Text::parse("file:relative"), None);
        assert!(matches!(
            Text::parse("credential:key"),
            Some(Text::Secret(Secret::Credential(_)))
        ));
    }
}
