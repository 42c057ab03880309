//! The outcome of a run: the one place that decides whether it failed, its exit code, and whether it shows a minion's state.
//!
//! These forms occur:
//!
//! - the return of a minion: `return`, `retcode` and `success` are in its map;
//! - the return of several functions: `fun` is a list; `return`, `retcode` and `success` are maps by function, or lists in the
//!   order of the functions (`multifunc_ordered`, `_thread_multi_return` in `salt/minion.py`);
//! - the result of a runner or a wheel, whose `id` is `<master>_master`: `return` is the whole end event, which contains
//!   the value, `success` and `fun_args`. The value may contain a retcode (orchestrations);
//! - the end event itself, as on the bus.
//!
//! # Rules
//!
//! A run failed if, for any of its functions, `success` is false, or the retcode is not zero, or there is no retcode and one of
//! its states failed. The exit code is the first one that is not zero. A failure without such a code has Salt's general
//! one ([`EX_GENERIC`]): so the code alone says whether a run failed, and it is what the store's column contains.

mod part;
pub mod states;

pub use self::part::Part;
use self::states::{StateRow, runs_states};
use std::collections::{HashMap, HashSet};

use super::msgpack::{self, Head, Reader, as_bool, as_int, as_text, is_nil};
use saltcellar_base::limits::{RETURN_FUNCTIONS_MAX, RETURN_STATES_MAX};
use saltcellar_model::Flags;

/// Salt's general failure (`salt/defaults/exitcodes.py`).
pub const EX_GENERIC: i64 = 1;

/// The functions whose whole run is a highstate.
const HIGHSTATES: [&str; 2] = ["state.apply", "state.highstate"];

/// The fields of a run's result. Values are msgpack as received.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome<'a> {
    /// The function's result.
    pub value: Option<&'a [u8]>,
    /// `retcode`: an integer, or one for each function.
    pub retcode: Option<&'a [u8]>,
    /// `success`: a bool, or one for each function.
    pub success: Option<&'a [u8]>,
    /// `fun`: text, or a list.
    pub fun: Option<&'a [u8]>,
    /// `fun_args`: the arguments.
    pub fun_args: Option<&'a [u8]>,
    /// The requested outputter.
    pub out: Option<&'a [u8]>,
    /// It is the result of a runner or wheel.
    pub of_master: bool,
}

impl<'a> Outcome<'a> {
    /// Parses the map of a return, or of the end event of a runner or wheel.
    pub fn of(body: &'a [u8], jid: &str) -> Self {
        Self::read(body).resolved(jid)
    }

    /// With the fields of the end event in `return`, if this is the result of a runner or wheel.
    #[must_use]
    pub fn resolved(self, jid: &str) -> Self {
        let seen = self;
        // Most are not: the value of a minion's return, which can be long, is not read.
        if !seen.fun.and_then(as_text).is_some_and(is_of_master) {
            return seen;
        }

        let Some(end) = seen.value.filter(|value| is_end_of(value, jid)) else {
            // Not wrapped: this is the end event itself.
            return seen.with_fields_of_value();
        };

        let inner = Self::read(end).with_fields_of_value();

        // The end event is closer to the function, so what is around it only fills gaps.
        Self {
            retcode: inner.retcode.or(seen.retcode),
            out: inner.out.or(seen.out),
            fun: inner.fun.or(seen.fun),
            of_master: true,
            ..inner
        }
    }

    fn read(map: &'a [u8]) -> Self {
        let mut seen = Self::default();

        for (key, value) in msgpack::pairs(map) {
            match as_text(key) {
                Some("return") => seen.value = Some(value),
                Some("retcode") => seen.retcode = Some(value),
                Some("success") => seen.success = Some(value),
                Some("fun") => seen.fun = Some(value),
                Some("fun_args") => seen.fun_args = Some(value),
                Some("out") => seen.out = Some(value),
                _ => {}
            }
        }

        seen
    }

    /// With the retcode and the outputter that an orchestration has in its value.
    fn with_fields_of_value(mut self) -> Self {
        self.of_master = true;
        let in_value = |key| self.value.and_then(|value| msgpack::get(value, key));
        let code = in_value("retcode").filter(|code| as_int(code).is_some());
        self.retcode = self.retcode.or(code);
        self.out = self.out.or_else(|| in_value("outputter"));
        self
    }

