"""The transport `postgres`, with a PostgreSQL server and the schema in the documentation of Salt's returner."""
import glob
import json
import os
import pwd
import re
import subprocess

import pytest
import salt.returners.pgjsonb
from conftest import Cellar, eventually, free_port, missing


class Postgres:
    """A server of its own below a directory; as root it runs as a user without rights."""

    def __init__(self, run, place, certificates):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not found:
            missing("initdb (package postgresql)")
        self.bin, self.data, self.port, self.run = found[-1], place / "pg", free_port(), run
        self.user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        self.data.mkdir()
        self.how = {}
        if os.getuid() == 0:
            entry = pwd.getpwnam("nobody")
            os.chown(self.data, entry.pw_uid, entry.pw_gid)
            self.how = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        subprocess.run(
            [f"{self.bin}/initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"], check=True,
            capture_output=True, cwd="/", **self.how,
        )
        (self.data / "pg_hba.conf").write_text(
            "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhostssl all salt 127.0.0.1/32 scram-sha-256\n"
        )
        key = self.data / "server.key"
        key.write_bytes(open(certificates["own.key"], "rb").read())
        key.chmod(0o600)
        if os.getuid() == 0:
            os.chown(key, entry.pw_uid, entry.pw_gid)
        self.certificate = certificates["own.pem"]
        self.start()
        self.sql("CREATE DATABASE salt", "postgres")
        self.sql("CREATE ROLE salt LOGIN PASSWORD 'pa55'")
        text = salt.returners.pgjsonb.__doc__
        schema = text[text.index("DROP TABLE IF EXISTS jids"):text.index("Required python modules")]
        self.sql(re.sub(r"\nUse this.*", "", schema))
        self.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO salt; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO salt")

    def start(self):
        self.process = self.run(
            f"{self.bin}/postgres", "-D", self.data, "-p", str(self.port), "-h", "127.0.0.1", "-k", self.data, "-c", "fsync=off",
            "-c", "ssl=on", "-c", f"ssl_cert_file={self.certificate}", "-c", f"ssl_key_file={self.data}/server.key", cwd="/", **self.how,
        )
        eventually("the start of PostgreSQL", lambda: self.psql("SELECT 1", "postgres").returncode == 0)

    def psql(self, text, database="salt"):
        return subprocess.run(
            [f"{self.bin}/psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", database, "-AtqX", "-v",
             "ON_ERROR_STOP=1", "-f", "-"], input=text, capture_output=True, text=True,
        )

    def sql(self, text, database="salt"):
        done = self.psql(text, database)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def count(self, table):
        return int(self.sql(f"SELECT count(*) FROM {table}")[0])


@pytest.fixture
def postgres(run, place, certificates):
    (place / "password").write_text("pa55\n")
    return Postgres(run, place, certificates)


def sink(postgres, place, **options):
    transport = {"host": "127.0.0.1", "port": postgres.port, "password": f"file:{place}/password", "tls": {"ca": str(place / "own.pem")}}
    return {"encoder": "json", "transport": {"postgres": {**transport, **options}}, "retry": {"backoff": "1s", "max": "1s"}}


def job(n):
    jid = f"2026112105472812{n:04}"
    ret = {"jid": jid, "id": "web1", "fun": "test.ping", "return": n, "success": True, "retcode": 0}
    return [(f"salt/job/{jid}/new", {"jid": jid, "fun": "test.ping", "minions": ["web1"]}), (f"salt/job/{jid}/ret/web1", ret)]


def test_events_returns_and_jobs_are_rows_as_salt_writes_them(cellar, place, postgres):
    daemon = cellar(pg=sink(postgres, place))
    daemon.fire(*[event for n in range(50) for event in job(n)], ("salt/auth", {"id": "web1", "result": True}))
    daemon.delivered("pg")
    assert [postgres.count(table) for table in ["jids", "salt_returns", "salt_events"]] == [50, 50, 101]
    (row,) = postgres.sql("SELECT fun, return, id, success, full_ret->>'jid' = jid FROM salt_returns ORDER BY jid LIMIT 1")
    assert row == "test.ping|0|web1|true|t"
    assert postgres.sql("SELECT data->>'id' FROM salt_events WHERE tag = 'salt/auth'") == ["web1"]
    assert json.loads(postgres.sql("SELECT load FROM jids ORDER BY jid LIMIT 1")[0])["minions"] == ["web1"]
    # Salt's rows beside ours.
    postgres.sql("INSERT INTO salt_events (tag, data, master_id) VALUES ('own', '{}', 'm')")
    found, shown = daemon.checked("pg")
    assert found.endswith("contains the tables jids, salt_returns, salt_events")
    assert "inserted: 0 in salt_events" in shown, f"the newest event is there: {shown}"


