"""`saltcellar setup` and its removal on a host with the package, under a real systemd and with a real master."""
import json
import os
import re
import zlib

from procs import eventually
from salted import ADD_USER, REPO, SALT, is_connected, let_users_read_python, wait_for_minion

PYTHON = f"{SALT}/bin/python3"
with open(os.path.join(REPO, "Cargo.toml")) as manifest:
    VERSION = re.search(r'^version = "(.*)"', manifest.read(), re.MULTILINE)[1]
PLAN = f"""\
will      load the extension from /usr/share/saltcellar in Salt's Python, {PYTHON}
in place  install saltcellar.service
will      configure the daemon to read the bus in /var/run/salt/master, in /etc/saltcellar/conf.d/setup.yaml: bus: [/var/run/salt/master]
will      enable saltcellar.service and start it
will      stop salt-master.service, write /etc/salt/master.d/saltcellar.conf, and start it
          | # Written by `saltcellar setup`, sum 6e260ef0
          | # Options for saltcellar. To undo: `saltcellar setup --remove`.
          | master_job_cache: saltcellar
          | module_dirs: [/usr/share/saltcellar]
"""
NOTE = ("note      jobs are kept for 90d, less only if the disk is nearly full; this master's keep_jobs_seconds is 24h, and deletes nothing\n")
# The figures depend on the disk of this host.
DISK_NOTE = re.compile(r"note      [0-9.]+[KMGT] are usable for entries(, about (a day|\d{1,4} days|10 years or more): .*|; for how many days .*)\n\Z")
ACT = """
act:
  local.cmd.run:
    - tgt: web1
    - arg:
      - echo {{ tag }} >> /root/acted
"""


def without_disk_note(plan):
    rest, count = DISK_NOTE.subn("", plan)
    assert count == 1, plan
    return rest


def plan_for_user_salt():
    head, text = PLAN.replace("          | ", "").split("# Written by", 1)
    body = text.split("\n", 1)[1] + "saltcellar.socket: /run/saltcellar/saltcellar.sock\n"
    *steps, master = head.splitlines()
    lines = [f"# Written by `saltcellar setup`, sum {zlib.crc32(body.encode()):08x}", *body.splitlines()]
    group = "will      add salt, the master's user, to the group saltcellar, which may use the daemon's socket"
    return "\n".join([*steps, group, master, *(f"          | {line}" for line in lines), ""])


def test_setup_makes_every_change_once(installed):
    installed.start_salt()
    assert without_disk_note(installed.cli("setup", "--dry-run").stdout) == PLAN + NOTE
    without = installed.cli("setup", check=False)
    assert (without.returncode, without.stderr) == (1, "saltcellar: nothing was changed: add --yes to make these steps without a question\n")
    check = installed.cli("setup", "--check", check=False)
    assert (check.returncode, check.stderr) == (
        1, "saltcellar: not in place: extension, configuration, service, master (`saltcellar setup`)\n")

    made = installed.cli("setup", "--yes").stdout
    release = installed.salt_release()
    assert made.startswith(PLAN), made
    for line in (f"done      Salt {release} loads it", "done      /etc/saltcellar/conf.d/setup.yaml is written", "done      saltcellar.service runs",
                 "done      salt-master.service responds with it"):
        assert f"\n{line}\n" in made, made
    jid = installed.job("test.arg", "kept")
    assert jid in installed.jids()
    assert installed.salt("salt-run", "jobs.lookup_jid", jid)["web1"]["args"] == ["kept"]
    eventually("the job's publish from the bus", lambda: f"salt/job/{jid}/new" in installed.cli("events", "list", "--limit", "100").stdout)

    before = installed.show("MainPID"), installed.show("MainPID", "salt-master.service")
    again = installed.cli("setup", "--yes").stdout
    assert again.endswith("\neverything is in place, nothing was changed\n") and "will " not in again, again
    assert (installed.show("MainPID"), installed.show("MainPID", "salt-master.service")) == before
    installed.cli("setup", "--check")
    assert installed.show("UnitFileState", "saltcellar.socket") == "disabled"
    installed.reboot()
    # The host's target wants no services.
    installed.sh("systemctl start saltcellar")
    assert jid in installed.jids()


