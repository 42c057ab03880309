"""The wheel and the single file, loaded by Salt without the source tree."""

import json
import os
import subprocess
import sys
import traceback
import zipfile
from pathlib import Path

import pytest
import salt.config
import salt.loader

PROJECT = Path(__file__).resolve().parents[2]
JID = "20261121031733650863"

sys.path.insert(0, str(PROJECT / "tools"))

import package  # noqa: E402
import single_file  # noqa: E402

#: Loads the returner in a separate Python and prints its origin.
PROBE = """
import json, sys, salt.config, salt.loader
opts = dict(salt.config.DEFAULT_MASTER_OPTS, __role="master", **json.loads(sys.argv[1]))
if sys.argv[2] == "without the package":
    sys.modules["saltext.saltcellar"] = None
returners = salt.loader.returners(opts, {})
jid = returners["saltcellar.prep_jid"](nocache=False, passed_jid=None)
names = sorted(name for name in returners if name.startswith("saltcellar."))
print(json.dumps([jid, sys.modules[returners["saltcellar.prep_jid"].__module__].__file__, names]))
"""


def probe(opts, run_dir, word, paths=()):
    conf = {key: value for key, value in opts.items() if not key.startswith("__")}
    conf = {"extension_modules": str(run_dir / "ext"), "cachedir": str(run_dir / "cache"), **conf}
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE, json.dumps(conf), word],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return package.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture
def single(run_dir):
    path = run_dir / "ext" / "returners" / "saltcellar.py"
    single_file.write(path, single_file.render())
    return path


def test_the_wheel_contains_only_the_package_and_its_licence(built):
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert not [name for name in names if "test" in name or name == "saltext/__init__.py"]
        (metadata,) = [name for name in names if name.endswith("dist-info/METADATA")]
        text = archive.read(metadata).decode()
    for line in ("Name: saltext.saltcellar", "License: Apache-2.0", "Requires-Python: >=3.10", "Requires-Dist: salt>=3006"):
        assert f"\n{line}\n" in text


def test_a_package_with_an_extra_file_is_rejected(built, tmp_path):
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / "more.whl", "w") as more:
        for name in whole.namelist():
            more.writestr(name, whole.read(name))
        more.writestr("saltext/__init__.py", "")
    with pytest.raises(package.PackageError, match="saltext/__init__.py"):
        package.check(tmp_path / "more.whl", sdist)


def test_the_installed_wheel_is_found_through_its_entry_point(built, tmp_path, run_dir, daemon, opts):
    _, wheel = built
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path / "site", wheel], check=True, timeout=60)
    jid, path, names = probe(opts, run_dir, "", [tmp_path / "site"])
    assert jid == JID
    assert path == str(tmp_path / "site" / "saltext" / "saltcellar" / "returners" / "saltcellar.py")
    assert len(names) == 16
    assert daemon.named("prep_jid")


def test_the_single_file_works_without_the_package(single, run_dir, daemon, opts):
    jid, path, names = probe(opts, run_dir, "without the package")
    assert (jid, path) == (JID, str(single))
    functions = {name for name, value in vars(_returner()).items() if callable(value) and not name.startswith("_")}
    assert names == sorted(f"saltcellar.{name}" for name in functions)
    assert daemon.named("prep_jid")


def test_the_single_file_spools_as_the_package_does(single, run_dir, daemon, opts):
    daemon.stop()
    assert probe(opts, run_dir, "without the package")[0] != JID
    code = PROBE.replace('["saltcellar.prep_jid"](nocache=False, passed_jid=None)', '["saltcellar.event_return"]([{}])', 1)
    assert code != PROBE
    conf = {k: v for k, v in opts.items() if not k.startswith("__")} | {"extension_modules": str(run_dir / "ext")}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, json.dumps(conf), "without the package"], check=True)
    assert (run_dir / "cache" / "saltcellar" / "spool").stat().st_size > 0


def test_loads_of_one_file_share_modules_and_tracebacks_have_source_lines(single, run_dir, opts):
    conf = dict(salt.config.DEFAULT_MASTER_OPTS, __role="master", extension_modules=str(run_dir / "ext"))
    conf.update({key: value for key, value in opts.items() if not key.startswith("__")})
    first, second = (salt.loader.returners(dict(conf), {}) for _ in range(2))
    clients = [sys.modules[one["saltcellar.get_jid"].__module__].client for one in (first, second)]
    assert clients[0] is clients[1]
    assert clients[0].__file__ == str(single)
    lines = single.read_text().splitlines()
    try:
        clients[0]._Batch(None)
    except TypeError as exc:
        last = traceback.extract_tb(exc.__traceback__)[-1]
    assert last.filename == str(single)
    assert lines[last.lineno - 1] == "        self._ends = len(events), events[0], events[-1]"
    assert last.line == lines[last.lineno - 1].strip()


def _returner():
    from saltext.saltcellar.returners import saltcellar

    return saltcellar
