//! The items of an import, independent of their source.

use crate::api::call::Call;
use crate::api::call::writes::{
    EndtimeArgs, Origin, PrepJid, PrepJidArgs, Returner, ReturnerArgs, SaveLoad, SaveLoadArgs,
    SaveMinions, SaveMinionsArgs, SaveReg, SaveRegArgs, UpdateEndtime,
};
use crate::base::clock::Micros;
use crate::model::Kind;
use crate::wire::call::Id;
use crate::wire::msgpack::{
    EncodeError, Packed, PackedArray, PackedMap, Time, Writer, as_text, encode,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImportItem {
    /// Its time in Salt, microseconds since 1970 UTC.
    pub(super) at: i64,
    /// Its location for messages: a file, a line, a row.
    pub(super) origin: String,
    /// The id of the master that it came from; empty if that is not known.
    pub(super) master: String,
    pub(super) payload: Payload,
}

/// The data of an item. Fields that its kind lacks are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) kind: Kind,
    /// The job under which the daemon's entries are looked up; empty for events and registers.
    pub(super) jid: String,
    /// The minion of a return, or the syndic that reported minions.
    pub(super) id: String,
    pub(super) tag: Vec<u8>,
    /// msgpack: the load, the return, the end time in Salt's format, the data of an event or a
    /// register; true for `nocache`.
    pub(super) body: Vec<u8>,
    /// msgpack: an array of the job's minions; empty if unknown.
    pub(super) minions: Vec<u8>,
}

impl Payload {
    pub(super) fn new(kind: Kind, jid: impl Into<String>, body: Vec<u8>) -> Self {
        let (id, tag, minions) = (String::new(), Vec::new(), Vec::new());
        Self {
            kind,
            jid: jid.into(),
            id,
            tag,
            body,
            minions,
        }
    }

    /// The mark that Salt does not cache the returns of a job.
    pub(super) fn nocache(jid: impl Into<String>) -> Self {
        Self::new(Kind::NoCache, jid, vec![0xc3])
    }

    pub(super) fn endtime(jid: impl Into<String>, endtime: &str) -> Self {
        let mut w = Writer::new();
        w.str(endtime);
        Self::new(Kind::Endtime, jid, w.into_bytes())
    }

    pub(super) fn bytes(&self) -> usize {
        self.tag.len() + self.body.len() + self.minions.len()
    }

    /// The call that stores it, and its arguments as msgpack; `None` for events, which are sent in
    /// batches.
    pub(super) fn call(&self, at: i64, master: &str) -> Result<Option<PackedCall>, EncodeError> {
        let origin = origin(Some(at), master);
        let jid = || Id(self.jid.clone());
        // Empty means unknown, which a call expresses by leaving the key out.
        let minions = Some(PackedArray(&self.minions)).filter(|_| !self.minions.is_empty());

        match self.kind {
            Kind::Load => packed::<SaveLoad>(&SaveLoadArgs {
                jid: jid(),
                load: PackedMap(&self.body),
                minions,
                origin,
                ..SaveLoadArgs::default()
            }),
            Kind::Minions => {
                let syndic = Some(encode(&self.id)?).filter(|_| !self.id.is_empty());
                packed::<SaveMinions>(&SaveMinionsArgs {
                    jid: jid(),
                    minions: minions.unwrap_or_default(),
                    syndic_id: syndic.as_deref().map(Packed),
                    origin,
                    ..SaveMinionsArgs::default()
                })
            }
            // The id and the jid of a return are in its body.
            Kind::Return => packed::<Returner>(&ReturnerArgs {
                load: PackedMap(&self.body),
                origin,
                ..ReturnerArgs::default()
            }),
            Kind::Endtime => packed::<UpdateEndtime>(&EndtimeArgs {
                jid: jid(),
                endtime: Id(as_text(&self.body).unwrap_or_default().to_owned()),
                origin,
                ..EndtimeArgs::default()
            }),
            // Salt says so in the call that reserves the job's id, and no other call carries it.
            Kind::NoCache => packed::<PrepJid>(&PrepJidArgs {
                passed_jid: Some(jid()),
                nocache: true,
                origin,
                ..PrepJidArgs::default()
            }),
            Kind::Register => packed::<SaveReg>(&SaveRegArgs {
                data: Some(Packed(&self.body)),
                origin,
                ..SaveRegArgs::default()
            }),
            _ => return Ok(None),
        }
        .map(Some)
    }
}

/// The name of a call and its arguments as msgpack.
pub(super) type PackedCall = (&'static str, Vec<u8>);

pub(super) fn packed<C: Call>(args: &C::Args<'_>) -> Result<PackedCall, EncodeError> {
    Ok((C::NAME, encode(args)?))
}

/// The origin of what is imported. Marked as a replay, which makes the daemon look for it.
pub(super) fn origin(at: Option<i64>, master: &str) -> Origin {
    Origin {
        at: at.map(|at| Time(Micros(at))),
        replay: true,
        import: true,
        master: Some(master.to_owned()).filter(|master| !master.is_empty()),
        mirrored: false,
    }
}
