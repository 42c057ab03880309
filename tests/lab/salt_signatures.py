"""Prints the signatures of a Salt's runner and wheel functions as JSON, of the Salt in this Python.

    python tests/lab/salt_signatures.py [MASTER_CONFIG] > src/reactor/dispatch/signatures.json

They are read with the functions of Salt's reactor, including aliases and custom modules.
"""

import base64
import json
import logging
import math
import os
import sys
import tempfile

import salt.config
import salt.loader
import salt.utils.args
import salt.version


def plain(value):
    """Wraps values without a JSON form, as in the conformance cases."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else {"$int": str(value)}
    if isinstance(value, float):
        if math.isfinite(value) and value != int(value):
            return value
        return {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return {"$tuple": [plain(inner) for inner in value]}
    if isinstance(value, (list, set)):
        return [plain(inner) for inner in value]
    return {"$other": type(value).__name__}


def spec(function):
    argspec = salt.utils.args.get_function_argspec(function)
    found = salt.utils.args.arg_lookup(function, argspec)
    return {
        "name": function.__name__,
        "required": found["args"],
        "optional": [[name, plain(value)] for name, value in found["kwargs"].items()],
        "any_keyword": bool(argspec.keywords),
    }


def main():
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as root:
        path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "master")
        if len(sys.argv) < 2:
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"root_dir: {root}\nid: m_master\n")
        opts = salt.config.master_config(path)
        out = {"salt": salt.version.__version__}
        for kind, functions in (("runner", salt.loader.runner(opts)), ("wheel", salt.loader.wheels(opts))):
            out[kind] = {name: spec(functions[name]) for name in sorted(functions)}
    text = "{\n" + ",\n".join(
        f"{json.dumps(key)}: "
        + (
            "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in part.items()) + "\n}"
            if isinstance(part, dict)
            else json.dumps(part)
        )
        for key, part in out.items()
    )
    print(text + "\n}")


if __name__ == "__main__":
    main()
