//! A construct repeated many times, as every text that minijinja reads: a condition, a sink's template, a reactor's file. Each is refused
//! or carried out on a stack of 512 KiB.
//!
//! Input: the number of repetitions (two bytes, little-endian), then up to five texts with the byte 0xff between them: beginning, repeated
//! part, middle, part that is repeated as often behind it, end.

use std::sync::{Arc, LazyLock};

use salt_sls::jinja::{Ambient, Context, Engine, EngineOptions, NoFunctions, SaltFunctions, Source};
use saltcellar::engines::template::Template;
use saltcellar::reactor::render::data::from_msgpack;
use saltcellar::wire::filter::Condition;
use serde_json::json;

const STACK: usize = 512 * 1024;

/// Bytes of a text; beyond that only time would grow.
const TEXT_MAX: usize = 256 * 1024;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(EngineOptions::default()));

pub(crate) fn nesting(input: &[u8]) {
    let Some((count, parts)) = input.split_first_chunk::<2>() else { return };
    let mut parts = parts.splitn(5, |byte| *byte == 0xff).map(String::from_utf8_lossy);
    let mut part = || parts.next().unwrap_or_default();
    let (begin, open, middle, close, end) = (part(), part(), part(), part(), part());
    let count = usize::from(u16::from_le_bytes(*count)).min(TEXT_MAX / (open.len() + close.len() + 1));
    let text = format!("{begin}{}{middle}{}{end}", open.repeat(count), close.repeat(count));

    let carried_out = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        condition(&text);
        let tag = format!("{{{{ {text} }}}}");
        for template in [&text, &tag] {
            sink_template(template);
            reactor_file(template);
        }
    });
    carried_out.expect("a thread").join().expect("no panic");
}

fn condition(text: &str) {
    if let Ok(condition) = Condition::new(text) {
        let _ = condition.holds(b"salt/fuzz", b"\x81\xa2id\xa4web1");
    }
}

fn sink_template(text: &str) {
    if let Ok(template) = Template::new("encoder.template", text) {
        let _ = template.render(json!({"tag": "salt/fuzz", "data": {"id": "web1", "list": [1, [2]]}}));
    }
}

fn reactor_file(text: &str) {
    let data = from_msgpack(b"\x81\xa2id\xa4web1").expect("data");
    let (ambient, salt): (_, Arc<dyn SaltFunctions>) = (Arc::new(Ambient::default()), Arc::new(NoFunctions));
    let context = Context { tag: "salt/fuzz", data: &data, ambient: &ambient, salt: &salt };
    let _ = ENGINE.render(&Source { path: "/srv/reactor/fuzz.sls", text }, &context);
}
