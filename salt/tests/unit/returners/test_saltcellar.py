"""Each function of the returner: its calls on the wire, and its return values."""

import datetime
import inspect
import os
import re

import pytest
import salt.exceptions

from saltext.saltcellar.returners import saltcellar
from saltext.saltcellar.utils import client as client_
from tests.support.helpers import Refuse

JID = "20261121031733650863"
LOAD = {
    "cmd": "publish",
    "tgt": "*",
    "fun": "test.ping",
    "arg": [],
    "tgt_type": "glob",
    "ret": "",
    "jid": JID,
    "user": "root",
}
RETURN = {
    "cmd": "_return",
    "id": "web1",
    "jid": JID,
    "fun": "test.ping",
    "fun_args": [],
    "return": True,
    "retcode": 0,
}


@pytest.fixture(autouse=True)
def _globals(opts, monkeypatch):
    monkeypatch.setattr(saltcellar, "__opts__", opts, raising=False)
    monkeypatch.setattr(saltcellar, "__salt__", {}, raising=False)


@pytest.mark.parametrize(
    "function, args, kwargs, call, sent",
    [
        (
            "prep_jid",
            (),
            {"nocache": False, "passed_jid": None},
            "prep_jid",
            {"nocache": False, "passed_jid": None, "slot": True},
        ),
        (
            "prep_jid",
            (),
            {"nocache": True, "passed_jid": "7"},
            "prep_jid",
            {"nocache": True, "passed_jid": "7"},
        ),
        (
            "save_load",
            (JID, LOAD, ["db1", "web1"]),
            {},
            "save_load",
            {"jid": JID, "load": LOAD, "minions": ["db1", "web1"]},
        ),
        (
            "save_load",
            (JID, LOAD),
            {"minions": {"db1"}},
            "save_load",
            {"jid": JID, "load": LOAD, "minions": ["db1"]},
        ),
        (
            "save_load",
            (JID, RETURN),
            {},
            "save_load",
            {"jid": JID, "load": RETURN, "minions": None},
        ),
        (
            "save_load",
            (int(JID), LOAD),
            {},
            "save_load",
            {"jid": JID, "load": LOAD, "minions": None},
        ),
        (
            "save_minions",
            (JID, ["a"]),
            {"syndic_id": "s1"},
            "save_minions",
            {"jid": JID, "minions": ["a"], "syndic_id": "s1"},
        ),
        (
            "save_minions",
            (JID, ("a",)),
            {},
            "save_minions",
            {"jid": JID, "minions": ["a"], "syndic_id": None},
        ),
        ("returner", (RETURN,), {}, "returner", {"load": RETURN}),
        (
            "update_endtime",
            (JID, "2026, Nov 21"),
            {},
            "update_endtime",
            {"jid": JID, "endtime": "2026, Nov 21"},
        ),
        (
            "event_return",
            ([{"tag": "a", "data": {"b": 1}}],),
            {},
            "event_return",
            {"events": [{"tag": "a", "data": {"b": 1}}]},
        ),
        ("save_reg", ({"x": 1},), {}, "save_reg", {"data": {"x": 1}}),
        ("clean_old_jobs", (), {}, "clean_old_jobs", {"keep_jobs_seconds": 86400}),
    ],
)
def test_a_write_sends_the_documented_call(daemon, function, args, kwargs, call, sent):
    getattr(saltcellar, function)(*args, **kwargs)
    ((asked, got),) = daemon.calls
    at = got.pop("at", None)
    assert (asked, got) == (call, sent)
    assert at is None or abs(at / 1e6 - datetime.datetime.now().timestamp()) < 60
    assert "replay" not in got


@pytest.mark.parametrize(
    "function, args, kwargs, sent, answer",
    [
        ("get_load", (JID,), {}, {"jid": JID}, dict(LOAD, Minions=["web1"])),
        ("get_load", (JID,), {}, {"jid": JID}, {}),
        ("get_jid", (JID,), {}, {"jid": JID}, {"web1": {"return": True, "retcode": 0}}),
        ("get_jids", (), {}, {}, {JID: {"Function": "test.ping"}}),
        (
            "get_jids_filter",
            (3,),
            {"filter_find_job": True},
            {"count": 3, "filter_find_job": True},
            [{"JID": JID}],
        ),
        ("get_jids_filter", (3, False), {}, {"count": 3, "filter_find_job": False}, []),
        ("get_fun", ("test.ping",), {}, {"fun": "test.ping"}, {"web1": JID}),
        ("get_minions", (), {}, {}, ["db1", "web1"]),
        ("get_endtime", (JID,), {}, {"jid": JID}, "2026, Nov 21 03:17:33.875607"),
        ("get_endtime", (JID,), {}, {"jid": JID}, False),
        ("load_reg", (), {}, {}, {"x": [1, b"\xff"]}),
        ("load_reg", (), {}, {}, None),
    ],
)
def test_a_read_sends_the_documented_call_and_returns_the_answer_unchanged(
    daemon, function, args, kwargs, sent, answer
):
    daemon.answers[function] = answer
    assert getattr(saltcellar, function)(*args, **kwargs) == answer
    assert daemon.calls == [(function, sent)]


