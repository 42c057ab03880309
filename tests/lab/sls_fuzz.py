#!/usr/bin/env python3
"""Compares native renderings of random and mutated templates with an installed Salt.

usage: sls_fuzz.py generate SEED COUNT RECORDED CASES_DIR... > FILE     make COUNT templates; the first line is the event's data
       sls_fuzz.py compare FILE                                         compare the native renderings in FILE with this Python's Salt

Between the two, the test `jinja::write_native_renderings` of salt-sls renders FILE natively (`make fuzz-sls` runs all three). Mutations start from
the templates of RECORDED (crates/salt-sls/tests/data/jinja-3008.3.jsonl) and the files of the cases.
"""
import glob
import json
import os
import random
import re
import sys

ATOMS = """data tag data.id data["id"] data['n'] data.f data.s data.e data.z data.t data.ff data.l data.nums data.d data.d.m data['items']
data.items data.data data.data.ip data.nope data['nope'] data.d.k data.d.a 1 0 -1 2.5 7 "" "a" 'x' [] {} () (1,) (1,2) [1,2,3]
["a","b"] {"a":1} {"a":{"b":"c\\nd"}} [none,true,1.0,"x"] true false none True None x y ns.v loop.index "a,b,c" "Hello"
data.get("id") data.get("nope") data.get("nope","d") data.items() data.d.values() data.d.keys() range(3) [[1,2],[3,4]]
[{"n":"a","v":1},{"n":"b","v":2}] "10" "é" 100000 "%s" "{}" "{0}-{1}" [{"a":[1,(2,)]}] grains.id opts pillar 1.5e3 "a'b" 'q"q'
"\\t" "tab\\there" data.d.m.x[0] 1==1.0 "1" 3 4""".split() + ['"b c"', '"a b c"', '" pad "']
OPERATORS = "+ - * / // % ** ~ == != < <= > >= in and or".split() + ["not in"]
METHODS = """.startswith("a") .endswith("b") .lower() .upper() .strip() .split() .split(",") .split("a",1) .rsplit("l",1) .replace("a","b")
.get("a") .get("a",1) .items() .keys() .values() .capitalize() .find("l") .count("l") .isdigit() .join(["a","b"]) .format("a")
.format(1,2) .copy() .pop() .append(1) .update({"q":1}) .update(q=2) .setdefault("z",[]) .lstrip("H") .rstrip("d") .partition(",")
.extend([1]) .title() .swapcase() .index(1) .format(a=1) .startswith(("a","b")) .splitlines() .rpartition("l") .ljust(7) .insert(0,9)
.remove(1) .isalpha() .isupper() .removeprefix("H") .pop(0) .pop("a",1) .rfind("l") .zfill(5)""".split()
FILTERS = """|default("d") |default |d(none) |default("d",true) |json |tojson |length |count |lower |upper |capitalize |trim |string |int
|list |first |last |sort |join |join(",") |map(attribute="n")|list |map(attribute="v")|join("-") |selectattr("v")|list
|selectattr("n","equalto","a")|list |rejectattr("n","eq","a")|list |replace("a","b") |yaml_dquote |yaml_squote |yaml_encode
|items|list |items |map(attribute=0)|list |map(attribute="m.x")|list |sort|join("_") |yaml |dictsort |dictsort|list |max |min |sum
|abs |float |indent |indent(2) |indent(2,true) |map("upper")|list |map("int")|sum |select|list |reject("odd")|list |select("gt",1)|list
|sort(reverse=true) |sort(attribute="v") |unique|list |map("string")|first""".split() + ["|length > 1", '|sort|join(" ")']
TESTS = """is_defined is_not_defined is_undefined is_none is_not_none is_string is_mapping is_number is_integer is_float is_boolean is_true
is_false is_even is_odd is_eq(1) is_eq_1 is_ne("a") is_in([1,2]) is_in_data.l is_equalto("a") is_not_string is_eq_data.n is_list
is_sequence is_iterable is_match("H.*o$") is_match("[a-z]+") is_match("a*?b|\\\\d") is_divisibleby(2) is_gt(1) is_le_"a" """.split()
TESTS = [test.replace("_", " ") for test in TESTS]
LOOKUPS = """[0] [-1] ["a"] ["k"] [1] [5] [0:2] [1:] [:-1] .a .k ["nope"] [data.id] .x .m [true] .n .v [:] ["items"] .get [::-1] [::2]
[-2:]""".split()
TOKENS = re.compile(r"\{\{[-+]?|[-+]?\}\}|\{%[-+]?|[-+]?%\}|\{#|#\}|\"[^\"\n]*\"|'[^'\n]*'|\w+|\s+|.", re.S)
ODD = ["-", "+", " ", "\n", "{{", "}}", "{%", "%}", "-%}", "{%-", "{#", "#}", "\\", "|", ".", ",", "(", ")", "[", "]", "not", "is", "in",
       "if", "else", "=", "~", '"', "'", "0", "1e3", "0x1", "1_0", "__", "\r\n", "\u00a0"]

