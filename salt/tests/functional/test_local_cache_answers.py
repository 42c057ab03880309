"""
``local_cache`` and ``saltcellar`` side by side, through Salt's loader and Salt's own ``_store_job``: whatever is asked,
both say the same, but for what ``differences.py`` lists.

The calls are recorded ones (``salt/tests/data``), those of each case in Salt's contract, and generated ones, by seed.
"""

import contextlib
import copy
import datetime
import inspect
import itertools
import json
import os
import random
import re
from base64 import b64decode
from pathlib import Path

import pytest
import salt.config
import salt.exceptions
import salt.loader
import salt.utils.jid
import salt.utils.job
import salt.version
from conftest import PACKAGE
from differences import ALL, MISSING

DATA = Path(__file__).resolve().parents[1] / "data"
RELEASE = tuple(int(part) for part in re.findall(r"\d+", salt.version.__version__)[:2])
MINIONS = ["db1", "web1", "web2"]
#: Differences that some test needed, over the session.
NEEDED = set()


class Ask:
    """One question, or one call whose result counts."""

    def __init__(self, function, args):
        self.function, self.args = function, args
        self.jid = args[0] if args and function.startswith(("get_load", "get_jid", "get_endtime")) else None

    def __repr__(self):
        return f"{self.function}{self.args}"


class Side:
    """One of the two, as the master's processes see it."""

    def __init__(self, name, opts):
        self.name = name
        self.opts = dict(opts, master_job_cache=name)
        self.returners = salt.loader.returners(self.opts, {})
        self.minion = type("Minion", (), {"returners": self.returners})()
        #: Its jids, for the words that the tests have for them.
        self.jids = {}

    def call(self, function, *args, **kwargs):
        return self.returners[f"{self.name}.{function}"](*args, **kwargs)


