//! `event_send`: fires an event onto Salt's bus.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Caller, Changing, In, Run};
use crate::base::limits::WIRE_FRAME_BYTES_MAX;
use crate::bus::fire::{FireError, TAG_EXPECTED, Target};
use crate::bus::firing::{FiredEvent, Firing};
use crate::model::Right;
use crate::wire::call::CallError;
use crate::wire::frame::Framing;
use crate::wire::msgpack::PackedMap;
use crate::wire::salt_codec::check_whole;

answers! {
    /// An event that was fired.
    Fired {
        tag: String,
        #[serde(rename = "_stamp")]
        stamp: String,
        socket: String,
        framing: Framing,
    }
}

impl Fired {
    pub(in crate::api) fn of(tag: String, event: FiredEvent) -> Self {
        Self {
            tag,
            stamp: event.stamp,
            socket: event.socket.to_string_lossy().into_owned(),
            framing: event.framing,
        }
    }
}

impl From<FireError> for CallError {
    fn from(error: FireError) -> Self {
        match error {
            FireError::Unreachable { .. } | FireError::Hung { .. } => {
                CallError::Unavailable(error.to_string())
            }
            FireError::BadTag => CallError::BadArgs {
                key: "tag",
                expected: TAG_EXPECTED,
            },
            FireError::TooLarge { len, max } => CallError::TooLarge { len, max },
            _ => CallError::Refused(error.to_string()),
        }
    }
}

/// `event_send`.
pub(crate) struct Send;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SendArgs<'a> {
    /// 1 to 1024 bytes without control characters
    pub(crate) tag: String,
    /// The event's data, a map as in all events of Salt; by default empty
    #[serde(borrow)]
    pub(crate) data: Option<PackedMap<'a>>,
    /// A configured bus, by its directory; needed if there are several
    pub(crate) bus: Option<String>,
}

impl Call for Send {
    const NAME: &'static str = "event_send";
    const DOC: &'static str = "Fire an event onto Salt's bus";
    const RIGHT: Right = Right::Admin;
    /// The data is checked against its own limit.
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Firing>;
    type Args<'a> = SendArgs<'a>;
    type Answer = Fired;
}

impl Run for Send {
    fn run(ctx: &In<'_, Self>, args: SendArgs<'_>) -> Result<Fired, CallError> {
        let data = args.data.map_or(&[0x80][..], |PackedMap(data)| data);
        if let Err(why) = check_whole(data) {
            // Every reader of the bus loads the data with that codec.
            return Err(CallError::Refused(format!(
                "Salt's codec cannot read the data: {why}"
            )));
        }

        let bus = args.bus.as_deref();
        let event = ctx.fire(bus, &args.tag, data, |target| {
            check_caller(target, ctx.caller)
        })?;
        Ok(Fired::of(args.tag, event))
    }
}

/// Rejects callers that Salt would not let fire: all but root and the owner of the socket.
fn check_caller(target: &Target, caller: &Caller) -> Result<(), FireError> {
    if caller
        .uid
        .is_some_and(|uid| uid == 0 || uid == target.owner)
    {
        return Ok(());
    }
    let owner = format!("root and the master's user (uid {})", target.owner);
    Err(FireError::NotAllowed {
        who: "the caller",
        path: target.path.clone(),
        owner,
    })
}
