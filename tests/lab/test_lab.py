"""Coverage of a test run and the division of tests into shards, and the table of their results: tests/lab of this repository."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests"), str(REPO / "tests" / "lab")]

import commands  # noqa: E402
import in_memory  # noqa: E402
import procs  # noqa: E402
import run  # noqa: E402
import salt_lab  # noqa: E402
import shards  # noqa: E402

INTEGRATION, SYSTEMD = REPO / "tests" / "integration", REPO / "tests" / "systemd"


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


def run_in_memory(code, memory, **env):
    """Runs Python code as a command, with that directory in place of the one in memory, whatever is free there."""
    program = f"import in_memory, sys; in_memory.MEMORY, in_memory.FREE_MIN = {str(memory)!r}, 0; sys.exit(in_memory.main())"
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "TMPDIR")}
    return subprocess.run([sys.executable, "-c", program, sys.executable, "-c", code], capture_output=True, text=True, timeout=procs.WAIT_MAX,
                          env={**clean, **env, "PYTHONPATH": os.path.dirname(in_memory.__file__)})


def test_temporary_files_are_in_memory_and_removed(tmp_path):
    answer = run_in_memory("import sys, tempfile; print(tempfile.mkdtemp()); sys.exit(3)", tmp_path)
    path = Path(answer.stdout.strip())
    assert path.is_relative_to(tmp_path) and not path.parent.exists()
    assert (answer.returncode, answer.stderr) == (3, "")
    # As a shell counts it.
    assert run_in_memory("import os; os.kill(os.getpid(), 9)", tmp_path).returncode == 137
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["CI", "TMPDIR"])
def test_temporary_files_are_on_the_disk_in_ci_and_where_the_user_wants_them(name, tmp_path):
    answer = run_in_memory("import os; print(os.environ.get('TMPDIR'))", tmp_path, **{name: str(tmp_path)})
    assert answer.stdout.strip() == str(tmp_path if name == "TMPDIR" else None)
    assert f"{name} is set" in answer.stderr


def test_temporary_files_are_on_the_disk_if_memory_is_no_place_for_them(monkeypatch):
    def found(flags=0, free=in_memory.FREE_MIN, memory=in_memory.FREE_MIN):
        place = type("Place", (), {"f_flag": flags, "f_bavail": free // 4096, "f_frsize": 4096})
        monkeypatch.setattr(in_memory.os, "statvfs", lambda _: place)
        monkeypatch.setattr(in_memory.os, "access", lambda *_: True)
        monkeypatch.setattr(in_memory, "available", lambda: memory)
        return in_memory.reason_against({})

    assert found() is None
    # As in a container.
    assert "2 GiB" in found(free=64 << 20)
    assert "2 GiB" in found(memory=1 << 30)
    assert "run files" in found(flags=os.ST_NOEXEC)
    monkeypatch.undo()
    monkeypatch.setattr(in_memory, "MEMORY", "/does/not/exist")
    assert "/does/not/exist" in in_memory.reason_against({})


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_each_file_is_in_one_shard(count):
    files = shards.files(INTEGRATION)
    lists = shards.split(files, count)
    assert len(files) > 10 and sorted(sum(lists, [])) == files
    assert all(lists) and len(lists) == min(count, len(files))
    assert lists == shards.split(list(reversed(files)), count)


def test_the_list_of_slow_files_names_existing_files():
    for directory in (INTEGRATION, SYSTEMD):
        assert set(shards.SECONDS[Path(directory).name]) <= {Path(path).name for path in shards.files(directory)}


def test_the_tests_that_share_a_machine_are_in_one_shard():
    (shared,) = [one for one in shards.split(shards.files(SYSTEMD), 2) if any(path.endswith("/test_unit.py") for path in one)]
    assert any(path.endswith("/test_reactor.py") for path in shared)


def test_each_port_is_assigned_once():
    ports = [*salt_lab.free_ports(3), *salt_lab.free_ports(2)]
    assert len(set(ports)) == 5 and all(port in salt_lab.PORTS for port in ports)


@pytest.mark.parametrize("line, expected", [
    ("     Summary [ 456.314s] 1393 tests run: 1392 passed (2 slow), 1 failed, 7 skipped", (1392, 1, 0, [])),
    ("test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 4 filtered out; finished in 0.1s", (12, 1, 0, [])),
    ("2 failed, 3 passed, 1 skipped in 90.95s (0:01:30)", (3, 2, 1, [])),
    ("[1/2] ===== 5 passed, 2 errors in 1.2s =====", (5, 2, 0, [])),
    ("SKIPPED [2] tests/systemd/conftest.py:33: no test under a real systemd: root", (0, 0, 0, ["no test under a real systemd: root"])),
    ("SKIPPED: the site, Sphinx cannot be installed", (0, 0, 1, ["the site, Sphinx cannot be installed"])),
    ("a line that says 3 passed", (0, 0, 0, [])),
])
def test_results_are_read_from_the_last_line_of_a_run(line, expected):
    counts = run.Counts.of(f"some text\n\x1b[32m{line}\x1b[0m\n")
    assert (counts.passed, counts.failed, counts.skipped, counts.reasons) == expected


def test_a_test_of_the_crates_that_is_skipped_is_counted_as_skipped(tmp_path, monkeypatch):
    make = tmp_path / "make"
    # As the tests write it while the output of passed ones is hidden: to the end of the log, whatever else is written there.
    make.write_text('#!/bin/sh\necho begun\necho "SKIPPED: needs root" >>"$TEST_LOG"\n'
                    'echo "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured"\n')
    make.chmod(0o755)
    monkeypatch.setenv("MAKE", str(make))
    monkeypatch.setattr(run, "LOGS", str(tmp_path))
    stage = run.Stage("rust", "the crates")
    for _ in range(2):
        runs = run.Run(["docs"])
        runs.start(stage)
        stage.process.wait(procs.WAIT_MAX)
        counts = run.Counts.of(run.read(stage.log))
        assert (counts.passed, counts.failed, counts.skipped, counts.reasons) == (2, 0, 1, ["needs root"])


def test_each_stage_of_a_test_run_is_a_target_and_needs_known_ones():
    makefile = (REPO / "Makefile").read_text()
    stages = {stage.name: stage for stage in run.stages()}
    assert len(stages) > 10
    for name, stage in stages.items():
        assert f"\ntest-{name}:" in makefile, name
        assert set(stage.needs) <= set(stages), name


def test_by_hand_one_long_stage_starts_beside_the_build_of_the_tests_and_the_crates_tests_begin_after_it(monkeypatch):
    monkeypatch.setattr(run, "CI", False)
    names = [stage.name for stage in run.stages()]
    stages = {stage.name: stage for stage in run.stages()}
    # What starts beside the build, and at its end, with room for five.
    assert names.index("program") < names.index("build") < names.index("systemd") < names.index("integration")
    assert stages["build"].room + stages["systemd"].room == 5
    assert names.index("integration") < names.index("rust") < names.index("python")
    assert sum(stages[name].room for name in ("systemd", "integration", "rust")) <= 5
    for name in ("systemd", "integration", "python", "sinks", "cluster", "page", "http"):
        assert stages[name].needs == ("program", "salt"), name

    monkeypatch.setattr(run, "CI", True)
    stages = {stage.name: stage for stage in run.stages()}
    assert "program" not in stages and stages["systemd"].needs == ("release", "salt")


#: Says who it is, and ends as its first argument tells.
FORKED = """
import json, os, signal, sys
print(json.dumps([__name__, sys.argv, os.getcwd(), os.environ["MARK"], sys.flags.no_user_site, hash("x"), "salt.minion" in sys.modules]), flush=True)
print("an error", file=sys.stderr, flush=True)
if sys.argv[1] == "wait":
    signal.pause()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


