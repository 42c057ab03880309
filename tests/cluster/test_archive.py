"""Daemons without a master that have the history of all: two of them behind one address."""
import json
import pathlib
import socket
import urllib.error
import urllib.request

from procs import eventually


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(ports, path, token):
    """What the first that answers says, as a proxy before them would ask."""
    for port in ports:
        ask = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(ask, timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:
            continue
    raise AssertionError("neither answers")


def test_two_archives_answer_with_one_token_while_any_machine_is_away(site):
    found = site(nodes=4, servers=3)
    one, two, *archives = found.nodes
    ports = [free_port() for _ in archives]
    for archive, port in zip(archives, ports):
        archive.others = {**archive.others, "http": {"listen": f"127.0.0.1:{port}"}}
    found.start()
    printed = archives[0].cli("tokens", "create", "reader", "--scope", "read").stdout
    token = printed.split()[-1]
    file = pathlib.Path(found.place, "printed")
    file.write_text(printed)
    archives[1].cli("tokens", "create", "reader", "--scope", "read", "--from", file)

    def has(node, jid):
        return eventually(f"{node.name} has the job", lambda: (job := node.job(jid)) and job["returned"] == 3 and job)

    def jobs_of_all(writers):
        """A job of each, as the address answers, equal to what its own daemon says."""
        for writer in writers:
            jid = writer.jids[-1]
            for archive in archives:
                if archive.runs:
                    has(archive, jid)
            job = json.loads(get(ports, f"/api/v1/jobs/{jid}", token))
            assert job["jid"] == jid and job["returned"] == 3, job
            assert jid in get(ports, f"/jobs/{jid}", token)

    def written(*nodes):
        """Writers at these nodes that have stored some jobs and ended."""
        writers = found.write(*nodes)
        found.stored()
        for writer in writers:
            writer.finish()
        found.writers.clear()
        return writers

    writers = written(one, two)
    jobs_of_all(writers)

    # Any one machine: a master with its server, and each of the archives.
    one.kill()
    found.servers.all[0].kill()
    jobs_of_all(writers)
    found.servers.all[0].start()
    one.start()
    for archive in archives:
        archive.kill()
        jobs_of_all(written(two))
        archive.start()