    /// The functions with their values: one, unless the job has several.
    pub fn parts(&self) -> Vec<Part<'a>> {
        let funs = self.fun.unwrap_or_default();
        if as_text(funs).is_some() || !matches!(Reader::new(funs).head(), Ok(Head::Array(_))) {
            // One function, or none that is known.
            return vec![Part {
                fun: as_text(funs).unwrap_or_default(),
                value: self.value,
                retcode: self.retcode,
            }];
        }

        let funs: Vec<&str> = msgpack::elements(funs)
            .take(RETURN_FUNCTIONS_MAX)
            .map(|fun| as_text(fun).unwrap_or_default())
            .collect();
        let values = of_functions(self.value, &funs);
        let retcodes = of_functions(self.retcode, &funs);
        let part = |((fun, value), retcode)| Part {
            fun,
            value,
            retcode,
        };
        let parts = funs.iter().copied().zip(values).zip(retcodes);
        parts.map(part).collect()
    }

    /// Passes the states of the run on a minion to `take`, in no order.
    pub fn each_state(&self, minion: &'a str, mut take: impl FnMut(StateRow<'a>)) {
        let mut left = RETURN_STATES_MAX;
        for part in self.parts() {
            states::each_of_part(&part, minion, self.of_master, &mut |row| {
                // A minion can return millions of them, each of a few bytes.
                if left > 0 {
                    left -= 1;
                    take(row);
                }
            });
        }
    }

    /// The states of the run on a minion, in the order in which they ran.
    pub fn states(&self, minion: &'a str) -> Vec<StateRow<'a>> {
        let mut rows = Vec::new();
        self.each_state(minion, |row| rows.push(row));

        // Those without a number are at the end.
        rows.sort_by_key(|row| (row.minion, row.run_num.is_none(), row.run_num, row.key));
        rows
    }

    /// Whether the run failed.
    pub fn failed(&self) -> bool {
        let unsuccessful = any(self.success, |value| as_bool(value) == Some(false));
        let nonzero = any(self.retcode, |value| {
            as_int(value).is_some_and(|code| code != 0)
        });

        unsuccessful || nonzero || self.has_failed_states()
    }

    /// Whether a state of a function without a retcode failed. If Salt returns a retcode, it has
    /// evaluated the states.
    fn has_failed_states(&self) -> bool {
        if self.retcode.is_some_and(|code| as_int(code).is_some()) {
            return false;
        }

        let is_mute = |part: &Part<'_>| part.retcode.is_none_or(is_nil) && runs_states(part.fun);
        let failed = |part: Part<'_>| {
            let mut failed = false;
            states::each_of_part(&part, "", self.of_master, &mut |row| {
                failed |= row.result == Some(false);
            });
            failed
        };

        self.parts().into_iter().filter(is_mute).any(failed)
    }

    /// The exit code; of several functions the first that is not zero. `None` for a success without one.
    pub fn code(&self) -> Option<i64> {
        // Most returns are of one function with a retcode, and each of them passes here.
        if let Some(code) = self.retcode.and_then(as_int)
            && let Some(succeeded) = self.success.map_or(Some(true), as_bool)
        {
            return Some(match code {
                0 if !succeeded => EX_GENERIC,
                code => code,
            });
        }

        let codes = || each(self.retcode).filter_map(as_int);
        let code = codes().find(|code| *code != 0).or_else(|| codes().next());
        match code {
            None | Some(0) if self.failed() => Some(EX_GENERIC),
            code => code,
        }
    }

    /// The flags and the exit code that the store keeps of a return.
    pub fn columns(&self) -> (Flags, i64) {
        let code = self.code();
        let known = if code.is_some() {
            Flags::RETCODE_KNOWN
        } else {
            Flags::default()
        };

        // Without a value the return shows no states.
        let flags = if self.value.is_some() && self.is_highstate() {
            known.with(Flags::HIGHSTATE)
        } else {
            known
        };

        (flags, code.unwrap_or(0))
    }

    /// Whether the run shows the state of its minion: all states of its top file, applied. Runs with `test` or `mock`, and of some
    /// states only, do not.
    pub fn is_highstate(&self) -> bool {
        let Some(fun) = self.fun.and_then(as_text) else {
            return false;
        };

        if !HIGHSTATES.contains(&fun) {
            return false;
        }

        let mut positional = 0;
        for arg in msgpack::elements(self.fun_args.unwrap_or_default()) {
            // A map has keyword arguments.
            if matches!(Reader::new(arg).head(), Ok(Head::Map(_))) {
                let limits = |(key, value)| as_text(key).is_some_and(|key| limits(fun, key, value));
                if msgpack::pairs(arg).any(limits) {
                    return false;
                }
                continue;
            }

            // `salt-call` reports its arguments as typed: `test=True`.
            if let Some((key, value)) = as_text(arg).and_then(|text| text.split_once('=')) {
                if limits_as_typed(fun, key, value) {
                    return false;
                }
                continue;
            }

            // The first one is `mods` of `state.apply`, and `test` of `state.highstate`.
            if positional == 0 && is_true(arg) {
                return false;
            }

            positional += 1;
        }

        true
    }
}

