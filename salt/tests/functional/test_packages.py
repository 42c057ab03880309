"""The wheel and the directory for ``module_dirs``, loaded by Salt without the source tree."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
JID = "20261121031733650863"

sys.path.insert(0, str(PROJECT / "tools"))

import package

#: Loads the returner in a separate Python and prints its origin. A directory in the third argument has another release.
PROBE = """
import json, sys, salt.config, salt.loader
opts = dict(salt.config.DEFAULT_MASTER_OPTS, __role="master", **json.loads(sys.argv[1]))
if sys.argv[2]:
    sys.path.insert(0, sys.argv[2])
    import saltext.saltcellar
    import saltext.saltcellar.utils.client as old
    assert saltext.saltcellar.__version__ == "0.0.1" and old.is_old
returners = salt.loader.returners(opts, {})
jid = returners["saltcellar.prep_jid"](nocache=False, passed_jid=None)
names = sorted(name for name in returners if name.startswith("saltcellar."))
module = sys.modules[returners["saltcellar.prep_jid"].__module__]
print(json.dumps([jid, module.__file__, module.client.__file__, names]))
"""


def probe(opts, run_dir, old="", paths=(), code=PROBE):
    conf = {key: value for key, value in opts.items() if not key.startswith("__")}
    conf = {"extension_modules": str(run_dir / "ext"), "cachedir": str(run_dir / "cache"), **conf}
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, json.dumps(conf), str(old)],
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
def directory(run_dir):
    package.modules(run_dir / "share")
    return run_dir / "share"


def test_the_wheel_contains_only_the_package_and_its_licence(built):
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert not [name for name in names if "test" in name or name == "saltext/__init__.py"]
        (metadata,) = [name for name in names if name.endswith("dist-info/METADATA")]
        text = archive.read(metadata).decode()
    for line in (
        "Name: saltext.saltcellar",
        "License: Apache-2.0",
        "Requires-Python: >=3.10",
        "Requires-Dist: salt>=3006",
    ):
        assert f"\n{line}\n" in text


def test_packages_have_the_same_bytes_with_another_umask(built, tmp_path):
    before = os.umask(0o077)
    try:
        again = package.build(tmp_path)
    finally:
        os.umask(before)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_the_readme_has_no_link_into_the_repository(built):
    sdist, _ = built
    with tarfile.open(sdist) as archive:
        (name,) = [
            name
            for name in archive.getnames()
            if name.count("/") == 1 and name.endswith("README.md")
        ]
        text = archive.extractfile(name).read().decode()
    # They are dead links on the page of a package index.
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []


def test_a_package_with_an_extra_file_is_rejected(built, tmp_path):
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / "more.whl", "w") as more:
        for name in whole.namelist():
            more.writestr(name, whole.read(name))
        more.writestr("saltext/__init__.py", "")
    with pytest.raises(package.PackageError, match="saltext/__init__.py"):
        package.check(tmp_path / "more.whl", sdist)


def test_the_installed_wheel_is_found_through_its_entry_point(
    built, tmp_path, run_dir, daemon, opts
):
    _, wheel = built
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*pip, "--target", tmp_path / "site", wheel], check=True, timeout=60)
    jid, path, _, names = probe(opts, run_dir, paths=[tmp_path / "site"])
    assert jid == JID
    assert path == str(tmp_path / "site" / "saltext" / "saltcellar" / "returners" / "saltcellar.py")
    assert len(names) == 16
    assert daemon.named("prep_jid")


def test_the_directory_works_without_the_package(directory, run_dir, daemon, opts):
    jid, path, client, names = probe({**opts, "module_dirs": [str(directory)]}, run_dir)
    assert (jid, path) == (JID, str(directory / "returners" / "saltcellar.py"))
    assert client == str(directory / "lib" / "saltext" / "saltcellar" / "utils" / "client.py")
    functions = {
        name
        for name, value in vars(_returner()).items()
        if callable(value) and not name.startswith("_")
    }
    assert names == sorted(f"saltcellar.{name}" for name in functions)
    assert daemon.named("prep_jid")


def test_the_directory_takes_no_modules_of_another_release(
    directory, run_dir, tmp_path, daemon, opts
):
    """As in a master that runs while its package is upgraded, or that has another release from pip."""
    old = tmp_path / "old" / "saltext" / "saltcellar"
    (old / "utils").mkdir(parents=True)
    (old / "__init__.py").write_text('__version__ = "0.0.1"\n')
    (old / "utils" / "__init__.py").touch()
    (old / "utils" / "client.py").write_text("is_old = True\n")
    jid, _, client, _ = probe({**opts, "module_dirs": [str(directory)]}, run_dir, tmp_path / "old")
    assert jid == JID
    assert client == str(directory / "lib" / "saltext" / "saltcellar" / "utils" / "client.py")


def test_each_module_of_the_directory_is_loaded(directory, run_dir, opts):
    code = """
import json, sys, salt.config, salt.loader
given = json.loads(sys.argv[1])
master = dict(salt.config.DEFAULT_MASTER_OPTS, __role="master", **given)
minion = dict(salt.config.DEFAULT_MINION_OPTS, __role="minion", id="web1", grains={}, pillar={}, **given)
found = {
    "runners": "saltcellar.jobs" in salt.loader.runner(master),
    "engines": "saltcellar_reactor.start" in salt.loader.engines(master, {}, {}, {}),
    "modules": "saltcellar.send" in salt.loader.minion_mods(minion),
    "beacons": "saltcellar_spool.beacon" in salt.loader.beacons(minion, {}),
}
print(json.dumps(found))
"""
    found = probe({**opts, "module_dirs": [str(directory)]}, run_dir, code=code)
    assert found == dict.fromkeys(("runners", "engines", "modules", "beacons"), True)


def _returner():
    from saltext.saltcellar.returners import saltcellar

    return saltcellar


def test_the_tests_of_a_source_distribution_find_what_they_import(built, tmp_path):
    sdist, _ = built
    with tarfile.open(sdist) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **safe)
    (unpacked,) = tmp_path.iterdir()
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "pytest",
            "-q",
            "--collect-only",
            "tests/unit",
            "tests/functional",
        ],
        cwd=unpacked,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
