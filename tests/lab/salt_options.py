"""Prints Salt's options for a master as JSON: defaults and types, of the Salt in this Python.

    python tests/lab/salt_options.py > src/config/salt_master/options.json

Values that depend on the machine or the user are omitted.
"""

import json
import sys

import salt.config

HERE = ("user", "grains", "ipc_write_buffer", "sudo_user", "conf_file", "minion_id_lowercase")
NAMES = {type(None): "NoneType"}


def plain(value):
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ImmutableList":
        return [plain(inner) for inner in value]
    return value


def kinds(wanted):
    if wanted is None:
        return []
    flat = wanted if isinstance(wanted, tuple) else (wanted,)
    out = []
    for kind in flat:
        out.extend(kinds(kind) if isinstance(kind, tuple) else [NAMES.get(kind, kind.__name__)])
    return out


def single(wanted):
    return not isinstance(wanted, tuple)


def main():
    master = {k: plain(v) for k, v in salt.config.DEFAULT_MASTER_OPTS.items() if k not in HERE}
    minion = {
        k: plain(v)
        for k, v in salt.config.DEFAULT_MINION_OPTS.items()
        if k not in HERE and k not in master
    }
    types = {
        key: kinds(wanted)[0] if single(wanted) else kinds(wanted)
        for key, wanted in salt.config.VALID_OPTS.items()
        if wanted is not None
    }
    out = {"salt": salt.version.__version__, "master": master, "minion": minion, "types": types}
    json.dump(out, sys.stdout, indent=0, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
