"""What a run of the tests covers, and how the integration tests are divided: tests/lab of this repository."""

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


def test_a_run_by_hand_covers_one_release_and_the_one_that_is_named(monkeypatch):
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


def test_the_files_that_take_long_are_listed_by_names_that_exist():
    assert set(shards.SECONDS) <= {Path(path).name for path in shards.files()}


def test_no_port_is_given_out_twice():
    ports = [*salt_lab.free_ports(3), *salt_lab.free_ports(2)]
    assert len(set(ports)) == 5 and all(port in salt_lab.PORTS for port in ports)
