//! The election of one reactor among several masters.
//!
//! The leader holds a lease: the one message of a subject in a bucket whose messages expire. It renews the lease by a message that is accepted
//! only behind its last one, and whoever finds none takes it, so NATS decides between two who try. Nobody compares clocks of machines: a
//! leader counts from before it asked, and gives up earlier than the server.
//!
//! # Invariant
//!
//! Two reactors lead at the same time only if `reactor.without_quorum` says so, or if a NATS server loses what it acknowledged, or its clock
//! jumps by more than [`ELECTION_EXPIRY`] minus [`ELECTION_VALID`].

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, LastRawMessageErrorKind, StorageType, Stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Cluster;
use super::stream::{exists, is_missing, with_cause};
use crate::base::advice::TOO_FEW_FILES;
use crate::base::clock::{Clock, Micros, micros};
use crate::base::limits::{
    CLUSTER_WORD_BYTES_MAX, ELECTION_EXPIRY, ELECTION_EXPIRY_MAX, ELECTION_RENEWAL, ELECTION_VALID,
};
use crate::base::log_once::LogOnce;
use crate::base::shutdown::Drain;
use crate::client::nats::Connection;
use crate::client::secret::Revealed;
use crate::config::WithoutQuorum;
use crate::model::MasterName;

/// What a lease says. It is renewed with the same words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Leadership {
    /// The master whose reactor leads; empty if it has given up the lease.
    leader: String,
    /// The process that has it.
    instance: String,
}

impl Leadership {
    /// Whether it can be shown.
    fn is_short(&self) -> bool {
        let words = [&self.leader, &self.instance];
        words
            .iter()
            .all(|word| word.len() <= CLUSTER_WORD_BYTES_MAX)
    }
}

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// This reactor.
    Leads,
    /// The reactor of this master.
    Follows(String),
    /// Nobody, as far as is known here: the reason.
    Unknown(String),
}

/// What is known of the lease.
#[derive(Debug)]
struct Known {
    /// Since when this reactor leads, and when the lease was last renewed: monotonic, and by the wall clock, which goes on while a host is
    /// suspended.
    held: Option<(Duration, Micros)>,
    /// When the lease was taken.
    taken: Duration,
    /// How often it was taken.
    term: u64,
    /// What the others had published then is here: what the former leader did is known.
    is_settled: bool,
    /// Who holds it, and when that was seen.
    seen: Option<(String, Duration)>,
    /// When the lease was last read or renewed.
    heard: Option<Duration>,
    problem: String,
    /// Why this reactor cannot lead.
    unfit: Option<String>,
}

/// An election, shared by the thread that holds the lease and the reactor.
#[derive(Debug)]
pub(crate) struct Election {
    /// Reactors that give the same name elect one leader.
    pub(crate) name: String,
    own: MasterName,
    without_quorum: WithoutQuorum,
    clock: Clock,
    /// When this daemon was started.
    started: Duration,
    /// Lock order: no other lock is taken under it.
    known: Mutex<Known>,
}

impl Election {
    pub(crate) fn new(
        name: &str,
        own: MasterName,
        without_quorum: WithoutQuorum,
        clock: Clock,
    ) -> Self {
        Self {
            name: name.to_owned(),
            own,
            without_quorum,
            started: clock.monotonic(),
            clock,
            known: Mutex::new(Known {
                held: None,
                taken: Duration::ZERO,
                term: 0,
                is_settled: false,
                seen: None,
                heard: None,
                // Both hold until something else is known: a reactor that was not checked must not
                // lead.
                problem: "not connected yet".to_owned(),
                unfit: Some("the reactor has not started yet".to_owned()),
            }),
        }
    }

