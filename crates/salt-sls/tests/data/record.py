#!/usr/bin/env python3
"""Records Salt's result for each line of yaml.jsonl, compile.jsonl, json.jsonl and fnmatch.jsonl beside this file.

usage: python record.py        (with a Python that has Salt 3008 installed)

The input of a line (`text`; `files`; `pattern` and `name`) stays; the rest is replaced. Values have the JSON form of the
reactor cases.
"""
import copy
import fnmatch
import json
import math
import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable] + sys.argv)

import base64
import collections

import salt.state
import salt.utils.reactor
import salt.utils.yamlloader as yamlloader
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))


def spell(value):
    if isinstance(value, str):
        value.encode()  # half a surrogate pair cannot be sent
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else {"$int": str(value)}
    if isinstance(value, float):
        whole = math.isnan(value) or math.isinf(value) or value == int(value)
        return {"$float": repr(value)} if whole else value
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: spell(item) for key, item in value.items()}
        return {"$map": [[spell(key), spell(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": [spell(item) for item in value]}
    if isinstance(value, list):
        return [spell(item) for item in value]
    if isinstance(value, set):
        return {"$set": sorted((spell(item) for item in value), key=json.dumps)}
    raise TypeError(type(value).__name__)


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
