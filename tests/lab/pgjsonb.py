"""`saltcellar import pgjsonb` against a PostgreSQL server whose tables Salt's own returner has filled.

    SALTCELLAR_BIN=target/debug/saltcellar python3 tests/lab/salt_lab.py in-venv -- python tests/lab/pgjsonb.py [JOBS]

Needs initdb and postgres (Debian: postgresql-15) and psycopg2 in that Python (`pip install psycopg2-binary`, or a directory with it in
PYTHONPATH). The server is in a temporary directory, has the schema of the returner's documentation and listens on a unix socket only. CI
has no server: there `tests/it/moving.rs` runs a fake psql with recorded rows.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import salt.config
import salt.loader
import salt.returners.pgjsonb as pgjsonb

BIN = os.environ["SALTCELLAR_BIN"]
JOBS = int(sys.argv[1]) if len(sys.argv) > 1 else 200


def tool(name):
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))[::-1]), None)
    return found or sys.exit(f"pgjsonb: no {name}: install postgresql")


def as_postgres(*args, **kwargs):
    """A server does not run as root."""
    if os.getuid() == 0:
        kwargs["user"] = kwargs["group"] = "postgres"
    return subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **kwargs)


def filled(opts):
    """Fills the tables as a master does; returns the returner's answers."""
    functions = salt.loader.returners(opts, {})
    for n in range(JOBS):
        jid = f"20261101{n // 3600 % 24:02}{n // 60 % 60:02}{n % 60:02}{n:06}"
        load = {"cmd": "publish", "tgt": "*", "fun": "test.arg", "arg": ["ü\t\\", n], "tgt_type": "glob", "jid": jid, "user": "root"}
        functions["pgjsonb.save_load"](jid, load)
        for minion in ("web1", "web2"):
            answer = {"n": n, "text": "line\nline\t\\", "float": n / 7, b"bytes": b"bytes", 1: [None, True]}
            ret = {"cmd": "_return", "id": minion, "jid": jid, "fun": "test.arg", "fun_args": [], "retcode": n % 2, "success": True,
                   "return": answer, "_stamp": f"2026-11-01T00:00:00.{n:06}"}
            functions["pgjsonb.returner"](ret)
            functions["pgjsonb.event_return"]([{"tag": f"salt/job/{jid}/ret/{minion}", "data": pgjsonb.salt.utils.data.decode(ret)}])
        functions["pgjsonb.event_return"]([{"tag": "my/tag", "data": {"n": n, "_stamp": f"2026-11-01T00:00:01.{n:06}"}}] * 2)
    jids = functions["pgjsonb.get_jids"]()
    return jids, {jid: functions["pgjsonb.get_jid"](jid) for jid in list(jids)[:50]}


def main():
    run = tempfile.mkdtemp(prefix="sc-pg-")
    os.chmod(run, 0o755)
    data = f"{run}/data"
    os.mkdir(data)
    if os.getuid() == 0:
        shutil.chown(data, "postgres", "postgres")
    init = as_postgres(tool("initdb"), "-D", data, "-A", "trust", "-U", "salt", "--no-sync", "-E", "UTF8")
    assert init.wait() == 0, "initdb failed"
    server = as_postgres(tool("postgres"), "-D", data, "-k", data, "-c", "listen_addresses=", "-c", "fsync=off")
    daemon = None
    try:
        schema = re.search(r"Use the following Pg database schema:(.*?)Required python", pgjsonb.__doc__, re.S).group(1)
        schema = schema[schema.index("--\n"):]
        psql = ["psql", "--quiet", "-h", data, "-U", "salt"]
        for _ in range(100):
            if subprocess.run([*psql, "-d", "postgres", "-c", "create database salt"], check=False, capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        subprocess.run([*psql, "-d", "salt", "-v", "ON_ERROR_STOP=1", "-f", "-"], input=schema, text=True, check=True, capture_output=True)
        opts = dict(salt.config.DEFAULT_MASTER_OPTS, __role="master", id="lab_master")
        opts.update({key: run for key in ("root_dir", "cachedir", "sock_dir", "pki_dir", "extension_modules")})
        opts.update({"returner.pgjsonb.host": data, "returner.pgjsonb.db": "salt", "returner.pgjsonb.user": "salt",
                     "returner.pgjsonb.pass": "salt", "returner.pgjsonb.port": 5432})
        jids, answers = filled(opts)
        assert len(jids) == JOBS
        sock = f"{run}/s.sock"
        with open(f"{run}/log", "wb") as log:
            daemon = subprocess.Popen([BIN, "serve", "--state-dir", f"{run}/state", "--socket", sock], stdout=log, stderr=log)
        while not os.path.exists(sock):
            time.sleep(0.05)

        def cellar(*args):
            done = subprocess.run([BIN, "--socket", sock, "--output", "json", *args], check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout) if done.stdout else None

        connection = f"host={data} user=salt dbname=salt"
        first, second = (cellar("import", "pgjsonb", connection) for _ in range(2))
        print("first ", first)
        print("second", second)
        assert (first["kinds"]["loads"]["stored"], first["skipped"]) == (JOBS, 0)
        assert first["kinds"]["returns"]["stored"] == 2 * JOBS and first["kinds"]["events"]["known"] + first["kinds"]["events"]["stored"] == 4 * JOBS
        assert second["stored"] == 0 and second["known"] == first["stored"] + first["known"]
        events = cellar("events", "list", "--tag", "my/tag", "--limit", "100000")["events"]
        assert len(events) == 2 * JOBS, "equal events keep their number"

        cellar("export", "local_cache", f"{run}/jobs")
        functions = salt.loader.returners(opts, {})
        got = functions["local_cache.get_jids"]()
        assert {jid: row["Arguments"] for jid, row in got.items()} == {jid: row["Arguments"] for jid, row in jids.items()}
        for jid, expected in answers.items():
            found = functions["local_cache.get_jid"](jid)
            assert {m: r["return"] for m, r in found.items()} == {m: r["return"] for m, r in expected.items()}, jid
        print("pgjsonb: the answers of Salt's returner and of saltcellar are equal")
    finally:
        if daemon:
            daemon.terminate()
            daemon.wait()
        server.terminate()
        server.wait()
        shutil.rmtree(run)


if __name__ == "__main__":
    main()
