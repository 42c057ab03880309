"""
Sessions: ``nox -s tests-3008``, ``nox -s lint``, ``nox -s docs``, ``nox -s changelog -- VERSION``.

``tests`` without a release runs all of them. Arguments after ``--`` are those of pytest.
"""

import shutil
from pathlib import Path

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

#: A release of Salt and the Python of its packages; for 3008 the newest before it where that is
#: missing.
RELEASES = [
    ("3006", "3.11"),
    ("3007", "3.10"),
    ("3008", "3.14" if shutil.which("python3.14") else "3.13"),
]
#: Salt's source distributions do not build with later releases of setuptools.
CONSTRAINTS = {"PIP_CONSTRAINT": str(Path(__file__).parent / "tests" / "constraints.txt")}
#: Checked by the linters.
SOURCES = ("src", "tests", "tools", "bench", "docs", "noxfile.py")


@nox.session
@nox.parametrize(
    ("python", "salt"), [nox.param(python, salt, id=salt) for salt, python in RELEASES]
)
def tests(session, salt):
    """Run the tests with coverage. SALTCELLAR_BIN names a daemon, if none is in PATH."""
    session.install(f"salt~={salt}.0", ".[tests]", env=CONSTRAINTS)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-rs", *(session.posargs or ["tests"]))
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session
def lint(session):
    """Check format and code, with Salt installed for the names that it exports."""
    session.install("salt>=3008", ".[lint]", env=CONSTRAINTS)
    sources = [source for source in SOURCES if Path(source).exists()]
    session.run("ruff", "format", "--check", *sources)
    session.run("ruff", "check", *sources)
    session.run("pylint", "src/saltext", *(["tools"] if Path("tools").exists() else []))
    session.run("mypy", "src/saltext/saltcellar/utils")


@nox.session
def docs(session):
    """Build the pages; links to Salt's and Python's documentation need a network."""
    session.install("salt>=3008", ".[docs]", env=CONSTRAINTS)
    sphinx = ("python", "-m", "sphinx", "-q", "-W", "-b", "html", "docs", "dist/docs")
    session.run(*sphinx, env={"DOCS_INTERSPHINX": "1"})


@nox.session
def changelog(session):
    """Collect the fragments for a version."""
    # Not this package with an extra: that would install Salt.
    session.install("towncrier>=23")
    session.run("towncrier", "build", "--yes", "--version", *session.posargs)
