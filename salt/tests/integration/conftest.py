"""
A master and a minion of pytest-salt-factories beside a real daemon.

They need this package, installed or as source, and the daemon's program; nothing of the daemon's repository.
"""

import tempfile

import pytest

from tests.support.helpers import PACKAGE
from tests.support.helpers import Cellar
from tests.support.helpers import missing


@pytest.fixture(scope="package")
def factories(request):
    """The manager of pytest-salt-factories."""
    if not request.config.pluginmanager.hasplugin("salt-factories-factories"):
        missing("pytest-salt-factories")
    return request.getfixturevalue("salt_factories")


@pytest.fixture(scope="session")
def salt_factories_config():
    """The directory of the package, for processes of Salt in which it is not installed."""
    return {"code_dir": str(PACKAGE.parents[1]), "inject_sitecustomize": False}


@pytest.fixture(scope="package")
def daemon(program):
    """A real daemon."""
    with tempfile.TemporaryDirectory(prefix="sc-") as directory:
        one = Cellar(program, directory).start()
        yield one
        one.stop()


@pytest.fixture(scope="package")
def settings(daemon):
    """Options of master and minion. ``module_dirs`` counts if the package is not installed."""
    return {
        "module_dirs": [str(PACKAGE)],
        "saltcellar.socket": daemon.socket,
        "saltcellar.timeout": 10,
    }


@pytest.fixture(scope="package")
def master(factories, settings):
    """A master whose job cache and event returner is saltcellar."""
    cache = {"master_job_cache": "saltcellar", "event_return": "saltcellar", "worker_threads": 2}
    one = factories.salt_master_daemon("saltcellar-master", overrides={**settings, **cache})
    with one.started():
        yield one


@pytest.fixture(scope="package")
def minion(master, settings):
    """Its minion."""
    one = master.salt_minion_daemon("saltcellar-minion", overrides=settings)
    with one.started():
        yield one


@pytest.fixture(scope="package")
def salt_cli(master, minion):
    """``salt``."""
    assert minion.is_running()
    return master.salt_cli()


@pytest.fixture(scope="package")
def salt_run(master):
    """``salt-run``."""
    return master.salt_run_cli()


@pytest.fixture(scope="package")
def salt_call(minion):
    """``salt-call``."""
    return minion.salt_call_cli()
