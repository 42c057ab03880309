"""Times as users write them, with cases that the tests of the command line share."""

import json
import pathlib

import pytest
from salt.exceptions import SaltInvocationError

from saltext.saltcellar.utils import calls

CASES = json.loads(
    (pathlib.Path(__file__).parents[2] / "data/times.json").read_text(encoding="utf-8")
)
NOW = CASES["now"]


@pytest.mark.parametrize(("given", "expected"), [(None, None), (5, 5_000_000), (0.5, 500_000)])
def test_nothing_and_seconds_since_1970(given, expected):
    assert calls.micros(given) == expected


@pytest.mark.parametrize(("given", "age"), CASES["ages"].items())
def test_ages(given, age):
    assert calls.micros(given, NOW) == (NOW - age) * 1_000_000


@pytest.mark.parametrize(("given", "expected"), CASES["dates"].items())
def test_dates(given, expected):
    assert calls.iso(calls.micros(given, NOW)) == expected


@pytest.mark.parametrize("given", [*CASES["rejected"], 1e300, float("inf"), float("nan")])
def test_what_is_not_a_time_is_rejected(given):
    with pytest.raises(SaltInvocationError, match="not a time.* write 2h, yesterday 14:00"):
        calls.micros(given, NOW)
