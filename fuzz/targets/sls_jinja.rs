//! A template and event data: rendered or rejected within limits, with the same result twice.
//!
//! Input: a template, and optionally the byte 0xff and a msgpack value; the default is a mapping of one key.

use std::sync::{Arc, LazyLock};

use salt_sls::jinja::{Ambient, Context, Engine, EngineOptions, NoFunctions, SaltFunctions, Source};
use saltcellar::reactor::render::data::from_msgpack;




static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(EngineOptions::default()));

pub(crate) fn sls_jinja(input: &[u8]) {
    let (template, data) = match input.iter().position(|byte| *byte == 0xff) {
        Some(at) => (input.get(..at).unwrap_or_default(), input.get(at + 1..).unwrap_or_default()),
        None => (input, &b"\x81\xa2id\xa4web1"[..]),
    };
    let text = String::from_utf8_lossy(template);
    let source = Source { path: "/srv/reactor/fuzz.sls", text: &text };
    let once = || {
        let data = from_msgpack(data).ok()?;
        let (ambient, salt): (_, Arc<dyn SaltFunctions>) = (Arc::new(Ambient::default()), Arc::new(NoFunctions));
        let context = Context { tag: "salt/fuzz", data: &data, ambient: &ambient, salt: &salt };
        let rendered = ENGINE.render(&source, &context);
        let left = data.to_value();
        assert!(left.python_eq(&left) || format!("{left:?}").contains("NaN"), "what is left of the data is a value");
        Some(rendered)
    };
    let _ = ENGINE.check(&source);
    let (first, second) = (once(), once());
    assert!(first == second, "{first:?}\n{second:?}");
}
