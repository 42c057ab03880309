"""The page in headless Chromium: every view, hostile text, themes and a phone, sign-in, live events, keyboard."""

import json
import urllib.parse

import pytest
import sample
from conftest import sign_in, views, wait_for

#: Elements that are wider than the window, or end right of it.
TOO_WIDE = """
(() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  return [...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > width + 1)
    .map(one => one.outerHTML.slice(0, 200));
})()
"""

#: Links and controls that are lower or narrower than 24 pixels, and not in a sentence.
TOO_SMALL = """
[...document.querySelectorAll("a, button, input, select, summary")].filter(one => {
  if (!one.checkVisibility() || one.type === "hidden" || one.closest(".skip")) return false;
  const place = one.getBoundingClientRect();
  return place.width > 0 && (place.height < 23.5 || place.width < 23.5);
}).map(one => one.outerHTML.slice(0, 200))
"""

#: The lowest contrast of text with its background, and where it is.
CONTRAST = """
(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(one => {
      const part = one / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = [21, ""];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const one = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !one.checkVisibility() || one.closest("svg, .hidden")) continue;
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => b - a);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, one.outerHTML.slice(0, 200)];
  }
  return worst;
})()
"""


@pytest.fixture
def fleet(daemon):
    site, jid = sample.fleet()
    daemon.load(site)
    seq = daemon.newest()
    daemon.react()
    return views(jid, seq)


@pytest.mark.parametrize("width,dark", [(1280, False), (1280, True), (360, False)])
def test_every_view_fits_and_reports_no_problem(daemon, fleet, chromium, width, dark):
    page = chromium.page(width=width, dark=dark)
    sign_in(page, daemon, daemon.token("operator"))
    titles = set()
    for name, path in fleet.items():
        assert page.open(daemon.url + path) == 200, name
        titles.add(page.js("document.title"))
        assert page.js(TOO_SMALL) == [], name
        assert page.js(TOO_WIDE) == [], name
        ratio, where = page.js(CONTRAST)
        assert ratio >= 4.5, (name, ratio, where)
    assert len(titles) == len(fleet) and all(title.endswith(" – saltcellar") for title in titles), titles
    page.pump(0.2)
    assert page.problems == []
    page.close()


def test_hostile_text_never_runs(daemon, tab):
    site, jid = sample.hostile()
    daemon.load(site)
    seq = daemon.newest()
    daemon.bus.fire("deploy/" + sample.HOSTILE, id=sample.HOSTILE_ID, fun=sample.HOSTILE, **{sample.HOSTILE: sample.HOSTILE})
    sign_in(tab, daemon, daemon.token("operator"))
    quoted, minion = urllib.parse.quote(sample.HOSTILE, safe=""), urllib.parse.quote(sample.HOSTILE_ID, safe="")
    paths = [*views(jid, seq).values(), f"/minions/{minion}", f"/jobs?fun={quoted}&user={quoted}", f"/events?tag={quoted}"]
    paths += [f"/jobs/{jid}?minion={minion}", f"/jobs/{quoted}", f"/reactor?why={quoted}&tag={quoted}", f"/sign-in?next={quoted}"]
    shown = 0
    for path in paths:
        tab.open(daemon.url + path)
        assert tab.js("document.querySelectorAll('script').length") == 1, path
        assert tab.js("document.querySelectorAll('img, main svg[onload], [onmouseover], [onerror]').length") == 0, path
        assert tab.js(TOO_WIDE) == [], path
        shown += tab.js("document.body.innerText.includes('<script>alert(1)</script>')")
    # A live event is added by the script.
    tab.open(f"{daemon.url}/events")
    tab.wait("document.querySelector('#live [role=status]').textContent === 'live'")
    daemon.bus.fire("live/" + sample.HOSTILE, id=sample.HOSTILE_ID, fun=sample.HOSTILE)
    tab.wait("document.getElementById('events').innerText.includes('live/<script>alert(1)')")
    tab.pump(0.2)
    assert shown > 5
    answers = [problem for problem in tab.problems if "status of 4" not in str(problem)]
    assert answers == []


