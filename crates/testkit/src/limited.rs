//! Entries of two minions, of which a limited token may read a part, and what can be asked about
//! them over HTTP.

use serde_json::{Value as Json, json};

use super::entries::{Asks, value};

/// In every value of the other minion.
pub const SECRET: &str = "s3cret";
/// In every value of the entries of the other minion alone.
pub const ALONE: &str = "s3cret-alone";

/// A job of both minions, and a later run of it.
pub const SHARED: [&str; 2] = ["20261121054728123456", "20261121055728123456"];
/// Jobs of the allowed minion alone.
pub const OWN: [&str; 2] = ["20261121064728123456", "20261121074728123456"];
/// Jobs of the other minion alone: one with a load, one that is known by its return.
pub const FOREIGN: [&str; 2] = ["20261122054728123456", "20261122064728123456"];
/// An orchestration.
pub const ORCHESTRATION: &str = "20261122074728123456";

/// What a store contains besides the entries that every token may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Everything.
    Full,
    /// No trace of the other minion.
    WithoutMinion,
    /// No entry of the other minion alone, whose function and tags are its own; but its part of shared jobs.
    WithoutOwnOfMinion,
}

/// The sink `out`, for a configuration.
pub const OUT: &str = "sinks:\n  out: {encoder: json, transport: {file: {path: DIR/out.jsonl}}}\n";

/// Stores every kind of entry.
pub fn fill(cellar: &impl Asks, world: World) {
    foreign(cellar, world, 3);
    job(cellar, OWN[0], "state.apply", ("web1", "web", 1));
    shared_job(cellar, SHARED[0], world);
    foreign(cellar, world, 3);
    shared_job(cellar, SHARED[1], world);
    job(cellar, OWN[1], "state.apply", ("web1", "own", 0));
    let data = json!({ "id": "web1", "text": "web" });
    cellar.store_event("salt/minion/web1/start", &data);

    if world == World::Full {
        job(cellar, FOREIGN[0], "secret.fun", ("db1", ALONE, 7));
        answer(cellar, FOREIGN[1], "secret.fun", ("db1", ALONE, 7));
        orchestration(cellar);
    }

    foreign(cellar, world, 3);
}

fn states(text: &str, result: bool) -> Json {
    let key = format!("file_|-{text}_|-{text}_|-managed");
    json!({ key: {
        "result": result, "changes": { text: text }, "comment": text, "name": text, "__id__": text, "__sls__": text,
        "duration": 1.5, "start_time": "05:47:28.123456", "__run_num__": 0,
    } })
}

/// What a minion returns: its id, a string in each value, and a return code.
type Returned<'a> = (&'a str, &'a str, i64);

fn answer(cellar: &impl Asks, jid: &str, fun: &str, (minion, text, retcode): Returned<'_>) {
    let is_done = retcode == 0;
    let load = json!({
        "jid": jid, "id": minion, "fun": fun, "fun_args": [text], "return": states(text, is_done), "retcode": retcode,
        "success": is_done, "out": text,
    });
    cellar.store_return(&load);
    cellar.store_event(&format!("salt/job/{jid}/ret/{minion}"), &load);
}

/// A job of the two minions; the other one has failed, and a third one is missing.
fn shared_job(cellar: &impl Asks, jid: &str, world: World) {
    let is_full = world != World::WithoutMinion;
    let (minions, text) = if is_full {
        (&["db1", "db2", "web1"][..], SECRET)
    } else {
        (&["web1"][..], "web")
    };

    let load = json!({
        "fun": "state.apply", "jid": jid, "tgt": minions, "tgt_type": text, "user": "root", "arg": [text],
        "metadata": { text: text }, "kwargs": { text: text }, "cmd": "publish",
    });
    cellar.save_load(jid, &load, minions);
    let new = json!({ "fun": "state.apply", "jid": jid, "user": "root", "minions": minions, "arg": [text], "tgt": text });
    cellar.store_event(&format!("salt/job/{jid}/new"), &new);

    let (of_syndic, syndic) = if is_full {
        answer(cellar, jid, "state.apply", ("db1", SECRET, 7));
        (json!(["db3"]), SECRET)
    } else {
        (json!([]), "x")
    };
    cellar.ask(
        "save_minions",
        vec![
            ("jid", jid.into()),
            ("minions", value(&of_syndic)),
            ("syndic_id", syndic.into()),
        ],
    );

    answer(cellar, jid, "state.apply", ("web1", "web", 0));
    if is_full {
        let end = "2026, Nov 21 06:00:00.000000";
        cellar.ask(
            "update_endtime",
            vec![("jid", jid.into()), ("endtime", end.into())],
        );
    }
}

