"""Fixtures: the fake daemon and a real one, settings, and Salt's loader (``support/helpers.py``)."""

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
import salt.config
import salt.loader
import salt.utils.job

# The source, if the package is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from saltext.saltcellar.utils import client as client_
from tests.support import helpers
from tests.support.helpers import RETURN
from tests.support.helpers import Cellar
from tests.support.helpers import FakeDaemon
from tests.support.helpers import missing
from tests.support.helpers import with_dirs
from tests.support.helpers import with_own_streams

with contextlib.suppress(ImportError, AttributeError):
    # Salt buffers early log records and writes them at exit, to a stream that pytest has closed by then.
    import salt._logging.impl

    salt._logging.impl.shutdown_temp_handler()


@pytest.fixture(scope="session")
def program():
    """The daemon's program: ``SALTCELLAR_BIN``, or else ``saltcellar`` in ``PATH``."""
    named = os.environ.get("SALTCELLAR_BIN")
    found = named or shutil.which("saltcellar")
    if not found:
        missing("the program saltcellar in PATH, or its path in SALTCELLAR_BIN")
    assert os.path.isfile(found), f"SALTCELLAR_BIN: {found} does not exist"
    return os.path.realpath(found)


@pytest.fixture
def make_cellar(program, run_dir):
    """Starts a real daemon with this configuration."""
    made = []

    def make(config=""):
        made.append(Cellar(program, run_dir, config))
        return made[-1].start()

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def cellar(make_cellar):
    return make_cellar()


@pytest.fixture
def run_dir():
    # Not tmp_path: a socket's path must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="sc-") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv("SALTCELLAR_SOCKET", raising=False)
    client_.forget()
    yield
    client_.forget()


@pytest.fixture
def daemon(run_dir):
    fake = FakeDaemon(str(run_dir / "s.sock")).start()
    yield fake
    fake.stop()


@pytest.fixture
def opts(run_dir):
    return {
        "__role": "master",
        "cachedir": str(run_dir / "cache"),
        "saltcellar.socket": str(run_dir / "s.sock"),
        "saltcellar.timeout": 5,
        "saltcellar.listing_timeout": 10,
        "keep_jobs_seconds": 86400,
    }


@pytest.fixture
def client(opts):
    return client_.get_client(opts)


@pytest.fixture
def spool(client):
    return client.spool


@pytest.fixture
def in_child():
    """Runs a function in a forked child; fails if the child fails."""

    def run(function, *args, wait=True):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with_own_streams()
                function(*args)
                code = 0
            except BaseException:  # pylint: disable=broad-except
                logging.getLogger(__name__).exception("in the child")
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        if wait:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return pid

    return run


@pytest.fixture
def took():
    """``with took() as t: ...``; then ``t()`` is the duration in seconds."""

    @contextlib.contextmanager
    def measure():
        start = time.monotonic()
        end = []
        yield lambda: (end or [time.monotonic()])[0] - start
        end.append(time.monotonic())

    return measure


@pytest.fixture(name="spooled")
def _spooled(spool):
    return lambda: helpers.spooled(spool)


# ---- Salt's loader


@pytest.fixture
def master_opts(run_dir, opts):
    return with_dirs(dict(salt.config.DEFAULT_MASTER_OPTS, __role="master"), run_dir, opts)


@pytest.fixture
def returners(master_opts):
    return salt.loader.returners(master_opts, {})


@pytest.fixture
def store(master_opts):
    """Stores a return as a master's worker does, with the current options."""

    def run(load=RETURN, event=None, **options):
        master_opts.update(options)
        minion = type("Minion", (), {"returners": salt.loader.returners(master_opts, {})})()
        load = dict(load)
        salt.utils.job.store_job(master_opts, load, event=event, mminion=minion)
        return load

    return run


@pytest.fixture
def mirror(monkeypatch, master_opts):
    """Handles an event of a peer as the process ``EventMonitor`` does, with Salt's code and loader."""
    import asyncio
    import multiprocessing

    import salt.master
    import salt.minion
    import salt.utils.event

    monitor = getattr(salt.master, "EventMonitor", None)
    if monitor is None or "store_job" not in monitor.handle_event.__code__.co_names:
        pytest.skip("this Salt mirrors no jobs")

    class Minion:
        def __init__(self, opts, **_):
            self.returners = salt.loader.returners(opts, {})

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    monkeypatch.setattr(salt.minion, "MasterMinion", Minion)
    monkeypatch.setattr(multiprocessing.current_process(), "name", "EventMonitor")

    def run(tag, data, **options):
        opts = dict(master_opts, cluster_id="c", cluster_peers=[], **options)
        package = salt.utils.event.SaltEvent.pack(tag, data)
        asyncio.run(monitor(opts, None).handle_event(package))
        return package

    return run
