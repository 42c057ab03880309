"""Coverage of a test run and the division of the integration tests into shards: tests/lab of this repository."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "lab"))

import salt_lab  # noqa: E402
import shards  # noqa: E402


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("SALT_RELEASE", "CI"):
        monkeypatch.delenv(name, raising=False)


def test_a_manual_run_covers_one_release_or_the_named_one(monkeypatch):
    assert salt_lab.tested_releases() == ["3008.3"]
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("SALT_RELEASE", "3006.28")
    assert salt_lab.tested_releases() == ["3006.28"]


def test_a_run_of_ci_covers_another_release_that_depends_on_the_commit(monkeypatch):
    monkeypatch.setenv("CI", "1")
    seen = {}
    for commit in ("a" * 39 + "0", "a" * 39 + "1", "a" * 39 + "2"):
        answer = type("Answer", (), {"stdout": commit + "\n"})
        monkeypatch.setattr(salt_lab.subprocess, "run", lambda *_, **__: answer)
        seen[commit] = salt_lab.tested_releases()
        assert salt_lab.tested_releases() == seen[commit]
    assert {first for first, _ in seen.values()} == {"3008.3"}
    assert {other for _, other in seen.values()} == {"3007.15", "3006.28"}
    # A copy of the source without git.
    monkeypatch.setattr(salt_lab.subprocess, "run", lambda *_, **__: type("Answer", (), {"stdout": ""}))
    assert salt_lab.tested_releases() == ["3008.3", "3007.15"]


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_each_file_is_in_one_shard(count):
    files = shards.files()
    lists = shards.split(files, count)
    assert len(files) > 10 and sorted(sum(lists, [])) == files
    assert all(lists) and len(lists) == min(count, len(files))
    assert lists == shards.split(list(reversed(files)), count)


def test_the_list_of_slow_files_names_existing_files():
    assert set(shards.SECONDS) <= {Path(path).name for path in shards.files()}


def test_each_port_is_assigned_once():
    ports = [*salt_lab.free_ports(3), *salt_lab.free_ports(2)]
    assert len(set(ports)) == 5 and all(port in salt_lab.PORTS for port in ports)
