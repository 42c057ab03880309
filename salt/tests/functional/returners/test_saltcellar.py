"""The returner, loaded and called by Salt itself."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import salt.config
import salt.loader
import salt.minion

from tests.support.helpers import JID
from tests.support.helpers import PACKAGE
from tests.support.helpers import RETURN
from tests.support.helpers import FakeDaemon
from tests.support.helpers import with_dirs

PROJECT = Path(__file__).resolve().parents[3]
FUNCTIONS = [
    "prep_jid",
    "save_load",
    "save_minions",
    "returner",
    "get_load",
    "get_jid",
    "get_jids",
    "get_jids_filter",
    "get_fun",
    "get_minions",
    "update_endtime",
    "get_endtime",
    "clean_old_jobs",
    "event_return",
    "save_reg",
    "load_reg",
]


@pytest.fixture
def minion_opts(run_dir, opts):
    conf = with_dirs(
        dict(salt.config.DEFAULT_MINION_OPTS, __role="minion", id="web1"), run_dir, opts
    )
    conf.update(grains={}, pillar={}, file_client="local")
    return conf


def test_the_loader_finds_every_function_under_the_virtual_name(returners):
    assert [name for name in FUNCTIONS if f"saltcellar.{name}" not in returners] == []


def test_the_loader_finds_only_public_functions(returners):
    assert {name for name in returners if name.startswith("saltcellar.")} == {
        f"saltcellar.{name}" for name in FUNCTIONS
    }


def test_the_loaded_returner_reads_the_masters_configuration(daemon, returners):
    returners["saltcellar.returner"](RETURN)
    assert daemon.named("returner")[0]["load"] == RETURN


def test_the_loader_finds_the_packages_entry_point(run_dir, daemon, opts):
    text = (PROJECT / "pyproject.toml").read_text()
    group, entry = re.search(r'\[project\.entry-points\."([^"]+)"\]\n"?([^\n]+)', text).groups()
    info = run_dir / "site" / "saltext_saltcellar-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: saltext.saltcellar\nVersion: 0.1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n")
    code = (
        "import json, sys, salt.config, salt.loader\n"
        "opts = dict(salt.config.DEFAULT_MASTER_OPTS, __role='master', **json.loads(sys.argv[1]))\n"
        "returners = salt.loader.returners(opts, {})\n"
        "print(returners['saltcellar.prep_jid'](nocache=False, passed_jid=None))\n"
    )
    paths = os.pathsep.join([str(run_dir / "site"), str(PROJECT / "src")])
    conf = dict(opts, extension_modules=str(run_dir / "ext"), cachedir=str(run_dir / "cache"))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            json.dumps({k: v for k, v in conf.items() if not k.startswith("__")}),
        ],
        env=dict(os.environ, PYTHONPATH=paths),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == JID, done.stderr


def test_no_file_makes_saltext_or_salt_more_than_a_namespace():
    assert not (PROJECT / "__init__.py").exists()
    assert not (PROJECT / "src" / "saltext" / "__init__.py").exists()


def test_the_version_can_be_read_without_salt():
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"exec(open({str(PACKAGE / 'version.py')!r}).read()); print(__version__)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", done.stdout.strip())
    try:
        installed = importlib.metadata.version("saltext.saltcellar")
    except importlib.metadata.PackageNotFoundError:
        return
    assert installed == done.stdout.strip()


def test_the_masters_maintenance_reaches_the_daemon(daemon, master_opts, returners):
    import salt.daemons.masterapi

    minion = type("Minion", (), {"returners": returners})()
    try:
        salt.daemons.masterapi.clean_old_jobs(master_opts, minion)
    except TypeError:  # older releases create their own minion
        returners["saltcellar.clean_old_jobs"]()
    assert daemon.named("clean_old_jobs") == [{"keep_jobs_seconds": 86400}]


def test_two_masters_in_one_process_are_separate(daemon, master_opts, run_dir):
    """A master minion finalised by Python's garbage collector reloads every returner with its own options."""
    other = FakeDaemon(str(run_dir / "other.sock")).start()
    try:
        opts = dict(
            master_opts, **{"saltcellar.socket": other.path, "cachedir": str(run_dir / "other")}
        )
        mine, others = (salt.loader.returners(one, {}) for one in (master_opts, opts))
        for word in ("first", "second"):
            mine["saltcellar.returner"](dict(RETURN, **{"return": word}))
            others["saltcellar.returner"](dict(RETURN, **{"return": word}))
        for one in (daemon, other):
            assert [args["load"]["return"] for args in one.named("returner")] == ["first", "second"]
        # The runner as well, whose modules the loaders of a process share.
        mine, others = (salt.loader.runner(one) for one in (master_opts, opts))
        daemon.answers["status"], other.answers["status"] = (
            {"version": "mine"},
            {"version": "other"},
        )
        assert [one["saltcellar.status"]()["version"] for one in (mine, others, mine)] == [
            "mine",
            "other",
            "mine",
        ]
    finally:
        other.stop()


def test_the_client_library_continues_without_a_load(returners, master_opts, caplog):
    import salt.client

    local = salt.client.LocalClient.__new__(salt.client.LocalClient)
    local.opts = dict(master_opts, timeout=1, gather_job_timeout=1, order_masters=False)
    local.returners = returners
    local.event = None
    event = {"tag": f"salt/job/{JID}/ret/web1", "data": RETURN}
    local.get_returns_no_block = lambda *_args, **_kwargs: iter([event])
    got = list(local.get_iter_returns(JID, {"web1"}))
    assert {"web1": {"ret": True, "retcode": 0, "jid": JID}} in got
    assert "Returner unavailable" in caplog.text


def test_a_minion_calls_the_returner_with_its_own_configuration(daemon, minion_opts):
    functions = salt.loader.minion_mods(minion_opts)
    returners = salt.loader.returners(minion_opts, functions)
    ret = {
        "jid": JID,
        "return": b"\xff",
        "retcode": 0,
        "id": "web1",
        "fun": "test.echo",
        "fun_args": [],
        "success": True,
    }
    returners["saltcellar.returner"](ret)
    assert daemon.named("returner")[0]["load"] == ret


def test_a_minion_finds_the_socket_in_pillar(daemon, minion_opts):
    del minion_opts["saltcellar.socket"]
    minion_opts["pillar"] = {"saltcellar": {"socket": daemon.path}}
    returners = salt.loader.returners(minion_opts, salt.loader.minion_mods(minion_opts))
    returners["saltcellar.returner"](RETURN)
    assert len(daemon.named("returner")) == 1


def test_a_minions_functions_reach_the_daemon_through_ret(daemon, minion_opts):
    daemon.answers["get_fun"] = {"web1": JID}
    functions = salt.loader.minion_mods(minion_opts)
    assert functions["ret.get_fun"]("saltcellar", "test.ping") == {"web1": JID}
