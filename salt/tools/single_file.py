#!/usr/bin/env python3
"""
Each module that Salt loads as one file, for ``salt://_returners/``, ``salt://_runners/`` and so on, and ``saltutil.sync_all``.

    python salt/tools/single_file.py                    writes salt/dist/_returners/saltcellar.py and the others
    python salt/tools/single_file.py --output FILE      writes the returner there; ``-`` is standard output
    python salt/tools/single_file.py --check FILE       exit with 1 if FILE differs from the output
    python salt/tools/single_file.py --kind runners ... the same for the runner, or for engines, modules, beacons

A file has the module's text and, as text, each module of the package that it imports. Nothing is compressed or
renamed, so that an administrator can read what will run on the master, and a traceback names the line of the
file. It needs only Salt: the package may be installed beside it or not.

This script needs only Python's standard library.
"""

import argparse
import ast
import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path

SALT = Path(__file__).resolve().parents[1]
PACKAGE = SALT / "src" / "saltext" / "saltcellar"
DIST = SALT / "dist"
#: The module of each kind.
KINDS = {
    "returners": "saltcellar",
    "runners": "saltcellar",
    "engines": "saltcellar_reactor",
    "modules": "saltcellar",
    "beacons": "saltcellar_spool",
}
UTILS = "saltext.saltcellar.utils"

#: Precedes the module's own text: makes modules of the texts above it.
LOADER = '''\
def _bundle():
    """The package of the modules above. The process has one: Salt's loader runs this file again and again."""
    package = sys.modules.get(_PACKAGE)
    if package is not None:
        return package
    package = types.ModuleType(_PACKAGE, "saltcellar's modules, from one file.")
    package.__file__, package.__path__ = __file__, []
    lock = threading.RLock()

    def load(name):
        """The module of that name, on first access."""
        if name not in _MODULES:
            raise AttributeError(f"{_PACKAGE} has no module {name}")
        full = f"{_PACKAGE}.{name}"
        with lock:
            if full not in sys.modules:
                module = types.ModuleType(full)
                module.__file__, module.__package__ = __file__, _PACKAGE
                line, text = _MODULES[name]
                sys.modules[full] = module
                try:
                    # The lines before it, so that a traceback shows the right one of this file.
                    exec(compile("\\n" * (line - 1) + text, __file__, "exec"), module.__dict__)  # pylint: disable=exec-used
                except BaseException:
                    del sys.modules[full]
                    raise
            # Set under the lock, so that no thread sees an incomplete module.
            setattr(package, name, sys.modules[full])
            return sys.modules[full]

    package.__getattr__ = load
    return sys.modules.setdefault(_PACKAGE, package)


'''


class BundleError(Exception):
    """A module cannot be embedded as it is written."""


def source(kind):
    """The path of the module of a kind."""
    return PACKAGE / kind / f"{KINDS[kind]}.py"


def modules(kind="returners"):
    """The modules of ``utils`` that the module of a kind imports, by name, in the order of their dependencies."""
    found = {}

    def visit(path):
        text = path.read_text(encoding="utf-8")
        for name in needed(text, path):
            if name not in found:
                found[name] = None
                found[name] = visit(PACKAGE / "utils" / f"{name}.py")
                found[name] = found.pop(name)
        return text

    visit(source(kind))
    return found


def needed(text, path):
    """The names that a module imports from ``utils``. Any other import from this package is an error."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            if node.module == UTILS:
                names += [alias.name for alias in node.names]
            elif node.level or (node.module or "").startswith("saltext"):
                raise BundleError(f"{path}:{node.lineno}: write `from {UTILS} import NAME`, which can be put into one file")
        elif isinstance(node, ast.Import) and any(alias.name.startswith("saltext") for alias in node.names):
            raise BundleError(f"{path}:{node.lineno}: write `from {UTILS} import NAME`, which can be put into one file")
    return names


def version():
    """The extension's version, read as text."""
    return re.search(r'__version__ = "([^"]+)"', (PACKAGE / "version.py").read_text(encoding="utf-8"))[1]


def render(kind="returners"):
    """The whole file."""
    texts = modules(kind)
    module = source(kind).read_text(encoding="utf-8")
    digest = hashlib.sha256("\0".join([*texts, *texts.values(), module, LOADER]).encode()).hexdigest()[:12]
    package = f"saltcellar_{digest}"
    tree = ast.parse(module)
    # The docstring stays first, where Salt's documentation expects it.
    lines = module.splitlines(keepends=True)
    end = tree.body[0].end_lineno
    out = "".join(lines[:end])
    out += (
        f"\n# Generated from saltext.saltcellar {version()} by salt/tools/single_file.py: change it there.\n"
        "#\n"
        f"# To install it: put it into salt://_{kind}/, then run `salt-run saltutil.sync_{kind}` for the master, and\n"
        f"# restart it, and `salt '*' saltutil.sync_{kind}` for minions.\n"
        "\n"
        "import sys\nimport threading\nimport types\n"
        "\n"
        "# The name contains a hash of the text: another version in the same process has its own modules.\n"
        f'_PACKAGE = "{package}"\n'
        "\n"
        "# Each module: the first line of its text in this file, and the text.\n"
        "_MODULES = {}\n"
    )
    for name, text in texts.items():
        text = text.replace(UTILS, package)
        if "'''" in text or text.endswith(("'", "\\")):
            raise BundleError(f"utils/{name}.py: it contains ''' or ends in a quote or backslash")
        out += f"\n# ---- utils/{name}.py\n"
        begins = out.count("\n") + 1
        out += f"_MODULES[\"{name}\"] = {begins}, r'''{text}'''\n"
    out += "\n\n" + LOADER
    rest = "".join(lines[end:]).lstrip("\n")
    imports = f"from {UTILS} import "
    if f"\n{imports}" not in f"\n{rest}":
        raise BundleError(f"{source(kind)}: no line begins with `{imports}`")
    out += re.sub(
        rf"^from {re.escape(UTILS)} import (.+)$",
        _assignments,
        rest,
        flags=re.MULTILINE,
    )
    if UTILS in out:
        raise BundleError(f"{UTILS} is imported in an unsupported form")
    compile(out, "saltcellar.py", "exec")
    return out


def _assignments(found):
    """``a, b as c`` of an import as assignments."""
    names = [name.split() for name in found[1].split(",")]
    return "\n".join(f"{name[-1]} = _bundle().{name[0]}" for name in names)


def write(path, text):
    """Write atomically, readable for all users."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            os.fchmod(out.fileno(), 0o644)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def main():
    """Write it, print it, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="returners")
    parser.add_argument("--output", metavar="FILE")
    parser.add_argument("--check", metavar="FILE")
    args = parser.parse_args()
    try:
        texts = {kind: render(kind) for kind in KINDS}
    except BundleError as exc:
        sys.exit(f"single_file: {exc}")
    text = texts[args.kind]
    if args.check:
        with open(args.check, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit(f"single_file: {args.check} is not up to date: {sys.argv[0]} --output {args.check}")
    elif args.output == "-":
        sys.stdout.write(text)
    elif args.output:
        write(Path(args.output), text)
        print(args.output)
    else:
        for kind, text in texts.items():
            path = DIST / f"_{kind}" / f"{KINDS[kind]}.py"
            write(path, text)
            print(path)


if __name__ == "__main__":
    main()
