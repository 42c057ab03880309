"""Barriers in every view, as axe-core finds them: light and dark, on a desk and on a phone."""

import json
import os
import pathlib

import fleet
import pytest
import sample
from conftest import Daemon, sign_in, views

#: Rules of WCAG 2.2 A and AA, and what axe-core's authors recommend. The size of targets is off by default.
RUN = """
axe.run(document, {
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  rules: {"target-size": {enabled: true}},
}).then(found => found.violations.map(rule => ({
  rule: rule.id, help: rule.help, count: rule.nodes.length, first: rule.nodes.slice(0, 3).map(node => [node.html.slice(0, 200), node.failureSummary]),
})))
"""

OPEN = """
for (const name of new Set([...document.querySelectorAll("details")].map(one => one.className))) {
  [...document.querySelectorAll("details")].filter(one => one.className === name).slice(0, 2).forEach(one => { one.open = true; });
}
"""


@pytest.fixture(scope="session")
def axe():
    """The text of axe-core, from the package that `make test-page` installs."""
    path = pathlib.Path(os.environ.get("PAGE_LIBS", ""), "axe_playwright_python", "axe.min.js")
    if not path.is_file():
        message = "axe-core is not installed (make page-libs)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path.read_text()


def violations(page, axe):
    """What axe-core finds. The page's policy lets no script in, so it comes through the protocol."""
    page.js(axe + "; 0")
    # It looks at every element that is shown, which takes a while as other tests run.
    return page.js(RUN, seconds=240)


def test_axe_finds_a_barrier(tab, axe):
    tab.open("data:text/html,<title>A</title><input>")
    assert {"html-has-lang", "label"} <= {found["rule"] for found in violations(tab, axe)}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A daemon with a small site and a small form of the large fleet, and the paths of all views with them."""
    daemon = Daemon(tmp_path_factory.mktemp("large"))
    site, jid = sample.fleet()
    daemon.load(site)
    seq = daemon.newest()
    daemon.react()
    small = fleet.Fleet(fleet.SMALL)
    daemon.stream(small.lines())
    paths = views(jid, seq)
    paths |= {
        "nightly": f"/jobs/{small.nightly}",
        "nightly, failed": f"/jobs/{small.nightly}?result=failed",
        "nightly, one minion": f"/jobs/{small.nightly}?minion={small.calm}",
        "nightly, compared": f"/jobs/{small.nightly}/diff",
        "orchestration": f"/jobs/{small.orchestration}",
        "wide": f"/jobs/{small.wide}",
        "hostile": f"/jobs/{small.hostile}",
        "failed jobs": "/jobs?result=failed&last=1d",
        "no job": "/jobs?fun=none",
        "calm minion": f"/minions/{small.calm}",
        "causes of a day": "/causes",
        "causes of a job": f"/jobs/{small.nightly}/causes",
        "slowest states": "/durations",
        "slowest states of a job": f"/jobs/{small.nightly}/durations",
        "failed minions": "/minions?state=failed",
        "search": "/find?q=web",
        "search of an argument": "/find?q=rm",
        "two jobs": f"/jobs/compare?run={small.nightly}&run={small.before}",
        "unknown path": "/nothing/here",
    }
    yield daemon, paths
    daemon.stop()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width,height", [(1440, 900), (390, 844)], ids=["desk", "phone"])
def test_no_view_has_a_barrier(large, chromium, axe, width, height, dark):
    daemon, paths = large
    page = chromium.page(width=width, height=height, dark=dark)
    found = {}
    page.open(daemon.url + "/")
    found["not signed in"] = violations(page, axe)
    sign_in(page, daemon, daemon.token(f"operator-{width}-{dark}"))
    for name, path in paths.items():
        page.open(daemon.url + path)
        # A part that is closed may have a barrier as well. Equal parts are opened twice.
        page.js(OPEN)
        found[name] = violations(page, axe)
    page.close()
    found = {name: rules for name, rules in found.items() if rules}
    assert not found, json.dumps(found, indent=1)
