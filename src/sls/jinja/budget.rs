//! What one rendering may cost: steps, bytes, depth. Counted per thread, for a rendering never leaves its thread.

use std::cell::Cell;

use super::exc::{Res, limit_error};
use crate::limits;

/// The bounds of one rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Steps of evaluation.
    pub steps: u64,
    /// Bytes of all values made.
    pub bytes: u64,
}

impl RenderLimits {
    const DEFAULT: Self = Self { steps: limits::JINJA_STEPS_MAX, bytes: limits::JINJA_BYTES_MAX };
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

thread_local! {
    static LIMITS: Cell<RenderLimits> = const { Cell::new(RenderLimits::DEFAULT) };
    static STEPS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A rendering begins.
pub(crate) fn begin(limits: RenderLimits) {
    LIMITS.set(limits);
    STEPS.set(0);
    BYTES.set(0);
    DEPTH.set(0);
}

/// One step of evaluation.
pub(crate) fn step() -> Res<()> {
    steps(1)
}

/// Work that is worth `n` steps.
pub(crate) fn steps(n: u64) -> Res<()> {
    let spent = STEPS.get().saturating_add(n);
    STEPS.set(spent);
    let limits = LIMITS.get();
    if spent > limits.steps {
        return Err(limit_error(format!("the template takes more than {} steps", limits.steps)));
    }
    if BYTES.get() > limits.bytes {
        return Err(too_many_bytes());
    }
    Ok(())
}

/// Work that is worth `n` steps and is done already; the next step notices if that was too many.
pub(crate) fn spend(n: usize) {
    STEPS.set(STEPS.get().saturating_add(n as u64));
}

/// Whether the next step fails. What is found out until then no longer matters.
pub(crate) fn is_spent() -> bool {
    let limits = LIMITS.get();
    STEPS.get() >= limits.steps || BYTES.get() > limits.bytes
}

/// Steps so far, of the rendering that began last on this thread.
#[cfg(test)]
pub(crate) fn spent() -> u64 {
    STEPS.get()
}

/// Bytes that something has taken; the next step notices if they were too many.
pub(crate) fn took(bytes: usize) {
    BYTES.set(BYTES.get().saturating_add(bytes as u64));
}

/// Whether there is room for something that is about to grow, before it does.
pub(crate) fn room(bytes: usize) -> Res<()> {
    if BYTES.get().saturating_add(bytes as u64) > LIMITS.get().bytes { Err(too_many_bytes()) } else { Ok(()) }
}

fn too_many_bytes() -> super::exc::Exc {
    limit_error(format!("the template's values take more than {} bytes", LIMITS.get().bytes))
}

/// A level of nesting, until it is dropped.
pub(crate) struct Level(());

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

/// One level deeper: in a call, an expression, a value.
pub(crate) fn deeper() -> Res<Level> {
    let depth = DEPTH.get() + 1;
    if depth > limits::JINJA_DEPTH_MAX {
        return Err(limit_error(format!("the template nests more than {} levels", limits::JINJA_DEPTH_MAX)));
    }
    DEPTH.set(depth);
    Ok(Level(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sls::jinja::{
        Ambient, Context, Data, Engine, EngineOptions, NoFiles, NoFunctions, RenderErrorKind, Source,
    };

    /// Steps that a template takes, and the bytes; none if it is given up.
    fn cost(text: &str) -> Option<(u64, u64)> {
        let data = Data::from_msgpack(b"\x80").unwrap();
        let ambient = Ambient::default();
        let context = Context::new("a", &data, &ambient, &NoFiles, &NoFunctions);
        let engine = Engine::new(EngineOptions::default());
        match engine.render(&Source { path: "x.sls", text }, &context) {
            Ok(_) => Some((spent(), BYTES.get())),
            Err(error) => {
                assert_eq!(error.kind, RenderErrorKind::Limit, "{text}: {error}");
                None
            }
        }
    }

    #[test]
    fn what_reads_a_large_value_was_as_cheap_as_what_reads_a_small_one() {
        const LIST: &str = "{% set v = range(16000)|list %}";
        const TEXT: &str = "{% set v = 'x' * 1280000 %}";
        // Nested 13 deep, each tuple twice in the next one: some 8,000 members to walk.
        const NESTED: &str = "{% set ns = namespace(v=(1, 2)) %}{% for i in range(12) %}{% set ns.v = (ns.v, ns.v) %}{% endfor %}\
                              {% set v = ns.v %}";
        for (given, reads, least) in [
            (LIST, "v|last", 1000),
            (LIST, "v|traverse('a:b')", 1000),
            (LIST, "v|avg", 1000),
            (TEXT, "v|md5", 10000),
            (TEXT, "v|wordcount", 10000),
            (TEXT, "v is upper", 10000),
            (TEXT, "v == 'y'", 10000),
            (NESTED, "{v: 1}", 8000),
            (NESTED, "(v,)|unique|list", 8000),
            (NESTED, "v|pprint", 8000),
            (NESTED, "v|json_encode_list", 8000),
        ] {
            let (before, _) = cost(given).unwrap();
            let (after, _) = cost(&format!("{given}{{% set x = {reads} %}}")).unwrap();
            assert!(
                after - before >= least,
                "{reads} takes {} steps, which are to be {least}",
                after - before
            );
        }
        let (_, bytes) = cost(&format!("{LIST}{{% set x = v|pprint %}}")).unwrap();
        assert!(bytes > 100_000, "a line is charged before it is thrown away: {bytes}");
    }
}
