//! From rendered text to low chunks.

use salt_sls::compile::{self, Refused};
use salt_sls::yaml;
use serde_json::{Value as Json, json};

use crate::json_form::{alike, assert_none, low_of, spell_low, spell_map};
use crate::lines;

#[test]
fn events_compile_as_in_salt() {
    let rows = lines("compile.jsonl");
    let mut wrong = Vec::new();
    for row in &rows {
        let mut files = Vec::new();
        for (file, expected) in row["files"]
            .as_array()
            .unwrap()
            .iter()
            .zip(row["high"].as_array().unwrap())
        {
            let (path, text) = (file[0].as_str().unwrap(), file[1].as_str().unwrap());
            let high = compile::high(text, path);
            let found = high.as_ref().map_or(Json::Null, spell_map);
            if !alike(&found, expected) {
                wrong.push(format!(
                    "{text}\n  Salt: {expected}\n  here: {found} {:?}",
                    high.as_ref().err()
                ));
            }
            files.extend(high);
        }
        let found = low_of(files);
        let same = match &found {
            Ok(low) => row
                .get("low")
                .is_some_and(|expected| spell_low(low) == spell_low(expected)),
            Err(Refused::Errors(errors)) => row.get("errors") == Some(&json!(errors)),
            Err(Refused::Exception(_)) => row.get("raises").is_some(),
        };
        if !same {
            wrong.push(format!("{row}\n  here: {found:?}"));
        }
    }
    assert_none(&wrong, rows.len());
}

/// Measures one event of Salt's benchmark file, from rendered text to low chunks.
#[test]
#[ignore = "prints a measurement; run it in release"]
fn speed_of_yaml_and_compile() {
    let text = "\nrefresh_pool_web1:\n  local.state.apply:\n    - tgt: 'haproxy*'\n    - args:\n      - mods: \
                haproxy.refresh_pool\n      - pillar:\n          new_minion: web1\n\n";
    let rounds = 200_000;
    let mut best = [f64::MAX; 3];
    for _ in 0..5 {
        let cpu = |run: &dyn Fn()| {
            let now = || {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                std::time::Duration::new(
                    time.tv_sec.unsigned_abs(),
                    u32::try_from(time.tv_nsec).unwrap(),
                )
            };
            let begin = now();
            (0..rounds).for_each(|_| run());
            now().saturating_sub(begin).as_secs_f64() * 1e6 / f64::from(rounds)
        };
        let high = compile::high(text, "/srv/reactor/r.sls").unwrap();
        let rows = [
            cpu(&|| drop(yaml::load(text).unwrap())),
            cpu(&|| drop(compile::high(text, "/srv/reactor/r.sls").unwrap())),
            cpu(&|| drop(compile::low(vec![high.clone()]).unwrap())),
        ];
        best = [0, 1, 2].map(|n| best[n].min(rows[n]));
    }
    println!(
        "yaml {:.2} us, yaml and padding {:.2} us, compiling (with a copy) {:.2} us",
        best[0], best[1], best[2]
    );
}