def test_repeated_batches_and_kills_of_both_change_nothing(cellar, place, postgres):
    daemon = cellar(pg={**sink(postgres, place), "batch": {"count": 20, "time": "0s"}})
    for part in range(6):
        daemon.fire(*[event for n in range(part * 40, part * 40 + 40) for event in job(n)])
        if part % 2:
            daemon.kill()
            daemon.start()
        else:
            postgres.process.kill()
            postgres.process.wait()
            # The children end on their own.
            eventually("the end of PostgreSQL", lambda: postgres.psql("SELECT 1", "postgres").returncode != 0)
            eventually("a free data directory", lambda: restarted(postgres))
    daemon.delivered("pg")
    assert [postgres.count(table) for table in ["jids", "salt_returns", "salt_events"]] == [240, 240, 480]
    daemon.verb("sinks", "seek", "pg", "oldest")
    daemon.delivered("pg")
    assert [postgres.count(table) for table in ["jids", "salt_returns", "salt_events"]] == [240, 240, 480]


def test_the_masters_of_a_cluster_share_the_rows(run, place, postgres):
    settings = {**sink(postgres, place), "batch": {"count": 7, "time": "0s"}}
    daemons = []
    for n in range(3):
        own = place / f"m{n}"
        own.mkdir()
        (own / "master").write_text(f"id: m{n}\ncluster_id: c\n")
        daemons.append(Cellar(run, own, {"pg": settings}, ingest={"masters": [str(own / "master")]}))
    for n in range(100):
        jid = f"2026112105472812{n:04}"
        owner = n % 3
        ret = {"jid": jid, "id": "web1", "fun": "test.ping", "return": n, "success": True, "retcode": 0}
        events = [(f"salt/job/{jid}/new", {"jid": jid, "fun": "test.ping", "minions": ["web1"]}), (f"salt/job/{jid}/ret/web1", ret)]
        for m, daemon in enumerate(daemons):
            # As the master puts them on the bus, in another order on each.
            mark = {} if m == owner else {"__peer_id": f"m{owner}"}
            fired = [(tag, {**data, "_stamp": f"2026-11-21T05:47:28.{n:06}", **mark}) for tag, data in events]
            daemon.fire(*(fired if m else fired[::-1]))
    for daemon in daemons:
        daemon.delivered("pg")
    assert [postgres.count(table) for table in ["jids", "salt_returns", "salt_events"]] == [100, 100, 200]
    found = postgres.sql("SELECT master_id, count(*), count(DISTINCT data) FROM salt_events GROUP BY master_id ORDER BY master_id")
    assert found == ["m0|68|68", "m1|66|66", "m2|66|66"]
    assert postgres.sql("SELECT count(*) FROM salt_events WHERE data ? '__peer_id'") == ["0"]


def restarted(postgres):
    (postgres.data / "postmaster.pid").unlink(missing_ok=True)
    try:
        postgres.start()
        return True
    except AssertionError:
        return False


def test_an_event_that_postgresql_rejects_is_the_only_dead_letter(cellar, place, postgres):
    daemon = cellar(pg={**sink(postgres, place), "batch": {"time": "0s"}})
    daemon.fire(("salt/auth", {"n": 1}), ("salt/auth", {"n": 2, "text": "nul \0 byte"}), ("t" * 300, {}), ("salt/auth", {"n": 3}))
    daemon.delivered("pg")
    assert postgres.sql("SELECT data->>'n' FROM salt_events ORDER BY alter_time") == ["1", "3"]
    reasons = [letter["reason"] for letter in daemon.letters("pg")]
    assert reasons[0].startswith("22P05 ") and reasons[1].startswith("22001 "), reasons


def test_a_wrong_certificate_and_a_wrong_password_are_retried(cellar, place, postgres):
    (place / "wrong").write_text("wr0ng\n")
    daemon = cellar(
        certificate=sink(postgres, place, tls={"ca": str(place / "other.pem")}), password=sink(postgres, place, password=f"file:{place}/wrong"),
    )
    daemon.fire(("salt/auth", {"n": 1}))
    for name, reason in [("certificate", "certificate"), ("password", "28P01 password authentication failed")]:
        found = eventually("an error", lambda: (daemon.sink(name)["error"] or {}).get("message", ""))
        assert reason in found and "wr0ng" not in found, found
    assert postgres.count("salt_events") == 0
