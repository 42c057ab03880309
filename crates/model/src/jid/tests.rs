//! Tests of job ids.

use super::*;

#[test]
fn a_jid_with_a_time_is_restored_from_its_key() {
    for jid in [
        "20261121030955505683",
        "20261121030955505683_4711",
        "19700101000000000000",
    ] {
        assert_eq!(JidKey::of(jid).text().as_deref(), Some(jid), "{jid}");
    }
}

#[test]
fn the_speller_agrees_with_stamped_jid() {
    let mut speller = JidSpeller::default();
    for at in [
        0,
        1,
        999_999,
        1_000_000,
        1_795_230_637_359_479,
        1_795_230_637_000_001,
        5,
    ] {
        assert_eq!(
            speller.spell(Micros(at)).as_slice(),
            stamped_jid(Micros(at)).as_bytes()
        );
    }
}

#[test]
fn a_time_outside_of_the_calendar_makes_a_jid_without_time() {
    for at in [i64::MIN, 253_402_300_800_000_000, i64::MAX].map(Micros) {
        assert_eq!(JidKey::of(&stamped_jid(at)).time(), None);
        JidSpeller::default().spell(at);
    }
    assert_eq!(
        stamped_jid(Micros(253_402_300_799_999_999)),
        "99991231235959999999"
    );
}

#[test]
fn other_text_has_a_key_without_time() {
    for jid in [
        "",
        "req",
        "20261321030955505683",
        "2026112103095550568",
        "20261121030955505683_",
        "20261121030955505683_007",
        "20261121030955505683_99999999999",
        "19691121030955505683",
        "2026112103095550568é",
        "žluť",
    ] {
        assert_eq!(JidKey::of(jid).time(), None, "{jid}");
        assert_eq!(JidKey::of(jid).text(), None, "{jid}");
    }
}

#[test]
fn keys_sort_by_time_and_free_text_sorts_last() {
    let mut jids = [
        "free",
        "20261121030955505684",
        "20261121030955505683_2",
        "20261121030955505683",
    ];
    jids.sort_by_key(|jid| JidKey::of(jid));
    assert_eq!(
        jids,
        [
            "20261121030955505683",
            "20261121030955505683_2",
            "20261121030955505684",
            "free"
        ]
    );
}

#[test]
fn the_start_time_has_salts_format() {
    assert_eq!(
        start_time("20261121031037359479"),
        "2026, Nov 21 03:10:37.359479"
    );
    assert_eq!(
        start_time("20261121031037359479_12"),
        "2026, Nov 21 03:10:37.359479"
    );
    assert_eq!(start_time("mine"), "");
}
