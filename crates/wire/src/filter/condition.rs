//! Conditions: Jinja expressions over an event's tag and data, evaluated in place.
//!
//! minijinja parses the source ([`super::compile`]); the tree that it is compiled to is evaluated
//! here. An expression has no loops, calls and arithmetic, so its work is bounded by its length
//! times the event's bytes, and by [`FILTER_BYTES_MAX`](saltcellar_base::limits::FILTER_BYTES_MAX).
//!
//! # Invariant
//!
//! An evaluation neither fails nor panics for any data, except over that limit: a missing member is undefined, and so are its own members.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::compile::compile;
use super::node::{Comparison, ConditionError, Filter, Node, Test};
use super::value::{Budget, TooCostly, Value};
use saltcellar_model::word::Word;

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Condition {
    text: String,
    root: Node,
}

impl Condition {
    /// Compiles an expression.
    pub fn new(text: &str) -> Result<Self, ConditionError> {
        Ok(Self {
            text: text.to_owned(),
            root: compile(text)?,
        })
    }

    /// The source text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the expression is true for an event. `data` is msgpack.
    pub fn holds(&self, tag: &[u8], data: &[u8]) -> Result<bool, TooCostly> {
        let event = Event {
            tag,
            data,
            budget: Budget::default(),
        };
        Ok(event.eval(&self.root)?.is_true())
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Condition {}

impl Word for Condition {
    const ACCEPTS: &'static str = "an expression over `tag` and `data`";

    fn parse(text: &str) -> Option<Self> {
        Self::new(text).ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.text.clone())
    }

    fn problem(text: &str) -> String {
        Self::new(text).map_or_else(|error| error.to_string(), |_| String::new())
    }
}

struct Event<'a> {
    tag: &'a [u8],
    data: &'a [u8],
    budget: Budget,
}

impl<'a> Event<'a> {
    /// The value of an expression. It recurses along the tree, so its own frame must stay small:
    /// constructs are separate functions.
    fn eval(&self, node: &'a Node) -> Result<Value<'a>, TooCostly> {
        match node {
            Node::Tag => Ok(Value::Text(String::from_utf8_lossy(self.tag))),
            Node::Data => Ok(Value::of(self.data)),
            Node::Constant(value) => Ok(value.clone()),
            Node::List(items) => self.list(items),
            Node::Not(of) => self.truth(of).map(|truth| Value::Bool(!truth)),
            Node::And(a, b) => self.decided(a, b, false),
            Node::Or(a, b) => self.decided(a, b, true),
            Node::Compare(first, rest) => self.chain(first, rest),
            Node::Member(of, key) => self.member(of, key),
            Node::If(parts) => self.choice(parts),
            Node::Test(test, of) => self.tested(test, of),
            Node::Filter(filter, of) => self.filtered(filter, of),
        }
    }

    fn truth(&self, node: &'a Node) -> Result<bool, TooCostly> {
        Ok(self.eval(node)?.is_true())
    }

    fn list(&self, items: &'a [Node]) -> Result<Value<'a>, TooCostly> {
        let items: Result<_, _> = items.iter().map(|item| self.eval(item)).collect();
        items.map(Value::List)
    }

    /// `and`, `or`: the first value if its truth decides, else the second one.
    fn decided(&self, a: &'a Node, b: &'a Node, by: bool) -> Result<Value<'a>, TooCostly> {
        let a = self.eval(a)?;
        if a.is_true() == by {
            return Ok(a);
        }
        self.eval(b)
    }

    fn chain(
        &self,
        first: &'a Node,
        rest: &'a [(Comparison, Node)],
    ) -> Result<Value<'a>, TooCostly> {
        let mut left = self.eval(first)?;
        for (comparison, right) in rest {
            let right = self.eval(right)?;
            if !self.compare(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn member(&self, of: &'a Node, key: &'a Node) -> Result<Value<'a>, TooCostly> {
        let key = self.eval(key)?;
        self.eval(of)?.member(&key, &self.budget)
    }

    fn choice(&self, parts: &'a [Node; 3]) -> Result<Value<'a>, TooCostly> {
        let [test, then, other] = parts;
        let chosen = if self.truth(test)? { then } else { other };
        self.eval(chosen)
    }

    fn tested(&self, test: &'a Test, of: &'a Node) -> Result<Value<'a>, TooCostly> {
        let value = self.eval(of)?;
        self.test(test, &value).map(Value::Bool)
    }

    fn filtered(&self, filter: &'a Filter, of: &'a Node) -> Result<Value<'a>, TooCostly> {
        let value = self.eval(of)?;
        self.filter(filter, value)
    }

    fn compare(
        &self,
        comparison: Comparison,
        a: &Value<'a>,
        b: &Value<'a>,
    ) -> Result<bool, TooCostly> {
        let budget = &self.budget;
        let order = |wanted: &[Ordering]| -> Result<bool, TooCostly> {
            Ok(a.order(b, budget)?
                .is_some_and(|found| wanted.contains(&found)))
        };

        match comparison {
            Comparison::Equal => a.equals(b, budget),
            Comparison::NotEqual => Ok(!a.equals(b, budget)?),
            Comparison::Less => order(&[Ordering::Less]),
            Comparison::LessOrEqual => order(&[Ordering::Less, Ordering::Equal]),
            Comparison::Greater => order(&[Ordering::Greater]),
            Comparison::GreaterOrEqual => order(&[Ordering::Greater, Ordering::Equal]),
            // The collection is on the right side.
            Comparison::In => b.contains(a, budget),
            Comparison::NotIn => Ok(!b.contains(a, budget)?),
        }
    }

    fn test(&self, test: &'a Test, value: &Value<'a>) -> Result<bool, TooCostly> {
        let texts = |part: &'a Node, check: fn(&str, &str) -> bool| -> Result<bool, TooCostly> {
            let part = self.eval(part)?;
            let (Some(text), Some(part)) = (value.as_text(), part.as_text()) else {
                return Ok(false);
            };
            // Only as many bytes as the part has are compared.
            self.budget.charge(part.len())?;
            Ok(check(text, part))
        };

        Ok(match test {
            Test::StartingWith(part) => texts(part, |text, part| text.starts_with(part))?,
            Test::EndingWith(part) => texts(part, |text, part| text.ends_with(part))?,
            Test::Containing(part) => value.contains(&self.eval(part)?, &self.budget)?,
            // Matching can take more steps than the text has bytes.
            Test::Matching(glob) => match value.as_text() {
                Some(text) => glob.matches_within(text, || self.budget.charge(GLOB_STEP_BYTES))?,
                None => false,
            },
            Test::Is(truth) => matches!(value, Value::Bool(value) if value == truth),
            Test::Defined => !matches!(value, Value::Undefined),
            Test::Undefined => matches!(value, Value::Undefined),
            Test::None => matches!(value, Value::Nil),
            Test::Text => matches!(value, Value::Text(_)),
            Test::Number => matches!(value, Value::Int(_) | Value::Float(_)),
            Test::Boolean => matches!(value, Value::Bool(_)),
            Test::Map => matches!(value, Value::Map(_)),
            Test::List => matches!(value, Value::Array(_) | Value::List(_)),
        })
    }

