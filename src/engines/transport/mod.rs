//! Transports: items to a destination.

pub(crate) mod cluster;
mod deliver;
mod exec;
mod file;
mod http;
mod item;
mod journald;
mod nats;
mod postgres;
mod socket;
mod syslog;

pub(super) use self::deliver::shortened;
pub(crate) use self::deliver::{
    BoxedDestination, DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript,
    Transport,
};
pub(crate) use self::item::Item;
use super::Kind;
use crate::client::secret::Revealed;

/// Opens a destination. Nothing that it reports has a secret of its settings: reasons, transcripts
/// and findings are scrubbed here, and reasons then shortened, because a transport could forget it.
pub(crate) fn open(destination: &dyn Destination, deps: &Dependencies) -> Box<dyn Transport> {
    // One list per open transport: a reopened one reads its secrets again, and old values stay
    // hidden.
    let secrets = Revealed::default();
    let inner = destination.open(&Dependencies {
        secrets: secrets.clone(),
        ..deps.clone()
    });
    Box::new(Scrubbed { inner, secrets })
}

struct Scrubbed {
    inner: Box<dyn Transport>,
    secrets: Revealed,
}

impl Scrubbed {
    fn reason(&self, reason: &str) -> String {
        shortened(&self.secrets.scrub(reason))
    }
}

impl Transport for Scrubbed {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        // The transcript is scrubbed whatever the result is, since a failed request shows secrets
        // as well.
        let result = match transcript {
            None => self.inner.deliver(items, None),
            Some(transcript) => {
                let result = self.inner.deliver(items, Some(transcript));
                transcript.request = self.secrets.scrub(&transcript.request);
                transcript.response = self.secrets.scrub(&transcript.response);
                result
            }
        };

        // Reasons go to the log and the status, and a destination may repeat a secret in them.
        let clean = |one: Rejected| Rejected {
            reason: self.reason(&one.reason),
            ..one
        };

        match result {
            Ok(rejected) => Ok(rejected.into_iter().map(clean).collect()),
            Err(DeliverError::Retry { reason, after }) => Err(DeliverError::Retry {
                reason: self.reason(&reason),
                after,
            }),
            Err(DeliverError::Refused { reason }) => Err(DeliverError::Refused {
                reason: self.reason(&reason),
            }),
        }
    }

    fn check(&mut self) -> Result<String, String> {
        let found = self.inner.check();
        found
            .map(|text| self.secrets.scrub(&text))
            .map_err(|text| self.secrets.scrub(&text))
    }

    fn idle(&mut self) {
        self.inner.idle();
    }

    fn reopen(&mut self) {
        self.inner.reopen();
    }
}

pub(crate) const TRANSPORTS: &[Kind<BoxedDestination>] = &[
    file::KIND,
    http::KIND,
    exec::KIND,
    syslog::KIND,
    journald::KIND,
    postgres::KIND,
    nats::KIND,
];

/// The sections of docs/SINKS.md about the transports.
pub fn reference() -> String {
    Kind::reference(TRANSPORTS)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::clock::Clock;
    use crate::config::read_yaml;
    use crate::engines::event::tests::event;
    use crate::store::vfs::{Disk, Fs};

    /// Opens a transport with options as YAML.
    pub(in crate::engines) fn open(
        kind: &Kind<BoxedDestination>,
        options: &str,
    ) -> Box<dyn Transport> {
        open_with(kind, options, &deps(&Clock::real()))
    }

    pub(in crate::engines) fn open_with(
        kind: &Kind<BoxedDestination>,
        options: &str,
        deps: &Dependencies,
    ) -> Box<dyn Transport> {
        let destination = (kind.build)(&read_yaml(options).unwrap()).unwrap();
        super::open(&*destination, deps)
    }

    pub(in crate::engines) fn deps(clock: &Clock) -> Dependencies {
        let fs: Arc<dyn Fs> = Arc::new(Disk);
        Dependencies::new(clock, &fs)
    }

    /// Items with these strings; sequence numbers from 1.
    pub(in crate::engines) fn items(texts: &[&str]) -> Vec<Item> {
        let item = |(n, text): (u64, &&str)| {
            let event = Arc::new(event(n, "test/tag", "web1", serde_json::json!({ "n": n })));
            Item::new(event, None, text.as_bytes().to_vec())
        };
        (1..).zip(texts).map(item).collect()
    }

    #[test]
    fn every_example_is_accepted_and_unknown_options_are_not() {
        for kind in TRANSPORTS {
            let options = read_yaml(kind.example).unwrap();
            let built = (kind.build)(&options).unwrap();
            assert!(
                !built.describe().is_empty() && built.concurrency_max() > 0,
                "{}",
                kind.name
            );
            let mut unknown = options.clone();
            unknown["unknown_option"] = serde_json::json!(1);
            let error = (kind.build)(&unknown).unwrap_err();
            assert!(
                error.problem.contains("unknown_option"),
                "{}: {error:?}",
                kind.name
            );
        }
    }
}
