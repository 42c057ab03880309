"""The iterator over events, with a real daemon, and the engine in the documentation."""

import re
import textwrap
import threading
from pathlib import Path

import pytest
from salt.exceptions import CommandExecutionError
from salt.exceptions import SaltInvocationError

import saltext.saltcellar
from saltext.saltcellar.utils import calls
from saltext.saltcellar.utils import consumer
from saltext.saltcellar.utils import settings

PAGE = Path(__file__).resolve().parents[3] / "docs" / "topics" / "consumers.rst"


@pytest.fixture
def opts(opts, cellar):
    return {**opts, "saltcellar.socket": cellar.socket}


def fire(opts, *tags, **data):
    events = [{"tag": tag, "data": {"n": n, **data}} for n, tag in enumerate(tags)]
    calls.ask(settings.from_opts(opts), "event_return", events=events)


def row(opts):
    (found,) = calls.ask(settings.from_opts(opts), "consumers_list", name="audit")["consumers"]
    return found


def test_an_event_is_acknowledged_when_the_next_one_is_requested(opts):
    with saltext.saltcellar.consumer(
        "audit", match="salt/auth", start="oldest", opts=opts
    ) as events:
        fire(opts, "salt/auth", "salt/key", "salt/auth")
        assert [next(events)["data"]["n"], next(events)["data"]["n"]] == [0, 2]
        assert row(opts)["holder"] == events.holder
    # The second one was not processed to its end.
    with saltext.saltcellar.consumer("audit", match="salt/auth", opts=opts) as events:
        event = next(events)
        assert (event["data"]["n"], event["tag"]) == (2, "salt/auth")
        assert re.fullmatch(r"[0-9a-f]{16}:3", event["id"])
        events.ack(event["seq"])
        events.nack("the next one\nfails")
    assert row(opts)["error"]["message"] == "the next one fails"
    fire(opts, "salt/auth")
    with saltext.saltcellar.consumer("audit", match="salt/auth", opts=opts) as events:
        assert next(events)["seq"] == 4


def test_a_second_process_is_refused_and_filters_are_checked(opts):
    fire(opts, "salt/auth", retcode=1)
    with saltext.saltcellar.consumer("audit", start="oldest", opts=opts) as first:
        next(first)
        second = saltext.saltcellar.consumer("audit", opts=opts)
        with pytest.raises(CommandExecutionError, match="is in use by"):
            next(second)
    with pytest.raises(CommandExecutionError, match="unknown name `dat`"):
        next(saltext.saltcellar.consumer("other", where="dat.x", opts=opts))
    with pytest.raises(CommandExecutionError, match="unknown field `tagg`"):
        next(saltext.saltcellar.consumer("other", match=[{"tagg": "x"}], opts=opts))
    with pytest.raises(SaltInvocationError, match="expected a glob"):
        saltext.saltcellar.consumer("other", match=[1], opts=opts)
    alternatives = [{"fun": "state.*"}, {"tag": "salt/*"}]
    with saltext.saltcellar.consumer(
        "more", match=alternatives, where="data.retcode == 1", start="1h", opts=opts
    ) as events:
        assert next(events)["tag"] == "salt/auth"


def test_it_waits_for_new_events_and_for_the_daemon(opts, cellar, monkeypatch):
    monkeypatch.setattr(consumer, "PAUSE_S", (0.05, 0.1))
    with saltext.saltcellar.consumer("audit", start="oldest", opts=opts) as events:
        fire(opts, "a/0")
        assert next(events)["tag"] == "a/0"
        cellar.kill()
        found = []
        waiting = threading.Thread(target=lambda: found.append(next(events)))
        waiting.start()
        cellar.start()
        fire(opts, "a/1")
        waiting.join(30)
        assert [event["tag"] for event in found] == ["a/1"]


def test_the_engine_of_the_page_processes_events(opts, tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    code = textwrap.dedent(re.search(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", text)[1])
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    fire(opts, "salt/auth", "salt/key")
    module = {"__opts__": opts}
    exec(compile(code, str(PAGE), "exec"), module)  # pylint: disable=exec-used
    path = tmp_path / "auth.log"
    engine = threading.Thread(target=module["start"], args=(str(path),), daemon=True)
    engine.start()
    deadline = threading.Event()
    for _ in range(300):
        if path.exists() and path.read_text(encoding="utf-8").count("\n"):
            break
        fire(opts, "salt/auth")
        deadline.wait(0.1)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines and all(line.endswith(" salt/auth") for line in lines)