def test_import_takes_salts_jobs_along_and_removal_delivers_the_spool_first(installed):
    installed.start_salt()
    imported = installed.job("test.arg", "before saltcellar")
    # A file that cannot be imported is named at the end: the rest of the setup is made.
    damaged = "/var/cache/salt/master/jobs/00/damaged"
    installed.sh(f"mkdir -p {damaged}/web1; echo -n 20260101000000000000 > {damaged}/jid; echo garbage > {damaged}/web1/return.p")
    made = installed.cli("setup", "--yes", "--import", check=False)
    assert made.returncode == 65, made
    assert "1 skipped" in made.stdout and f"{damaged}/web1/return.p" in made.stderr, made
    assert made.stdout.endswith("\n0 of 19 checks failed\n"), made
    assert imported in installed.jids()
    assert installed.salt("salt-run", "jobs.lookup_jid", imported)["web1"]["args"] == ["before saltcellar"]

    # A removal whose last step fails is undone.
    setup_file = "/etc/saltcellar/conf.d/setup.yaml"
    installed.sh(f"mount --bind {setup_file} {setup_file}")
    failed = installed.cli("setup", "--remove", "--yes", check=False)
    installed.sh(f"umount {setup_file}")
    assert failed.returncode == 1 and setup_file in failed.stderr, failed
    undone = [line for line in failed.stderr.splitlines() if "undone" in line]
    assert undone == [
        "saltcellar: undone    enable and start saltcellar.service",
        "saltcellar: undone    restore the master's configuration, and restart it",
    ], failed
    assert (installed.show("ActiveState"), installed.show("UnitFileState")) == ("active", "enabled")
    installed.cli("setup", "--check")

    installed.sh("systemctl stop saltcellar.service")
    jid = installed.job("test.arg", "spooled")
    # A stopped master does not deliver the spool itself.
    installed.sh("systemctl stop salt-master; systemctl start saltcellar")
    assert jid not in installed.jids()
    removed = installed.cli("setup", "--remove", "--yes").stdout
    assert "will      deliver the entries that wait in /var/cache/salt/master/saltcellar\n" in removed, removed
    steps = [line for line in removed.splitlines() if line.startswith(("...", "done", "next"))]
    assert steps == [
        "...       deliver the entries that wait in /var/cache/salt/master/saltcellar",
        "done      the spool is empty",
        "...       remove /etc/salt/master.d/saltcellar.conf",
        "done      done",
        "...       stop and disable saltcellar.service",
        "done      done",
        "...       remove /etc/saltcellar/conf.d/setup.yaml",
        "done      done",
        "next      restart the master: its processes read the option only at start",
        "next      these stay, and can be deleted once nothing in them is needed: /var/lib/saltcellar, /etc/saltcellar/saltcellar.yaml, "
        "/var/cache/salt/master/saltcellar",
    ], removed
    assert "note      Salt uses its own job cache (local_cache) again\n" in removed, removed
    assert (installed.show("ActiveState"), installed.show("UnitFileState")) == ("inactive", "disabled")
    installed.sh("systemctl start salt-master")
    wait_for_minion(installed)
    installed.sh("systemctl start saltcellar")
    assert jid in installed.jids()
    installed.sh("systemctl stop saltcellar")
    again = installed.cli("setup", "--remove", "--yes").stdout
    assert again.endswith("\neverything is in place, nothing was changed\n"), again