#: Ids that are shown with their characters in another order, or with one that turns the text around.
TURNED = """
(() => {
  const found = [];
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (/[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]/.test(node.data)) found.push("turns: " + node.data.slice(0, 100));
    for (const match of node.data.matchAll(/web[12]/g)) {
      const place = (n) => {
        const range = document.createRange();
        range.setStart(node, match.index + n);
        range.setEnd(node, match.index + n + 1);
        return range.getBoundingClientRect();
      };
      const [first, last] = [place(0), place(3)];
      if (first.top === last.top && first.left > last.left) found.push("mirrored: " + node.data.slice(0, 100));
    }
  }
  return found;
})()
"""


def test_unruly_text_turns_no_other_and_widens_no_view(daemon, tab):
    site, jid = sample.unruly()
    daemon.load(site)
    seq = daemon.newest()
    daemon.bus.fire("deploy/" + sample.LONG_WORD[:900], id=sample.TURNING_ID, fun=sample.LONG_WORD[:200])
    sign_in(tab, daemon, daemon.token("operator"))
    minion = urllib.parse.quote(sample.TURNING_ID, safe="")
    for path in [*views(jid, seq).values(), f"/minions/{minion}", f"/jobs/{jid}?minion={minion}", f"/reactor?why={sample.LONG_WORD[:900]}"]:
        tab.open(daemon.url + path)
        assert tab.js(TOO_WIDE) == [], path
        assert tab.js(TURNED) == [], path
    tab.open(f"{daemon.url}/jobs/{jid}")
    tab.js("document.querySelectorAll('.missing details').forEach(one => { one.open = true; })")
    missing = tab.js("document.querySelector('ul.missing').innerText")
    assert sample.TURNING_ID.replace("\u202e", "\\u{202e}") in missing, "the character is spelled out"
    assert tab.js(TURNED) == []


def test_a_token_signs_in_and_out(daemon, tab):
    assert tab.open(f"{daemon.url}/jobs?fun=state.*") == 401
    tab.js("document.getElementById('token').value = 'sct_wrong'")
    tab.js("document.querySelector('form button').click()")
    tab.loaded()
    assert "unknown or revoked" in tab.js("document.querySelector('[role=alert]').textContent")
    token = daemon.token("reader")
    tab.js(f"document.getElementById('token').value = {json.dumps(token)}")
    tab.js("document.querySelector('form button').click()")
    tab.loaded()
    assert tab.js("location.pathname + location.search") == "/jobs?fun=state.*", "the view that was asked for"
    assert tab.js("document.cookie") == "", "no script reads the token"
    tab.js("document.querySelector('header form button').click()")
    tab.loaded()
    assert tab.open(f"{daemon.url}/jobs") == 401


def test_events_arrive_live_pause_and_follow_the_filter(daemon, tab):
    daemon.load(sample.fleet()[0])
    sign_in(tab, daemon, daemon.token("operator"))
    tab.open(f"{daemon.url}/events?tag=live/*")
    tab.wait("document.querySelector('#live [role=status]').textContent === 'live'")
    daemon.bus.fire("other/1", id="web1")
    daemon.bus.fire("live/1", id="web1")
    tab.wait("document.querySelectorAll('#events tr').length === 1")
    tab.js("document.querySelector('#live button').click()")
    daemon.bus.fire("live/2", id="web1")
    tab.wait("document.querySelector('#live [role=status]').textContent === 'paused, 1 new'")
    assert tab.js("document.querySelectorAll('#events tr').length") == 1
    tab.js("document.querySelector('#live button').click()")
    tab.wait("document.querySelectorAll('#events tr').length === 2")
    assert "live/2" in tab.js("document.querySelector('#events tr').innerText"), "the latest first"


def test_a_view_of_many_events_shows_how_many_are_left_out(daemon, tab):
    sign_in(tab, daemon, daemon.token("operator"))
    tab.open(f"{daemon.url}/events?tag=live/*")
    tab.wait("document.querySelector('#live [role=status]').textContent === 'live'")
    for n in range(1000):
        daemon.bus.fire(f"live/{n}", id="web1")
    left_out = "Number(/^live; ([0-9]+) more not shown$/.exec(document.querySelector('#live [role=status]').textContent.replaceAll(/[,.]/g, ''))?.[1])"
    tab.wait(f"document.querySelectorAll('#events tr').length + {left_out} === 1000")