class World:
    """Both sides, what was done to them, and what follows from it for the differences."""

    def __init__(self, cellar, run_dir, **options):
        self.release = RELEASE
        directories = ("cachedir", "sock_dir", "pki_dir", "extension_modules")
        self.opts = salt.config.apply_master_config(
            dict(
                __role="master",
                module_dirs=[str(PACKAGE)],
                **{key: str(run_dir / key) for key in directories},
                **{"saltcellar.socket": cellar.socket, "saltcellar.timeout": 20},
                **options,
            )
        )
        accepted = run_dir / "pki_dir" / "minions"
        accepted.mkdir(parents=True)
        for minion in MINIONS:
            (accepted / minion).write_text("a key")
        self.theirs, self.ours = self.sides = Side("local_cache", self.opts), Side("saltcellar", self.opts)
        self.done = []
        self._now = itertools.count(1)
        self._tokens = itertools.count(1)
        self.published, self.first, self.republished = set(), {}, set()
        self.minions_twice, self.without_minions, self.named = set(), set(), set()
        self.unprepared, self.prepared, self.made_up = set(), set(), set()
        self.lost, self.dropped, self.without_target = set(), set(), set()
        self.nocache, self.nocache_late, self.returned = set(), set(), set()

    # ---- doing

    @contextlib.contextmanager
    def same_time(self, second):
        """Jids and end times that Salt makes by itself are the same on both sides, and later than all that are passed."""
        at = datetime.datetime(2100, 1, 1) + datetime.timedelta(seconds=second)

        def gen_jid(_opts):
            nonlocal at
            at += datetime.timedelta(microseconds=1)
            return f"{at:%Y%m%d%H%M%S%f}"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(salt.utils.jid, "gen_jid", gen_jid)
            yield

    def each(self, function):
        """The same on both sides; what it gave."""
        out, second = [], next(self._now)
        for side in self.sides:
            with self.same_time(second):
                out.append(function(side))
        return out

    def token(self, *jids):
        """A word for a jid that each side made for itself."""
        word = f"made{next(self._tokens)}"
        for side, jid in zip(self.sides, jids):
            assert re.fullmatch(r"\d{20}(_\d+)?" if self.opts.get("unique_jid") else r"\d{20}", jid), (side.name, jid)
            side.jids[word] = jid
        return word

    def jid(self, side, word):
        return side.jids.get(word, word)

    def publish(self, load, minions=MINIONS, nocache=False):
        """As `_prep_pub` of the master: a jid, and the load with it. The jid, or the word for it."""
        passed = load.get("jid") or None
        self.done.append(("publish", load, minions, nocache))
        self.note_jid(passed)
        jids = self.each(lambda side: side.call("prep_jid", nocache=nocache, passed_jid=passed))
        word = passed if passed else self.token(*jids)
        if nocache:
            self.nocache.add(word)
            if word in self.returned:
                self.nocache_late.add(word)
        self.each(lambda side: self._save(side, word, load, minions))
        self.note_load(word, load, minions)
        return word

    def _save(self, side, word, load, minions):
        jid = self.jid(side, word)
        side.call("save_load", jid, dict(copy.deepcopy(load), jid=jid), minions)

    def save_load(self, word, load):
        """Without minions, as salt-ssh and a syndic's batch do it."""
        self.done.append(("save_load", word, load))
        self.note_jid(word)
        self.each(lambda side: self._save(side, word, load, None))
        self.without_minions.add(word)
        self.note_load(word, load, None)

    def returned_by(self, minion, word, value=True, **more):
        """As the master's `_return`: Salt's `_store_job`. The jid, or the word for the one it got."""
        load = {"cmd": "_return", "id": minion, "jid": word, "fun": "test.ping", "fun_args": [], "return": value, **more}
        load = {key: value for key, value in load.items() if value is not MISSING}
        self.done.append(("return", load))
        self.note_jid(word)

        def store(side):
            mine = dict(copy.deepcopy(load), jid=self.jid(side, word))
            try:
                salt.utils.job.store_job(side.opts, mine, mminion=side.minion)
            except salt.exceptions.CommandExecutionError:
                assert side is self.theirs
                self.lost.add((word, minion))
            return mine["jid"]

        jids = self.each(store)
        if word == "req":
            word = self.token(*jids)
        self.prepared.add(word)
        self.returned.add(word)
        # Salt gives `local_cache` only the first, `saltcellar` sees them all and keeps the first: the same.
        self.published.add(word)
        self.first.setdefault(word, "return")
        return word

    def bare_return(self, minion, word, value):
        """A `returner` call alone, as on a minion."""
        load = {"id": minion, "jid": word, "fun": "test.ping", "fun_args": [], "return": value, "retcode": 0, "success": True}
        self.done.append(("returner", load))
        self.note_jid(word)
        if word not in self.prepared | self.published:
            self.unprepared.add(word)
            self.dropped.add((word, minion))
        self.returned.add(word)
        theirs, ours = self.each(lambda side: side.call("returner", dict(copy.deepcopy(load), jid=self.jid(side, word))))
        self.compare(Ask("returner", (minion, word)), theirs, ours)

    def syndic(self, word, minions, syndic):
        """As `_minion_event` of the master, of a syndic's list."""
        self.done.append(("save_minions", word, minions, syndic))
        self.note_jid(word)
        self.each(lambda side: salt.utils.job.store_minions(side.opts, self.jid(side, word), list(minions), side.minion, syndic))
        if (word, syndic) in self.named:
            self.minions_twice.add(word)
        self.named.add((word, syndic))
        self.prepared.add(word)

    def ended(self, word, when):
        self.done.append(("update_endtime", word, when))
        self.each(lambda side: side.call("update_endtime", self.jid(side, word), when))
        self.prepared.add(word)

    def only_returned(self):
        """Jobs of which a return came first that nobody had prepared, and nothing better since."""
        return {word for word in self.unprepared if self.first.get(word, "return") == "return"}

    def note_jid(self, word):
        if word and word != "req" and not word.startswith("made") and not is_of_time(word):
            self.made_up.add(word)

    def note_load(self, word, load, minions):
        # What was returned before was the load, until now; on one side it stays the second best.
        if word in self.published and self.first.get(word) != "return":
            self.republished.add(word)
        self.first[word] = load
        self.published.add(word)
        self.prepared.add(word)
        if minions is not None and not load.get("tgt"):
            self.without_target.add(word)
        elif minions is not None or load.get("tgt"):
            if (word, None) in self.named:
                self.minions_twice.add(word)
            self.named.add((word, None))

    # ---- asking

    def ask(self, function, *args):
        """Both answers, compared."""
        theirs, ours = (self._answer(side, function, args) for side in self.sides)
        return self.compare(Ask(function, args), theirs, ours)

    def _answer(self, side, function, args):
        try:
            return side.call(function, *(self.jid(side, args[0]), *args[1:]) if args else ())
        except Exception as exc:  # pylint: disable=broad-except
            return Raised(exc)

    def compare(self, ask, theirs, ours):
        theirs, ours = (self.in_words(side, answer) for side, answer in zip(self.sides, (theirs, ours)))
        was = ours
        for name, differ in ALL.items():
            if theirs == ours == MISSING:
                break
            one, other = differ(ask, copy.deepcopy(theirs), copy.deepcopy(ours), self)
            if not alike(theirs, ours) and not (same(one, theirs) and same(other, ours)):
                NEEDED.add(name)
            theirs, ours = one, other
        if not alike(theirs, ours):
            tail = "\n".join(repr(step)[:300] for step in self.done[-12:])
            theirs, ours = parted(theirs, ours)
            pytest.fail(f"{ask} on {salt.version.__version__}\nlocal_cache: {theirs!r}\nsaltcellar:  {ours!r}\nafter ...\n{tail}")
        return was

    def in_words(self, side, value):
        """An answer with the words for jids in place of the jids; when a job began follows from them."""
        words = {jid: word for word, jid in side.jids.items()}

        def walk(value):
            if isinstance(value, dict):
                out = {walk(key): walk(item) for key, item in value.items()}
                if "StartTime" in value:
                    jid = value.get("JID") or next((j for j in words if salt.utils.jid.jid_to_time(j) == value["StartTime"]), None)
                    if jid in words:
                        assert value["StartTime"] == salt.utils.jid.jid_to_time(jid)
                        out["StartTime"] = "of its jid"
                return out
            if isinstance(value, (list, tuple)):
                return [walk(item) for item in value]
            return words.get(value, value) if isinstance(value, str) else value

        return walk(value)

    def ask_all(self):
        """Everything there is to ask about."""
        for word in sorted(self.published | self.prepared | self.unprepared | {"20190101000000000000", "never"}):
            for function in ("get_load", "get_jid", "get_endtime"):
                self.ask(function, word)
        self.ask("get_jids")
        for count, *find_job in ((1,), (3,), (1000,), (1000, False), (2, False)):
            self.ask("get_jids_filter", count, *find_job)


