"""Sessions of the extension: ``nox -s tests``, ``nox -s docs``, ``nox -s changelog -- VERSION``."""

import shutil

import nox

nox.options.sessions = ["tests"]
nox.options.error_on_missing_interpreters = False

#: A release of Salt and the Python of its packages; for 3008 the newest before it where that is missing.
RELEASES = [("3006", "3.11"), ("3007", "3.10"), ("3008", "3.14" if shutil.which("python3.14") else "3.13")]


@nox.session
@nox.parametrize(("python", "salt"), [nox.param(python, salt, id=salt) for salt, python in RELEASES])
def tests(session, salt):
    """Run the tests without a daemon; SALTCELLAR_BIN names one for the others."""
    session.install(f"salt~={salt}.0", ".[tests]")
    session.run("python", "-m", "pytest", *(session.posargs or ["tests/unit", "tests/functional"]))


@nox.session
def docs(session):
    """Build the pages."""
    session.install("salt>=3008", ".[docs]")
    session.run("python", "-m", "sphinx", "-q", "-W", "-b", "html", "docs", "dist/docs")


@nox.session
def changelog(session):
    """Collect the fragments for a version."""
    # Not this package with an extra: that would install Salt.
    session.install("towncrier>=23")
    session.run("towncrier", "build", "--yes", "--version", *session.posargs)