/// Whether it is a function of a master.
pub fn is_of_master(fun: &str) -> bool {
    fun.starts_with("runner.") || fun.starts_with("wheel.")
}

/// Whether a value is the end event of a runner or wheel of that job.
fn is_end_of(value: &[u8], jid: &str) -> bool {
    let text = |key| msgpack::get(value, key);
    text("jid").and_then(as_text) == Some(jid) && text("fun").is_some() && text("return").is_some()
}

/// The values of these functions: by their order or by their names, or the same for all. In one walk over the values, because a minion
/// decides how many there are.
fn of_functions<'a>(all: Option<&'a [u8]>, funs: &[&str]) -> Vec<Option<&'a [u8]>> {
    let Some(all) = all else {
        return vec![None; funs.len()];
    };

    match Reader::new(all).head() {
        Ok(Head::Array(_)) => {
            let mut values = msgpack::elements(all);
            funs.iter().map(|_| values.next()).collect()
        }
        Ok(Head::Map(_)) => {
            let wanted: HashSet<&str> = funs.iter().copied().collect();
            let mut values: HashMap<&str, &[u8]> = HashMap::new();
            for (key, value) in msgpack::pairs(all) {
                if let Some(key) = as_text(key).filter(|key| wanted.contains(key)) {
                    // Of equal keys the first counts, as everywhere.
                    values.entry(key).or_insert(value);
                }
            }
            funs.iter().map(|fun| values.get(fun).copied()).collect()
        }
        _ => vec![Some(all); funs.len()],
    }
}

/// The value itself, and the values of a map or a list.
fn each(value: Option<&[u8]>) -> impl Iterator<Item = &[u8]> {
    let value = value.unwrap_or_default();
    let of_map = msgpack::pairs(value).map(|(_, value)| value);
    std::iter::once(value)
        .chain(of_map)
        .chain(msgpack::elements(value))
}

fn any(value: Option<&[u8]>, test: impl Fn(&[u8]) -> bool) -> bool {
    each(value).any(test)
}

/// Whether a keyword argument makes a run of one of [`HIGHSTATES`] a trial, or one of some states.
fn limits(fun: &str, key: &str, value: &[u8]) -> bool {
    limits_name(fun, key) && is_true(value)
}

fn limits_as_typed(fun: &str, key: &str, value: &str) -> bool {
    limits_name(fun, key) && is_true_text(value)
}

