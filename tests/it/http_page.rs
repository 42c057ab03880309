//! The web page: every view, sign-in, and hostile text in every field.

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar};
use crate::http::{Answer, LISTENER, address, get, request};

/// The text of a view, with the headers that every view has.
fn html(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = answer.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    assert!(
        policy.contains("frame-ancestors 'none'") && policy.contains("script-src 'self'"),
        "{policy}"
    );
    let text = answer.text();
    // Each view has its own title.
    assert!(text.contains(" – saltcellar</title>"), "{text}");
    text
}

#[test]
fn a_one_time_link_signs_in_with_the_rights_of_its_user() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let link = cellar.ask("page_link", vec![]);
    let path = link["path"].as_str().unwrap();
    assert_eq!(
        link["url"].as_str().unwrap(),
        format!("http://{address}{path}")
    );
    assert!(link["seconds"].as_u64().unwrap() > 0);
    // A program that looks at it in advance does not use it up.
    assert_eq!(
        request(&address, "HEAD", path, "", b"").header("set-cookie"),
        None
    );
    let opened = get(&address, path, "");
    assert_eq!(
        (opened.status, opened.header("location")),
        (303, Some("/")),
        "an address without the secret"
    );
    let set = opened.header("set-cookie").unwrap();
    assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
    let line = format!("cookie: {}\r\n", set.split(';').next().unwrap());
    let overview = html(&get(&address, "/", &line));
    assert!(overview.contains("by a link, right admin"), "{overview}");
    let again = get(&address, path, "");
    assert_eq!((again.status, again.header("set-cookie")), (401, None));
    assert!(
        again.text().contains("it works once") && again.text().contains("name=\"token\""),
        "{}",
        again.text()
    );
    let secret = path.rsplit('/').next().unwrap();
    assert!(!cellar.log().contains(secret), "{}", cellar.log());

    // The verb prints such a link.
    let printed = program()
        .args(["page", "--socket"])
        .arg(cellar.socket())
        .output()
        .unwrap();
    assert!(printed.status.success(), "{}", stderr(&printed));
    let printed = stdout(&printed);
    let path = printed
        .trim_end()
        .strip_prefix(&format!("http://{address}"))
        .unwrap();
    let opened = get(&address, path, "");
    assert_eq!((opened.status, opened.header("location")), (303, Some("/")));
}