def test_an_open_page_reports_the_end_of_its_session_and_a_revoked_token(daemon, tab):
    token = daemon.token("operator")
    live = "document.querySelector('#live [role=status]').textContent"
    sign_in(tab, daemon, token)
    tab.open(f"{daemon.url}/events?tag=live/*")
    tab.wait(f"{live} === 'live'")
    # Sessions are in the daemon's memory.
    daemon.restart()
    tab.wait(f"{live}.startsWith('signed out')")
    tab.open(f"{daemon.url}/events")
    tab.wait("document.querySelector('[role=alert]').textContent.startsWith('Your session has ended')")
    sign_in(tab, daemon, token)
    tab.open(f"{daemon.url}/events?tag=live/*")
    tab.wait(f"{live} === 'live'")
    daemon.bus.fire("live/1", id="web1")
    tab.wait("document.querySelectorAll('#events tr').length === 1")
    daemon.call("tokens", "revoke", "operator")
    tab.wait(f"{live}.startsWith('signed out')")


def test_the_keyboard_reaches_everything(daemon, tab):
    daemon.load(sample.fleet()[0])
    sign_in(tab, daemon, daemon.token("operator"))
    tab.open(f"{daemon.url}/jobs")
    tab.key("Tab", 9)
    assert tab.js("document.activeElement.textContent") == "Skip to the content"
    assert tab.js("document.activeElement.getBoundingClientRect().left") >= 0, "visible while it has the focus"
    seen = []
    for _ in range(20):
        tab.key("Tab", 9)
        seen.append(tab.js("document.activeElement.textContent.trim() || document.activeElement.name"))
        assert tab.js("getComputedStyle(document.activeElement).outlineStyle") == "solid", seen
    assert seen[:9] == ["saltcellar", "Overview", "Jobs", "Events", "Minions", "Reactor", "Delivery", "q", "Sign out"]
    assert "Filter" in seen
    tab.js("document.activeElement.blur()")
    tab.key("/")
    assert tab.js("document.activeElement.name + document.activeElement.value") == "q"
    tab.js("document.activeElement.value = 'web1.example.net'")
    tab.key("Enter", 13, "\r")
    tab.loaded()
    assert tab.js("location.pathname") == "/minions/web1.example.net"