    /// Whether this reactor acts now.
    pub(crate) fn standing(&self) -> Standing {
        let (now, wall) = (self.clock.monotonic(), self.clock.now());
        let known = self.known.lock();
        // The lease alone is not enough. Without the former leader's records its reactions would be
        // made again.
        if known.is_settled && known.holds(now, wall) {
            return Standing::Leads;
        }

        // A leader that was seen longer ago may have lost the lease.
        let recent = |at: Duration| now.saturating_sub(at) <= ELECTION_EXPIRY;
        if let Some((leader, seen)) = &known.seen
            && recent(*seen)
        {
            return Standing::Follows(leader.clone());
        }

        // The start counts as a sign, because no lease can be read before the first connection.
        let is_silent = !known.heard.is_some_and(recent) && !recent(self.started);
        if is_silent && self.without_quorum == WithoutQuorum::Act && known.unfit.is_none() {
            return Standing::Leads;
        }

        // While NATS is silent, nothing else is known of the other masters, therefore its problem
        // comes first.
        let why = match &known.unfit {
            _ if is_silent || known.heard.is_none() => known.problem.clone(),
            Some(unfit) => format!("no reactor leads, and this one cannot: {unfit}"),
            None if known.held.is_some() => {
                "this reactor leads once it has read what the former leader did".to_owned()
            }
            None => "no reactor leads yet".to_owned(),
        };
        Standing::Unknown(why)
    }

    /// A number that changes whenever this reactor takes the lease: another may have led before.
    pub(crate) fn term(&self) -> u64 {
        self.known.lock().term
    }

    /// As if this master had the lease now, or another, or nobody.
    #[cfg(test)]
    pub(crate) fn stand(&self, leader: Option<&str>) {
        let (now, wall) = (self.clock.monotonic(), self.clock.now());
        let is_own = leader == Some(self.own.as_str());
        let other = leader.filter(|_| !is_own);
        let mut known = self.known.lock();
        let is_taken = is_own && known.held.is_none();
        *known = Known {
            held: is_own.then_some((now, wall)),
            taken: now,
            term: known.term + u64::from(is_taken),
            is_settled: true,
            seen: other.map(|other| (other.to_owned(), now)),
            heard: Some(now),
            problem: String::new(),
            unfit: None,
        };
    }

    /// Says whether the reactor could act: why not, or `None`.
    pub(crate) fn set_unfit(&self, unfit: Option<String>) {
        self.known.lock().unfit = unfit;
    }

    /// Takes part until the daemon stops. `has_read` tells whether the history up to a message of the stream is here.
    pub(crate) fn run(
        &self,
        cluster: &Cluster,
        instance: &str,
        has_read: &dyn Fn(u64) -> bool,
        drain: &Drain,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "cannot start the election, this reactor stays on standby: raise LimitNOFILE of the unit, then restart the daemon");
                self.known.lock().problem = format!(
                    "cannot start the election: {error}; {TOO_FEW_FILES}, then restart the daemon"
                );
                return;
            }
        };

        let log = LogOnce::every(ELECTION_EXPIRY * 6);
        while !drain.is_stopping() {
            // Each connection begins without a lease and reads it, because a write may have arrived
            // although its response was lost.
            let mut candidate = Candidate {
                election: self,
                cluster,
                lease: Leadership {
                    leader: self.own.as_str().to_owned(),
                    instance: instance.to_owned(),
                },
                has_read,
                held: None,
                behind: 0,
            };
            let Err(problem) = runtime.block_on(candidate.take_part(drain)) else {
                break;
            };

            // Each round fails while NATS is unreachable. The journal needs the reason only rarely.
            if log.is_due("election", self.clock.monotonic()) {
                tracing::warn!(
                    error = problem,
                    election = self.name,
                    "cannot read the reactor lease, retrying: `saltcellar doctor` checks NATS"
                );
            }
            self.known.lock().problem = problem;
            drain.wait(ELECTION_RENEWAL);
        }
    }
}

impl Known {
    fn holds(&self, now: Duration, wall: Micros) -> bool {
        self.held.is_some_and(|(renewed, at)| {
            now.saturating_sub(renewed) < ELECTION_VALID
                && wall.0.saturating_sub(at.0) < micros(ELECTION_VALID)
        })
    }
}