/// A job of one minion.
fn job(cellar: &impl Asks, jid: &str, fun: &str, returned: Returned<'_>) {
    let (minion, text, _) = returned;
    let load = json!({
        "fun": fun, "jid": jid, "tgt": minion, "tgt_type": "glob", "user": text, "arg": [text],
        "metadata": { text: text }, "cmd": "publish",
    });
    cellar.save_load(jid, &load, &[minion]);
    answer(cellar, jid, fun, returned);
}

/// An orchestration of the master, whose id the token's glob matches; it names the other minion.
fn orchestration(cellar: &impl Asks) {
    let fun = "runner.state.orch";
    let load = json!({
        "jid": ORCHESTRATION, "id": "web_master", "fun": fun, "fun_args": [ALONE], "return": {
            "fun": fun, "jid": ORCHESTRATION, "fun_args": [ALONE], "success": true,
            "return": { "data": { "web_master": states(ALONE, true) }, "retcode": 0 },
        },
    });
    cellar.store_return(&load);
    cellar.store_event(&format!("salt/run/{ORCHESTRATION}/ret"), &load);
}

/// Entries of the other minion alone.
pub fn foreign(cellar: &impl Asks, world: World, count: usize) {
    if world != World::Full {
        return;
    }
    for n in 0..count {
        let data = json!({ "id": "db1", "fun": "secret.fun", "text": ALONE, "retcode": 7, "n": n });
        cellar.store_event(&format!("secret/{ALONE}/{n}"), &data);
        cellar.store_event(&format!("salt/minion/db1/{ALONE}"), &data);
    }
}

/// All values of the parameters in a path.
pub fn paths(path: &str) -> Vec<String> {
    let mut found = vec![path.to_owned()];
    for (part, values) in [
        (
            "{jid}",
            &[
                SHARED[0],
                SHARED[1],
                OWN[0],
                OWN[1],
                FOREIGN[0],
                FOREIGN[1],
                ORCHESTRATION,
                "20200101000000000000",
            ][..],
        ),
        ("{minion}", &["web1", "db1", "web_master", "web9"][..]),
        ("{name}", &["out", "none"][..]),
        ("{seq}", &["1", "20"][..]),
    ] {
        if path.contains(part) {
            found = values
                .iter()
                .flat_map(|value| found.iter().map(|path| path.replace(part, value)))
                .collect();
        }
    }

    found
}

/// The views of the page.
pub fn views() -> Vec<String> {
    let views = [
        "/",
        "/jobs",
        "/events",
        "/minions",
        "/reactor",
        "/sinks",
        "/consumers",
    ];
    let more = [
        "/minions/web1",
        "/minions/db1",
        "/events/4",
        "/engines/out",
        "/jobs?result=failed",
        "/events?where=true",
        "/causes",
        "/minions?state=failed",
        "/minions?state=missing",
        "/jobs?arg=web",
        "/minions?sort=last_seen",
        "/find?q=web",
        "/find?q=db",
        "/find?q=secret",
    ];
    let jobs = [SHARED[0], OWN[0], FOREIGN[0], FOREIGN[1], ORCHESTRATION]
        .map(|jid| format!("/jobs/{jid}"));
    let causes = [SHARED[0], FOREIGN[0]].map(|jid| format!("/jobs/{jid}/causes"));
    let diff = format!("/jobs/{}/diff", SHARED[1]);
    let all = views.into_iter().chain(more).map(str::to_owned);
    all.chain(jobs).chain(causes).chain([diff]).collect()
}

/// What salt-api is asked.
pub fn chunks() -> Vec<Json> {
    let jids = [SHARED[0], OWN[0], FOREIGN[0], FOREIGN[1], ORCHESTRATION];
    let mut chunks = vec![
        json!({ "fun": "jobs.list_jobs" }),
        json!({ "fun": "jobs.active" }),
    ];
    for fun in ["jobs.list_job", "jobs.lookup_jid"] {
        chunks.extend(jids.map(|jid| json!({ "fun": fun, "jid": jid })));
    }

    chunks.extend([
        json!({ "fun": "jobs.list_jobs", "search_target": "db1" }),
        json!({ "fun": "jobs.list_jobs", "search_function": "secret.*" }),
        json!({ "fun": "jobs.list_jobs", "search_metadata": { SECRET: "*" } }),
    ]);
    for chunk in &mut chunks {
        chunk["client"] = "runner".into();
    }

    chunks
}