def test_a_fork_of_salts_python_is_a_process_like_one_that_was_started(tmp_path):
    """Same program, arguments, environment, streams and end; and it ends with the process that was started in its place."""
    (tmp_path / "program").write_text(FORKED)
    (tmp_path / "test").write_text(f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(REPO / "tests" / "lab")!r})
import procs
python = os.environ["SALTCELLAR_SALT_PYTHON"]
def start(python, how, out=subprocess.PIPE):
    return subprocess.Popen([python, "-s", "-B", "-u", "-", how], stdin=open({str(tmp_path / "program")!r}), stdout=out, stderr=subprocess.PIPE,
                            text=True, cwd="/", env={{**os.environ, "MARK": how, "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}})
for how in ("0", "7", "killed"):
    seen = []
    for one in (start(sys.executable, how), start(python, how)):
        out, err = one.communicate()
        *rest, imported = json.loads(out)
        seen.append((one.returncode, err, rest))
    assert seen[0] == seen[1] and imported, seen
read, write = os.pipe()
waiting = start(python, "wait", write)
os.close(write)
with open(read) as lines:
    assert lines.readline()
    waiting.kill()
    # The fork had the other end.
    assert lines.read() == ""
sys.exit(3)
""")
    done = subprocess.run([sys.executable, str(REPO / "tests" / "lab" / "forked_python.py"), sys.executable, str(tmp_path / "test")],
                          capture_output=True, text=True, timeout=procs.WAIT_MAX)
    assert done.returncode == 3, done


def test_a_command_in_a_fork_has_its_own_output_exit_code_and_end(tmp_path):
    (tmp_path / "minion").write_text(json.dumps({"root_dir": str(tmp_path), "id": "here"}))
    call = ("salt-call", "--local", "-c", str(tmp_path), "--out=json", "--retcode-passthrough")
    runs = commands.Commands(sys.executable, {**os.environ, "PYTHONWARNINGS": "ignore"})
    try:
        done = runs.run(*call, "test.echo", "a word", timeout=procs.WAIT_MAX)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"local": "a word"}), done
        done = runs.run(*call, "test.retcode", "7", timeout=procs.WAIT_MAX)
        assert (done.returncode, json.loads(done.stdout)) == (7, {"local": True}), done

        with pytest.raises(subprocess.TimeoutExpired):
            runs.run(*call, "test.sleep", "600", timeout=0.2)
        children = Path(f"/proc/{runs.server.pid}/task/{runs.server.pid}/children")
        procs.eventually("the command that took too long is killed", lambda: not children.read_text())
    finally:
        runs.close()
    assert runs.server.returncode == 0
