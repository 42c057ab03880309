//! Tests of the differences of two runs.

use super::*;

#[test]
fn different_lines_keep_their_order() {
    let lines = |a: &str, b: &str| {
        let (a, b): (Vec<_>, Vec<_>) = (a.split(' ').collect(), b.split(' ').collect());
        changed_lines(&a, &b)
            .into_iter()
            .map(|(mark, line)| format!("{mark}{line}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(lines("a b c d", "a b c d"), "");
    assert_eq!(lines("a b c d", "a x c d e"), "-b +x +e");
    assert_eq!(lines("a b c", "c a b"), "+c -c");
    assert_eq!(lines("x", "y"), "-x +y");
}
