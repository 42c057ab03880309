"""What the documentation tells an operator to run, as it stands there, on a host with a real systemd and a real master."""
import json
import os
import re

from salted import REPO, SALT, wait_for_minion


def commands_of(page, heading):
    """The first block of shell commands below a heading."""
    with open(os.path.join(REPO, "docs", page)) as file:
        _, section = file.read().split(f"\n## {heading}\n", 1)
    return re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]


def test_five_commands_replace_a_dead_master(installed):
    installed.start_salt()
    installed.cli("setup", "--yes")
    jid = installed.job("test.arg", "before the end")
    installed.cli("store", "backup", "/backup/saltcellar")

    # The host that takes over: Salt with the former keys, and neither the package nor anything that it stored.
    installed.sh("""
        systemctl stop saltcellar salt-master
        rm -rf /etc/salt/master.d /var/cache/salt/master
        dpkg -P saltcellar
        test ! -e /var/lib/saltcellar
        systemctl start salt-master
        cp /packages/1.deb /root/saltcellar_1.deb
    """)
    five = commands_of("REPLACE.md", "Five commands")
    assert len(five.splitlines()) == 5, five
    listed = installed.sh(f"set -e; cd /root\n{five}").stdout

    assert jid in listed, listed
    assert installed.salt("salt-run", "jobs.lookup_jid", jid)["web1"]["args"] == ["before the end"]
    assert installed.job("test.arg", "after it") in installed.jids()


def test_the_formula_installs_configures_and_starts_it(fresh):
    fresh.sh("""
        mkdir -p /srv/salt /srv/pillar
        cp -r /src/docs/formula/saltcellar /srv/salt/
        cp /packages/1.deb /srv/salt/saltcellar/saltcellar.deb
        cp /src/docs/formula/pillar.example.sls /srv/pillar/saltcellar.sls
    """)
    fresh.write("/srv/pillar/top.sls", "base: {'*': [saltcellar]}\n")
    fresh.start_salt()
    wait_for_minion(fresh)
    imported = fresh.job("test.arg", "before")

    def apply():
        states = fresh.salt("salt-call", "state.apply", "saltcellar")["local"]
        assert all(state["result"] for state in states.values()), json.dumps(states, indent=1)
        return sorted(state["__id__"] for state in states.values() if state["changes"])

    assert apply() == ["saltcellar configuration", "saltcellar package", "saltcellar service", "saltcellar setup"]
    assert fresh.show("ActiveState") == "active" and fresh.show("UnitFileState") == "enabled"
    assert {imported, fresh.job("test.arg", "after")} <= fresh.jids()
    classes = {row["class"]: row for row in json.loads(fresh.cli("status", "--output", "json", check=False).stdout)["classes"]}
    assert classes["jobs"]["keep_s"] == 365 * 86400, classes
    assert fresh.sh("stat -c %a /etc/saltcellar/conf.d/formula.yaml").stdout == "600\n"

    before = fresh.show("MainPID"), fresh.show("MainPID", "salt-master.service")
    assert apply() == []
    assert (fresh.show("MainPID"), fresh.show("MainPID", "salt-master.service")) == before

    # A changed setting is in effect after the next run, and Salt is not disturbed.
    fresh.sh("sed -i s/365d/400d/ /srv/pillar/saltcellar.sls")
    assert apply() == ["saltcellar configuration", "saltcellar service"]
    assert fresh.show("MainPID", "salt-master.service") == before[1]
    assert "400d" in fresh.cli("config", "show").stdout

    # The daemon would not start with this setting, so it is not written.
    fresh.sh("sed -i s/400d/forty/ /srv/pillar/saltcellar.sls")
    states = fresh.sh(f"{SALT}/bin/python3 -W ignore {SALT}/bin/salt-call state.apply saltcellar", check=False).stdout
    assert "Failed:    3" in states and "forty" in states, states
    assert "400d" in fresh.sh("cat /etc/saltcellar/conf.d/formula.yaml").stdout
    assert fresh.show("ActiveState") == "active"
