//! Calls that store entries.
//!
//! # Rules
//!
//! `save_load` is called again for every return, with the return as load (`salt/utils/job.py`).
//! Such a load is stored only for an unknown job; `returner` stores all of its data again. The jids
//! `req` and `nocache` are placeholders of Salt: such calls are rejected without a log line.
//!
//! Processes of a master of a cluster, `EventMonitor` and `EventPublisher` since 3008, make these calls
//! for events of its peers, which any of their minions can fire. The extension says so
//! ([`Origin::mirrored`]): of these calls only returns and minions are stored, and not as confirmed.
//!
//! # Invariant
//!
//! No caller stores an entry with a time in the future or more than a year ago, except imports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::accept::refused;
use super::{Acceptor, Archive, Call, Changing, In, Raised, Run, Save};
use crate::base::clock::Micros;
use crate::base::limits::{
    CALLER_TIME_AGE_MAX, HTTPS_CLOCK_OFF_MAX, IMPORT_TIMES, NAME_BYTES_MAX, WIRE_FRAME_BYTES_MAX,
};
use crate::model::word::Word as _;
use crate::model::{Entry, Flags, FrameBatch, JidKey, Kind, Right, Source, stamped_jid};
use crate::store::index::job_summary::rank;
use crate::wire::call::{Args, CallError, Id, id_text};
use crate::wire::msgpack::{self, Packed, PackedArray, PackedMap, Time, Writer};
use crate::wire::salt_event::{Foreign, fingerprints, fired, peek, peek_checked, replaces_value};

/// How the entries of a call came to be.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Origin {
    /// The time at which Salt made the call; at most 366 days ago, and not in the future
    pub(crate) at: Option<Time>,
    /// Handed over from a spool: it may be stored already
    pub(crate) replay: bool,
    /// From another cache: `at` may be any time of the years 1970 to 9999; needs the right admin
    pub(crate) import: bool,
    /// Of an import or a mirrored call: the id of the master that it came from, unless it is this host's
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) master: Option<String>,
    /// Made by a master for an event of a peer of its cluster: it confirms nothing
    pub(crate) mirrored: bool,
}

impl Origin {
    /// The time of an entry whose caller may name one, clamped to [`CALLER_TIME_AGE_MAX`] before the
    /// present, because retention and lists depend on it. Imports may be older; their caller is an
    /// administrator ([`super::Rights`]).
    fn time(&self, ctx: &Acceptor, named: Option<Micros>) -> Micros {
        let now = ctx.archive.clock.now();
        // Usually no time is named, and the entry gets its time of arrival.
        let Some(at) = named else { return now };

        let age = i64::try_from(CALLER_TIME_AGE_MAX.as_micros()).unwrap_or(i64::MAX);
        // Salt's clock may be wrong, and a time in the future would keep a segment from expiring.
        let (oldest, newest) = if self.import {
            IMPORT_TIMES
        } else {
            (now.0.saturating_sub(age), now.0)
        };

        Micros(at.0.clamp(oldest, newest))
    }

    fn source(&self, source: Source) -> Source {
        if self.replay {
            source.spooled()
        } else {
            source
        }
    }

    /// The origin that an import or a mirrored call states.
    fn stated<'a>(&self, ctx: &Acceptor, master: Option<&'a str>) -> Option<&'a str> {
        let may_state = self.import || self.mirrored;
        let master = master.filter(|id| may_state && id.len() <= NAME_BYTES_MAX)?;
        Some(ctx.archive.master.origin(master))
    }

    /// An empty entry of a returner call.
    fn blank(&self, ctx: &Acceptor, kind: Kind) -> Entry<'_> {
        Entry {
            kind,
            source: self.source(Source::Returner),
            origin: self.stated(ctx, self.master.as_deref()).unwrap_or(""),
            number: 0,
            flags: Flags::default(),
            at: self.time(ctx, self.at.map(|Time(at)| at)),
            tag: b"",
            jid: "",
            minion: "",
            fun: "",
            retcode: 0,
            body: b"",
        }
    }
}

/// nil in msgpack.
const NIL: &[u8] = &[0xc0];

/// `prep_jid`.
pub(crate) struct PrepJid;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PrepJidArgs {
    /// The job's id, if there is one
    pub(crate) passed_jid: Option<Id>,
    /// The master does not cache the returns of this job
    #[serde(default)]
    pub(crate) nocache: bool,
    /// Answer with the slot as well
    #[serde(default)]
    pub(crate) slot: bool,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

/// The response of `prep_jid`: the jid, and with `slot` a map.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum PreparedJid {
    Jid(String),
    WithSlot {
        jid: String,
        /// The slot of the daemon's jids, `k/n`; the extension that makes jids without the daemon needs it
        slot: Option<String>,
    },
}

