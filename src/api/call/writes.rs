//! Calls that store something.
//!
//! # Rules
//!
//! `save_load` runs again for every return, with the return as load (`salt/utils/job.py`). Such a load is
//! stored only for a job of which nothing else is known; everything it says comes again in `returner`.
//! A jid of `req` or `nocache` is one that was never made: refused, quietly.

use super::Ctx;
use crate::clock::Micros;
use crate::limits::{CALLER_TIME_AGE_MAX, HTTPS_CLOCK_OFF_MAX, IMPORT_TIMES};
use crate::model::{Drafts, Entry, Flags, JidKey, Kind, Source, stamped_jid};
use crate::store::row::rank;
use crate::wire::call::{Args, CallError, id_text};
use crate::wire::msgpack::{self, Writer};
use crate::wire::salt_codec::{Unreadable, check_whole};
use crate::wire::salt_event::{fired, peek, peek_checked, prints};

/// Words that stand where a jid should be.
const NO_JIDS: [&str; 3] = ["", "req", "nocache"];

/// An entry of a returner call, with nothing in it yet.
fn blank(ctx: &Ctx, args: &Args<'_>, kind: Kind) -> Result<Entry<'static>, CallError> {
    Ok(Entry {
        kind,
        source: source(args, Source::Returner)?,
        flags: Flags::default(),
        at: time(ctx, args, args.int("at")?.map(Micros))?,
        tag: b"",
        jid: "",
        minion: "",
        fun: "",
        retcode: 0,
        body: b"",
    })
}

/// The time of an entry whose caller may name one. Retention and lists go by it, so it lies within [`CALLER_TIME_AGE_MAX`]
/// before the present. Imported history is older, and its caller is an administrator ([`super::Rights`]).
fn time(ctx: &Ctx, args: &Args<'_>, named: Option<Micros>) -> Result<Micros, CallError> {
    let now = ctx.clock.now();
    let Some(at) = named else { return Ok(now) };
    let age = i64::try_from(CALLER_TIME_AGE_MAX.as_micros()).unwrap_or(i64::MAX);
    let (oldest, newest) =
        if args.flag("import")? { IMPORT_TIMES } else { (now.0.saturating_sub(age), now.0) };
    Ok(Micros(at.0.clamp(oldest, newest)))
}

fn source(args: &Args<'_>, door: Source) -> Result<Source, CallError> {
    Ok(if args.flag("replay")? { door.spooled() } else { door })
}

fn nil() -> Vec<u8> {
    vec![0xc0]
}

impl Ctx {
    fn store_one(&self, entry: &Entry<'_>, to: &mut Drafts<'_>) -> Result<(), CallError> {
        self.check_size(entry)?;
        check_whole(entry.body).map_err(|why| self.reject(entry, why))?;
        self.gate.pass(entry, None, |entry, prints| to.push(entry, prints));
        Ok(())
    }

    fn check_size(&self, entry: &Entry<'_>) -> Result<(), CallError> {
        let (len, max) = (entry.raw_len(), self.entry_bytes_max);
        if len > max {
            self.metrics.entries_too_large.add(1);
            return Err(CallError::TooLarge { len, max });
        }
        Ok(())
    }

    fn reject(&self, entry: &Entry<'_>, why: Unreadable) -> CallError {
        CallError::Refused(self.gate.reject(entry, why).to_string())
    }

    fn refuse(&self, why: String) -> CallError {
        self.metrics.calls_refused.add(1);
        CallError::Refused(why)
    }

    fn job_of(&self, jid: String) -> Result<String, CallError> {
        if NO_JIDS.contains(&jid.as_str()) {
            return Err(self.refuse(format!("`{jid}` is no job id; nothing is stored under it")));
        }
        Ok(jid)
    }
}

pub(super) fn prep_jid(ctx: &Ctx, args: &Args<'_>, to: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let passed = args.id("passed_jid")?.filter(|jid| !jid.is_empty());
    let jid = passed.unwrap_or_else(|| stamped_jid(ctx.jids.next(ctx.clock.now())));
    let mut answer = Writer::new();
    answer.str(&jid);
    let answer = answer.into_bytes();
    if !args.flag("nocache")? {
        return Ok(answer);
    }
    let body = nil();
    ctx.store_one(&Entry { jid: &jid, body: &body, ..blank(ctx, args, Kind::NoCache)? }, to)?;
    Ok(answer)
}

pub(super) fn save_load(ctx: &Ctx, args: &Args<'_>, to: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let jid = ctx.job_of(args.required_id("jid")?)?;
    let load = args.required_map("load")?;
    let minions = args.array("minions")?;
    let seen = peek(load);
    let is_return = seen.has_return && seen.cmd.is_none_or(|cmd| cmd == "_return");
    let kind = if is_return { Kind::ReturnLoad } else { Kind::Load };
    if is_return && minions.is_none() {
        let known = ctx.store.job_row(&jid).map_err(super::failed)?;
        if known.is_some_and(|row| row.rank > 0) {
            return Ok(nil());
        }
    }
    let mut body = Writer::new();
    body.array(2).raw(load).raw(minions.unwrap_or(&[0xc0]));
    let body = body.into_bytes();
    let fun = seen.fun.unwrap_or("");
    ctx.store_one(&Entry { jid: &jid, fun, body: &body, ..blank(ctx, args, kind)? }, to)?;
    Ok(nil())
}

pub(super) fn save_minions(ctx: &Ctx, args: &Args<'_>, to: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let jid = ctx.job_of(args.required_id("jid")?)?;
    let minions = args.required_array("minions")?;
    let mut body = Writer::new();
    body.array(2).raw(minions).raw(args.raw("syndic_id").unwrap_or(&[0xc0]));
    let body = body.into_bytes();
    ctx.store_one(&Entry { jid: &jid, body: &body, ..blank(ctx, args, Kind::Minions)? }, to)?;
    Ok(nil())
}

/// With an `endtime` it stands for the `update_endtime` that comes right behind it, too. Only then is the answer true: an
/// older daemon, which would not see it, answers nil.
pub(super) fn returner(ctx: &Ctx, args: &Args<'_>, to: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let jid = keep_return(ctx, args, args.required_map("load")?, to, true)?;
    let Some(endtime) = args.text("endtime")? else { return Ok(nil()) };
    keep_endtime(ctx, args, &jid, endtime, to)?;
    let mut answer = Writer::new();
    answer.bool(true);
    Ok(answer.into_bytes())
}

/// The keys of a signed return that are kept, in the order of docs/WIRE.md. Everything else in it (user, target, arguments...) is what
/// the master says of a job, and a minion's word on it would be taken for the master's.
pub(in crate::api) const SIGNED_KEYS: [&str; 8] =
    ["id", "jid", "fun", "fun_args", "return", "retcode", "success", "out"];

/// A return that came from the minion itself, whose signature is known to be `signer`'s.
pub(in crate::api) fn signed_return(
    ctx: &Ctx,
    signer: &str,
    args: &Args<'_>,
    to: &mut Drafts<'_>,
) -> Result<Vec<u8>, CallError> {
    let load = args.required_map("load")?;
    // Each once: of two, one reader takes the first and another the last.
    let said = |key: &str| {
        let mut found = msgpack::pairs(load).filter(|(name, _)| msgpack::as_text(name) == Some(key));
        let first = found.next().and_then(|(_, value)| id_text(value));
        first.filter(|_| found.next().is_none())
    };
    if said("id").as_deref() != Some(signer) {
        ctx.metrics.https_returns_of_others.add(1);
        let whose = said("id").unwrap_or_else(|| "nobody".to_owned());
        return Err(CallError::Refused(format!(
            "minion {signer} signed a return of {whose}: it can store its own only"
        )));
    }
    let Some(jid) = said("jid") else {
        return Err(ctx.refuse("a return without one `jid` belongs to no job".to_owned()));
    };
    if args.flag("import")? {
        return Err(ctx.refuse(format!("minion {signer} cannot import: that needs the right `admin`")));
    }
    check_signed_jid(ctx, signer, &jid)?;
    let kept = signed_part(load);
    keep_return(ctx, args, kept.as_deref().unwrap_or(load), to, false)?;
    Ok(nil())
}

/// Rejects jids that would stay on top of every list: those of the future, and texts without a time unless the master knows the job.
fn check_signed_jid(ctx: &Ctx, signer: &str, jid: &str) -> Result<(), CallError> {
    let ahead = i64::try_from(HTTPS_CLOCK_OFF_MAX.as_micros()).unwrap_or(i64::MAX);
    let why = match JidKey::of(jid).time() {
        Some(at) if at.0 <= ctx.clock.now().0.saturating_add(ahead) => return Ok(()),
        Some(_) => "lies in the future",
        None => {
            let known = ctx.store.job_row(jid).map_err(super::failed)?;
            if known.is_some_and(|row| row.rank > rank(Kind::Return)) {
                return Ok(());
            }
            "has no time, and the master has not published it"
        }
    };
    let shown: String = jid.chars().take(100).collect();
    Err(ctx.refuse(format!("minion {signer} signed a return of job {shown:?}, which {why}")))
}

/// The part of a signed return with the keys that are kept, each once; `None` if that is all of it.
fn signed_part(load: &[u8]) -> Option<Vec<u8>> {
    let mut kept: [Option<(&[u8], &[u8])>; SIGNED_KEYS.len()] = Default::default();
    let mut total = 0;
    for (key, value) in msgpack::pairs(load) {
        total += 1;
        let name = msgpack::as_text(key);
        if let Some((_, place)) = SIGNED_KEYS.iter().zip(&mut kept).find(|(wanted, _)| Some(**wanted) == name)
        {
            place.get_or_insert((key, value));
        }
    }
    let count = kept.iter().flatten().count();
    (count < total).then(|| {
        let mut w = Writer::new();
        w.map(count);
        for (key, value) in kept.into_iter().flatten() {
            w.raw(key).raw(value);
        }
        w.into_bytes()
    })
}

/// Its jid.
fn keep_return(
    ctx: &Ctx,
    args: &Args<'_>,
    load: &[u8],
    to: &mut Drafts<'_>,
    from_master: bool,
) -> Result<String, CallError> {
    let jid = msgpack::get(load, "jid").and_then(id_text);
    let jid =
        ctx.job_of(jid.ok_or_else(|| ctx.refuse("a return without `jid` belongs to no job".to_owned()))?)?;
    let minion = msgpack::get(load, "id").and_then(id_text).filter(|id| !id.is_empty());
    let minion =
        minion.ok_or_else(|| ctx.refuse(format!("a return of job {jid} without `id` is nobody's")))?;
    if !is_minion_id(&minion) {
        let shown: String = minion.chars().take(100).collect();
        return Err(ctx.refuse(format!("Salt lets no minion have the id {shown:?} (a return of job {jid})")));
    }
    let tag = format!("salt/job/{jid}/ret/{minion}");
    let made = Entry { tag: tag.as_bytes(), jid: &jid, minion: &minion, ..blank(ctx, args, Kind::Return)? };
    let seen = peek_checked(load).map_err(|why| ctx.reject(&made, why))?;
    // The master fires a return before it hands it over, and firing adds the stamp: so it was on the bus.
    let fired = from_master && seen.stamp.is_some() && seen.cmd == Some("_return");
    let flags = if fired { seen.flags().with(Flags::ON_BUS) } else { seen.flags() };
    let entry =
        Entry { flags, fun: seen.fun.unwrap_or(""), retcode: seen.retcode.unwrap_or(0), body: load, ..made };
    ctx.check_size(&entry)?;
    ctx.gate.pass(&entry, Some(prints(&entry, seen.answer)), |entry, prints| to.push(entry, prints));
    Ok(jid)
}

/// What a minion may be called: `valid_id` in `salt/utils/verify.py`.
fn is_minion_id(id: &str) -> bool {
    !matches!(id, "." | "..") && !id.contains(['/', '\\', '\0'])
}

pub(super) fn update_endtime(ctx: &Ctx, args: &Args<'_>, to: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let jid = ctx.job_of(args.required_id("jid")?)?;
    keep_endtime(ctx, args, &jid, args.required_text("endtime")?, to)?;
    Ok(nil())
}

fn keep_endtime(
    ctx: &Ctx,
    args: &Args<'_>,
    jid: &str,
    endtime: &str,
    to: &mut Drafts<'_>,
) -> Result<(), CallError> {
    let mut body = Writer::new();
    body.str(endtime);
    let body = body.into_bytes();
    ctx.store_one(&Entry { jid, body: &body, ..blank(ctx, args, Kind::Endtime)? }, to)
}

pub(super) fn event_return(ctx: &Ctx, args: &Args<'_>, to: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let events = args.required_array("events")?;
    let source = source(args, Source::EventReturn)?;
    let at = time(ctx, args, args.int("at")?.map(Micros))?;
    let (mut total, mut malformed, mut unfit) = (0_u64, 0, 0);
    for event in fired(events) {
        // What is handed over is told apart by its time. Equal events of one batch have each their own.
        let at = if source == Source::SpooledEventReturn {
            Micros(at.0.saturating_add_unsigned(total))
        } else {
            at
        };
        total += 1;
        let Ok(Some(event)) = event else {
            malformed += 1;
            continue;
        };
        let at = if event.at.is_some() { time(ctx, args, event.at)? } else { at };
        let event = event.event(source, at);
        if ctx.gate.check_tag(event.entry.tag, source).is_err() {
            unfit += 1;
            continue;
        }
        ctx.check_size(&event.entry)?;
        let read = ctx.gate.read(&event, |entry, prints| to.push(entry, Some(prints)));
        unfit += u64::from(read.is_err());
    }
    if malformed > 0 {
        ctx.metrics.event_return_malformed.add(malformed);
        tracing::warn!(malformed, total, "elements of an event_return batch have no tag or no data");
    }
    // What a rule keeps out is dealt with, too: it need not come again.
    let taken = total - malformed - unfit;
    ctx.metrics.event_return_events.add(taken);
    let mut answer = Writer::new();
    answer.uint(taken);
    Ok(answer.into_bytes())
}

pub(super) fn save_reg(ctx: &Ctx, args: &Args<'_>, to: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let body = args.raw("data").unwrap_or(&[0xc0]);
    ctx.store_one(&Entry { body, ..blank(ctx, args, Kind::Register)? }, to)?;
    Ok(nil())
}

/// Salt asks this every minute. What it says is how long classes with the age `salt` keep their entries; 0 is for ever.
/// A caller that says nothing only asks for a round.
pub(super) fn clean_old_jobs(ctx: &Ctx, args: &Args<'_>, _: &mut Drafts<'_>) -> Result<Vec<u8>, CallError> {
    let negative = CallError::BadArgs { key: "keep_jobs_seconds", expected: "an integer from 0" };
    let seconds = args.int("keep_jobs_seconds")?.map(u64::try_from).transpose().map_err(|_| negative)?;
    ctx.store.salt_says(seconds);
    Ok(nil())
}