def test_the_reactor_is_handed_over_and_back(installed):
    installed.write("/srv/reactor/act.sls", ACT)
    installed.start_salt(reactor=[{"act/*": ["/srv/reactor/act.sls"]}])
    # Its reactor publishes a job once: a minion that is not ready would miss it.
    wait_for_minion(installed)
    acted = []

    def fire(by):
        # The master's reactor may start after its minion answers.
        acted.append(f"act/{by}")
        eventually("the event is fired", lambda: installed.salt("salt-call", "event.send", f"act/{by}")["local"])
        eventually(f"a reaction to act/{by}", lambda: f"act/{by}\n" in installed.sh("cat /root/acted", check=False).stdout)
        assert installed.sh("cat /root/acted").stdout.splitlines() == acted

    fire("salt")
    installed.cli("setup", "--yes", "--reactor")
    assert "reactor.master: /etc/salt/master\n" in installed.sh("cat /etc/saltcellar/conf.d/setup.yaml").stdout
    again = installed.cli("setup", "--yes").stdout
    assert again.endswith("\neverything is in place, nothing was changed\n"), again
    wait_for_minion(installed)
    fire("saltcellar")
    assert "act/saltcellar" in installed.cli("reactor", "history").stdout

    # Neither reactor would act.
    installed.write("/etc/salt/master.d/z.conf", "engines: [saltcellar_reactor]\n")
    refused = installed.cli("setup", "--remove", "--yes", check=False)
    assert refused.returncode == 1 and refused.stderr == (
        "saltcellar: cannot hand the reactor back: no reactor would act on the rules of `reactor`, because `engines` in "
        "/etc/salt/master.d/z.conf keeps Salt's reactor off; remove the item that names saltcellar's reactor there\n"), refused
    assert installed.sh("test -e /etc/salt/master.d/saltcellar.conf; systemctl is-active saltcellar").stdout == "active\n"
    installed.sh("rm /etc/salt/master.d/z.conf")

    removed = installed.cli("setup", "--remove", "--yes").stdout
    assert "note      Salt uses its own job cache (local_cache) and reactor again\n" in removed, removed
    assert "done      salt-master.service responds with it\n" in removed, removed
    wait_for_minion(installed)
    fire("salt-again")


def test_a_master_of_user_salt_uses_the_daemon_of_root(installed):
    installed.sh(f"{ADD_USER}; gpasswd -d salt saltcellar", check=False)
    let_users_read_python(installed)
    # As Salt's packages make them.
    installed.sh("install -d -o salt -g salt /etc/salt/pki /etc/salt/pki/master /var/cache/salt /var/log/salt /run/salt /run/salt/master")
    installed.start_salt(user="salt")
    assert installed.sh("ps -eo user:8,args | grep '[s]alt-master MainProcess'").stdout.startswith("salt ")
    assert without_disk_note(installed.cli("setup", "--dry-run").stdout) == plan_for_user_salt() + NOTE
    made = installed.cli("setup", "--yes").stdout
    assert made.startswith(plan_for_user_salt()), made
    found = json.loads(installed.cli("doctor", "--output", "json").stdout)["checks"]
    assert {each["result"] for each in found} == {"ok"}, found
    jid = installed.job("test.arg", "kept")
    assert jid in installed.jids()
    assert installed.salt("salt-run", "jobs.lookup_jid", jid)["web1"]["args"] == ["kept"]
    eventually("the job's publish from the bus", lambda: f"salt/job/{jid}/new" in installed.cli("events", "list", "--limit", "100").stdout)
    assert installed.cli("setup", "--yes").stdout.endswith("\neverything is in place, nothing was changed\n")

    removed = installed.cli("setup", "--remove", "--yes").stdout
    assert "done      salt-master.service responds with it\n" in removed, removed
    assert "next      salt stays in the group saltcellar; to remove it: gpasswd -d salt saltcellar\n" in removed, removed
    again = installed.job("test.arg", "without")
    assert installed.salt("salt-run", "jobs.lookup_jid", again)["web1"]["args"] == ["without"]


