"""Rules of Salt that `saltcellar setup` and `doctor` rely on: merging of lists, `module_dirs`, `saltutil.sync_*`, `keys.cache_driver`."""

import os

import pytest
import salt.config
import salt.loader
import salt.utils.extmods
import salt.version

RETURNER = "def prep_jid(nocache=False, passed_jid=None):\n    return 'from {}'\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def opts(tmp_path):
    def read(files):
        write(
            tmp_path / "master",
            f"root_dir: {tmp_path}\nfile_roots: {{base: [{tmp_path}/srv]}}\n"
            + files.pop("master", ""),
        )
        for name, text in files.items():
            write(tmp_path / name, text)
        return salt.config.master_config(str(tmp_path / "master"))

    return read


@pytest.mark.parametrize(
    "files, engines",
    [
        # a list of an included file replaces the main file's
        ({"master": "engines: [m]\n", "master.d/s.conf": "engines: [s]\n"}, ["s"]),
        # those of several included files are merged, without duplicates
        (
            {
                "master.d/a.conf": "engines: [a]\n",
                "master.d/s.conf": "engines: [s]\n",
                "master.d/z.conf": "engines: [z, a]\n",
            },
            ["a", "s", "z"],
        ),
        # a mapping and a list replace each other
        ({"master.d/s.conf": "engines: [s]\n", "master.d/z.conf": "engines: {z: {}}\n"}, {"z": {}}),
        ({"master.d/a.conf": "engines: {a: {}}\n", "master.d/s.conf": "engines: [s]\n"}, ["s"]),
    ],
)
def test_lists_of_included_files_are_merged_and_replace_the_main_files(opts, files, engines):
    assert opts(dict(files))["engines"] == engines


@pytest.mark.parametrize("sub", ["returners", "_returners"])
def test_module_dirs_precede_extension_modules(opts, tmp_path, sub):
    write(tmp_path / "own" / sub / "saltcellar.py", RETURNER.format("module_dirs"))
    options = opts({"master": f"module_dirs: [{tmp_path}/own]\n"})
    write(
        tmp_path / "var/cache/salt/master/extmods/returners/saltcellar.py",
        RETURNER.format("extension_modules"),
    )
    assert salt.loader.returners(options, {})["saltcellar.prep_jid"]() == "from module_dirs"


def test_a_synchronization_deletes_from_extension_modules_only(opts, tmp_path):
    own = tmp_path / "own/returners/saltcellar.py"
    synced = tmp_path / "var/cache/salt/master/extmods/returners/saltcellar.py"
    for path in (own, synced):
        write(path, RETURNER.format(path))
    options = opts({"master": f"module_dirs: [{tmp_path}/own]\n"})
    options.update(
        file_client="local", extmod_whitelist={}, extmod_blacklist={}, fileserver_list_cache_time=-1
    )
    salt.utils.extmods.sync(options, "returners")
    assert own.exists() and not synced.exists()
    # unless it is in salt://_returners
    write(tmp_path / "srv/_returners/saltcellar.py", RETURNER.format("salt://"))
    salt.utils.extmods.sync(options, "returners")
    salt.utils.extmods.sync(options, "returners")
    assert synced.exists()


@pytest.mark.skipif(
    salt.version.__saltstack_version__.major < 3008, reason="keys.cache_driver is new in 3008"
)
@pytest.mark.parametrize("driver, has_file", [("localfs_key", True), ("mmap_key", False)])
def test_only_one_driver_keeps_accepted_keys_as_files(opts, tmp_path, driver, has_file):
    import salt.cache

    options = opts({"master": f"keys.cache_driver: {driver}\nmmap_key_size: 1000\n"})
    salt.cache.Cache(options, driver=options["keys.cache_driver"]).store(
        "keys", "web1", {"state": "accepted", "pub": "x"}
    )
    pki = tmp_path / "etc/salt/pki/master"
    assert (pki / "minions/web1").exists() == has_file
    assert os.path.exists(pki / ".mmap_keys.idx") != has_file
