//! What a call is: a type with its name, its arguments, its response and what it does. The socket,
//! HTTP, the OpenAPI document and the tables of WIRE.md follow from it.

use std::any::Any;
use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::changing::ChangeCtx;
use super::parts::{Ctx, Part};
use super::poll::Poll;
use super::read_ctx::ReadCtx;
use super::reading::ReadPart;
use crate::api::caller::Caller;
use crate::base::limits::{ARGS_BYTES_MAX, WIRE_FRAME_BYTES_MAX};
use crate::model::{FrameBatch, Limit, Right};
use crate::wire::call::{Args, CallError, bad_argument};
use crate::wire::msgpack::{Stored, encode};
use crate::wire::salt_codec::repaired;

/// A call. The doc comments of the fields of [`Args`](Call::Args) and [`Answer`](Call::Answer) are
/// the documentation of its parameters and of its response.
pub(crate) trait Call: 'static {
    /// The name on the wire.
    const NAME: &'static str;
    /// A one-line description, in the imperative.
    const DOC: &'static str;
    /// The right that a caller needs.
    const RIGHT: Right = Right::Read;
    /// The arguments with which it needs the right `admin`.
    const RAISED: Raised = Raised::Never;
    /// The limits of callers that it applies; a caller with another limit is rejected. Only a call
    /// of the scope [`Limited`] can apply any.
    const APPLIES: &'static [Limit] = &[];

    /// Bytes of its arguments in msgpack. Lists and filters take several times as many in memory,
    /// so this is below the limit of a frame, but for a stored body.
    const ARGS_BYTES_MAX: usize = ARGS_BYTES_MAX;

    /// The call walks its last argument, an array, and rejects one that does not end with the arguments: whoever reads the
    /// arguments need not walk it before.
    const WALKS_LAST_ARGUMENT: bool = false;

    /// What it may reach.
    type Scope: Scope;
    /// A struct. Null counts as absent, and unknown fields are ignored.
    type Args<'a>: Serialize + Deserialize<'a> + JsonSchema + Send;
    /// Without stored values that are not msgpack.
    type Answer: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
}

/// The arguments with which a call needs the right `admin`, whatever its right is. They alone are
/// read before the right is checked: what else is wrong with a call is nothing to a caller that may
/// not make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raised {
    /// None.
    Never,
    /// `import`, if it is set.
    ByImport,
    /// `name`, if it names the consumer of a sink.
    ByConsumer,
}

impl Raised {
    /// For what the arguments need the right `admin`, if they do.
    fn purpose(self, ctx: &Ctx, args: &Unread<'_, '_>) -> Result<Option<&'static str>, CallError> {
        // Only the field that decides is read here. The call itself reads all of its arguments.
        #[derive(Deserialize)]
        struct Import {
            #[serde(default)]
            import: bool,
        }
        #[derive(Deserialize)]
        struct Named {
            name: Option<String>,
        }

        Ok(match self {
            Self::Never => None,
            Self::ByImport => {
                let Import { import } = args.read()?;
                import.then_some(" for an import")
            }
            Self::ByConsumer => {
                let Named { name } = args.read()?;
                let is_of_sink = name.is_some_and(|name| of_sink(ctx, &name));
                is_of_sink.then_some(" for the consumer of a sink")
            }
        })
    }
}

/// Whether a consumer belongs, or belonged, to a sink: the sink's position, filter and switch.
fn of_sink(ctx: &Ctx, name: &str) -> bool {
    // A sink may be new and have no consumer yet, or be removed and have left one.
    ctx.engines.has(name) || ctx.archive.store.consumers().is_of_sink(name)
}

/// Arguments in one of the two forms.
enum Unread<'r, 'a> {
    Packed(&'r Args<'a>),
    Json(&'r Json),
}

impl Unread<'_, '_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        match self {
            Self::Packed(args) => args.read(),
            Self::Json(args) => serde_path_to_error::deserialize(*args).map_err(bad_argument),
        }
    }
}

