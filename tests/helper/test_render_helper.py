"""The program with which the daemon renders files in Salt's Python: the modules and the configuration that it loads."""
import datetime
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

#: The daemon's binary embeds the program; no package has it as a module.
DIRECTORY = str(Path(__file__).resolve().parents[2] / "src" / "reactor" / "helper")
sys.path.append(DIRECTORY)

import render_helper  # noqa: E402  pylint: disable=wrong-import-position


REPOSITORY = Path(__file__).resolve().parents[2]
#: The same table is read by both implementations in Rust.
FORMS = [json.loads(line) for line in (REPOSITORY / "crates/salt-sls/tests/data/json-form.jsonl").read_text(encoding="utf-8").splitlines()]


def test_values_survive_their_json_form():
    rows = [row for row in FORMS if "python" in row]
    assert len(rows) > 40
    for row in rows:
        value = eval(row["python"], {"datetime": datetime})  # pylint: disable=eval-used
        form = render_helper.enc(value)
        assert json.dumps(form) == json.dumps(row["json"])
        # nan is unequal to itself.
        assert repr(render_helper.dec(json.loads(json.dumps(form)))) == repr(value)


def test_json_that_is_no_form_stands_for_itself():
    for value in ({"$other": 1}, {"$[1]": 2}, {'$"a"': 3}):
        assert render_helper.dec(value) == value


def test_msgpack_of_the_bus_is_shown_in_the_same_form(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "tests" / "lab"))
    rawbus = pytest.importorskip("rawbus")
    shown = 0
    for row in FORMS:
        try:
            value = rawbus.decode(bytes.fromhex(row.get("msgpack", "c1")))
        except (TypeError, ValueError):
            # A type that msgpack lacks, or a key that Python cannot have.
            continue
        assert json.dumps(value) == json.dumps(row["json"])
        shown += 1
    assert shown > 40


def test_modules_of_pip_install_user_are_found_in_the_home_of_the_user_database(tmp_path, monkeypatch):
    entry = pwd.getpwuid(os.getuid())
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd((*entry[:5], str(home), entry[6])))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    version = "python{}.{}".format(*sys.version_info)
    site = home / ".local" / "lib" / version / "site-packages"
    assert render_helper.user_site() == str(site)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    render_helper.search_user_site()
    assert sys.path == before, "the directory does not exist"
    site.mkdir(parents=True)
    (site / "more.pth").write_text(str(tmp_path) + "\n")
    render_helper.search_user_site()
    new = [path for path in sys.path if path not in before]
    assert new == [str(site), str(tmp_path)]
    system = [n for n, path in enumerate(sys.path) if path in before and path.endswith(("site-packages", "dist-packages"))]
    assert sys.path.index(str(site)) < min(system), "before the system's directories, as in Python itself"
    assert [path for path in sys.path if path in before] == before


def test_a_virtual_environment_has_no_modules_of_the_users_home(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/some/venv")
    assert render_helper.user_site() is None


def test_an_unreadable_configuration_was_treated_as_empty(tmp_path):
    pytest.importorskip("salt.config")
    (tmp_path / "master").write_text("user: root\n")
    (tmp_path / "master.d").mkdir()
    (tmp_path / "master.d" / "more.conf").write_text("own: unread\n")
    # In a separate process: Salt's functions are replaced for good.
    program = (
        f"import sys\nsys.path.append({DIRECTORY!r})\n"
        "import render_helper\n"
        "path = sys.argv[1]\n"
        "render_helper.use_options({'user': 'salt', 'own': [1]}, path)\n"
        "import salt.config\n"
        "opts = salt.config.master_config(path)\n"
        "other = salt.config.master_config(path + '.other')\n"
        "print(opts['user'], opts['own'], opts['conf_file'] == path, opts['ret_port'], other.get('own'))\n"
    )
    (tmp_path / "master.other").write_text("own: 2\n")
    (tmp_path / "master").chmod(0)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "master")], capture_output=True, text=True, check=True)
    # The include directory of the other file is the same one, and is read.
    assert done.stdout.split("\n")[0] == "salt [1] True 4506 unread"


def test_memory_is_limited_for_the_process_and_its_children():
    program = (
        f"import resource, sys\nsys.path.append({DIRECTORY!r})\n"
        "import render_helper\n"
        "render_helper.limit_memory(1 << 28)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA))\n"
        "render_helper.limit_memory(1 << 40)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA))\n"
        "try:\n    bytearray(1 << 29)\n"
        "except MemoryError as exc:\n    print(render_helper.raised(exc)['message'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bound = 1 << 28
    assert done.stdout.splitlines() == [
        f"({bound}, {bound})", f"({bound}, {bound})", f"out of memory: the limit is {bound} bytes (reactor.helper_memory)"]


@pytest.mark.skipif("SALTCELLAR_BIN" not in os.environ, reason="SALTCELLAR_BIN is not set")
@pytest.mark.parametrize("form", ["package", "function"])
def test_a_renderer_that_a_package_replaces_was_not_noticed(form, tmp_path):
    """A package of entry points whose `yaml` replaces Salt's, in an environment of its own on top of the one with Salt."""
    salt = pytest.importorskip("salt")
    package = "saltown" if form == "package" else "saltown:places"
    env = tmp_path / "env"
    site = env / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    (site / "saltown" / "renderers").mkdir(parents=True)
    (env / "bin").mkdir()
    (env / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (env / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    (site / "salt.pth").write_text(f"{Path(salt.__file__).parents[1]}\n")
    (site / "saltown" / "__init__.py").write_text(
        "import os\n\n\ndef places():\n    return {'renderers': [os.path.join(os.path.dirname(__file__), 'renderers')]}\n"
    )
    (site / "saltown" / "renderers" / "yaml.py").write_text(
        "def render(text, saltenv='base', sls='', argline='', **kwargs):\n"
        "    return {'replaced': {'local.test.ping': [{'tgt': 'other'}]}}\n"
    )
    info = site / "saltown-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: saltown\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[salt.loader]\nsaltown = {package}\n")
    (tmp_path / "own.sls").write_text("mine:\n  local.test.ping: [{tgt: mine}]\n")
    (tmp_path / "master").write_text(f"root_dir: {tmp_path}\nreactor:\n- 'a/*': [{tmp_path}/own.sls]\n")

    def run(verb, *more, python=env / "bin" / "python"):
        command = [os.environ["SALTCELLAR_BIN"], "--output", "json", "reactor", verb, "--salt-config", str(tmp_path)]
        done = subprocess.run([*command, "--salt-python", str(python), *more], capture_output=True, text=True, timeout=600, check=False)
        assert done.stdout, done.stderr
        return done.stdout

    shown = run("render", str(tmp_path / "own.sls"), "--tag", "a/b")
    assert '"other"' in shown and '"mine"' not in shown, shown
    (row,) = json.loads(run("lint"))["files"]
    assert row["state"] == "not native", row
    # Without the package the file is rendered here.
    (row,) = json.loads(run("lint", python=sys.executable))["files"]
    assert row["state"] == "ok", row
