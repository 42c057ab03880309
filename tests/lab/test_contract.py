"""What the extension knows of the daemon's wire protocol, compared with the generated tables of docs/WIRE.md."""

import re
from pathlib import Path

from saltext.saltcellar.utils import calls

WIRE = Path(__file__).resolve().parents[2] / "docs" / "WIRE.md"
#: A time in some results, and something else in others, which the runner returns.
AMBIGUOUS = {"first", "last"}


def test_each_time_in_a_result_is_shown_as_one():
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]+) \|", WIRE.read_text(encoding="utf-8"), re.MULTILINE)
    times = {name for name, kind in rows if "(#time)" in kind}
    assert times - AMBIGUOUS == calls._TIMES
