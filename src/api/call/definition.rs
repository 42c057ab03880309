//! What a call is: a type with its name, its arguments, its answer and what it does. The socket,
//! HTTP, the OpenAPI document and the command line follow from it.

use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Caller, Ctx, ReadCtx, checked, document};
use crate::base::limits::ARGS_BYTES_MAX;
use crate::model::{Limit, Right};
use crate::wire::call::{Args, CallError, bad_argument};

/// A call. The doc comments of the fields of [`Args`](Call::Args) and [`Answer`](Call::Answer) are
/// the documentation of its parameters and of its answer.
pub(crate) trait Call: 'static {
    /// The name on the wire.
    const NAME: &'static str;
    /// A one-line description, in the imperative.
    const DOC: &'static str;
    /// The right that a caller needs.
    const RIGHT: Right = Right::Read;
    /// The limits of callers that it applies; a caller with another limit is rejected. Only a call
    /// of the scope [`Limited`] can apply any.
    const APPLIES: &'static [Limit] = &[];

    /// What it may reach.
    type Scope: Scope;
    /// A struct. Null counts as absent, and unknown fields are ignored.
    type Args<'a>: Deserialize<'a> + JsonSchema;
    /// Without stored values that are not msgpack.
    type Answer: Serialize + JsonSchema;
}

/// A call that answers at once.
pub(crate) trait Run: Call {
    /// Carries it out. It does not wait: not for the disk, and not for other processes.
    fn run(ctx: &In<'_, Self>, args: Self::Args<'_>) -> Result<Self::Answer, CallError>;
}

/// The context of a call.
pub(crate) type In<'a, C> = <<C as Call>::Scope as Scope>::Ctx<'a>;

/// The arguments of a call that has none.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct NoArgs {}

/// What a call may reach, and whether it may end when nobody waits for its answer any more.
pub(crate) trait Scope {
    type Ctx<'a>;
    /// It changes nothing.
    const ONLY_READS: bool;
    /// The limits of the caller hide what lies outside of them.
    const IS_LIMITED: bool;

    fn enter<'a>(ctx: &'a Ctx, caller: &'a Caller) -> Self::Ctx<'a>;
}

/// Reads what the caller may know of the stored data, and nothing else.
pub(crate) struct Limited;

/// Reads anything; not for limited callers.
pub(crate) struct Whole;

/// Changes something on behalf of its caller; not for limited callers.
pub(crate) struct Changing;

/// The context of a call that changes something.
pub(crate) struct ChangeCtx<'a> {
    pub(crate) ctx: &'a Ctx,
    pub(crate) caller: &'a Caller,
}

impl Scope for Limited {
    type Ctx<'a> = ReadCtx<'a>;
    const ONLY_READS: bool = true;
    const IS_LIMITED: bool = true;

    fn enter<'a>(ctx: &'a Ctx, caller: &'a Caller) -> ReadCtx<'a> {
        ReadCtx::of(ctx, &caller.limits)
    }
}

impl Scope for Whole {
    type Ctx<'a> = &'a Ctx;
    const ONLY_READS: bool = true;
    const IS_LIMITED: bool = false;

    fn enter<'a>(ctx: &'a Ctx, _: &'a Caller) -> &'a Ctx {
        ctx
    }
}

impl Scope for Changing {
    type Ctx<'a> = ChangeCtx<'a>;
    const ONLY_READS: bool = false;
    const IS_LIMITED: bool = false;

    fn enter<'a>(ctx: &'a Ctx, caller: &'a Caller) -> ChangeCtx<'a> {
        ChangeCtx { ctx, caller }
    }
}

/// A call whose types are erased, for tables.
#[derive(Clone, Copy)]
pub(crate) struct Erased {
    pub(in crate::api) only_reads: bool,
    /// The answer in msgpack, to arguments in msgpack.
    pub(in crate::api) msgpack: fn(&Ctx, &Caller, &Args<'_>) -> Result<Vec<u8>, CallError>,
    /// The answer as JSON text, to arguments in JSON.
    pub(in crate::api) text: fn(&Ctx, &Caller, Json) -> Result<Vec<u8>, CallError>,
    /// The answer in JSON, to arguments in JSON.
    pub(in crate::api) json: fn(&Ctx, &Caller, Json) -> Result<Json, CallError>,
}

impl Erased {
    pub(super) const fn of<C: Run>() -> Self {
        // When it is compiled: a call that reads through no view cannot apply a limit.
        assert!(C::APPLIES.is_empty() != C::Scope::IS_LIMITED);
        Self {
            only_reads: C::Scope::ONLY_READS,
            msgpack: Forms::<C>::msgpack,
            text: Forms::<C>::text,
            json: Forms::<C>::json,
        }
    }
}

/// The forms in which a call is made.
struct Forms<C>(PhantomData<C>);

impl<C: Run> Forms<C> {
    fn answer(ctx: &Ctx, caller: &Caller, args: C::Args<'_>) -> Result<C::Answer, CallError> {
        C::run(&C::Scope::enter(ctx, caller), args)
    }

    fn msgpack(ctx: &Ctx, caller: &Caller, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
        checked(document(&Self::answer(ctx, caller, typed(args)?)?)?)
    }

    fn text(ctx: &Ctx, caller: &Caller, args: Json) -> Result<Vec<u8>, CallError> {
        serde_json::to_vec(&Self::answer(ctx, caller, from_json(args)?)?)
            .map_err(|error| no_json::<C>(&error))
    }

    fn json(ctx: &Ctx, caller: &Caller, args: Json) -> Result<Json, CallError> {
        serde_json::to_value(&Self::answer(ctx, caller, from_json(args)?)?)
            .map_err(|error| no_json::<C>(&error))
    }
}

/// A stored value has no form in JSON: only damaged data, or a bug.
fn no_json<C: Call>(error: &serde_json::Error) -> CallError {
    tracing::error!(call = C::NAME, %error, "answer has no form in JSON");
    CallError::Internal(format!("the answer has no form in JSON: {error}"))
}

/// Reads arguments in JSON; null counts as absent.
fn from_json<'a, T: Deserialize<'a>>(mut args: Json) -> Result<T, CallError> {
    if let Some(fields) = args.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    serde_path_to_error::deserialize(args).map_err(bad_argument)
}

/// Reads the arguments of a call into a struct; nil counts as absent, and unknown keys are ignored.
pub(in crate::api) fn typed<'a, T: Deserialize<'a>>(args: &Args<'a>) -> Result<T, CallError> {
    // Lists and filters take several times the bytes of their msgpack, so the limit is below that
    // of a frame.
    let len = args.map().len();
    if len > ARGS_BYTES_MAX {
        return Err(CallError::TooLarge {
            len,
            max: ARGS_BYTES_MAX,
        });
    }

    args.read()
}
