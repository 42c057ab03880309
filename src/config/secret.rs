//! Secrets in the configuration, which names their places. `client::secret` reads their values.

use std::path::PathBuf;

use crate::model::word::{Word, words};

/// The place of a secret, whose value is not in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secret {
    /// A file with the value; white space at the end does not count.
    File(PathBuf),
    /// A systemd credential (`LoadCredential=` in the unit).
    Credential(String),
}

/// A string of the configuration that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
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
    Text: "a string; or file: and an absolute path, or credential: and the name of a systemd credential",
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

#[cfg(test)]
mod tests {
    use super::*;

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