/// A call that returns immediately.
pub(crate) trait Run: Call {
    /// Carries it out. It does not wait: not for the disk, and not for other processes.
    fn run(ctx: &In<'_, Self>, args: Self::Args<'_>) -> Result<Self::Answer, CallError>;
}

/// A call that returns when there is something new, or after a time.
pub(crate) trait Wait: Call {
    /// Reads what it needs to wait.
    fn start(ctx: &In<'_, Self>, args: Self::Args<'_>) -> Result<Poll<Self::Answer>, CallError>;
}

/// A call that stores entries. Its [`Call::ARGS_BYTES_MAX`] is the maximum of a frame, because
/// entries have a separate limit, and entries beyond it are counted.
pub(crate) trait Save: Call {
    /// Adds entries to a batch. The response is sent once they are durable.
    fn save(
        ctx: &In<'_, Self>,
        args: Self::Args<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<Self::Answer, CallError>;
}

/// The context of a call.
pub(crate) type In<'a, C> = <<C as Call>::Scope as Scope>::Ctx<'a>;

/// The arguments of a call that has none.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NoArgs {}

/// What a call may reach, and whether it may end when nobody waits for its response any more.
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

/// Reads anything of a part; not for limited callers. Its context is [`ReadPart::Reading`], which has
/// no method that changes the store, the reactor, a sink or a token, and [`Poll::changing`] needs the
/// context of a [`Changing`] call. What is only in memory, such as counters and the state of
/// listeners, is not covered.
pub(crate) struct Whole<P>(PhantomData<P>);

/// Changes a part on behalf of its caller; not for limited callers.
pub(crate) struct Changing<P>(PhantomData<P>);

impl Scope for Limited {
    type Ctx<'a> = ReadCtx<'a>;
    const ONLY_READS: bool = true;
    const IS_LIMITED: bool = true;

    fn enter<'a>(ctx: &'a Ctx, caller: &'a Caller) -> ReadCtx<'a> {
        ReadCtx::of(&ctx.archive, &caller.limits)
    }
}

impl<P: ReadPart> Scope for Whole<P> {
    type Ctx<'a> = P::Reading<'a>;
    const ONLY_READS: bool = true;
    const IS_LIMITED: bool = false;

    fn enter<'a>(ctx: &'a Ctx, _: &'a Caller) -> P::Reading<'a> {
        P::of(ctx).reading()
    }
}

impl<P: Part> Scope for Changing<P> {
    type Ctx<'a> = ChangeCtx<'a, P>;
    const ONLY_READS: bool = false;
    const IS_LIMITED: bool = false;

