"""The program with which the daemon renders files in Salt's Python: the modules and the configuration that it loads."""
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