def is_of_time(jid):
    try:
        datetime.datetime.strptime(jid[:20], "%Y%m%d%H%M%S%f")
    except ValueError:
        return False
    return bool(re.fullmatch(r"\d{20}(_\d+)?", jid))


class Raised:
    """An answer that is none."""

    def __init__(self, exc):
        self.exc = exc

    def __repr__(self):
        return f"<raised {self.exc!r}>"


def parted(one, other):
    """Of two maps, what differs."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one, other
    keys = [key for key in {**one, **other} if key not in one or key not in other or not alike(one[key], other[key])]
    return tuple({key: part[key] for key in keys if key in part} for part in (one, other))


def same(one, other):
    return repr(one) == repr(other)


def alike(one, other):
    """Equal, with nan equal to itself, and 1 not the same as True."""
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and alike(item, other[key]) for key, item in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


@pytest.fixture
def world(cellar, run_dir):
    return World(cellar, run_dir)


def load(**more):
    made = {"cmd": "publish", "tgt": "*", "fun": "test.ping", "arg": [], "tgt_type": "glob", "ret": "", "jid": "", "user": "root"}
    made.update(more)
    return {key: value for key, value in made.items() if value is not MISSING}


# ---- the cases of the contract, one by one


def test_a_publish_is_the_load(world):
    jid = world.publish(load(fun="state.apply", arg=["web", {"__kwarg__": True, "test": True}], kwargs={"show_jid": False}))
    assert world.ask("get_load", jid)["Minions"] == MINIONS
    assert world.ask("get_jids")[jid]["Function"] == "state.apply"
    world.ask_all()


def test_a_return_given_as_load_does_not_hide_the_publish(world):
    jid = world.publish(load())
    for minion in MINIONS:
        world.returned_by(minion, jid, retcode=0, success=True, out="nested")
    assert world.ask("get_load", jid)["tgt"] == "*"
    assert set(world.ask("get_jid", jid)) == set(MINIONS)
    world.ask_all()


def test_a_return_without_publish_is_the_load(world):
    world.returned_by("web1", "20201121030955505683", {"some": "thing"}, retcode=0)
    assert world.ask("get_load", "20201121030955505683")["id"] == "web1"
    world.ask_all()


def test_a_return_of_a_runner_is_the_load(world):
    world.returned_by("host_master", "20201121030955505684", {"fun": "runner.x"}, cmd=MISSING, tgt="host_master", user="root")
    world.ask_all()


@pytest.mark.parametrize("unique_jid", [False, True])
def test_a_return_without_a_job_gets_one(cellar, run_dir, unique_jid):
    world = World(cellar, run_dir, unique_jid=unique_jid)
    jid = world.returned_by("web1", "req", 7, fun_args=["a"], retcode=0, success=True)
    assert world.ask("get_load", jid)["Minions"] == ["web1"]
    assert world.ask("get_jids")[jid]["Target"] == "web1"
    assert world.ask("get_jid", "req") == {}
    world.ask_all()


def test_salt_ssh_saves_a_load_of_its_own(world):
    jid = "20201121030955505685"
    world.each(lambda side: side.call("prep_jid", passed_jid=jid))
    world.save_load(jid, load(cmd=MISSING, ret=MISSING, tgt="web*"))
    world.returned_by("web1", jid, True, cmd=MISSING)
    world.ask_all()


def test_syndics_report_their_minions_and_a_load(world):
    jid = world.publish(load(), minions=[])
    world.syndic(jid, ["far1", "far2"], "syndic1")
    world.syndic(jid, ["far3"], "syndic2")
    assert world.ask("get_load", jid)["Minions"] == ["far1", "far2", "far3"]
    world.syndic(jid, ["far4"], "syndic1")
    world.save_load(jid, load(user="sudo_syndic", Minions=["far1"]))
    world.returned_by("far1", jid, True, cmd=MISSING, master_id="syndic1")
    world.ask_all()


def test_a_jid_that_is_published_twice(world):
    jid = "20201121030955505690"
    world.publish(load(jid=jid, fun="first"), minions=["web1"])
    world.publish(load(jid=jid, fun="second", tgt=""), minions=["web2"])
    world.publish(load(jid=jid, fun="third"), minions=["db1"])
    assert world.ask("get_load", jid)["Minions"] == ["db1", "web1", "web2"]
    world.ask_all()


def test_a_job_with_nocache_keeps_its_load_and_no_returns(world):
    jid = world.publish(load(), nocache=True)
    world.returned_by("web1", jid)
    assert world.ask("get_jid", jid) == {}
    assert world.ask("get_load", jid)["fun"] == "test.ping"
    alone = world.returned_by("web1", "req", 1, nocache=True)
    assert world.ask("get_jid", alone) == {}
    world.publish(load(jid="20201121030955505686"))
    world.returned_by("web1", "20201121030955505686")
    world.publish(load(jid="20201121030955505686"), nocache=True)
    world.ask_all()


def test_the_jids_req_and_nocache_are_no_jobs(world):
    world.returned_by("web1", "nocache")
    assert world.ask("get_jids") == {}, "nor is anything else, as yet"
    assert world.ours.call("get_load", "req") == world.ours.call("get_load", "nocache") == {}


def test_of_duplicates_the_first_one_stays(world):
    jid = world.publish(load())
    for value in (1, 1, 2):
        world.returned_by("web1", jid, value, retcode=value)
    world.bare_return("web1", jid, 3)
    assert world.ask("get_jid", jid)["web1"]["return"] == 1
    world.ask_all()


@pytest.mark.parametrize("option", [False, True])
def test_the_last_end_time_stays(cellar, run_dir, option):
    world = World(cellar, run_dir, job_cache_store_endtime=option)
    jid = world.publish(load())
    world.returned_by("web1", jid)
    world.returned_by("db1", jid)
    assert bool(world.ask("get_endtime", jid)) == option
    world.ended(jid, "2026, Nov 21 03:09:53.349344")
    assert world.ask("get_endtime", jid) == "2026, Nov 21 03:09:53.349344"
    world.ask_all()


@pytest.mark.parametrize("unique_jid", [False, True])
def test_jids_have_the_form_that_the_options_want(cellar, run_dir, unique_jid):
    world = World(cellar, run_dir, unique_jid=unique_jid)
    for _ in range(5):
        world.returned_by("web1", world.publish(load()))
    world.publish(load(jid="20201121030955505687_4711"))
    world.ask_all()


@pytest.mark.parametrize("jid", ["mine", "20200101000000000001", "7", "a/b\\c", "ž" * 100, "20201399999999999999", "1" * 10_000])
def test_a_jid_may_be_anything(world, jid):
    assert world.publish(load(jid=jid)) == jid
    world.returned_by("web1", jid)
    world.publish(load(jid="20201121030955505688"))
    assert set(world.ask("get_jid", jid)) == {"web1"}
    world.ask_all()


def test_a_return_that_nobody_prepared(world):
    world.publish(load())
    world.bare_return("web1", "20201121030955505689", 1)
    world.ask_all()


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": {"a": 1}},
        {"metadata": None},
        {"kwargs": {"metadata": {"b": [1]}}},
        {"kwargs": {}},
        {"arg": ["x", {"__kwarg__": True, "metadata": {"c": b"\x00"}}]},
        {"arg": [{"__kwarg__": False, "metadata": 1}, {"metadata": 2}]},
        {"arg": [{"__kwarg__": True, "metadata": "first"}, {"__kwarg__": True, "metadata": "second"}]},
        {"metadata": "top", "kwargs": {"metadata": "in kwargs"}, "arg": [{"__kwarg__": True, "metadata": "in arg"}]},
        {"kwargs": {"metadata": "in kwargs"}, "arg": [{"__kwarg__": True, "metadata": "in arg"}]},
    ],
)
def test_metadata_is_found_wherever_it_is(world, more):
    world.publish(load(**more))
    world.ask_all()


@pytest.mark.parametrize(
    "more",
    [
        {key: MISSING for key in ("fun", "arg", "tgt", "tgt_type", "user")},
        {"tgt": ["web1", "db1"], "tgt_type": "list"},
        {"fun": ["test.ping", "test.echo"], "arg": [[], ["hi"]]},
        {"fun": "saltutil.find_job", "arg": ["20201121030955505683"]},
        {"tgt": ""},
        {"arg": [1, 2.5, None, True, b"\xff", {"deep": [{"er": {1: "int key"}}]}, "x" * 5000]},
    ],
)
def test_loads_of_all_kinds_are_listed_alike(world, more):
    world.publish(load(**more))
    world.publish(load())
    world.ask_all()


VALUES = [
    None, True, 0, -1, 2**63, 1.5, float("inf"), float("nan"), "", "text", "ž\u0000", [], {}, [1, [2, [3]]],
    b"bytes", b"\xff\xfe", {"k": {1: "int key", "1": "text key"}}, datetime.datetime(2026, 2, 3, 4, 5, 6, 789), 2**80,
    {"deep": {"b": b"\x00"}}, "x" * 70_000, {"state_|-a_|-a_|-run": {"result": False, "changes": {}, "comment": "no"}},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_what_was_returned_comes_back(world, number):
    jid = world.publish(load())
    world.returned_by("web1", jid, VALUES[number], retcode=number % 3, success=bool(number % 2))
    got = world.ask("get_jid", jid)["web1"]["return"]
    assert alike(got, str(VALUES[number]) if VALUES[number] == 2**80 else VALUES[number])


# ---- what people type


RUNNERS = [
    ("jobs.list_job", ("{jid}",), {}),
    ("jobs.lookup_jid", ("{jid}",), {}),
    ("jobs.lookup_jid", ("{jid}",), {"missing": True}),
    ("jobs.list_jobs", (), {}),
    ("jobs.list_jobs", (), {"search_metadata": {"why": "maintenance"}, "search_function": "state.*", "search_target": "web*"}),
    ("jobs.list_jobs_filter", (5,), {}),
    ("jobs.print_job", ("{jid}",), {}),
    ("jobs.exit_success", ("{jid}",), {}),
    ("jobs.last_run", (), {"function": "state.apply"}),
]


def test_the_runners_of_jobs_show_the_same(world, in_child):
    jid = "20201121030955505691"
    world.publish(load(jid="20201121030955505690", fun="saltutil.find_job", arg=[jid]))
    world.publish(load(jid=jid, fun="state.apply", tgt="web*", kwargs={"metadata": {"why": "maintenance"}}), ["web1", "web2"])
    states = {"pkg_|-nginx_|-nginx_|-installed": {"result": True, "changes": {}, "comment": "", "name": "nginx"}}
    world.returned_by("web1", jid, states, retcode=0, success=True, out="highstate")
    # In a process of its own: the runners of 3008 leave minions behind, whose options others would get.
    in_child(run_runners, world, jid)


def run_runners(world, jid):
    theirs, ours = (salt.loader.runner(side.opts) for side in world.sides)
    for function, args, kwargs in RUNNERS:
        args = [arg.format(jid=jid) if isinstance(arg, str) else arg for arg in args]
        one, other = theirs[function](*args, **kwargs), ours[function](*args, **kwargs)
        assert other and alike(one, other), (function, args, kwargs, one, other)
    assert theirs["jobs.lookup_jid"]("20190101000000000000") == ours["jobs.lookup_jid"]("20190101000000000000") == {}


# ---- recorded calls


def recorded():
    """Salt's calls as they were recorded on one of the releases: publishes and returns, by the jid they are about."""
    for line in (DATA / "calls.jsonl").read_text().splitlines():
        yield decoded(json.loads(line))


