"""Hostile text in every view and in the terminal: nothing runs, no text turns its neighbours around, none widens a view."""

import json
import re
import subprocess
import urllib.parse

import conftest
import fleet
import pytest
import sample
from conftest import Daemon, sign_in
from test_page import TOO_WIDE, TURNED

#: Elements and attributes that only hostile text would bring in.
FOREIGN = """
[document.querySelectorAll("script").length - 1, document.querySelectorAll("img, [onload], [onmouseover], [onerror]").length,
 document.querySelector("main").innerText.search(/[\\u0000-\\u0008\\u000b-\\u001f\\u007f]/) + 1].join()
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A daemon with every hostile text that there is, and the paths of all views of it."""
    daemon = Daemon(tmp_path_factory.mktemp("hostile"))
    paths = ["/minions?attention=true", "/jobs?result=failed&last=1d", "/jobs?result=missing", *(f"/minions?state={state}" for state in ("failed", "changed", "missing"))]
    paths += ["/causes", "/durations", "/jobs?jid=2", "/nothing/here"]
    runs = []
    for site, jid in (sample.hostile(), sample.unruly()):
        daemon.load(site)
        runs.append(jid)
    small = fleet.Fleet(fleet.SMALL)
    daemon.stream(small.lines())
    runs.append(small.hostile)
    daemon.bus.fire("deploy/" + sample.HOSTILE, id=sample.HOSTILE_ID, fun=sample.HOSTILE, **{sample.HOSTILE: sample.HOSTILE})
    daemon.bus.fire("deploy/\u202eturned\x1b[31m", id=sample.TURNING_ID, fun="\u2066fun")

    quoted = lambda text: urllib.parse.quote(text, safe="")
    for jid in runs:
        paths += [f"/jobs/{jid}", f"/jobs/{jid}?result=failed", f"/jobs/{jid}/diff", f"/jobs/{jid}/causes", f"/jobs/{jid}/durations", f"/events?jid={jid}"]
    paths.append(f"/jobs/compare?run={runs[0]}&run={runs[1]}")
    ids = [*fleet.HOSTILE_IDS, sample.HOSTILE_ID, sample.TURNING_ID, sample.RIGHT_TO_LEFT_ID]
    for text in ids:
        paths += [f"/minions/{quoted(text)}", f"/jobs?minion={quoted(text)}", f"/find?q={quoted(text)}"]
    for text in (sample.HOSTILE, sample.LONG_WORD[:900], "\u202eturned\x1b[31m"):
        paths += [f"/jobs?fun={quoted(text)}&user={quoted(text)}&arg={quoted(text)}", f"/events?tag={quoted(text)}", f"/jobs/{quoted(text)}?cause={quoted(text)}"]
        paths += [f"/find?q={quoted(text)}", f"/reactor?why={quoted(text)}&tag={quoted(text)}", f"/sign-in?next={quoted(text)}", f"/sinks/{quoted(text)}"]
    yield daemon, [*conftest.views(runs[0], daemon.newest()).values(), *paths], runs
    daemon.stop()


@pytest.mark.parametrize("width", [1440, 390])
def test_hostile_text_stays_text(hostile, chromium, width):
    daemon, paths, _ = hostile
    page = chromium.page(width=width)
    sign_in(page, daemon, daemon.token(f"reader-{width}"))
    found = {}
    for path in paths:
        page.open(daemon.url + path)
        if not page.js("Boolean(document.querySelector('main'))"):
            found[path[:200]] = "no page"
            continue
        # Of equal parts, all are opened: each has a text of its own.
        page.js("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        seen = (page.js(FOREIGN), page.js("document.title").isprintable(), page.js(TOO_WIDE), page.js(TURNED))
        if seen != ("0,0,0", True, [], []):
            found[path[:200]] = seen
    page.pump(0.2)
    assert not found, json.dumps(found, indent=1)
    assert [problem for problem in page.problems if "status of 4" not in str(problem)] == []
    page.close()


@pytest.mark.parametrize("command", ["jobs list --limit 50", "jobs show {}", "jobs show {} --result failed", "minions list", "events list --limit 100", "status"])
def test_hostile_text_is_escaped_in_lists_that_are_not_a_terminal(hostile, command):
    daemon, _, runs = hostile
    for jid in runs if "{}" in command else ("",):
        words = command.format(jid).split()
        done = subprocess.run([conftest.BIN, *words, "--socket", daemon.directory / "s.sock"], capture_output=True, text=True, check=False)
        # With a problem, `status` ends with 1.
        assert done.returncode in ((0, 1) if words == ["status"] else (0,)), (words, done.stderr)
        raw = re.search("[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]", done.stdout)
        assert not raw, (words, done.stdout[max(0, raw.start() - 100) : raw.start() + 100])