impl Cluster {
    /// The bucket of leases; made if it is missing.
    async fn leases(&self, connection: &Connection) -> Result<Stream<()>, String> {
        let context = &connection.context;
        let bucket = self.subjects.leases();
        let name = format!("KV_{bucket}");
        let failed = |why: &dyn fmt::Display| {
            // A request without the right gets no response; the server reports the reason separately.
            let why = connection
                .last_error()
                .map_or_else(|| why.to_string(), |reported| format!("{reported} ({why})"));
            format!("cannot use the bucket {bucket}: {why}")
        };

        // An existing bucket is never changed, therefore its expiry is read and not assumed.
        let found = match context.get_stream(&name).await {
            Ok(found) => found.cached_info().config.clone(),
            Err(error) if is_missing(&error) => {
                let wanted = self.bucket(&name, &bucket);
                match context.create_stream(wanted.clone()).await {
                    Ok(_) => wanted,
                    // Another master made it meanwhile.
                    Err(error) if exists(&error) => wanted,
                    Err(error) => return Err(failed(&error)),
                }
            }
            Err(error) => return Err(failed(&with_cause(&error))),
        };

        // A lease that expires before its holder gives up would allow two leaders. With one that
        // lasts much longer nobody acts after a crash.
        let expiry = found.max_age;
        if !(ELECTION_EXPIRY..=ELECTION_EXPIRY_MAX).contains(&expiry) {
            let why = format!(
                "its messages expire after {} s, and a lease must after {} to {} s: delete the bucket, a daemon recreates it",
                expiry.as_secs(),
                ELECTION_EXPIRY.as_secs(),
                ELECTION_EXPIRY_MAX.as_secs()
            );
            return Err(failed(&why));
        }
        context
            .get_stream_no_info(&name)
            .await
            .map_err(|error| failed(&error))
    }

    fn bucket(&self, name: &str, bucket: &str) -> Config {
        Config {
            name: name.to_owned(),
            subjects: vec![format!("$KV.{bucket}.>")],
            description: Some("Leases of saltcellar's reactors".to_owned()),
            max_messages_per_subject: 1,
            max_age: ELECTION_EXPIRY,
            duplicate_window: ELECTION_EXPIRY,
            storage: StorageType::File,
            deny_delete: true,
            num_replicas: usize::try_from(self.replicas).unwrap_or(1),
            // Unlike in other buckets: a user with the right to read directly can have a value sent to the subject of another master.
            allow_direct: false,
            ..Config::default()
        }
    }
}

/// One connection's part in an election.
struct Candidate<'a> {
    election: &'a Election,
    cluster: &'a Cluster,
    lease: Leadership,
    has_read: &'a dyn Fn(u64) -> bool,
    /// The number of the message by which this reactor holds the lease.
    held: Option<u64>,
    /// The last message of the history when the lease was taken.
    behind: u64,
}

/// Why a lease was not written.
enum NotWritten {
    /// Another candidate was faster.
    Lost,
    Failed(String),
}

