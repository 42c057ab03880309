//! Salt's calls: stored, rejected and read entries.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rmpv::Value;
use saltcellar_testkit::entries::{ping, pong};

use crate::harness::{Asks as _, Cellar, list, map};

const JID: &str = "20261121030955505683";

fn answer(minion: &str, value: Value) -> Value {
    pong(JID, minion, value)
}

#[test]
fn syndics_add_minions_endtimes_and_registers_are_kept() {
    let mut cellar = Cellar::start();
    cellar.ask(
        "save_load",
        vec![
            ("jid", JID.into()),
            ("load", ping(JID)),
            ("minions", list(["web1"])),
        ],
    );
    for (syndic, minion) in [("s1", "a"), ("s2", "b")] {
        let args = vec![
            ("jid", JID.into()),
            ("minions", list([minion])),
            ("syndic_id", syndic.into()),
        ];
        cellar.ask("save_minions", args);
    }
    for end in [
        "2026, Nov 21 03:09:53.349344",
        "2026, Nov 21 03:09:54.000000",
    ] {
        cellar.ask(
            "update_endtime",
            vec![("jid", JID.into()), ("endtime", end.into())],
        );
    }
    cellar.ask("save_reg", vec![("data", map(vec![("n", 1.into())]))]);
    cellar.ask("returner", vec![("load", answer("web1", 1.into()))]);
    cellar.kill();
    cellar.restart();
    assert_eq!(
        cellar.ask("get_load", vec![("jid", JID.into())])["Minions"],
        list(["a", "b", "web1"])
    );
    assert_eq!(
        cellar.ask("get_endtime", vec![("jid", JID.into())]),
        "2026, Nov 21 03:09:54.000000".into()
    );
    assert_eq!(cellar.ask("load_reg", vec![])["n"], 1.into());
    assert_eq!(
        cellar.ask("get_fun", vec![("fun", "test.ping".into())])["web1"],
        JID.into()
    );
    assert_eq!(cellar.ask("get_minions", vec![]), list(["web1"]));
    let shown = cellar.ask("job_show", vec![("jid", JID.into())]);
    assert_eq!(shown["missing"], list(["a", "b"]));
}

/// Makes calls in one write, as the handover of a spool does: none is stored when the next one is read.
fn ask_together<'a>(
    cellar: &Cellar,
    calls: impl Iterator<Item = (&'a str, Vec<(&'a str, Value)>)>,
) {
    let mut bytes = b"SCWIRE\x00\x01".to_vec();
    let mut count = 0;
    for (number, (call, args)) in (1_u64..).zip(calls) {
        let request = Value::Array(vec![number.into(), call.into(), map(args)]);
        let mut body = Vec::new();
        rmpv::encode::write_value(&mut body, &request).unwrap();
        bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        count += 1;
    }

    let mut stream = UnixStream::connect(cellar.socket()).unwrap();
    stream.write_all(&bytes).unwrap();
    for _ in 0..count {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut body).unwrap();
        let answer = rmpv::decode::read_value(&mut &body[..]).unwrap();
        assert_eq!(answer[1], true.into(), "{answer}");
    }
}

/// The deliveries of one return, in one of the orders that an outage leaves in the spool.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Delivery {
    Event,
    SaveLoad,
    Returner,
}

#[test]
fn a_return_of_an_unknown_job_is_listed_once_in_each_order_of_its_calls() {
    use Delivery::{Event, Returner, SaveLoad};
    let mut cellar = Cellar::start();
    let at = saltcellar::base::clock::Clock::real().now().0 - 3_600_000_000;
    // The load of its job waits behind it, or in the same batch: then `save_load` also stores the return.
    let orders = [
        [Event, SaveLoad, Returner],
        [SaveLoad, Event, Returner],
        [SaveLoad, Returner, Event],
    ];
    for (n, order) in orders.iter().enumerate() {
        for (m, [replay, restarts]) in [[false, false], [true, false], [true, true]]
            .iter()
            .enumerate()
        {
            let jid = format!("202611210309555056{n}{m}");
            let load = pong(&jid, "web1", "while away".into());
            let event = map(vec![
                ("tag", format!("salt/job/{jid}/ret/web1").into()),
                ("data", load.clone()),
            ]);
            let calls = order.iter().zip(0_i64..).map(|(delivery, later)| {
                let (call, mut args) = match delivery {
                    Event => (
                        "event_return",
                        vec![("events", Value::Array(vec![event.clone()]))],
                    ),
                    SaveLoad => (
                        "save_load",
                        vec![("jid", jid.as_str().into()), ("load", load.clone())],
                    ),
                    Returner => ("returner", vec![("load", load.clone())]),
                };
                if *replay {
                    args.extend([("at", (at + later).into()), ("replay", true.into())]);
                }
                (call, args)
            });
            if *restarts {
                for (call, args) in calls {
                    cellar.ask(call, args);
                    cellar.kill();
                    cellar.restart();
                }
            } else {
                ask_together(&cellar, calls);
            }

            let about = format!("{order:?}, replay {replay}, restarts {restarts}");
            let events = cellar.ask("events_list", vec![("jid", jid.as_str().into())]);
            assert_eq!(
                events["events"].as_array().unwrap().len(),
                1,
                "{about}: {events}"
            );
            let shown = cellar.ask("job_show", vec![("jid", jid.as_str().into())]);
            assert_eq!(shown["returned"], 1.into(), "{about}: {shown}");
            assert_eq!(
                shown["returns"][0]["duplicates"],
                0.into(),
                "{about}: {shown}"
            );
            let confirmed = vec![("jid", jid.as_str().into()), ("confirmed", true.into())];
            let confirmed = cellar.ask("get_jid", confirmed);
            assert_eq!(confirmed["web1"]["return"], "while away".into(), "{about}");
        }
    }
}