def test_times_are_those_of_the_browser_and_go_to_the_daemon_in_utc(daemon, chromium):
    daemon.load(sample.fleet()[0])
    page = chromium.page()
    page.send("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    sign_in(page, daemon, daemon.token("operator"))
    page.open(f"{daemon.url}/jobs?fun=state.*&since=2026-11-21T02:00:00Z&limit=7")
    assert page.js("document.getElementById('zone').textContent").startswith("Asia/")
    field = lambda name: page.js(f"document.querySelector('form.filter [name={name}]').value")
    assert field("since") == "2026-11-21T07:30:00" or field("since") == "2026-11-21T07:30", field("since")
    page.js("document.querySelector('form.filter button').click()")
    page.loaded()
    query = urllib.parse.parse_qs(page.js("location.search.slice(1)"))
    assert query == {"fun": ["state.*"], "limit": ["7"], "last": ["between"], "since": ["2026-11-21T02:00:00.000Z"]}, query
    page.js("document.querySelector('select[name=last]').value = '1d'")
    page.js("document.querySelector('form.filter button').click()")
    page.loaded()
    assert "since" not in page.js("location.search"), "the chosen range counts"
    shown, exact = page.js("(() => { const time = document.querySelector('tbody time'); return [time.textContent, time.dateTime]; })()")
    assert shown != exact[:19].replace("T", " "), "not in UTC"
    assert page.problems == []
    page.close()


def test_a_filter_on_a_phone_opens_on_demand(daemon, chromium):
    daemon.load(sample.fleet()[0])
    page = chromium.page(width=390, height=844)
    sign_in(page, daemon, daemon.token("operator"))
    page.open(f"{daemon.url}/jobs")
    visible = "document.querySelector('form.filter [name=fun]').checkVisibility()"
    assert not page.js(visible)
    first = page.js("document.querySelector('tbody tr').getBoundingClientRect().top")
    assert first < 300, first
    page.js("document.querySelector('details.filter summary').click()")
    assert page.js(visible)
    page.close()


def test_a_view_that_cannot_refresh_says_so(daemon, tab):
    sign_in(tab, daemon, daemon.token("operator"))
    stale = "document.getElementById('stale')"
    assert not tab.js(f"{stale}.checkVisibility()")

    def away():
        tab.wait(f"{stale}.textContent.startsWith('Daemon unreachable since ') && {stale}.textContent.includes('; showing ')")
    daemon.restart(away)


def test_two_ticked_jobs_are_compared(daemon, tab):
    _, jid = sample.fleet()
    daemon.load(sample.fleet()[0])
    sign_in(tab, daemon, daemon.token("operator"))
    tab.open(f"{daemon.url}/jobs?fun=state.apply")
    tab.js("[...document.querySelectorAll('input[name=run]')].slice(0, 2).forEach(one => one.click())")
    tab.js("document.querySelector('form[action=\"/jobs/compare\"] button').click()")
    tab.loaded()
    assert tab.js("location.pathname").endswith("/diff")
    head = tab.js("document.querySelector('.totals').innerText")
    assert head == "2 newly failed · 0 fixed · 2 changed · 1 only in the earlier run · 7 same", head


def test_the_overview_is_refreshed(daemon, tab):
    sign_in(tab, daemon, daemon.token("operator"))
    assert "cmd.run" not in tab.js("document.body.innerText")
    tab.js("window.unchanged = true")
    site, _ = sample.fleet()
    daemon.load(site)
    tab.wait("document.body.innerText.includes('cmd.run')")
    assert tab.js("window.unchanged"), "without a new page"
    wait_for("no problem", lambda: tab.pump(0.1) is not None)
    assert tab.problems == []


def test_other_masters_of_a_shared_history_are_shown(daemon, tab, tmp_path):
    here, there, at_peer = sample.Site(), sample.Site(), "web9.example.net"
    theirs = there.job(30, "state.apply", [at_peer], lambda minion: (sample.states(minion), 0))
    # By it the daemon knows whose minion this is.
    earlier = here.job(60, "test.ping", ["web2.example.net"], lambda minion: (True, 0))
    ours = here.job(10, "test.ping", ["web1.example.net", "web2.example.net", at_peer], lambda minion: (True, 0), silent={"web2.example.net", at_peer})
    daemon.load(here)
    daemon.join(tmp_path / "peer", there, "b")
    sign_in(tab, daemon, daemon.token("operator"))
    text = lambda css: tab.js(f"[...document.querySelectorAll({json.dumps(css)})].map(one => one.innerText)")

    tab.open(daemon.url)
    (row,) = [row for row in text("tr") if "master b" in row]
    assert "behind" in row and "unknown" not in row, row
    assert tab.js(TOO_WIDE) == []

    tab.open(f"{daemon.url}/jobs/{ours}")
    assert text("#unknown") == ["Not known to have answered: 1"]
    (line,) = text("#unknown ~ ul li")
    assert line.startswith(f"{at_peer}: unknown (master b is ") and line.endswith(" behind)"), line
    missing = tab.js("[...document.querySelectorAll('.missing li li a[href^=\"/minions/\"]')].map(one => one.textContent)")
    assert missing == ["web2.example.net"], "that one is no minion of b"
    assert tab.js(TOO_WIDE) == []

    def listed(query):
        tab.open(f"{daemon.url}/jobs{query}")
        return [link.rsplit("/", 1)[1] for link in tab.js("[...document.querySelectorAll('tbody th a')].map(one => one.getAttribute('href'))")]
    assert listed("") == [ours, theirs, earlier]
    assert text("td[data-label=Master]") == ["master", "b", "master"]
    assert "1 unknown" in text("td[data-label=Returns]")[0]
    assert listed("?master=b") == [theirs]
    assert text("th[scope=col]").count("Master") == 0, "one master needs no column"
    assert tab.js("document.querySelector('input[name=master]').value") == "b"
    assert listed("?master=master") == [ours, earlier]
    assert listed("?result=unknown") == [ours]
    assert tab.js("document.querySelector('select[name=result]').value") == "unknown"

    tab.open(f"{daemon.url}/events")
    assert text("#masters") == ["Master"]
    assert set(text("td[data-label=Master]")) == {"master", "b"}
    tab.open(f"{daemon.url}/events?master=b")
    assert all("web9" in row for row in text("#events tr")) and text("#events tr")
    assert [problem for problem in tab.problems if "status of 4" not in str(problem)] == []