    fn enter<'a>(ctx: &'a Ctx, caller: &'a Caller) -> ChangeCtx<'a, P> {
        ChangeCtx::new(P::of(ctx), caller)
    }
}

/// A call in the table of all calls.
pub struct CallEntry {
    /// The name on the wire.
    pub name: &'static str,
    /// A one-line description, in the imperative.
    pub doc: &'static str,
    /// The right that a caller needs.
    pub right: Right,
    /// The arguments with which it needs the right `admin`; for the test of this table.
    #[cfg(test)]
    pub(in crate::api) raised: Raised,
    /// The limits of callers that it applies; a caller with another limit is rejected.
    pub applies: &'static [Limit],
    /// The call changes nothing and may end when nobody waits for its response. A call of another
    /// kind is carried out in any case.
    pub(in crate::api) only_reads: bool,
    /// [`Call::WALKS_LAST_ARGUMENT`]
    pub(in crate::api) walks_last_argument: bool,
    /// The schemas of its arguments and of its response.
    pub(in crate::api) args: fn(&mut SchemaGenerator) -> Schema,
    pub(in crate::api) answer: fn(&mut SchemaGenerator) -> Schema,
    pub(in crate::api) run: CallHandler,
}

/// How a call is made whose types are erased.
pub(crate) enum CallHandler {
    Run(RunForms),
    Wait(WaitForms),
    Save(SaveCall),
}

/// Makes a call with arguments in msgpack.
type WithPacked<T> = fn(&Ctx, &Caller, &Args<'_>) -> Result<T, CallError>;

/// Makes a call with arguments in JSON.
type WithJson<T> = fn(&Ctx, &Caller, Json) -> Result<T, CallError>;

/// The forms of a call that returns immediately.
#[derive(Clone, Copy)]
pub(crate) struct RunForms {
    /// The response in msgpack.
    pub(in crate::api) msgpack: WithPacked<Vec<u8>>,
    /// The response as JSON text.
    pub(in crate::api) text: WithJson<Vec<u8>>,
}

/// The forms of a call that waits, like the forms in [`RunForms`].
#[derive(Clone, Copy)]
pub(crate) struct WaitForms {
    pub(in crate::api) msgpack: WithPacked<Poll<Vec<u8>>>,
    pub(in crate::api) text: WithJson<Poll<Vec<u8>>>,
}

/// Adds the entries of a call to a batch, and returns its response in msgpack.
pub(crate) type SaveCall =
    fn(&Ctx, &Caller, &Args<'_>, &mut FrameBatch<'_>) -> Result<Vec<u8>, CallError>;

impl CallEntry {
    /// The entry of a call that returns immediately.
    pub(in crate::api) const fn runs<C: Run>() -> Self {
        Self::of::<C>(CallHandler::Run(RunForms {
            msgpack: Forms::<C>::run_msgpack,
            text: Forms::<C>::run_text,
        }))
    }

    /// The entry of a call that waits.
    pub(in crate::api) const fn waits<C: Wait>() -> Self {
        Self::of::<C>(CallHandler::Wait(WaitForms {
            msgpack: Forms::<C>::wait_msgpack,
            text: Forms::<C>::wait_text,
        }))
    }

    /// The entry of a call that stores entries.
    pub(super) const fn saves<C: Save>() -> Self {
        // When it is compiled: another limit would refuse entries that the store takes.
        assert!(C::ARGS_BYTES_MAX == WIRE_FRAME_BYTES_MAX);
        Self::of::<C>(CallHandler::Save(Forms::<C>::save))
    }

    const fn of<C: Call>(run: CallHandler) -> Self {
        // When it is compiled: a call that reads through no view cannot apply a limit.
        assert!(C::APPLIES.is_empty() != C::Scope::IS_LIMITED);
        Self {
            name: C::NAME,
            doc: C::DOC,
            right: C::RIGHT,
            #[cfg(test)]
            raised: C::RAISED,
            applies: C::APPLIES,
            only_reads: C::Scope::ONLY_READS,
            walks_last_argument: C::WALKS_LAST_ARGUMENT,
            args: SchemaGenerator::subschema_for::<C::Args<'static>>,
            answer: SchemaGenerator::subschema_for::<C::Answer>,
            run,
        }
    }
}

struct Forms<C>(PhantomData<C>);

impl<C: Call> Forms<C> {
    /// Reads arguments in msgpack, after the check that the caller may make the call with them.
    fn packed<'a>(ctx: &Ctx, caller: &Caller, args: &Args<'a>) -> Result<C::Args<'a>, CallError> {
        Self::check(ctx, caller, &Unread::Packed(args))?;
        let len = args.map().len();
        let max = C::ARGS_BYTES_MAX;
        if len > max {
            return Err(CallError::TooLarge { len, max });
        }
        args.read()
    }

    /// As [`Self::packed`], of arguments in JSON; null counts as absent.
    fn unpacked<'a>(ctx: &Ctx, caller: &Caller, mut args: Json) -> Result<C::Args<'a>, CallError> {
        without_nulls(&mut args);
        Self::check(ctx, caller, &Unread::Json(&args))?;
        from_json(args)
    }

    fn check(ctx: &Ctx, caller: &Caller, args: &Unread<'_, '_>) -> Result<(), CallError> {
        let Some(purpose) = C::RAISED.purpose(ctx, args)? else {
            return Ok(());
        };
        ctx.rights
            .check_right((C::NAME, purpose), Right::Admin, caller)
    }

    fn in_msgpack(answer: C::Answer) -> Result<Vec<u8>, CallError> {
        checked(Self::encoded(answer)?)
    }