@pytest.mark.parametrize("cache", ["master_job_cache", "ext_job_cache"])
@pytest.mark.parametrize(
    "function, args", [("get_jid", (JID,)), ("get_fun", ("test.ping",)), ("get_minions", ())]
)
def test_the_job_cache_returned_unconfirmed_bus_returns(daemon, opts, cache, function, args):
    daemon.answers[function] = {}
    getattr(saltcellar, function)(*args)
    opts[cache] = "saltcellar"
    getattr(saltcellar, function)(*args)
    (_, without), (_, asked) = daemon.calls
    assert asked == {**without, "confirmed": True} and "confirmed" not in without


def test_the_functions_have_the_parameters_of_local_cache():
    import salt.returners.local_cache as local_cache

    for name in (
        "prep_jid",
        "save_load",
        "save_minions",
        "get_load",
        "get_jid",
        "get_jids_filter",
        "save_reg",
    ):
        theirs = [
            p
            for p in inspect.signature(getattr(local_cache, name)).parameters
            if p != "recurse_count"
        ]
        assert list(inspect.signature(getattr(saltcellar, name)).parameters) == theirs


def test_the_daemon_creates_new_jids(daemon):
    daemon.answers["prep_jid"] = "20261121031733650999"
    assert saltcellar.prep_jid() == "20261121031733650999"


def test_the_daemon_tells_the_slot_of_jids_that_are_made_without_it(daemon, opts):
    daemon.answers["prep_jid"] = {"jid": "20261121031733650999", "slot": "2/3"}
    assert saltcellar.prep_jid() == "20261121031733650999"
    assert daemon.named("prep_jid") == [{"nocache": False, "passed_jid": None, "slot": True}]
    daemon.stop()
    client_.forget()
    at = datetime.datetime.strptime(saltcellar.prep_jid(), "%Y%m%d%H%M%S%f") - datetime.datetime(
        1970, 1, 1
    )
    assert at // datetime.timedelta(microseconds=1) % 6 == 3


def test_without_a_daemon_ever_the_configured_slot_counts(opts):
    opts["saltcellar.slot"] = "3/3"
    at = datetime.datetime.strptime(saltcellar.prep_jid(), "%Y%m%d%H%M%S%f") - datetime.datetime(
        1970, 1, 1
    )
    assert at // datetime.timedelta(microseconds=1) % 6 == 5


@pytest.mark.parametrize(
    "answer", [{}, {"jid": None}, {"jid": 5, "slot": "1/2"}, {"slot": "1/2"}, ["1"]]
)
def test_prep_jid_generates_a_local_jid_on_a_map_without_one(daemon, answer):
    daemon.answers["prep_jid"] = answer
    assert re.fullmatch(r"\d{20}", saltcellar.prep_jid())


def test_a_passed_jid_needs_no_daemon(daemon):
    assert saltcellar.prep_jid(False, passed_jid=JID) == JID
    assert saltcellar.prep_jid(passed_jid=int(JID)) == JID
    assert daemon.connections == 0


@pytest.mark.parametrize(
    "code",
    ["refused", "bad_args", "unknown_call", "unavailable", "internal", "version", "surprise"],
)
def test_prep_jid_generates_a_local_jid_on_a_rejection(daemon, code):
    def refuse(_):
        raise Refuse(code)

    daemon.answers["prep_jid"] = refuse
    assert re.fullmatch(r"\d{20}", saltcellar.prep_jid())
    assert re.fullmatch(r"\d{20}", saltcellar.prep_jid(nocache=True))


def test_prep_jid_generates_a_local_jid_without_a_daemon(opts):
    jids = [saltcellar.prep_jid() for _ in range(200)]
    assert all(re.fullmatch(r"\d{20}", jid) for jid in jids)
    assert len(set(jids)) == 200
    opts["unique_jid"] = True
    assert re.fullmatch(r"\d{20}_\d+", saltcellar.prep_jid())


def test_a_jid_of_the_daemon_has_the_configured_form(daemon, opts):
    opts["unique_jid"] = True
    assert saltcellar.prep_jid() == f"20261121031733650863_{os.getpid()}"
    assert saltcellar.prep_jid(False, passed_jid=JID) == JID


def test_prep_jid_generates_a_local_jid_on_an_invalid_answer(daemon):
    daemon.answers["prep_jid"] = None
    assert re.fullmatch(r"\d{20}", saltcellar.prep_jid())


def test_a_nocache_job_without_a_daemon_is_spooled_under_its_generated_jid(spooled):
    jid = saltcellar.prep_jid(nocache=True)
    ((call, args),) = spooled()
    assert (call, args["passed_jid"], args["nocache"]) == ("prep_jid", jid, True)


@pytest.mark.parametrize(
    "function, args, otherwise",
    [
        ("get_jids", (), {}),
        ("get_jids_filter", (3,), []),
        ("get_fun", ("test.ping",), {}),
        ("get_minions", (), []),
        ("get_endtime", (JID,), False),
        ("load_reg", (), None),
        ("clean_old_jobs", (), None),
    ],
)
def test_a_read_without_a_daemon_returns_nothing_and_is_logged_once(
    caplog, function, args, otherwise
):
    for _ in range(3):
        assert getattr(saltcellar, function)(*args) == otherwise
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1