    fn filter(&self, filter: &'a Filter, value: Value<'a>) -> Result<Value<'a>, TooCostly> {
        let cased = |change: fn(&str) -> String| -> Result<Value<'a>, TooCostly> {
            let Some(text) = value.as_text() else {
                return Ok(value.clone());
            };
            self.budget.charge(text.len() * CASE_COST)?;
            Ok(Value::Text(Cow::Owned(change(text))))
        };

        match filter {
            Filter::Lower => cased(str::to_lowercase),
            Filter::Upper => cased(str::to_uppercase),
            Filter::Length => {
                // Characters are counted one by one.
                self.budget.charge(value.as_text().map_or(0, str::len))?;
                let len = value.len().and_then(|len| i64::try_from(len).ok());
                Ok(len.map_or(Value::Undefined, Value::Int))
            }
            Filter::Default(other) if matches!(value, Value::Undefined) => self.eval(other),
            Filter::Default(_) => Ok(value),
        }
    }
}

/// A step of a glob takes as long as going through this many bytes of msgpack.
const GLOB_STEP_BYTES: usize = 4;

/// Changing the case of a string copies it and takes longer by this factor than going through it.
const CASE_COST: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msgpack::Writer;
    use salt_sls::limits::JINJA_TREE_DEPTH_MAX;
    use saltcellar_base::limits::FILTER_BYTES_MAX;

    fn data() -> Vec<u8> {
        let mut w = Writer::new();
        w.map(9)
            .str("fun")
            .str("state.apply")
            .str("retcode")
            .int(2)
            .str("id")
            .str("Web1");
        w.str("success")
            .bool(false)
            .str("out")
            .nil()
            .str("load")
            .float(1.5);
        w.str("fun_args")
            .array(2)
            .str("nginx")
            .map(1)
            .str("test")
            .bool(true);
        w.str("return")
            .map(1)
            .str("pkg_|-a")
            .map(1)
            .str("result")
            .bool(false);
        w.int(7).str("seven");
        w.into_bytes()
    }

    fn holds(text: &str) -> bool {
        let condition = Condition::new(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        condition.holds(b"salt/job/1/ret/Web1", &data()).unwrap()
    }

    #[test]
    fn expressions_are_true_as_in_jinja() {
        for text in [
            r#"data.retcode != 0 and data.fun is startingwith("state.")"#,
            r#"data["retcode"] == 2"#,
            "data.retcode",
            "not data.success",
            "data.out is none and data.out is defined",
            "data.missing is undefined",
            "data.missing.deeper.still is not defined",
            "data.missing != 0",
            r#"data.id in ["db1", "Web1"]"#,
            r#"data.id not in ["db1"]"#,
            r#""nginx" in data.fun_args"#,
            r#""eb" in data.id and "retcode" in data"#,
            "data.fun_args[0] == 'nginx'",
            "data.fun_args[-1].test",
            "data.fun_args|length == 2",
            r#"data["return"]["pkg_|-a"].result == false"#,
            "data.id|lower == 'web1' and data.id|upper == 'WEB1'",
            "1 < data.load <= 1.5",
            "not (data.load < 'a') and not (data.missing < 5) and not (data.out > 1)",
            "data.retcode == 2.0 and true == 1",
            "data.nothing|default('x') == 'x'",
            "tag is matching('salt/job/*/ret/*')",
            "tag is endingwith 'Web1' and tag is containing('job')",
            "(1 if data.success else 0) == 0",
            "data.fun_args[0] is string and data.retcode is number and data.success is boolean",
            "data is mapping and data.fun_args is sequence",
            "data[7] == 'seven'",
            "data.retcode == -(-2)",
            "data.success is false and data.success is not true and data.retcode is not true",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in [
            "data.success",
            "data.missing",
            "data.out",
            "data.missing < 5",
            "data.fun is startingwith(1)",
        ] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn errors_show_the_position_and_what_is_accepted() {
        for (text, expected) in [
            ("", "column 1: empty"),
            (
                "dat.retcode == 0",
                "column 1: unknown name `dat`; available: data, tag",
            ),
            ("data.retcode ==", "column 16: "),
            ("data.fun == 'x' and )", "column 21: "),
            ("true and\n  (data.x ==== 1)", "line 2, column 13: "),
            (
                "data.x is evil",
                "column 11: unknown test `evil`; available: boolean, containing",
            ),
            (
                "data.x|shell",
                "unknown filter `shell`; available: default, length, lower, upper",
            ),
            ("data.x + 1 > 2", "operator `+` is not supported"),
            ("data.keys()", "calls are not supported"),
            (
                "data.x is startingwith",
                "`startingwith` takes one argument",
            ),
            (
                "data.x is matching(tag)",
                "`matching` takes a glob in quotes",
            ),
            ("data.x[1:2]", "slices are not supported"),
            ("'a", "column 1: "),
            ("{'a': 1}.a", "map literals are not supported"),
        ] {
            let error = Condition::new(text).map(drop).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        let long = format!(
            "data.x == '{}'",
            "x".repeat(saltcellar_base::limits::FILTER_TEXT_BYTES_MAX)
        );
        assert!(
            Condition::new(&long)
                .unwrap_err()
                .to_string()
                .contains("longer than")
        );
        let deep = format!("data{}", ".a".repeat(1_900));
        let error = Condition::new(&deep).map(drop).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "column {}: an expression of more than {JINJA_TREE_DEPTH_MAX} nested operations",
                "data".len() + 2 * JINJA_TREE_DEPTH_MAX + 1
            )
        );
        let long = vec!["data.x"; JINJA_TREE_DEPTH_MAX].join(" and ");
        Condition::new(&long).unwrap().holds(b"a", &data()).unwrap();
    }

    #[test]
    fn the_work_for_one_event_is_bounded() {
        let mut w = Writer::new();
        w.map(2)
            .str("big")
            .str(&"a".repeat(FILTER_BYTES_MAX / 64))
            .str("x")
            .int(1);
        let data = w.into_bytes();
        let text = vec!["data.x == 1"; 90].join(" and ");
        assert_eq!(
            Condition::new(&text).unwrap().holds(b"a", &data),
            Err(TooCostly)
        );
        assert_eq!(
            Condition::new("data.x == 1").unwrap().holds(b"a", &data),
            Ok(true)
        );
        let glob = format!("data.big is matching('*{}b*')", "a".repeat(200));
        assert_eq!(
            Condition::new(&glob).unwrap().holds(b"a", &data),
            Err(TooCostly)
        );
    }

    #[test]
    fn malformed_data_is_no_error() {
        let whole = data();
        for end in 0..whole.len() {
            for text in [
                "data.retcode != 0",
                "data['return']['pkg_|-a'].result",
                "'x' in data.fun_args",
                "data|length",
            ] {
                Condition::new(text)
                    .unwrap()
                    .holds(b"\xff", &whole[..end])
                    .unwrap();
            }
        }
    }
}
