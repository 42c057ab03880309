//! The measure against trees of minijinja.

use minijinja::machinery::ast::CallArg;
use proptest::prelude::*;

use super::*;

fn deepest<'e>(children: impl IntoIterator<Item = &'e Expr<'e>>) -> usize {
    children.into_iter().map(depth).max().unwrap_or(0)
}

fn arguments<'e>(args: &'e [CallArg<'e>]) -> impl Iterator<Item = &'e Expr<'e>> {
    args.iter().map(|arg| match arg {
        CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr) => expr,
    })
}

/// Operations above the deepest leaf.
fn depth(expr: &Expr<'_>) -> usize {
    1 + match expr {
        Expr::Var(_) | Expr::Const(_) => return 0,
        Expr::Slice(slice) => deepest(
            [&slice.expr]
                .into_iter()
                .chain(&slice.start)
                .chain(&slice.stop)
                .chain(&slice.step),
        ),
        Expr::UnaryOp(op) => depth(&op.expr),
        Expr::BinOp(op) => depth(&op.left).max(depth(&op.right)),
        Expr::Compare(chain) => {
            depth(&chain.expr).max(deepest(chain.ops.iter().map(|op| &op.expr)))
        }
        Expr::IfExpr(choice) => deepest(
            [&choice.test_expr, &choice.true_expr]
                .into_iter()
                .chain(&choice.false_expr),
        ),
        Expr::Filter(filter) => deepest(filter.expr.iter().chain(arguments(&filter.args))),
        Expr::Test(test) => depth(&test.expr).max(deepest(arguments(&test.args))),
        Expr::GetAttr(member) => depth(&member.expr),
        Expr::GetItem(member) => depth(&member.expr).max(depth(&member.subscript_expr)),
        Expr::Call(call) => depth(&call.expr).max(deepest(arguments(&call.args))),
        Expr::List(list) => deepest(&list.items),
        Expr::Tuple(tuple) => deepest(&tuple.items),
        Expr::Map(map) => deepest(map.keys.iter().chain(&map.values)),
    }
}

fn measure(text: &str) -> usize {
    let mut measure = Measure::default();
    let mut deepest = 0;
    for token in tokenize(text, true, SyntaxConfig::default()) {
        let Ok((token, _)) = token else { break };
        if measure.token(&token).is_err() {
            return usize::MAX;
        }
        deepest = deepest.max(measure.depth());
    }
    deepest
}

#[test]
fn a_chain_counts_its_operators_and_its_deepest_part() {
    for (text, expected) in [
        ("a", 0),
        ("a.b.c", 2),
        ("a.b.c == 1 and d.e == 2 and f", 5),
        ("a in [b.c, d.e.f, g]", 4),
        ("x[0][1].y", 3),
        ("- - -a.b", 4),
        ("not not a", 2),
        ("a is not none", 2),
        ("[b.c] not in a", 4),
        ("not a == b and not c", 3),
        // Words that the parser takes as names.
        ("a + b + and + b + or + b", 7),
        ("a.and.b.or.c", 6),
        ("and or a and [b.c] and and", 7),
        ("a|f(b.c)|g", 4),
        ("a if b else c if d else e", 4),
        ("((((a))))", 4),
        ("{'a': [1, [2]]}", 3),
    ] {
        assert_eq!(measure(text), expected, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8000))]

    #[test]
    fn no_tree_is_deeper_than_its_measure(
        tokens in prop::collection::vec(
            prop::sample::select(vec![
                "a", "b", "1", "'s'", ".c", ".0", "[", "]", "(", ")", "{", "}", ",", ":", "=", "-", "+", "*", "**", "~", "/", "//",
                "%", "==", "<", "and", "or", "not", "in", "not in", "is", "is not", "is f", "is not f -a", "|f", "|f(", "if", "else",
                "(a)", "[b.c]", "{'k': a}", "-a", "not a", "a[0:1]", "f(a, b=c)", "a if b else c", "a.b", "a == b",
            ]),
            1..30,
        ),
    ) {
        let text = tokens.join(" ");
        // Most sequences are no expression; the longest beginning that is one counts.
        for end in (1..=tokens.len()).rev() {
            let text = tokens[..end].join(" ");
            let source = BoundedSource::expression(&text).expect("few tokens");
            if let Ok(tree) = source.parse_expression() {
                prop_assert!(depth(&tree) <= measure(&text), "{text}");
                return Ok(());
            }
        }
        prop_assume!(!text.is_empty());
    }
}

#[test]
fn the_offset_is_that_of_the_first_token_over_the_limit() {
    let text = format!("a{}", ".b".repeat(JINJA_TREE_DEPTH_MAX + 1));
    let error = BoundedSource::expression(&text).unwrap_err();
    assert_eq!(error.offset, 1 + 2 * JINJA_TREE_DEPTH_MAX);
    assert!(
        BoundedSource::expression(&text[..error.offset]).is_ok(),
        "up to the limit"
    );
    let text = "\n{% if a %}".repeat(JINJA_STATEMENTS_MAX + 1);
    let error = BoundedSource::template(&text, SyntaxConfig::default()).unwrap_err();
    assert_eq!(
        text[..error.offset].lines().count(),
        JINJA_STATEMENTS_MAX + 2
    );
}

#[test]
fn columns_fit_into_the_parser() {
    for (text, expected) in [
        ("x".repeat(65_535), Some(0)),
        (format!("a\n{}\nb", "x".repeat(65_535)), Some(2)),
        (
            format!("{}\n{}", "x".repeat(65_534), "\n".repeat(70_000)),
            None,
        ),
    ] {
        let found = BoundedSource::template(&text, SyntaxConfig::default());
        assert_eq!(found.err().map(|error| error.offset), expected);
    }
}

#[test]
fn tags_that_end_are_not_nested() {
    let flat = "{% if a %}{% elif b %}{% elif c %}{% endif %}{% for x in y %}{% endfor %}\
                {% set a = 1 %}{% set b %}{% endset %}{% with a=1 %}{% endwith %}";
    let text = flat.repeat(JINJA_STATEMENTS_MAX * 2);
    let source = BoundedSource::template(&text, SyntaxConfig::default()).unwrap();
    source.parse_template("t").unwrap();
}