choice, chance = random.choice, random.random


def maybe(share, text):
    return ("(%s)" if chance() < share else "%s") % text


def expression(depth):
    r = chance()
    if depth <= 0 or r < 0.28:
        return choice(ATOMS)
    if r < 0.46:
        return f"{expression(depth - 1)} {choice(OPERATORS)} {expression(depth - 1)}"
    if r < 0.50:
        return f"({expression(depth - 1)})"
    if r < 0.62:
        return maybe(0.5, expression(depth - 1)) + choice(METHODS)
    if r < 0.76:
        return maybe(0.5, expression(depth - 1)) + choice(FILTERS)
    if r < 0.84:
        return maybe(0.5, expression(depth - 1)) + " " + choice(TESTS)
    if r < 0.92:
        return maybe(0.3, expression(depth - 1)) + choice(LOOKUPS)
    if r < 0.95:
        return f"{expression(depth - 1)} if {expression(depth - 1)} else {expression(depth - 1)}"
    if r < 0.97:
        return f"not {expression(depth - 1)}"
    if r < 0.98:
        return f"[{expression(depth - 1)}, {expression(depth - 1)}]"
    return "{%s: %s}" % (choice(['"a"', '"k"', "data.id", "1"]), expression(depth - 1))


def trim():
    return choice(["", "", "", "", "-", "+"]) if chance() < 0.3 else ""


def tag(text):
    return "{%" + trim() + " " + text + " " + trim() + "%}"


def raw():
    return choice(["a", "\n", "  ", " b ", "\n  x: ", "{", "}", "# c\n", "\n\n", "{# c #}", "{#- c -#}", "{% raw %}{{ x }}{% endraw %}",
                   "\t", "- ", "'", '"', ": "])


def loop(depth):
    target = choice(["x", "y", "k, v", "x", "(x, y)"])
    over = choice(["data.l", "data.nums", "data.d", "data.d.items()", 'data["items"]', "range(3)", '"ab"', "[1,2]", "data.l|sort",
                   "data.items()", "[(1,2),(3,4)]", "data.l|select", expression(1)])
    only = (" if " + expression(1)) if chance() < 0.2 else ""
    inside = body(depth - 1) + choice(["", "", "{{ loop.index }}", "{{ x }}", "{{ k }}={{ v }}", "{{ loop.last }}",
                                       "{% if loop.first %}F{% endif %}", "{% break %}", "{% if x == 2 %}{% continue %}{% endif %}",
                                       "{% set x = 3 %}", "{{ loop.length }}", "{{ loop.revindex0 }}", "{% do data.l.append(1) %}"])
    otherwise = (tag("else") + body(depth - 1)) if chance() < 0.2 else ""
    return tag(f"for {target} in {over}{only}") + inside + otherwise + tag("endfor")