def decoded(value):
    if isinstance(value, dict):
        if set(value) == {"$bin"}:
            return b64decode(value["$bin"])
        if set(value) == {"$map"}:
            return {decoded(key): decoded(item) for key, item in value["$map"]}
        if set(value) == {"$ext"}:
            return datetime.datetime.strptime(b64decode(value["$ext"][1]).decode(), "%Y%m%dT%H:%M:%S.%f")
        if set(value) == {"$float"}:
            return float(value["$float"])
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value


def test_recorded_calls(world):
    for n, call in enumerate(recorded()):
        if call["fn"] == "save_load":
            jid, its_load, *minions = call["args"]
            world.publish(dict(its_load, jid=jid), minions=minions[0] if minions else [])
        else:
            (its_load,) = call["args"]
            world.returned_by(its_load["id"], its_load["jid"], its_load["return"], cmd=its_load.get("cmd", MISSING), **{
                key: value for key, value in its_load.items() if key not in ("id", "jid", "return", "cmd")
            })  # fmt: skip
        if n % 10 == 0:
            world.ask_all()
    world.ask_all()


# ---- generated calls


def some_load(dice, jid):
    return load(
        jid=jid,
        fun=dice.choice(["test.ping", "state.apply", "saltutil.find_job", MISSING, ["test.ping", "test.echo"]]),
        arg=dice.choice([[], ["a", 1], [{"__kwarg__": True, "metadata": {"k": 1}}], [b"\xff"], MISSING]),
        tgt=dice.choice(["*", "web1", ["web1", "db1"], "", MISSING]),
        tgt_type=dice.choice(["glob", "list", "compound", MISSING]),
        user=dice.choice(["root", "sudo_me", MISSING]),
        metadata=dice.choice([MISSING] * 4 + [{"a": b"x"}, None]),
        kwargs=dice.choice([MISSING] * 3 + [{}, {"metadata": {"b": 2}}]),
    )


