#!/usr/bin/env python3
"""Records Salt's result for each line of yaml.jsonl, compile.jsonl, json.jsonl and fnmatch.jsonl beside this file.

usage: python record.py        (with a Python that has Salt 3008 installed)

The input of a line (`text`; `files`; `pattern` and `name`) stays; the rest is replaced. Values have the JSON form of
`salt_sls::json_form`.
"""
import copy
import fnmatch
import json
import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable] + sys.argv)

import collections

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "..", "..", "src", "reactor", "helper"))

import render_helper
import salt.state
import salt.utils.reactor
import salt.utils.yamlloader as yamlloader
import yaml


def spell(value):
    check(value)
    return sorted_sets(render_helper.enc(value))


def check(value):
    """Raises for half a surrogate pair, which cannot be sent, and for a value that is not of Python's plain types."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for pair in value.items():
            check(pair)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            check(item)
    elif value is not None and not isinstance(value, (bool, int, float, bytes)):
        raise TypeError(type(value).__name__)


def sorted_sets(form):
    """Members of a set have no order, but two recordings should be equal."""
    if isinstance(form, list):
        return [sorted_sets(item) for item in form]
    if isinstance(form, dict):
        found = {key: sorted_sets(item) for key, item in form.items()}
        return {"$set": sorted(found["$set"], key=json.dumps)} if set(found) == {"$set"} else found
    return form


# The first loader created with a class of mappings changes `!!omap` for all, as the YAML renderer does in every master.
yamlloader.SaltYamlSafeLoader("", dictclass=collections.OrderedDict)


def load(text):
    return yaml.load(text, Loader=yamlloader.SaltYamlSafeLoader)


def record_yaml(row):
    try:
        return {"value": spell(load(row["text"]))}
    except Exception as exc:  # pylint: disable=broad-except
        return {"fails": type(exc).__name__}


def record_json(row):
    try:
        return {"value": spell(json.loads(row["text"]))}
    except (ValueError, RecursionError) as exc:
        return {"fails": str(exc)}


def record_fnmatch(row):
    return {"matches": fnmatch.fnmatchcase(row["name"], row["pattern"])}


class Compiler(salt.state.Compiler):
    aliases = salt.utils.reactor.Reactor.aliases
    resolve_aliases = salt.utils.reactor.Reactor.resolve_aliases

    def __init__(self):  # pylint: disable=super-init-not-called
        pass


def record_compile(row):
    compiler, high, found = Compiler(), {}, {"high": []}
    for path, text in row["files"]:
        try:
            one = compiler.pad_funcs(load(text) or {})
            for name in one:
                one[name]["__sls__"] = path
        except Exception:  # pylint: disable=broad-except
            found["high"].append(None)
            continue
        found["high"].append(spell(copy.deepcopy(one)))
        high.update(one)
    try:
        errors = compiler.verify_high(high)
        if not errors:
            low, errors = compiler.compile_high_data(high)
    except Exception as exc:  # pylint: disable=broad-except
        return dict(found, raises=type(exc).__name__)
    if errors:
        return dict(found, errors=errors)
    compiler.resolve_aliases(low)
    return dict(found, low=[spell(chunk) for chunk in low])


INPUTS = {"yaml": ["text"], "json": ["text"], "fnmatch": ["pattern", "name"], "compile": ["files"]}

for kind, keys in INPUTS.items():
    path = os.path.join(HERE, kind + ".jsonl")
    with open(path, encoding="utf-8") as lines:
        rows = [{key: json.loads(line)[key] for key in keys} for line in lines]
    with open(path, "w", encoding="utf-8") as out:
        for row in rows:
            row.update(globals()["record_" + kind](row))
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