@pytest.mark.parametrize("function", ["get_load", "get_jid"])
def test_a_job_without_a_daemon_raises_something_the_client_library_warns_about(function):
    with pytest.raises(salt.exceptions.CommandExecutionError) as caught:
        getattr(saltcellar, function)(JID)
    assert not isinstance(caught.value, (KeyError, TypeError))


def test_get_load_without_a_daemon_finds_the_publish_in_the_spool():
    saltcellar.save_load("20261121031733650000", dict(LOAD, fun="other"), ["x"])
    saltcellar.save_load(JID, LOAD, ["web1", "db1"])
    saltcellar.save_load(JID, RETURN)
    saltcellar.save_minions(JID, ["far1"], syndic_id="s1")
    assert saltcellar.get_load(JID) == dict(LOAD, Minions=["db1", "far1", "web1"])


def test_get_load_does_not_take_a_return_in_the_spool_for_the_publish():
    saltcellar.save_load(JID, RETURN)
    with pytest.raises(salt.exceptions.CommandExecutionError):
        saltcellar.get_load(JID)


def test_get_load_finds_a_publish_that_is_not_handed_over_yet(daemon):
    daemon.stop()
    saltcellar.save_load(JID, LOAD, ["web1"])
    daemon.start()
    daemon.answers["get_load"] = {}
    assert saltcellar.get_load(JID) == dict(LOAD, Minions=["web1"])


@pytest.mark.parametrize(
    "function, args",
    [
        ("save_load", (None, None)),
        ("save_load", (JID, LOAD, 7)),
        ("save_minions", (JID, None)),
        ("save_minions", (JID, 7)),
        ("returner", (None,)),
        ("returner", ([],)),
        ("update_endtime", (None, None)),
        ("event_return", (None,)),
        ("event_return", ([None, {}, {"tag": "t"}, {"tag": "t", "data": 7}],)),
        ("save_reg", (object(),)),
        ("prep_jid", ([], {})),
        ("get_jid", (None,)),
        ("get_jids_filter", (None,)),
    ],
)
@pytest.mark.parametrize("up", [True, False])
def test_malformed_arguments_do_not_raise(daemon, function, args, up):
    if not up:
        daemon.stop()
    daemon.answers["get_jid"] = {}
    if function == "get_jid" and not up:
        with pytest.raises(salt.exceptions.CommandExecutionError):
            saltcellar.get_jid(*args)
    else:
        getattr(saltcellar, function)(*args)


def test_an_empty_list_of_events_is_not_sent(daemon):
    saltcellar.event_return([])
    assert daemon.connections == 0


def test_an_event_list_over_the_request_limit_is_split(daemon, monkeypatch):
    from saltext.saltcellar.utils import wire

    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", 5000)
    events = [{"tag": f"t/{n}", "data": {"x": "y" * 1000}} for n in range(20)]
    saltcellar.event_return(events)
    assert [event for args in daemon.named("event_return") for event in args["events"]] == events


def test_a_return_is_read_as_it_was_stored(daemon):
    awkward = {
        "bytes": b"\xff\x00",
        "when": datetime.datetime(2026, 2, 3, 4, 5, 6, 789),
        1: "int key",
        "big": 2**64 - 1,
        "name": "\udcff",
    }
    stored = {}
    daemon.answers["returner"] = lambda args: stored.update(
        {args["load"]["id"]: {"return": args["load"]["return"]}}
    )
    daemon.answers["get_jid"] = lambda _: stored
    saltcellar.returner(dict(RETURN, **{"return": awkward}))
    assert saltcellar.get_jid(JID) == {"web1": {"return": awkward}}


@pytest.mark.parametrize("function, what", [("get_jid", {"jid": JID}), ("get_fun", {"fun": JID})])
def test_full_returns_are_requested_if_configured(daemon, opts, function, what):
    opts["saltcellar.full_ret"] = True
    daemon.answers[function] = {"web1": RETURN}
    assert getattr(saltcellar, function)(JID) == {"web1": RETURN}
    assert daemon.calls == [(function, {**what, "full": True})]


def test_keep_jobs_is_passed_on_as_this_release_of_salt_reads_it(daemon, opts):
    import salt.utils.job

    opts["keep_jobs"] = 48
    saltcellar.clean_old_jobs()
    assert daemon.named("clean_old_jobs") == [
        {"keep_jobs_seconds": salt.utils.job.get_keep_jobs_seconds(opts)}
    ]


@pytest.mark.parametrize("unusable", ["a day", None, -1])
def test_an_invalid_keep_jobs_seconds_is_not_reported(daemon, opts, unusable):
    opts["keep_jobs_seconds"] = unusable
    saltcellar.clean_old_jobs()
    assert daemon.named("clean_old_jobs") == [{"keep_jobs_seconds": None}]
