"""What people open the page for: each answer is at most three clicks from the overview, and typing into the search counts as one.

`--screenshots DIR` writes a picture of each answer, of a desk and of a phone.
"""

import base64
import datetime
import json
import pathlib
import urllib.parse

import fleet
import pytest
from conftest import SINK_WITH_LETTERS, Daemon, RejectingPeer, sign_in, wait_for

CLICKS_MAX = 3
FORMS = {"desk": (1440, 900), "phone": (390, 844)}


class Walk:
    """A reader at the overview. `click` and `find` are counted."""

    def __init__(self, page, daemon):
        self.page, self.daemon, self.clicks = page, daemon, 0
        page.open(daemon.url + "/")

    def click(self, css, text=None, loads=True):
        """Clicks the first visible element, or the one with this text in it."""
        wanted = json.dumps(text)
        found = f"[...document.querySelectorAll({json.dumps(css)})].find(one => one.checkVisibility() && ({wanted} === null || one.textContent.includes({wanted})))"
        assert self.page.js(f"Boolean({found})"), f"no {css} with {text!r} in {self.page.js('location.pathname')}:\n{self.page.js('document.body.innerText')[:3000]}"
        self.clicks += 1
        self.page.pump()
        self.page.js(f"{found}.click()")
        if loads:
            self.page.loaded()

    def find(self, text):
        """Types into the search, which every view has."""
        self.clicks += 1
        self.page.js("document.activeElement.blur()")
        self.page.key("/")
        assert self.page.js("document.activeElement.id") == "find"
        self.page.js(f"document.activeElement.value = {json.dumps(text)}")
        self.page.pump()
        self.page.key("Enter", 13, "\r")
        self.page.loaded()

    def type(self, **fields):
        """Fills fields of the filter that is open. The click that sends them is counted."""
        for name, value in fields.items():
            self.page.js(f"document.querySelector('main [name={name}]').value = {json.dumps(value)}")

    @property
    def text(self):
        return self.page.js("document.querySelector('main').innerText")

    @property
    def path(self):
        return self.page.js("location.pathname")


def who_failed_tonight(walk, small):
    walk.click("#failed ~ table tbody th a")
    assert walk.path == f"/jobs/{small.nightly}", "most failed minions come first"
    returns = walk.page.js("[...document.querySelectorAll('details.return summary b')].map(one => one.innerText)")
    assert set(returns[: len(small.failed)]) == set(small.failed), "the failed returns come first"


def why(walk, small):
    walk.click("#failed ~ table tbody th a")
    counts = walk.page.js("[...document.querySelectorAll('table.causes tbody td:first-child summary')].map(one => Number(one.innerText))")
    assert counts == sorted((len(minions) for minions in small.causes.values()), reverse=True), "one row for each cause, most minions first"
    assert "Job for nginx.service failed" in walk.text and "Permission denied" in walk.text
    walk.click("table.causes tbody td:first-child summary", str(len(small.causes["nginx"])), loads=False)
    shown = walk.page.js("[...document.querySelectorAll('table.causes details[open] a')].map(one => one.innerText)")
    assert set(shown) in [set(minions) for minions in small.causes.values()]


def what_changed_last_week(walk, small):
    walk.find(small.calm)
    assert walk.path == f"/minions/{small.calm}"
    rows = walk.page.js("[...document.querySelectorAll('#changes ~ table tbody tr')].map(one => one.innerText)")
    assert len(rows) == 3, rows
    assert ["/etc/nginx/nginx.conf" in rows[0], "base-files" in rows[1], "/etc/motd" in rows[2]] == [True] * 3, rows


def who_ran_rm(walk, small):
    walk.find("rm -rf")
    rows = walk.page.js("[...document.querySelectorAll('#arguments ~ table tbody tr')].map(one => one.innerText)")
    assert len(rows) == 1 and all(part in rows[0] for part in ("rm -rf /srv/cache/thumbs", "sudo_chiara", "web[1-3].*")), rows


