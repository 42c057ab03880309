"""Released files: the directory for ``module_dirs``, the licence, the pages of documentation."""

import ast
import sys
from pathlib import Path

import pytest

import saltext.saltcellar
from saltext.saltcellar.returners import saltcellar as returner
from saltext.saltcellar.utils import settings

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "src" / "saltext" / "saltcellar"
#: The directories of the package that Salt's loader reads.
LOADED = [
    path
    for path in PACKAGE.iterdir()
    if path.is_dir() and path.name not in ("utils", "__pycache__")
]

sys.path.insert(0, str(PROJECT / "tools"))

import package


def loaded_modules():
    return sorted(path for kind in LOADED for path in kind.glob("[!_]*.py"))


@pytest.mark.parametrize(
    "module", loaded_modules(), ids=lambda path: f"{path.parent.name}.{path.stem}"
)
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
    assert [
        key
        for key in settings.KEYS
        if f"`saltcellar.{key}`" not in (PROJECT / "docs" / "topics" / "settings.md").read_text()
    ] == []


def test_loaded_modules_document_dependencies_and_version():
    for field in ("\n.. versionadded:: ", "\n:depends: "):
        assert field in returner.__doc__


@pytest.mark.skipif(not (PROJECT.parent / "Cargo.toml").exists(), reason="not in the repository")
def test_the_licence_that_is_packed_is_the_repositorys():
    assert (PROJECT / "LICENSE").read_bytes() == (PROJECT.parent / "LICENSE").read_bytes()


def test_the_directory_for_module_dirs_has_each_module_once(tmp_path):
    written = {path.relative_to(tmp_path).as_posix() for path in package.modules(tmp_path)}
    assert written == {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    source = {
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    loaded = {path.relative_to(PACKAGE) for path in loaded_modules()}
    inits = {
        path for path in source if path.name == "__init__.py" and path.parent.name in package.LOADED
    }
    assert written == {path.as_posix() for path in loaded} | {
        f"lib/saltext/saltcellar/{path}" for path in source - loaded - inits
    }
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.py")} == {0o644}


@pytest.mark.parametrize(
    "module", loaded_modules(), ids=lambda path: f"{path.parent.name}.{path.stem}"
)
def test_a_module_in_the_directory_differs_by_its_prologue_alone(module):
    prologue = package.PROLOGUE.format(version=package.version())
    text = package.standing_alone(module)
    # Salt's documentation of the module stays.
    assert ast.get_docstring(ast.parse(text)) == ast.get_docstring(ast.parse(module.read_text()))
    assert text.replace(prologue, "\n") == module.read_text()


def test_the_package_exports_its_version():
    assert saltext.saltcellar.__version__ == package.version()