def test_a_release_without_package_installs_its_units(fresh):
    """As its tarball is unpacked in /usr/local; the files are those of the package."""
    share = "/usr/local/share/saltcellar"
    fresh.sh(f"""
        dpkg -x /packages/1.deb /root/unpacked
        mkdir -p /usr/local/bin /usr/local/share
        cp /root/unpacked/usr/bin/saltcellar /usr/local/bin/
        cp -r /root/unpacked{share.replace("/local", "")} /usr/local/share/
        mkdir {share}/systemd
        cp /src/systemd/saltcellar* {share}/systemd/
    """)
    fresh.program = "/usr/local/bin/saltcellar"
    fresh.configure_salt()
    made = fresh.cli("setup", "--yes").stdout
    assert made.startswith(
        f"will      load the extension from {share} in Salt's Python, {PYTHON}\n"
        "will      install /etc/systemd/system/saltcellar.service, /etc/systemd/system/saltcellar.socket, /etc/sysusers.d/saltcellar.conf, "
        f"/etc/tmpfiles.d/saltcellar.conf from {share}/systemd\n"), made
    assert fresh.sh("stat -c '%U %G %a' /run/saltcellar /run/saltcellar/saltcellar.sock").stdout == "root saltcellar 750\nroot saltcellar 660\n"
    fresh.start_salt()
    jid = fresh.job("test.arg", "kept")
    fresh.reboot()
    fresh.sh("systemctl start saltcellar")
    assert jid in fresh.jids()
    fresh.cli("setup", "--remove", "--yes")
    assert (fresh.show("ActiveState"), fresh.show("UnitFileState")) == ("inactive", "disabled")


def test_pip_installs_the_wheel_without_a_network_and_runs_nothing_of_the_current_directory(installed):
    # setup restarts no master that is stopped.
    installed.configure_salt()
    for name in ("pip", "json", "salt"):
        installed.write(f"/home/u/{name}.py", f"open('/root/imported', 'a').write('{name} ')\n")
    made = installed.sh("cd /home/u && PYTHONPATH=/home/u saltcellar setup --yes --extension pip").stdout
    wheel = installed.sh("ls /usr/share/saltcellar/*.whl").stdout.strip()
    assert made.startswith(f"will      install {wheel} into Salt's Python, {PYTHON}\n"), made
    assert installed.sh("cat /root/imported", check=False).stdout == ""
    assert "module_dirs" not in installed.sh("cat /etc/salt/master.d/saltcellar.conf").stdout
    installed.start_salt()
    assert installed.findings("extension") == [("ok", f"version {VERSION}")]
    assert installed.job("test.arg", "kept") in installed.jids()
    again = installed.cli("setup", "--yes", "--extension", "pip").stdout
    assert again.endswith("\neverything is in place, nothing was changed\n"), again


def test_a_passive_setup_leaves_the_master_running(installed):
    installed.start_salt()
    before = installed.show("MainPID", "salt-master.service")
    made = installed.cli("setup", "--yes", "--passive").stdout
    assert "note      the master is neither changed nor restarted\n" in made, made
    assert installed.show("MainPID", "salt-master.service") == before
    assert installed.sh("ls -A /etc/salt/master.d", check=False).stdout == ""
    jid = installed.job("test.arg", "watched")
    eventually("the job from the bus", lambda: jid in installed.jids())
    assert "ready" in installed.sh(f"{PYTHON} -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:4581/readyz\").read())'").stdout
    # A later setup keeps the page.
    installed.cli("setup", "--yes")
    assert 'http.listen: "127.0.0.1:4581"\n' in installed.sh("cat /etc/saltcellar/conf.d/setup.yaml").stdout


def test_a_stopped_master_in_a_venv_outside_of_path_is_found_by_its_unit(installed):
    """Its reactor needs Salt's Python, which the daemon would not find: setup names it."""
    installed.configure_salt(reactor=[{"act/*": ["/srv/reactor/py.sls"]}])
    installed.write("/srv/reactor/py.sls", "#!py\ndef run():\n    return {'act': {'local.cmd.run': [{'tgt': 'web1'}, {'arg': ['echo py >> /root/acted']}]}}\n")
    installed.sh(f"mkdir /srv/venv; mount --bind {SALT} /srv/venv; umount {SALT} && rmdir {SALT}; rm -f /usr/bin/salt /usr/bin/salt-* /usr/local/bin/salt /usr/local/bin/salt-*;"
                 "sed -i 's:/opt/saltstack/salt/:/srv/venv/:g' /etc/systemd/system/salt-*.service; systemctl daemon-reload")
    made = installed.cli("setup", "--yes", "--reactor")
    assert "load the extension from /usr/share/saltcellar in Salt's Python, /srv/venv/bin/python3\n" in made.stdout, made
    assert "reactor.python: /srv/venv/bin/python3\n" in installed.sh("cat /etc/saltcellar/conf.d/setup.yaml").stdout

    installed.sh("systemctl start --no-block salt-master salt-minion")
    # The minion runs this command as soon as it is connected.
    eventually("the minion is connected", lambda: is_connected(installed))
    fire = "/srv/venv/bin/python3 -W ignore /srv/venv/bin/salt-call event.send act/x"
    eventually("the event", lambda: installed.sh(fire, check=False).returncode == 0)
    eventually("the reaction", lambda: "py" in installed.sh("cat /root/acted", check=False).stdout)
    (done,) = json.loads(installed.cli("reactor", "history", "--output", "json").stdout)["reactions"]
    assert done["tag"] == "act/x" and done["reaction"]["state"] == "done", done