def events_around_the_highstate(walk, small):
    walk.click("header nav a", "Events")
    # On a phone the filter is closed.
    if not walk.page.js("document.querySelector('main form [name=last]').checkVisibility()"):
        walk.click("details.filter > summary", loads=False)
    night = small.nights[-1]
    walk.page.js("{ const last = document.querySelector('main [name=last]'); last.value = 'between'; last.dispatchEvent(new Event('change', {bubbles: true})); }")
    begin, end = (f"{night + datetime.timedelta(minutes=minutes):%Y-%m-%dT%H:%M}" for minutes in (-5, 5))
    walk.type(since=f"{begin}:00", until=f"{end}:00")
    walk.click("main form button", "Filter")
    times = walk.page.js("[...document.querySelectorAll('#events time')].map(one => one.getAttribute('datetime'))")
    assert times and all(begin <= time <= f"{end}:01" for time in times), times
    assert f"salt/job/{small.nightly}/ret/" in walk.text


def is_the_reactor_keeping_up(walk, small):
    walk.click("header nav a", "Reactor")
    assert "Lag" in walk.text or "behind" in walk.text


def a_sink_is_stuck(walk, small):
    walk.click("main a", SINK_WITH_LETTERS)
    assert f"saltcellar sinks dead-letters list {SINK_WITH_LETTERS}" in walk.text, "the command that helps"
    reasons = walk.page.js("[...document.querySelectorAll('main tr, main li, main summary')].map(one => one.innerText).filter(one => one.includes('400'))")
    assert any(str(small.sizes.alerts) in reason for reason in reasons), reasons


def compare_two_highstates(walk, small):
    walk.click("#failed ~ table tbody th a")
    walk.click("main a", "Compare with previous run")
    assert walk.path == f"/jobs/{small.nightly}/diff"
    assert "newly failed" in walk.text
    equal = sum(1 for change in small.changed.values() if change == "nginx")
    assert f"{equal} minions" in walk.text, "equal diffs are shown once"


def slowest_states(walk, small):
    walk.click("main a", "Slowest states")
    assert "warm-cache" in walk.text, "the slow one of the small fleet"


def every_job_of_a_minion(walk, small):
    walk.find(small.calm)
    walk.click("main a", "Jobs")
    assert walk.path + walk.page.js("location.search") == f"/jobs?minion={small.calm}"
    assert "state.apply" in walk.text and "test.ping" in walk.text


def share_with_a_colleague(walk, small):
    walk.click("#failed a")
    walk.click("main a", "Link with absolute times")
    query = urllib.parse.parse_qs(walk.page.js("location.search").lstrip("?"))
    assert "last" not in query and query["since"] and query["result"] == ["failed"], query


TASKS = [
    who_failed_tonight, why, what_changed_last_week, who_ran_rm, events_around_the_highstate, is_the_reactor_keeping_up, a_sink_is_stuck, compare_two_highstates, slowest_states,
    every_job_of_a_minion, share_with_a_colleague,
]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A daemon with the small fleet, one sink without a destination and one whose destination rejects alerts."""
    peer = RejectingPeer()
    daemon = Daemon(tmp_path_factory.mktemp("tasks"), sinks=peer.sink())
    small = fleet.Fleet(fleet.SMALL)
    daemon.stream(small.lines())
    daemon.react()
    wait_for("the dead letters", lambda: daemon.letters(SINK_WITH_LETTERS) == small.sizes.alerts)
    yield daemon, small, daemon.token("operator")
    daemon.stop()
    peer.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_an_answer_is_three_clicks_away(running, chromium, request, task, form):
    daemon, small, token = running
    width, height = FORMS[form]
    page = chromium.page(width=width, height=height)
    sign_in(page, daemon, token)
    walk = Walk(page, daemon)
    task(walk, small)
    if target := request.config.getoption("--screenshots"):
        pathlib.Path(target).mkdir(parents=True, exist_ok=True)
        page.pump(0.5)
        pathlib.Path(target, f"{task.__name__}-{form}.png").write_bytes(base64.b64decode(page.screenshot()))
    assert walk.clicks <= CLICKS_MAX
    assert page.problems == []
    page.close()