def statement(depth):
    r = chance()
    if r < 0.35 or depth <= 0:
        return "{{" + trim() + " " + expression(2) + " " + choice(["", "", "", "-"]) + "}}"
    if r < 0.5:
        return raw()
    if r < 0.6:
        also = (tag("elif " + expression(1)) + body(depth - 1)) if chance() < 0.2 else ""
        otherwise = (tag("else") + body(depth - 1)) if chance() < 0.4 else ""
        return tag("if " + expression(2)) + body(depth - 1) + also + otherwise + tag("endif")
    if r < 0.74:
        return loop(depth)
    if r < 0.84:
        return tag(f"set {choice(['x', 'y', 'x', 'data', 'tag'])} = {expression(2)}")
    if r < 0.87:
        return tag("set x") + body(depth - 1) + tag("endset")
    if r < 0.90:
        return tag(f"set ns = namespace(v={expression(1)})") + body(depth - 1) + tag("set ns.v = " + expression(1)) + "{{ ns.v }}"
    if r < 0.93:
        more = (", y = " + expression(1)) if chance() < 0.3 else ""
        return tag("with x = " + expression(1) + more) + body(depth - 1) + tag("endwith")
    if r < 0.96:
        return tag("do " + choice(["x", "data.l", "data.d", "data"]) + choice(METHODS))
    return tag("set x, y = " + expression(1) + ", " + expression(1))


def body(depth):
    return "".join(statement(depth) for _ in range(random.randint(1, 3)))


def mutated(text):
    tokens = TOKENS.findall(text)
    for _ in range(choice([1, 1, 1, 2, 3])):
        if not tokens:
            break
        at, r = random.randrange(len(tokens)), chance()
        if r < 0.2:
            del tokens[at]
        elif r < 0.35:
            tokens.insert(at, choice(tokens))
        elif r < 0.5:
            other = random.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif r < 0.7:
            tokens[at] = choice(ATOMS)
        elif r < 0.8:
            tokens.insert(at, choice(FILTERS + METHODS + LOOKUPS))
        elif r < 0.9:
            tokens.insert(at, " " + choice(OPERATORS) + " ")
        else:
            tokens[at] = choice(ODD)
    return "".join(tokens)


def generate(seed, count, recorded, *cases):
    random.seed(int(seed))
    # Salt caches options in a process, so all templates of a run have the same.
    trim, both = {"trim_blocks": True}, {"trim_blocks": True, "lstrip_blocks": True}
    options = {2: trim, 3: both}.get(int(seed) % 4)
    with open(recorded, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    known = [row["t"] for row in rows[1:] if not row.get("files") and not row.get("opts")]
    for name in sorted(name for directory in cases for name in glob.glob(directory + "/*.json")):
        with open(name, encoding="utf-8") as case:
            files = json.load(case)["input"]["files"]
        known += [text for path, text in files.items() if isinstance(text, str) and path.endswith(".sls")]
    print(json.dumps({"data": rows[0]["data"]}))
    made = 0
    while made < int(count):
        r = chance()
        if r < 0.3:
            text = "{{ " + expression(3) + " }}"
        elif r < 0.6:
            text = body(3)
        else:
            text = mutated(choice(known))
            if chance() < 0.2:
                text += mutated(choice(known))
        row = {"t": text}
        if options:
            row["opts"] = {"jinja_env": options}
        # Salt does not render empty files; a shebang may select another renderer.
        if text.strip() and not text.startswith("#!"):
            print(json.dumps(row))
            made += 1


def compare(name):
    # The import restarts Python with a fixed hash seed.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import logging

    import jinja_oracle

    logging.disable(logging.CRITICAL)
    with open(name, encoding="utf-8") as lines:
        oracle, native, different = jinja_oracle.Oracle(json.loads(next(lines))["data"]), 0, 0
        for line in lines:
            case = json.loads(line)
            native += 1
            answer = oracle.answer(case).get("text")
            if answer != case["native"]:
                different += 1
                print(f"{case['t']!r} {case.get('opts', '')}\n  native {case['native']!r}\n  Salt   {answer!r}")
    print(f"{native} native, {different} different")
    sys.exit(1 if different or not native else 0)


if __name__ == "__main__":
    {"generate": generate, "compare": compare}[sys.argv[1]](*sys.argv[2:])
