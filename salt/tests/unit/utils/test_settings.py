"""Sources of settings and their precedence."""

import os

import pytest

from saltext.saltcellar.utils import settings


def test_the_flat_key_overrides_the_map():
    got = settings.from_opts(
        {"saltcellar": {"socket": "/a", "timeout": 5}, "saltcellar.socket": "/b"}
    )
    assert (got.socket, got.timeout) == ("/b", 5.0)


def test_the_environment_overrides_the_configuration(monkeypatch):
    monkeypatch.setenv("SALTCELLAR_SOCKET", "/env")
    assert settings.from_opts({"saltcellar.socket": "/b"}).socket == "/env"


@pytest.mark.parametrize(
    "uid, env, expected",
    [
        (0, {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/saltcellar/saltcellar.sock"),
        (1000, {"XDG_RUNTIME_DIR": "/run/user/1000"}, "/run/user/1000/saltcellar/saltcellar.sock"),
        (1000, {"XDG_STATE_HOME": "/state"}, "/state/saltcellar/saltcellar.sock"),
        (1000, {"HOME": "/home/u"}, "/home/u/.local/state/saltcellar/saltcellar.sock"),
    ],
)
def test_the_default_socket_depends_on_the_user(monkeypatch, uid, env, expected):
    monkeypatch.setattr(os.path, "exists", lambda path: path != settings.SYSTEM_SOCKET)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert settings.from_opts({}).socket == expected


def test_a_non_root_master_uses_the_system_socket_if_it_exists(monkeypatch, run_dir):
    monkeypatch.setattr(settings, "SYSTEM_SOCKET", str(run_dir))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert settings.from_opts({}).socket == str(run_dir)


def test_the_default_spool_is_in_salts_cache_directory(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert settings.from_opts({"cachedir": "/c"}).spool_dir == "/c/saltcellar"
    assert settings.from_opts({"cachedir": "/c", "saltcellar.spool_dir": "/s"}).spool_dir == "/s"
    assert settings.from_opts({}).spool_dir == "/state/saltcellar/spool"


@pytest.mark.parametrize("value", ["soon", -1, 0, [], {}, None, float("nan")])
def test_an_invalid_timeout_is_replaced_by_the_default(value):
    assert settings.from_opts({"saltcellar.timeout": value}).timeout == 2.0


@pytest.mark.parametrize("key", ["spool_bytes_max", "spool_age_max", "timeout"])
def test_an_infinite_number_is_replaced_by_the_default(key):
    default = getattr(settings.from_opts({}), key)
    assert getattr(settings.from_opts({f"saltcellar.{key}": float("inf")}), key) == default


def option(pillar):
    return {"config.option": lambda key, default="", **_: pillar.get(key, default)}


def test_a_minion_finds_its_settings_in_pillar():
    got = settings.from_opts({"__role": "minion"}, option({"saltcellar": {"socket": "/pillar"}}))
    assert got.socket == "/pillar"


def test_a_master_does_not_read_pillar():
    opts = {"__role": "master", "saltcellar.socket": "/opts"}
    assert settings.from_opts(opts, option({"saltcellar": {"socket": "/pillar"}})).socket == "/opts"


def test_a_minions_job_may_choose_a_profile_but_no_settings():
    functions = option(
        {
            "other": {"x": 1},
            "other.saltcellar": {"socket": "/other"},
            "saltcellar": {"socket": "/plain"},
        }
    )
    ret = {"ret_config": "other", "ret_kwargs": {"socket": "/evil", "spool_dir": "/etc"}}
    got = settings.from_opts({"__role": "minion", "cachedir": "/c"}, functions, ret)
    assert (got.socket, got.spool_dir) == ("/other", "/c/saltcellar")


@pytest.mark.parametrize(
    "allowed, socket, timeout",
    [
        (None, "/mine", 2.0),
        ([], "/mine", 2.0),
        (["timeout"], "/mine", 7.0),
        (["timeout", "socket"], "/job", 7.0),
        ("timeout", "/mine", 2.0),
    ],
)
def test_a_job_may_choose_settings_that_the_configuration_permits(allowed, socket, timeout):
    conf = {"socket": "/mine", "return_kwargs": allowed}
    ret = {
        "ret_kwargs": {
            "socket": "/job",
            "timeout": 7,
            "return_kwargs": ["spool_dir"],
            "spool_dir": "/etc",
            "other": 1,
        }
    }
    got = settings.from_opts(
        {"__role": "minion", "cachedir": "/c"}, option({"saltcellar": conf}), ret
    )
    assert (got.socket, got.timeout, got.spool_dir) == (socket, timeout, "/c/saltcellar")


def test_a_master_reads_no_setting_from_a_return():
    ret = {"ret_config": "other", "ret_kwargs": {"timeout": 7}}
    opts = {"__role": "master", "saltcellar": {"return_kwargs": ["timeout"], "timeout": 3}}
    assert settings.from_opts(opts, option({}), ret).timeout == 3.0


@pytest.mark.parametrize("value", ["yes", 1, [], {}])
def test_an_invalid_switch_keeps_its_default(value):
    assert settings.Settings(full_ret=value).full_ret is False


@pytest.mark.parametrize("functions", [None, {}, {"config.option": None}, object()])
def test_without_a_loader_a_minion_uses_its_configuration(functions):
    assert (
        settings.from_opts({"__role": "minion", "saltcellar.socket": "/opts"}, functions).socket
        == "/opts"
    )


@pytest.mark.parametrize(
    "opts, words",
    [
        ({"saltcellar.socket": {"a": 1}}, "saltcellar.socket: {'a': 1} is not a str"),
        ({"saltcellar": {"url": 7}}, "saltcellar.url: 7 is not a str"),
        ({"saltcellar": "https://master:4580"}, "saltcellar must be a map of settings"),
        ({"saltcellar.spool_dir": ["/a"]}, "saltcellar.spool_dir"),
    ],
)
def test_an_invalid_destination_is_no_destination(opts, words, caplog):
    """Entries wait in the spool of this minion, under its id, instead of going to the default socket."""
    for _ in range(3):
        got = settings.from_opts({"id": "web1", "cachedir": "/c", **opts})
    assert words in got.error
    assert (got.minion_id, got.spool_dir) == ("web1", "/c/saltcellar")
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_settings_that_cannot_be_read_are_no_destination(monkeypatch, caplog):
    def fail(*_args, **_more):
        raise RuntimeError("Rendering SLS failed")

    monkeypatch.setattr(settings.salt.returners, "get_returner_options", fail)
    got = settings.from_opts(
        {"__role": "minion", "id": "web1", "cachedir": "/c"}, {"config.option": None}
    )
    assert "cannot read the settings of this minion: Rendering SLS failed" in got.error
    assert (got.minion_id, got.spool_dir) == ("web1", "/c/saltcellar")
    assert got.error in caplog.text


def test_a_mistyped_key_is_named_once(caplog):
    for _ in range(2):
        settings.from_opts({"saltcellar.sokcet": "/a", "saltcellar": {"timeuot": 3}})
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sorted(warned) == [
        "saltcellar: unknown setting saltcellar.sokcet is ignored: did you mean saltcellar.socket?",
        "saltcellar: unknown setting saltcellar.timeuot is ignored: did you mean saltcellar.timeout?",
    ]


def test_a_system_without_peer_credentials_needs_an_url(monkeypatch):
    assert settings.unsupported({}) is None
    monkeypatch.delattr(settings.socket, "SO_PEERCRED")
    assert "saltcellar needs Linux" in settings.unsupported({"pillar": {"saltcellar.socket": "/a"}})
    for opts in (
        {"saltcellar.url": "https://m"},
        {"saltcellar": {"url": "https://m"}},
        {"pillar": {"saltcellar.url": "https://m"}},
    ):
        assert settings.unsupported(opts) is None