impl Call for PrepJid {
    const NAME: &'static str = "prep_jid";
    const DOC: &'static str = "Return the passed jid, or a new one";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByImport;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Acceptor>;
    type Args<'a> = PrepJidArgs;
    type Answer = PreparedJid;
}

impl Save for PrepJid {
    fn save(
        ctx: &In<'_, Self>,
        args: PrepJidArgs,
        to: &mut FrameBatch<'_>,
    ) -> Result<PreparedJid, CallError> {
        let passed = args.passed_jid.map(|Id(jid)| jid);
        let jid = passed
            .filter(|jid| !jid.is_empty())
            .unwrap_or_else(|| stamped_jid(ctx.jids.next(ctx.archive.clock.now())));

        // The entry tells readers that the master does not cache the returns of this job.
        if args.nocache {
            let entry = Entry {
                jid: &jid,
                body: NIL,
                ..args.origin.blank(ctx, Kind::NoCache)
            };
            ctx.store_one(&entry, to)?;
        }

        Ok(if args.slot {
            let slot = ctx.jids.slot().show();
            PreparedJid::WithSlot { jid, slot }
        } else {
            PreparedJid::Jid(jid)
        })
    }
}

/// `save_load`.
pub(crate) struct SaveLoad;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SaveLoadArgs<'a> {
    /// The job's id
    pub(crate) jid: Id,
    /// The load
    #[serde(borrow)]
    pub(crate) load: PackedMap<'a>,
    /// The minions that were targeted
    pub(crate) minions: Option<PackedArray<'a>>,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

impl Call for SaveLoad {
    const NAME: &'static str = "save_load";
    const DOC: &'static str = "Store a job as published";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByImport;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Acceptor>;
    type Args<'a> = SaveLoadArgs<'a>;
    type Answer = ();
}

impl Save for SaveLoad {
    fn save(
        ctx: &In<'_, Self>,
        args: SaveLoadArgs<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<(), CallError> {
        let jid = ctx.job_of(args.jid.0)?;
        // A return comes again with `returner`, and a publish is an event.
        if args.origin.mirrored {
            return Ok(());
        }

        let PackedMap(load) = args.load;
        let minions = args.minions.map(|PackedArray(minions)| minions);

        let seen = peek(load);
        let foreign = seen.foreign(load, ctx.policy.peer_mark());
        // A mark that a minion wrote into its return says nothing about who published the job.
        let (_, stored) = own_form(foreign.as_ref(), load);
        // With another `cmd` the map is the request of a publish.
        let is_return = seen.has_return() && seen.cmd().is_none_or(|cmd| cmd == "_return");

        let kind = if is_return {
            Kind::ReturnLoad
        } else {
            Kind::Load
        };
        // All of this return comes again with `returner`, so for a known job there is nothing to
        // store.
        if is_return && minions.is_none() {
            let known = ctx.archive.store.job_row(&jid).map_err(super::failed)?;
            if known.is_some_and(|row| row.rank > 0) {
                return Ok(());
            }
        }

        let mut body = Writer::new();
        body.array(2).raw(stored).raw(minions.unwrap_or(NIL));
        let body = body.into_bytes();

        let blank = args.origin.blank(ctx, kind);
        let entry = Entry {
            jid: &jid,
            fun: seen.fun().unwrap_or(""),
            body: &body,
            ..blank
        };
        ctx.store_one(&entry, to)?;

        // An import stores each return by a call of its own.
        if is_return && is_of_job(load, &jid) && !args.origin.import {
            // With `ext_job_cache` the master makes no returner call for `salt-call` and scheduled
            // jobs (`store_job` in `salt/utils/job.py`): this call brought the return. Elsewhere a
            // returner call brings the same map, which is then known; but for a value that was too
            // large, whose place contains a string of each call.
            let is_fired = !msgpack::get(load, "return").is_some_and(replaces_value);
            keep_return(ctx, &args.origin, load, to, is_fired)?;
        }
        Ok(())
    }
}

/// The origin and the data to store of a map that the master passed on: it passes on what a peer fired with the peer's mark.
fn own_form<'a>(foreign: Option<&'a Foreign<'a>>, map: &'a [u8]) -> (Option<&'a str>, &'a [u8]) {
    foreign.map_or((None, map), |foreign| (Some(foreign.origin), &foreign.body))
}