impl Candidate<'_> {
    async fn take_part(&mut self, drain: &Drain) -> Result<(), String> {
        let connection = self
            .cluster
            .connect("election", &Revealed::default())
            .await?;
        let bucket = self.cluster.leases(&connection).await?;

        while !drain.is_stopping() {
            // A step that takes longer could not renew the lease while it is valid.
            let step = self.step(&connection, &bucket);
            let step = tokio::time::timeout(ELECTION_VALID, step).await;
            step.map_err(|_| format!("no response within {} s", ELECTION_VALID.as_secs()))
                .and_then(|step| step)
                // A missing right is reported separately. The request itself only ends late.
                .map_err(|why| connection.last_error().unwrap_or(why))?;
            drain_for(drain, ELECTION_RENEWAL).await;
        }
        // Other candidates need not wait until the lease expires.
        self.give_up(&connection).await
    }

    async fn step(&mut self, connection: &Connection, bucket: &Stream<()>) -> Result<(), String> {
        // Given up before it is renewed: a leader that cannot act would keep all others from
        // acting.
        let unfit = self.election.known.lock().unfit.clone();
        if let Some(why) = unfit
            && self.held.is_some()
        {
            tracing::warn!(
                why,
                election = self.election.name,
                "this reactor cannot act, another master's reactor may take the lease"
            );
            return self.give_up(connection).await;
        }

        // No read is necessary, because the server accepts the renewal only behind this message.
        if let Some(last) = self.held {
            return self.write(connection, last).await;
        }

        let (last, found) = self.read(bucket).await?;
        let now = self.election.clock.monotonic();

        // A lease of this process counts as free, because the response to its last write may be
        // lost.
        let is_free = found
            .as_ref()
            .is_none_or(|found| found.leader.is_empty() || found.instance == self.lease.instance);

        let is_fit = {
            let mut known = self.election.known.lock();
            known.heard = Some(now);
            known.seen = found.filter(|_| !is_free).map(|found| (found.leader, now));
            // Another master has it, even if a lease of an earlier connection still counts as valid
            // here.
            if known.seen.is_some() {
                known.held = None;
            }
            known.unfit.is_none()
        };
        if !is_free || !is_fit {
            return Ok(());
        }

        // The end of the history is read before the lease is written: this reactor acts only after
        // it has read what the former leader did.
        let history = self.cluster.find_stream(connection).await?;
        self.behind = history.map_or(0, |history| history.last);
        self.write(connection, last).await
    }

    /// The lease, and the number of its message; 0 without one.
    async fn read(&self, bucket: &Stream<()>) -> Result<(u64, Option<Leadership>), String> {
        let subject = self.subject();
        match bucket.get_last_raw_message_by_subject(&subject).await {
            // What is no lease is nobody's.
            Ok(message) => {
                let lease = serde_json::from_slice(&message.payload).ok();
                let lease = lease.filter(|lease: &Leadership| lease.is_short());
                Ok((message.sequence, lease))
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok((0, None)),
            Err(error) => Err(format!("cannot read the lease {subject}: {error}")),
        }
    }

    /// Takes or renews the lease, whose last message has this number.
    async fn write(&mut self, connection: &Connection, last: u64) -> Result<(), String> {
        // From before it is asked for: the server counts from later on.
        let clock = &self.election.clock;
        let (now, wall) = (clock.monotonic(), clock.now());
        match self.publish(connection, &self.lease, last).await {
            Ok(number) => {
                self.held = Some(number);
                let has_read = (self.has_read)(self.behind);
                let mut known = self.election.known.lock();
                // A connection that was lost meanwhile changes nothing.
                if !known.holds(now, wall) {
                    (known.taken, known.is_settled) = (now, false);
                    known.term += 1;
                }
                known.held = Some((now, wall));
                known.heard = Some(now);
                known.seen = None;

                // A reactor that waits for a history that cannot be read would keep all others from acting.
                let is_late = now.saturating_sub(known.taken) > ELECTION_EXPIRY;
                if !known.is_settled && (has_read || is_late) {
                    known.is_settled = true;
                    tracing::info!(election = self.election.name, "this master's reactor leads");
                }
                Ok(())
            }
            Err(NotWritten::Lost) => {
                // Losing a race for a free lease is normal. Only a leader is replaced.
                if self.held.is_some() {
                    tracing::warn!(
                        election = self.election.name,
                        "another master's reactor has taken the lease, this one is on standby"
                    );
                }
                self.forget();
                Ok(())
            }
            // What is held stays valid until it ends: the server may have stored the renewal.
            Err(NotWritten::Failed(why)) => Err(why),
        }
    }

    async fn give_up(&mut self, connection: &Connection) -> Result<(), String> {
        let Some(last) = self.held else {
            return Ok(());
        };
        self.forget();
        let free = Leadership {
            leader: String::new(),
            ..self.lease.clone()
        };
        match self.publish(connection, &free, last).await {
            Ok(_) | Err(NotWritten::Lost) => Ok(()),
            Err(NotWritten::Failed(why)) => Err(why),
        }
    }

    fn forget(&mut self) {
        self.held = None;
        let mut known = self.election.known.lock();
        known.held = None;
    }

    async fn publish(
        &self,
        connection: &Connection,
        lease: &Leadership,
        last: u64,
    ) -> Result<u64, NotWritten> {
        let failed = |error: &dyn fmt::Display| NotWritten::Failed(format!("lease: {error}"));
        let payload = serde_json::to_vec(lease).map_err(|error| failed(&error))?;

        // The server stores the lease only if its last message is still `last`. Of several
        // candidates one succeeds.
        let message = PublishMessage::build()
            .payload(payload.into())
            .expected_last_subject_sequence(last);
        let sent = connection
            .context
            .send_publish(self.subject(), message)
            .await
            .map_err(|error| failed(&error))?;

        match sent.await {
            Ok(stored) => Ok(stored.sequence),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                Err(NotWritten::Lost)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    fn subject(&self) -> String {
        let subjects = &self.cluster.subjects;
        format!("$KV.{}.{}", subjects.leases(), self.election.name)
    }
}

/// Sleeps, or until the daemon stops.
async fn drain_for(drain: &Drain, pause: Duration) {
    let steps = 10;
    for _ in 0..steps {
        if drain.is_stopping() {
            return;
        }
        tokio::time::sleep(pause / steps).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election(without_quorum: WithoutQuorum) -> (Election, Clock) {
        let clock = Clock::manual(Micros(1_000_000_000));
        let own = MasterName::new("m1").unwrap();
        (
            Election::new("hot", own, without_quorum, clock.clone()),
            clock,
        )
    }

    fn wind(clock: &Clock, by: Duration) {
        clock.wind(micros(by));
    }

    #[test]
    fn a_leader_gives_up_before_its_lease_ends() {
        let (election, clock) = election(WithoutQuorum::Stop);
        election.stand(Some("m1"));
        wind(&clock, ELECTION_VALID.mul_f32(0.9));
        assert_eq!(election.standing(), Standing::Leads);
        wind(&clock, Duration::from_secs(1));
        assert!(matches!(election.standing(), Standing::Unknown(_)));

        // The monotonic clock stands still while a host is suspended.
        election.stand(Some("m1"));
        clock.set(clock.now().after(ELECTION_VALID));
        assert!(matches!(election.standing(), Standing::Unknown(_)));
    }

    #[test]
    fn a_leader_waits_until_it_knows_what_the_former_one_did() {
        let (election, _) = election(WithoutQuorum::Act);
        election.stand(Some("m1"));
        election.known.lock().is_settled = false;
        assert!(matches!(election.standing(), Standing::Unknown(why) if why.contains("has read")));
    }

    #[test]
    fn a_follower_knows_the_leader_until_its_lease_may_have_ended() {
        let (election, clock) = election(WithoutQuorum::Stop);
        election.stand(Some("m2"));
        assert_eq!(election.standing(), Standing::Follows("m2".to_owned()));
        wind(&clock, ELECTION_EXPIRY + Duration::from_secs(1));
        assert!(matches!(election.standing(), Standing::Unknown(_)));
    }

    #[test]
    fn without_a_quorum_all_act_or_none_does() {
        for (without_quorum, acts) in [(WithoutQuorum::Stop, false), (WithoutQuorum::Act, true)] {
            let (election, clock) = election(without_quorum);
            election.set_unfit(None);
            assert!(
                matches!(election.standing(), Standing::Unknown(_)),
                "a start is given time"
            );

            election.stand(Some("m2"));
            election.known.lock().problem = "no route to n1".to_owned();
            wind(&clock, ELECTION_EXPIRY + Duration::from_secs(1));
            let standing = election.standing();
            assert_eq!(standing == Standing::Leads, acts);
            if !acts {
                assert_eq!(standing, Standing::Unknown("no route to n1".to_owned()));
            }

            // One that cannot act does not.
            election.set_unfit(Some("its master is away".to_owned()));
            assert!(matches!(election.standing(), Standing::Unknown(_)));
        }
    }
}
