//! Records of reactions in responses.

use crate::base::clock::Micros;
use crate::daemon::in_process::Cellar;
use crate::model::SeqNo;
use crate::reactor::master::Call;
use crate::reactor::run::record::{ReactionState, Record};
use crate::reactor::run::{Event, ReactionPlan};
use crate::reactor::{CallOutcome, CallRecord};
use crate::testkit::entries::Asks as _;

#[test]
fn a_result_that_salts_codec_cannot_read_is_replaced_in_an_answer() {
    // As Python writes the first day of the year 1, which `strptime` does not parse.
    let date = b"10101T00:00:00.000000";
    let mut result = vec![0xc7, u8::try_from(date.len()).unwrap(), 78];
    result.extend_from_slice(date);

    let made = CallRecord {
        call: Call::wheel("test.date", Vec::new(), salt_sls::Map::default()),
        jid: "1".to_owned(),
        tries: 1,
        sent: Micros(1),
        took_us: 1,
        outcome: CallOutcome::ran(true, None, result),
    };
    let record = Record {
        event: Event {
            seq: SeqNo(1),
            tag: "a".to_owned(),
            ..Event::default()
        },
        rules: vec!["a".into()],
        rule_count: 1,
        state: ReactionState::Done,
        started_at: Micros(1),
        ended: Micros(2),
        plan: ReactionPlan::default(),
        calls: vec![made],
        replay: None,
        depth: 0,
    };

    let cellar = Cellar::start();
    cellar.store(record.batch(Micros(2)));

    let history = cellar.ask("reactor_history", vec![]);
    let call = &history["reactions"][0]["reaction"]["calls"][0];
    assert_eq!(call["fun"], "test.date".into());
    assert_eq!(
        call["result"],
        "<unreadable: ext 78 is not a date as Salt writes it>".into()
    );
}
