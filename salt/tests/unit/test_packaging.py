"""Released files: the packages, the single file, the pages of documentation."""

import subprocess
import sys
from pathlib import Path

import pytest
from saltext.saltcellar.returners import saltcellar as returner
from saltext.saltcellar.utils import settings

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "src" / "saltext" / "saltcellar"
#: The directories of the package that Salt's loader reads.
LOADED = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("utils", "__pycache__")]

sys.path.insert(0, str(PROJECT / "tools"))

import single_file  # noqa: E402


def loaded_modules():
    return sorted(path for kind in LOADED for path in kind.glob("[!_]*.py"))


@pytest.mark.parametrize("module", loaded_modules(), ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_each_module_that_salt_loads_has_a_page_and_is_in_the_index(module):
    kind = module.parent.name
    name = f"saltext.saltcellar.{kind}.{module.stem}"
    page = (PROJECT / "docs" / "ref" / kind / f"{name}.rst").read_text()
    assert f".. automodule:: {name}\n    :members:\n" in page
    assert page.startswith(f"``{module.stem}``\n==")
    index = (PROJECT / "docs" / "ref" / kind / "index.rst").read_text()
    assert f"\n    {module.stem}\n" in index
    assert f"\n   {name}\n" in index
    assert f"\n   ref/{kind}/index\n" in (PROJECT / "docs" / "index.rst").read_text()


def test_the_page_of_the_returner_names_every_key():
    assert [key for key in settings.KEYS if f"saltcellar.{key}: " not in returner.__doc__] == []
    assert [key for key in settings.KEYS if f"`saltcellar.{key}`" not in (PROJECT / "docs" / "topics" / "settings.md").read_text()] == []


def test_loaded_modules_document_dependencies_and_version():
    for field in ("\n.. versionadded:: ", "\n:depends: "):
        assert field in returner.__doc__


def test_the_licence_that_is_packed_is_the_repositorys():
    assert (PROJECT / "LICENSE").read_bytes() == (PROJECT.parent / "LICENSE").read_bytes()


def test_the_single_file_contains_all_modules_and_no_package_imports():
    for kind in single_file.KINDS:
        text = single_file.render(kind)
        # Including those imported on demand.
        assert {"client", "settings", "spool", "wire", "https"} <= set(single_file.modules(kind))
        assert "saltext.saltcellar." not in text
    assert single_file.render().startswith(f'"""{returner.__doc__}"""\n')


def test_each_module_that_salt_loads_has_a_single_file():
    assert {(path.parent.name, path.stem) for path in loaded_modules()} == set(single_file.KINDS.items())


def test_the_single_file_tool_reports_whether_the_file_is_current(tmp_path):
    script = PROJECT / "tools" / "single_file.py"
    made = tmp_path / "made" / "saltcellar.py"

    def run(*args):
        return subprocess.run([sys.executable, script, *args], capture_output=True, text=True, check=False)

    assert run("--output", made).returncode == 0
    assert made.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in made.parent.iterdir()] == ["saltcellar.py"]
    assert run("--check", made).returncode == 0
    made.write_text(made.read_text() + "# by hand\n")
    answer = run("--check", made)
    assert answer.returncode == 1
    assert "not up to date" in answer.stderr


@pytest.mark.parametrize(
    "line", ["from saltext.saltcellar import version", "import saltext.saltcellar.utils.wire", "from . import wire"]
)
def test_an_import_unsupported_in_a_single_file_is_rejected_with_its_line(line):
    with pytest.raises(single_file.BundleError, match="it.py:2: write `from saltext.saltcellar.utils import NAME`"):
        single_file.needed(f"import os\n{line}\n", "it.py")