/// Whether a string stands for a true value, as typed or in YAML.
fn is_true_text(text: &str) -> bool {
    !["", "0", "false", "none", "null"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
}

fn limits_name(fun: &str, key: &str) -> bool {
    // `test_mode` in `salt/utils/args.py` ignores case.
    key.eq_ignore_ascii_case("test")
        || key == "mock"
        || key == "whitelist"
        || key == "mods" && fun == "state.apply"
}

/// Whether Python takes a value as true. Salt's `is_true` also reads strings.
fn is_true(value: &[u8]) -> bool {
    match Reader::new(value).head() {
        Ok(Head::Bool(flag)) => flag,
        Ok(Head::Int(n)) => n != 0,
        Ok(Head::Array(n) | Head::Map(n)) => n > 0,
        Ok(Head::Str(_)) => as_text(value).is_some_and(is_true_text),
        Ok(Head::Nil) | Err(_) => false,
        Ok(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::msgpack::encode;
    use super::*;

    #[test]
    fn a_return_of_very_many_functions_is_read_in_one_walk() {
        let funs: Vec<String> = (0..300_000).map(|n| n.to_string()).collect();
        let by_name: serde_json::Map<_, _> =
            funs.iter().map(|fun| (fun.clone(), json!(0))).collect();
        let in_order = vec![0; funs.len()];
        for value in [Json::Object(by_name), json!(in_order)] {
            let body = json!({"fun": funs, "return": value, "success": value});
            let bytes = encode(&body).unwrap();
            let outcome = Outcome::of(&bytes, "1");
            assert_eq!(outcome.code(), None);
            assert_eq!(outcome.parts().len(), RETURN_FUNCTIONS_MAX);
            let part = outcome.parts()[999];
            assert_eq!((part.fun, part.value.and_then(as_int)), ("999", Some(0)));
        }

        let states: serde_json::Map<_, _> = (0..RETURN_STATES_MAX + 10)
            .map(|n| (format!("{n}_|-"), json!({"result": false})))
            .collect();
        let bytes = encode(&json!({"fun": "state.apply", "return": states})).unwrap();
        let outcome = Outcome::of(&bytes, "1");
        assert_eq!(outcome.states("web1").len(), RETURN_STATES_MAX);
        assert!(outcome.failed());
    }

    fn check(body: &Json, failed: bool, code: Option<i64>) {
        let bytes = encode(body).unwrap();
        let outcome = Outcome::of(&bytes, "7");
        assert_eq!((outcome.failed(), outcome.code()), (failed, code), "{body}");
        let columns = outcome.columns();
        assert_eq!(columns.0.failed(columns.1), failed, "the columns of {body}");
    }

    fn state(result: Option<bool>) -> Json {
        json!({ "file_|-a_|-b_|-managed": { "result": result, "__run_num__": 0 } })
    }

    #[test]
    fn a_return_fails_by_success_by_its_retcode_or_by_a_state() {
        check(
            &json!({ "return": true, "retcode": 0, "success": true }),
            false,
            Some(0),
        );
        check(&json!({ "return": true }), false, None);
        check(&json!({ "return": true, "retcode": 2 }), true, Some(2));
        check(
            &json!({ "return": true, "retcode": 2, "success": true }),
            true,
            Some(2),
        );
        check(&json!({ "return": true, "success": false }), true, Some(1));
        check(
            &json!({ "return": true, "retcode": 0, "success": false }),
            true,
            Some(1),
        );
        let ran = |result, code: Json| json!({ "fun": "state.apply", "return": state(result), "success": true, "retcode": code });
        check(&ran(Some(false), Json::Null), true, Some(1));
        check(&ran(Some(true), Json::Null), false, None);
        check(&ran(None, Json::Null), false, None);
        // Salt has evaluated the states.
        check(&ran(Some(false), json!(0)), false, Some(0));
        let none = json!({ "fun": "state.sls", "return": ["Rendering SLS failed"] });
        check(&none, true, Some(1));
        let listed = json!({ "fun": "state.running", "return": ["The function x is running"] });
        check(&listed, false, None);
        let other = json!({ "fun": "test.echo", "return": state(Some(false)) });
        check(&other, false, None);
    }

    #[test]
    fn several_functions_fail_if_one_does() {
        let funs = json!(["test.ping", "state.apply"]);
        for [ret, retcode, success] in [
            [
                json!({ "test.ping": true, "state.apply": state(Some(true)) }),
                json!({ "test.ping": 0, "state.apply": 0 }),
                json!({ "test.ping": true, "state.apply": true }),
            ],
            [
                json!([true, state(Some(true))]),
                json!([0, 0]),
                json!([true, true]),
            ],
        ] {
            let body =
                json!({ "fun": funs, "return": ret, "retcode": retcode, "success": success });
            check(&body, false, Some(0));
        }
        for [ret, retcode, success] in [
            [
                json!({}),
                json!({ "test.ping": 0, "state.apply": 2 }),
                json!({ "test.ping": true }),
            ],
            [json!([]), json!([0, 2]), json!([true, true])],
        ] {
            let body =
                json!({ "fun": funs, "return": ret, "retcode": retcode, "success": success });
            check(&body, true, Some(2));
        }
        for success in [
            json!({ "test.ping": true, "state.apply": false }),
            json!([true, false]),
        ] {
            check(
                &json!({ "fun": funs, "return": [], "success": success }),
                true,
                Some(1),
            );
        }
        // A state failed, and only the other function has a retcode.
        for (ret, retcode) in [
            (
                json!({ "state.apply": state(Some(false)) }),
                json!({ "test.ping": 0 }),
            ),
            (json!([true, state(Some(false))]), json!([0, null])),
        ] {
            check(
                &json!({ "fun": funs, "return": ret, "retcode": retcode }),
                true,
                Some(1),
            );
        }
    }

    #[test]
    fn the_result_of_a_runner_is_in_its_end_event() {
        const FUN: &str = "runner.state.orchestrate";
        let end = |ret: Json| json!({ "fun": FUN, "jid": "7", "success": true, "return": ret });
        for is_whole in [false, true] {
            let of = |ret: Json| {
                if is_whole {
                    json!({ "fun": FUN, "jid": "7", "id": "m_master", "return": end(ret) })
                } else {
                    end(ret)
                }
            };
            let states = json!({ "m_master": state(Some(false)) });
            check(&of(json!({ "data": states, "retcode": 1 })), true, Some(1));
            check(
                &of(json!({ "data": states, "outputter": "highstate" })),
                true,
                Some(1),
            );
            check(
                &of(json!({ "data": { "m_master": state(Some(true)) }, "retcode": 0 })),
                false,
                Some(0),
            );
            let bytes = encode(&of(json!({ "data": states, "outputter": "highstate" }))).unwrap();
            let outcome = Outcome::of(&bytes, "7");
            assert_eq!(outcome.states("")[0].minion, "m_master");
            assert_eq!(outcome.out.and_then(as_text), Some("highstate"));
        }
        check(
            &json!({ "fun": "runner.x.y", "jid": "7", "success": false, "return": "Exception" }),
            true,
            Some(1),
        );
    }

    #[test]
    fn a_highstate_is_applied_and_whole() {
        let check = |fun: &str, args: Json, expected: bool| {
            let body = json!({ "fun": fun, "fun_args": args, "return": {}, "retcode": 0 });
            let bytes = encode(&body).unwrap();
            let (flags, _) = Outcome::of(&bytes, "7").columns();
            assert_eq!(flags.has(Flags::HIGHSTATE), expected, "{body}");
        };
        let kwarg = |key: &str, value: Json| json!([{ "__kwarg__": true, key: value }]);
        for fun in ["state.apply", "state.highstate"] {
            check(fun, json!([]), true);
            check(fun, kwarg("pillar", json!({ "test": true })), true);
            check(fun, kwarg("test", json!(false)), true);
            check(fun, json!(["test=False"]), true);
            for trial in [json!(true), json!(1), json!("True")] {
                check(fun, kwarg("test", trial.clone()), false);
                check(fun, kwarg("mock", trial), false);
            }
            check(fun, json!(["test=True"]), false);
            check(fun, json!(["mock=True", "saltenv=base"]), false);
            // A schedule's keywords carry no mark.
            check(fun, json!([{ "test": true }]), false);
            check(fun, json!([true]), false);
        }
        for mods in [json!("web"), json!(["web", "db"])] {
            check("state.apply", json!([mods]), false);
            check("state.apply", kwarg("mods", mods), false);
        }
        check("state.apply", json!(["mods=web"]), false);
        check("state.apply", json!([null]), true);
        check("state.highstate", kwarg("whitelist", json!("web")), false);
        check("state.sls", json!([]), false);
        check("test.ping", json!([]), false);
    }
}
