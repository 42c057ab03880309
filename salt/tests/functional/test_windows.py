"""On a system without POSIX files Salt's loader reports the reason."""

import collections.abc
import json
import subprocess
import sys

import pytest

PROBE = """
import json, os, signal, sys
import salt.config, salt.loader, salt.minion, salt.utils.event
opts = json.loads(sys.argv[1])
if sys.argv[2] == "windows":
    for name in ("fcntl", "pwd", "resource"):
        sys.modules[name] = None
    for name in ("register_at_fork", "pwrite", "pread"):
        delattr(os, name)
    del signal.SIGHUP
kinds = {
    "saltcellar.returner": salt.loader.returners(opts, {}),
    "saltcellar.status": salt.loader.minion_mods(dict(opts, grains={}, pillar={})),
    "saltcellar_spool.beacon": salt.loader.beacons(opts, {}),
    "saltcellar.jobs": salt.loader.runner(opts),
    "saltcellar_reactor.start": salt.loader.engines(opts, {}, {}, {}),
}
print(json.dumps([functions.missing_fun_string(name) if name not in functions else "" for name, functions in kinds.items()]))
"""


def plain(value):
    """Salt's defaults have immutable maps and lists, which JSON does not know."""
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    return list(value) if isinstance(value, collections.abc.Sequence) else str(value)


@pytest.mark.parametrize("system", ["windows", "posix"])
def test_the_loader_reports_why_the_extension_cannot_be_used(system, master_opts):
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            PROBE,
            json.dumps(master_opts, default=plain),
            system,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for why in json.loads(done.stdout.splitlines()[-1]):
        if system == "windows":
            assert "its spool uses flock and pwrite" in why
        else:
            assert why == ""