def test_root_runs_no_python_that_another_user_made_it_find(installed):
    installed.configure_salt()
    installed.write("/home/u/python3", "#!/bin/sh\ntouch /root/owned\n")
    installed.sh("useradd u; touch /home/u/salt-master; chmod 755 /home/u/python3; chown -R u /home/u")
    installed.sh("systemd-run --uid=u --unit=fake bash -c 'exec -a /home/u/python3 tail -f /home/u/salt-master'")
    installed.cli("setup", "--yes", check=False)
    installed.cli("doctor", check=False)
    assert installed.sh("test -e /root/owned", check=False).returncode
    refused = installed.cli("setup", "--yes", "--salt-python", "/home/u/python3", "--extension", "pip", check=False)
    assert "/home/u/python3 is not used, because users other than root can replace it" in refused.stderr, refused
    assert installed.sh("test -e /root/owned", check=False).returncode


def test_pip_that_fails_leaves_nothing_behind(installed):
    installed.write("/etc/salt/master", "disable_returners: [saltcellar]\n")
    site = installed.sh(f"{PYTHON} -c 'import site; print(site.getsitepackages()[0])'").stdout.strip()
    wheel = installed.sh("ls /usr/share/saltcellar/*.whl").stdout.strip()
    configuration = installed.sh("cat /etc/saltcellar/saltcellar.yaml").stdout

    def fails(message, *flags):
        failed = installed.cli("setup", "--yes", "--extension", "pip", *flags, check=False)
        assert (failed.returncode, failed.stderr) == (1, f"saltcellar: cannot {message}\n"), failed
        # pip leaves the empty directory of the name space.
        assert not installed.sh(f"find {site} -type f -ipath '*saltext*'").stdout
        assert installed.sh("cat /etc/saltcellar/saltcellar.yaml; ls -A /etc/saltcellar/conf.d /etc/salt/master.d", check=False).stdout == configuration
        assert (installed.show("ActiveState"), installed.show("UnitFileState")) == ("inactive", "disabled")

    run = f"run `{PYTHON} -m pip install --no-index --no-deps --force-reinstall {{}}`: exit status: 1: {{}}; `--extension module-dirs` needs no pip"
    fails("find the extension: there is no saltext_saltcellar-*.whl in /root; install the package saltcellar, or name its directory with "
          "--extension-dir; `--extension module-dirs` needs no wheel", "--extension-dir", "/root")
    fails("install the extension, which was uninstalled: load the extension in Salt's Python, "
          f"{PYTHON}: exit status: 1: remove saltcellar from disable_returners in the master's configuration")
    installed.write("/etc/salt/master", "user: root\n")
    broken = f"/root/share/{wheel.split('/')[-1]}"
    installed.sh(f"mkdir /root/share; head -c 999 {wheel} > {broken}")
    fails(run.format(broken, f"ERROR: Wheel 'saltext-saltcellar' located at {broken} is invalid."), "--extension-dir", "/root/share")
    installed.sh(f"rm -r {site}/pip {site}/pip-*")
    fails(run.format(wheel, f"{PYTHON}: No module named pip"))
    installed.cli("setup", "--yes", "--extension", "module-dirs", "--master-only", "--events", "none")
