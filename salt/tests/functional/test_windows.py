"""On a system without POSIX files Salt's loader reports the reason."""

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


@pytest.mark.parametrize("system", ["windows", "posix"])
def test_the_loader_reports_why_the_extension_cannot_be_used(system, master_opts):
    opts = {key: value for key, value in master_opts.items() if isinstance(value, (str, int, list, dict, type(None)))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE, json.dumps(opts, default=str), system],
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode == 0, done.stderr
    for why in json.loads(done.stdout.splitlines()[-1]):
        assert ("its spool uses flock and pwrite" in why) == (system == "windows"), why