/// Whether a load is the whole return of a minion for this job.
fn is_of_job(load: &[u8], jid: &str) -> bool {
    let text = |key| msgpack::get(load, key).and_then(id_text);
    let is_minion = text("id").is_some_and(|id| !id.is_empty() && is_minion_id(&id));
    is_minion && text("jid").as_deref() == Some(jid)
}

/// `save_minions`.
pub(crate) struct SaveMinions;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SaveMinionsArgs<'a> {
    /// The job's id
    pub(crate) jid: Id,
    /// Minion ids
    #[serde(borrow)]
    pub(crate) minions: PackedArray<'a>,
    /// The id of the syndic
    pub(crate) syndic_id: Option<Packed<'a>>,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

impl Call for SaveMinions {
    const NAME: &'static str = "save_minions";
    const DOC: &'static str = "Store minions that a syndic reported for a job";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByImport;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Acceptor>;
    type Args<'a> = SaveMinionsArgs<'a>;
    type Answer = ();
}

impl Save for SaveMinions {
    fn save(
        ctx: &In<'_, Self>,
        args: SaveMinionsArgs<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<(), CallError> {
        let jid = ctx.job_of(args.jid.0)?;

        let flags = if args.origin.mirrored {
            // The event of the publish names the same minions.
            let known = ctx.archive.store.job_row(&jid).map_err(super::failed)?;
            if known.is_some_and(|row| row.rank >= rank(Kind::JobNew)) {
                return Ok(());
            }
            Flags::UNCONFIRMED
        } else {
            Flags::default()
        };

        let mut body = Writer::new();
        body.array(2)
            .raw(args.minions.0)
            .raw(args.syndic_id.map_or(NIL, |Packed(id)| id));
        let body = body.into_bytes();

        let entry = Entry {
            jid: &jid,
            flags,
            body: &body,
            ..args.origin.blank(ctx, Kind::Minions)
        };
        ctx.store_one(&entry, to)
    }
}

/// `returner`.
pub(crate) struct Returner;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ReturnerArgs<'a> {
    /// The return, as the master has it
    #[serde(borrow)]
    pub(crate) load: PackedMap<'a>,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

impl Call for Returner {
    const NAME: &'static str = "returner";
    const DOC: &'static str = "Store one minion's return";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByImport;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Acceptor>;
    type Args<'a> = ReturnerArgs<'a>;
    type Answer = ();
}

impl Save for Returner {
    fn save(
        ctx: &In<'_, Self>,
        args: ReturnerArgs<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<(), CallError> {
        keep_return(ctx, &args.origin, args.load.0, to, true)
    }
}

/// The keys of a signed return that are stored, in the order of docs/WIRE.md. Other keys (user,
/// target, arguments...) are the master's statements about a job, so a minion cannot set them.
pub(in crate::api) const SIGNED_KEYS: [&str; 8] = [
    "id", "jid", "fun", "fun_args", "return", "retcode", "success", "out",
];

/// A return sent by the minion itself, with a valid signature of `signer`.
pub(in crate::api) fn signed_return(
    ctx: &Acceptor,
    signer: &str,
    args: &Args<'_>,
    to: &mut FrameBatch<'_>,
) -> Result<Vec<u8>, CallError> {
    let ReturnerArgs {
        load: PackedMap(load),
        origin,
        ..
    } = args.read()?;
    // Each key exactly once: of duplicates, one reader uses the first and another the last.
    let unique = |key: &str| {
        let mut found =
            msgpack::pairs(load).filter(|(name, _)| msgpack::as_text(name) == Some(key));
        let first = found.next().and_then(|(_, value)| id_text(value));
        first.filter(|_| found.next().is_none())
    };
    // The signature proves who sent the return, not whose it is.
    if unique("id").as_deref() != Some(signer) {
        ctx.archive.metrics.https_returns_other_minion.add(1);
        let whose = unique("id").unwrap_or_else(|| "an unnamed minion".to_owned());
        return Err(CallError::Refused(format!(
            "minion {signer} signed a return of {whose}, but can store only its own"
        )));
    }

    let Some(jid) = unique("jid") else {
        return Err(ctx.refuse("a return needs exactly one `jid`".to_owned()));
    };
    // An import could name any time, and old entries push others out of lists.
    if origin.import {
        return Err(ctx.refuse(format!(
            "minion {signer} cannot import: imports need the right `admin`; import on the daemon's host"
        )));
    }

    // A minion mirrors nothing.
    let origin = Origin {
        mirrored: false,
        ..origin
    };

    // After the cheap checks, because it may look the job up.
    check_signed_jid(ctx, signer, &jid)?;

    let kept = signed_part(load);
    keep_return(ctx, &origin, kept.as_deref().unwrap_or(load), to, false)?;
    Ok(NIL.to_vec())
}

/// Rejects jids that would stay at the top of every list: times in the future, and strings without a
/// time unless the master published the job.
fn check_signed_jid(ctx: &Acceptor, signer: &str, jid: &str) -> Result<(), CallError> {
    let ahead = i64::try_from(HTTPS_CLOCK_OFF_MAX.as_micros()).unwrap_or(i64::MAX);
    // The clock of a minion may be ahead by as much as its batch may be.
    let why = match JidKey::of(jid).time() {
        Some(at) if at.0 <= ctx.archive.clock.now().0.saturating_add(ahead) => return Ok(()),
        Some(_) => "is in the future",
        None => {
            let known = ctx.archive.store.job_row(jid).map_err(super::failed)?;
            if known.is_some_and(|row| row.rank > rank(Kind::Return)) {
                return Ok(());
            }
            "contains no time and was not published by the master"
        }
    };

    let shown: String = jid.chars().take(100).collect();
    // The jid is the minion's text: cut and escaped before it reaches the log.
    Err(ctx.refuse(format!(
        "minion {signer} signed a return of job {shown:?}, which {why}"
    )))
}

/// The stored keys of a signed return, each once; `None` if it has no others.
fn signed_part(load: &[u8]) -> Option<Vec<u8>> {
    // Positions as in `SIGNED_KEYS`, so the stored keys have one order whatever the minion sent.
    let mut kept: [Option<(&[u8], &[u8])>; SIGNED_KEYS.len()] = Default::default();
    let mut total = 0;

    for (key, value) in msgpack::pairs(load) {
        total += 1;
        let name = msgpack::as_text(key);
        // The first of equal keys; `signed_return` has checked those that identify the return.
        if let Some((_, place)) = SIGNED_KEYS
            .iter()
            .zip(&mut kept)
            .find(|(wanted, _)| Some(**wanted) == name)
        {
            place.get_or_insert((key, value));
        }
    }

    let count = kept.iter().flatten().count();
    // Mostly nothing is left out, and the load is used as it is.
    (count < total).then(|| {
        let mut w = Writer::new();
        w.map(count);
        for (key, value) in kept.into_iter().flatten() {
            w.raw(key).raw(value);
        }
        w.into_bytes()
    })
}

/// Stores a return. One with the master's stamp is an event if `from_master`.
fn keep_return(
    ctx: &Acceptor,
    origin: &Origin,
    load: &[u8],
    to: &mut FrameBatch<'_>,
    from_master: bool,
) -> Result<(), CallError> {
    let jid = msgpack::get(load, "jid").and_then(id_text);

    let jid = ctx.job_of(jid.ok_or_else(|| ctx.refuse("a return needs a `jid`".to_owned()))?)?;

    let minion = msgpack::get(load, "id")
        .and_then(id_text)
        .filter(|id| !id.is_empty());
    let minion =
        minion.ok_or_else(|| ctx.refuse(format!("a return of job {jid} needs an `id`")))?;
    // An id with a slash would forge the tag of another job.
    if !is_minion_id(&minion) {
        let shown: String = minion.chars().take(100).collect();
        return Err(ctx.refuse(format!(
            "{shown:?} is not a valid minion id (in a return of job {jid})"
        )));
    }

    let tag = format!("salt/job/{jid}/ret/{minion}");
    let made = Entry {
        tag: tag.as_bytes(),
        jid: &jid,
        minion: &minion,
        ..origin.blank(ctx, Kind::Return)
    };

    // A return with a value that Salt's codec cannot read is kept, with the reason in its place: a
    // job must not lose a minion.
    let (seen, unreadable) = match peek_checked(load) {
        Ok(seen) => (seen, None),
        Err(why) => (peek(load), Some(why)),
    };

    // The bus delivers the event of a peer with the same mark.
    let foreign = seen.foreign(load, ctx.policy.peer_mark());
    let (marked, load) = own_form(foreign.as_ref(), load);
    // An authenticated return is one of this master, whatever its minion wrote into it.
    let peer = if origin.mirrored && made.origin.is_empty() {
        marked.unwrap_or_default()
    } else {
        made.origin
    };

    // The master fires a return, which adds the stamp, before it calls the returner. A stamp
    // therefore shows that the return was on the bus. Without its origin a peer's return would be
    // taken for an event of this master, and the bus brings it with its origin.
    let fired = from_master
        && seen.stamp().is_some()
        && seen.cmd() == Some("_return")
        && (!origin.mirrored || !peer.is_empty());

    let (mut flags, retcode) = seen.columns();
    if fired {
        flags = flags.with(Flags::ON_BUS);
    }
    if origin.mirrored {
        flags = flags.with(Flags::UNCONFIRMED);
    }

    let entry = Entry {
        flags,
        fun: seen.fun().unwrap_or(""),
        retcode,
        origin: peer,
        body: load,
        ..made
    };
    // A return that is too large is shortened and not dropped: the job must show that the minion
    // returned.
    let accepted = if entry.raw_len() > ctx.entry_bytes_max {
        match ctx.policy.within_limit(&entry) {
            Some(body) => ctx.policy.pass_without_value(&entry, body),
            None => return ctx.check_size(&entry),
        }
    } else if let Some(why) = unreadable {
        let body = ctx.policy.mend(&entry, why).map_err(|why| refused(&why))?;
        ctx.policy.pass_mended(&entry, body, why)
    } else {
        // The values are known from one walk over the map; hashing does not repeat it.
        let known = fingerprints(&entry, seen.answer);
        ctx.policy.pass(&entry, Some(known))
    };

    // `None`: a rule drops the entry, which counts as accepted.
    if let Some(accepted) = accepted {
        to.push(&accepted.entry(), accepted.fingerprints);
    }
    Ok(())
}

/// Whether Salt accepts a minion id: `valid_id` in `salt/utils/verify.py`.
fn is_minion_id(id: &str) -> bool {
    !matches!(id, "." | "..") && !id.contains(['/', '\\', '\0'])
}

/// `update_endtime`.
pub(crate) struct UpdateEndtime;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct EndtimeArgs {
    /// The job's id
    pub(crate) jid: Id,
    /// The time, as text
    pub(crate) endtime: Id,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

impl Call for UpdateEndtime {
    const NAME: &'static str = "update_endtime";
    const DOC: &'static str = "Store the end time of a job";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByImport;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Acceptor>;
    type Args<'a> = EndtimeArgs;
    type Answer = ();
}

impl Save for UpdateEndtime {
    fn save(
        ctx: &In<'_, Self>,
        args: EndtimeArgs,
        to: &mut FrameBatch<'_>,
    ) -> Result<(), CallError> {
        let jid = ctx.job_of(args.jid.0)?;
        // The time at which a return was mirrored.
        if args.origin.mirrored {
            return Ok(());
        }

        let mut body = Writer::new();
        body.str(&args.endtime.0);
        let body = body.into_bytes();

        let entry = Entry {
            jid: &jid,
            body: &body,
            ..args.origin.blank(ctx, Kind::Endtime)
        };
        ctx.store_one(&entry, to)
    }
}

/// `event_return`.
pub(crate) struct EventReturn;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct EventReturnArgs<'a> {
    /// Events: [{"tag", "data", "at"?}, ...]; those of an import also have `master`
    #[serde(borrow)]
    pub(crate) events: PackedArray<'a>,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

impl Call for EventReturn {
    const NAME: &'static str = "event_return";
    const DOC: &'static str = "Store a batch of events";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByImport;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    const WALKS_LAST_ARGUMENT: bool = true;
    type Scope = Changing<Acceptor>;
    type Args<'a> = EventReturnArgs<'a>;
    type Answer = u64;
}

impl Save for EventReturn {
    fn save(
        ctx: &In<'_, Self>,
        args: EventReturnArgs<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<u64, CallError> {
        let EventReturnArgs {
            events: PackedArray(events),
            origin,
        } = args;
        let source = origin.source(Source::EventReturn);
        let at = origin.time(ctx, origin.at.map(|Time(at)| at));

        let mut total = 0_u64;
        let mut malformed = 0;
        let mut unfit = 0;
        let mut events = fired(events);
        for event in events.by_ref() {
            // Spooled events are deduplicated by time, therefore equal events of one batch get
            // different times.
            let at = if source == Source::SpooledEventReturn {
                Micros(at.0.saturating_add_unsigned(total))
            } else {
                at
            };

            total += 1;
            // Elements without tag or data cannot be stored; the others are, and the response counts
            // them.
            let Ok(Some(event)) = event else {
                malformed += 1;
                continue;
            };

            let at = if event.at.is_some() {
                origin.time(ctx, event.at)
            } else {
                at
            };

            // Nothing mirrors events.
            let master = event.master.filter(|_| origin.import);
            let mut event = event.event(source, at, ctx.policy.peer_mark());
            if let Some(imported) = origin.stated(ctx, master) {
                event.set_origin(imported);
            }

            // A tag with control characters could forge lines elsewhere.
            if ctx.policy.check_tag(event.entry().tag, source).is_err() {
                unfit += 1;
                continue;
            }

            let is_too_large = event.entry().raw_len() > ctx.entry_bytes_max;
            let short = is_too_large
                .then(|| ctx.policy.within_limit(&event.entry()))
                .flatten();
            // The event of a return is shortened as the return itself is.
            let read = if let Some(body) = short {
                Ok(ctx.policy.pass_without_value(&event.into_parts().0, body))
            } else {
                // One such event rejects the whole batch, and the extension divides it (docs/WIRE.md).
                ctx.check_size(&event.entry())?;
                ctx.policy.read(event)
            };

            match read {
                Ok(Some(accepted)) => to.push(&accepted.entry(), accepted.fingerprints),
                Ok(None) => {}
                Err(_) => unfit += 1,
            }
        }

        // Of the socket nobody has walked them before.
        if !events.is_whole() {
            return Err(CallError::Protocol(
                "a request is [id, call, args]: its events are not a msgpack array that ends with the frame".to_owned(),
            ));
        }

        if malformed > 0 {
            ctx.archive.metrics.event_return_malformed.add(malformed);
            tracing::warn!(
                malformed,
                total,
                "event_return batch contains elements without tag or data, skipping them: report this message, with the version of their sender"
            );
        }

        // Events dropped by a rule count as accepted: they must not be resent.
        let taken = total - malformed - unfit;
        ctx.archive.metrics.event_return_events.add(taken);
        Ok(taken)
    }
}

/// False if a newer register is stored: an import must not replace it.
pub(crate) type Saved = Option<bool>;

/// `save_reg`.
pub(crate) struct SaveReg;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SaveRegArgs<'a> {
    /// The register
    #[serde(borrow)]
    pub(crate) data: Option<Packed<'a>>,
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

impl Call for SaveReg {
    const NAME: &'static str = "save_reg";
    const DOC: &'static str = "Store Thorium's register";
    const RIGHT: Right = Right::Admin;
    const RAISED: Raised = Raised::ByImport;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Acceptor>;
    type Args<'a> = SaveRegArgs<'a>;
    type Answer = Saved;
}

impl Save for SaveReg {
    fn save(
        ctx: &In<'_, Self>,
        args: SaveRegArgs<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<Saved, CallError> {
        let entry = Entry {
            body: args.data.map_or(NIL, |Packed(data)| data),
            ..args.origin.blank(ctx, Kind::Register)
        };

        // The last one counts, so an import must not replace one that Thorium has saved since; and
        // its repetition has nothing new.
        if args.origin.import {
            let known = ctx.archive.store.registered_at().map_err(super::failed)?;
            if known.is_some_and(|at| at >= entry.at) {
                return Ok(Some(false));
            }
        }

        ctx.store_one(&entry, to)?;
        Ok(None)
    }
}

/// `clean_old_jobs`.
pub(crate) struct CleanOldJobs;

/// Salt calls this every minute.
///
/// It stores no entry, and may save the time in a file, so it is no call that saves: those run on a
/// thread of the runtime.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CleanArgs {
    /// The age limit of classes with the age `salt`; 0 means forever. Without it, only a round of
    /// retention begins.
    pub(crate) keep_jobs_seconds: Option<u64>,
}

impl Call for CleanOldJobs {
    const NAME: &'static str = "clean_old_jobs";
    const DOC: &'static str = "Delete expired jobs";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Archive>;
    type Args<'a> = CleanArgs;
    type Answer = ();
}

impl Run for CleanOldJobs {
    fn run(ctx: &In<'_, Self>, args: CleanArgs) -> Result<(), CallError> {
        // The store decides whether a shorter age takes effect: it waits for an administrator.
        ctx.store.set_salt_keep(args.keep_jobs_seconds);
        Ok(())
    }
}
