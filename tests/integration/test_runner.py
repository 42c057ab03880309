"""The runner `saltcellar` on a real master, and jobs copied to Salt's job cache and back."""
from conftest import eventually


def test_jobs_of_a_master_go_to_local_cache_and_are_looked_up_by_the_runner(lab, daemon):
    word = "by the runner"
    jid = lab.detached("lab-1", "test.echo", word)
    eventually("the return", lambda: daemon.returned(jid) == ["lab-1"])
    assert jid in [row["jid"] for row in lab.run("saltcellar.jobs", "since=10m", "fun=test.echo")["jobs"]]
    shown = lab.run("saltcellar.job", jid)
    assert (shown["returns"][0]["return"], shown["missing"]) == (word, [])
    assert lab.run("saltcellar.status")["bus"][0]["connected"]

    done = lab.run("saltcellar.export_to", "local_cache")
    assert done["skipped"] == 0 and done["jobs"] >= 1, done
    found = lab.run("jobs.lookup_jid", jid, "ext_source=local_cache")
    assert found == {"lab-1": word}
    # Jobs of the meantime, among them those of the runner, are the only new ones.
    assert lab.run("saltcellar.export_to", "local_cache", f"start={jid}")["unchanged"] >= 1
    before = daemon.job(jid)
    done = lab.run("saltcellar.import_from", "local_cache", f"start={jid}")
    assert (done["skipped"], daemon.job(jid)) == (0, before), done