    fn encoded(mut answer: C::Answer) -> Result<Vec<u8>, CallError> {
        // Without a copy: it can be long.
        if let Some(stored) = (&mut answer as &mut dyn Any).downcast_mut::<Stored>() {
            return Ok(std::mem::take(stored).into_packed());
        }
        Ok(encode(&answer)?)
    }

    /// The response as JSON text. Only damaged data, or a bug, has no form in JSON.
    #[expect(clippy::needless_pass_by_value, reason = "as `in_msgpack`, for `map`")]
    fn in_text(answer: C::Answer) -> Result<Vec<u8>, CallError> {
        serde_json::to_vec(&answer).map_err(|error| Self::no_json(&error))
    }

    fn no_json(error: &serde_json::Error) -> CallError {
        tracing::error!(call = C::NAME, %error, "response cannot be written as JSON, the call fails: report this message");
        CallError::Internal(format!(
            "the response cannot be written as JSON, the call fails: report this message: {error}"
        ))
    }
}

impl<C: Run> Forms<C> {
    fn run_msgpack(ctx: &Ctx, caller: &Caller, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
        let args = Self::packed(ctx, caller, args)?;
        Self::in_msgpack(C::run(&C::Scope::enter(ctx, caller), args)?)
    }

    fn run_text(ctx: &Ctx, caller: &Caller, args: Json) -> Result<Vec<u8>, CallError> {
        let args = Self::unpacked(ctx, caller, args)?;
        Self::in_text(C::run(&C::Scope::enter(ctx, caller), args)?)
    }
}

impl<C: Wait> Forms<C> {
    fn wait_msgpack(
        ctx: &Ctx,
        caller: &Caller,
        args: &Args<'_>,
    ) -> Result<Poll<Vec<u8>>, CallError> {
        let args = Self::packed(ctx, caller, args)?;
        Ok(C::start(&C::Scope::enter(ctx, caller), args)?.map(Self::in_msgpack))
    }

    fn wait_text(ctx: &Ctx, caller: &Caller, args: Json) -> Result<Poll<Vec<u8>>, CallError> {
        let args = Self::unpacked(ctx, caller, args)?;
        Ok(C::start(&C::Scope::enter(ctx, caller), args)?.map(Self::in_text))
    }
}

impl<C: Save> Forms<C> {
    fn save(
        ctx: &Ctx,
        caller: &Caller,
        args: &Args<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<Vec<u8>, CallError> {
        let args = Self::packed(ctx, caller, args)?;
        // The response contains no stored value, so there is nothing to check.
        Self::encoded(C::save(&C::Scope::enter(ctx, caller), args, to)?)
    }
}

/// Makes a call whose types the caller knows. Nothing is converted.
pub(in crate::api) fn answer<C: Run>(
    ctx: &Ctx,
    caller: &Caller,
    args: C::Args<'_>,
) -> Result<C::Answer, CallError> {
    // When it is compiled: its arguments would have to be looked at for the right that they need.
    const { assert!(matches!(C::RAISED, Raised::Never)) };
    C::run(&C::Scope::enter(ctx, caller), args)
}

/// Reads arguments in JSON; null counts as absent.
pub(in crate::api) fn from_json<'a, T: Deserialize<'a>>(mut args: Json) -> Result<T, CallError> {
    without_nulls(&mut args);
    serde_path_to_error::deserialize(args).map_err(bad_argument)
}

fn without_nulls(args: &mut Json) {
    if let Some(fields) = args.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
}

/// Replaces values that Salt's codec cannot read: one of them would make the whole response
/// unreadable.
fn checked(answer: Vec<u8>) -> Result<Vec<u8>, CallError> {
    match repaired(&answer) {
        Ok(Cow::Borrowed(_)) => Ok(answer),
        Ok(Cow::Owned(repaired)) => Ok(repaired),
        // A stored value that is not msgpack has no end, so nothing behind it can be repaired
        // either.
        Err(error) => {
            tracing::error!(%error, "response contains a stored value that is not msgpack, the call fails: report this message");
            Err(CallError::Internal(format!(
                "the response contains a stored value that is not msgpack, the call fails: report this message: {error}"
            )))
        }
    }
}