@pytest.mark.parametrize("seed", range(int(os.environ.get("PARITY_SEEDS", "6"))))
def test_generated_calls(cellar, run_dir, seed):
    dice = random.Random(seed)
    world = World(cellar, run_dir, unique_jid=seed % 3 == 1, job_cache_store_endtime=seed % 2 == 1)
    jids = ["mine", "20200101000000000001", "20201121000000000000_77", "other/jid"]

    def returns():
        more = {"retcode": dice.choice([0, 1, MISSING]), "success": dice.choice([True, False, MISSING])}
        more.update(out=dice.choice(["nested", MISSING, MISSING]), metadata=dice.choice([MISSING, {"m": 1}]))
        return more

    def publish():
        new = dice.random() < 0.7
        jids.append(world.publish(
            some_load(dice, "" if new else dice.choice(jids[:4])), dice.sample(MINIONS, dice.randrange(4)), dice.random() < 0.1
        ))  # fmt: skip

    steps = {
        publish: 5,
        lambda: world.returned_by(dice.choice(MINIONS + ["far1"]), dice.choice(jids), dice.choice(VALUES), **returns()): 12,
        lambda: jids.append(world.returned_by("web2", "req", dice.choice(VALUES), nocache=dice.random() < 0.2, **returns())): 2,
        lambda: world.bare_return(dice.choice(MINIONS), dice.choice(jids), dice.choice(VALUES)): 1,
        lambda: world.syndic(dice.choice(jids), dice.sample(["far1", "far2", "web1"], 2), dice.choice(["s1", "s2"])): 1,
        lambda: world.save_load(dice.choice(jids), some_load(dice, "")): 1,
        lambda: world.ended(dice.choice(jids), f"2026, Nov 21 03:09:53.{dice.randrange(10**6):06d}"): 1,
        lambda: world.ask(dice.choice(["get_load", "get_jid", "get_endtime"]), dice.choice(jids)): 5,
        lambda: world.ask("get_jids"): 1,
        lambda: world.ask("get_jids_filter", dice.randrange(1, 9), dice.random() < 0.5): 2,
    }
    for step in dice.choices(list(steps), list(steps.values()), k=90):
        step()
    world.ask_all()


# ---- the list of differences


def test_every_difference_says_what_and_why():
    for name, differ in ALL.items():
        first, _, rest = inspect.getdoc(differ).partition("\n")
        assert first and len(rest.strip()) > 60, name


def test_every_difference_that_is_listed_still_shows_up(request, program):  # pylint: disable=unused-argument
    """Runs last in this file; together with the others, or not at all: without a binary they are skipped, and so is this."""
    asked = {item.function.__name__ for item in request.session.items if item.module is request.module}
    if not {"test_generated_calls", "test_syndics_report_their_minions_and_a_load"} <= asked:
        pytest.skip("only some of the tests run")
    listed = set(ALL) - ({"minions_add_up"} if RELEASE >= (3008,) else set())
    assert listed - NEEDED == set()
