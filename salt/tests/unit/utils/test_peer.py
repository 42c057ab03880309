"""Trust in the socket's server: another user's server gets no data, at the cost of a log line."""

import os
import pwd
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from saltext.saltcellar.utils import client as client_
from saltext.saltcellar.utils import peer
from tests.support.helpers import FakeDaemon
from tests.support.helpers import missing

RETURN = {"id": "web1", "jid": "20261121031733650863", "fun": "test.ping", "return": "secret"}
NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def nobodys(run_dir):
    """A fake daemon whose socket was opened by the user nobody, in a directory that any user may write to."""
    if os.geteuid() != 0:
        missing("root, to act as another user")
    os.chmod(run_dir, 0o777)
    fake = FakeDaemon(str(run_dir / "s.sock"))
    failed = []

    def start():
        # Of this thread alone: the kernel stores the user of the thread that called listen().
        try:
            _seteuid_of_this_thread(NOBODY)
            fake.start()
        except BaseException as exc:  # pylint: disable=broad-except
            failed.append(exc)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert not failed, failed
    assert os.stat(fake.path).st_uid == NOBODY and os.geteuid() == 0
    yield fake
    fake.stop()


def _seteuid_of_this_thread(uid):
    """The system call itself: the C library's function would change all threads."""
    import ctypes
    import platform

    setresuid = {"x86_64": 117, "aarch64": 147}[platform.machine()]
    assert ctypes.CDLL(None, use_errno=True).syscall(setresuid, -1, uid, -1) == 0


def test_a_socket_planted_by_another_user_received_the_returns(nobodys, client, spooled, caplog):
    client.write("returner", {"load": RETURN})
    assert nobodys.frames == [] and nobodys.greetings == []
    assert [args["load"] for _, args in spooled()] == [RETURN]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("nobody serves this socket and is not trusted" in error for error in errors), errors
    assert any("saltcellar.daemon_user: nobody" in error for error in errors), errors


def test_a_socket_planted_by_another_user_answered_queries(nobodys, client):
    nobodys.answers["get_jid"] = {"web1": {"return": "forged"}}
    with pytest.raises(client_.Unavailable):
        client.get_jid({}, "1")
    assert nobodys.frames == []


def test_spooled_entries_are_not_handed_over_to_another_users_socket(
    nobodys, client, spool, spooled
):
    client.write("returner", {"load": RETURN})
    client_.forget()
    client.hand_over(5)
    assert nobodys.frames == [] and len(spooled()) == 1


@pytest.mark.parametrize("user", ["nobody", str(NOBODY)])
def test_the_configured_user_of_the_daemon_is_trusted(nobodys, opts, spool, user):
    client = client_.get_client({**opts, "saltcellar.daemon_user": user})
    client.write("returner", {"load": RETURN})
    assert [args["load"] for args in nobodys.named("returner")] == [RETURN]
    assert not spool.pending()


def test_another_user_than_the_configured_one_is_not_trusted(nobodys, opts, caplog):
    client = client_.get_client({**opts, "saltcellar.daemon_user": "daemon"})
    client.write("returner", {"load": RETURN})
    assert nobodys.frames == []
    assert "saltcellar.daemon_user is daemon: if the daemon runs as nobody" in caplog.text
    client_.forget()
    client = client_.get_client({**opts, "saltcellar.daemon_user": "no-such-user"})
    client.write("returner", {"load": RETURN})
    assert "no-such-user, which is no user of this host" in caplog.text


@pytest.fixture
def system_dir():
    """A directory whose parents only root may write to, as above /run/saltcellar."""
    if os.geteuid() != 0:
        missing("root, to make a directory below /run")
    with tempfile.TemporaryDirectory(prefix="sc-", dir="/run") as path:
        yield Path(path)


def trusted(uid, path, daemon_user=None):
    try:
        peer.verify(uid, str(path), daemon_user)
    except peer.Untrusted:
        return False
    return True


def test_the_owner_of_an_irreplaceable_directory_is_trusted(system_dir):
    path = system_dir / "s.sock"
    assert trusted(0, path) and not trusted(NOBODY, path)
    # A daemon with its own user and RuntimeDirectory.
    os.chown(system_dir, NOBODY, -1)
    assert trusted(NOBODY, path) and trusted(0, path)
    assert not trusted(NOBODY - 1, path)
    # A configured user replaces the owner.
    assert not trusted(NOBODY, path, "daemon")
    assert not trusted(NOBODY, path, "no-such-user")
    # The group's members may create sockets here, but they are not the owner.
    os.chmod(system_dir, 0o770)
    assert trusted(NOBODY, path) and not trusted(NOBODY - 1, path)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_the_owner_of_a_directory_in_a_shared_parent_is_not_trusted(system_dir, mode):
    made = system_dir / "saltcellar"
    made.mkdir()
    os.chown(made, NOBODY, -1)
    assert trusted(NOBODY, made / "s.sock")
    os.chmod(system_dir, mode)
    assert not trusted(NOBODY, made / "s.sock")
    # Nor through a link from a directory that belongs to root.
    link = Path(f"{system_dir}-link")
    link.symlink_to(made)
    try:
        assert not trusted(NOBODY, link / "s.sock")
    finally:
        link.unlink()
    os.chmod(system_dir, 0o755)
    os.chown(system_dir, NOBODY - 1, -1)
    assert not trusted(NOBODY, made / "s.sock"), "a third user can replace the directory"


def test_a_missing_directory_establishes_no_trust(run_dir):
    assert not trusted(os.geteuid() + 1, run_dir / "gone" / "s.sock")


def test_trust_depends_on_the_listening_process(run_dir, in_child):
    """A daemon that opened its socket as root and then dropped its privileges."""
    if os.geteuid() != 0:
        missing("root, to act as another user")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(run_dir / "s.sock"))
    listener.listen()

    def child():
        os.setuid(NOBODY)
        listener.accept()[0].recv(1)

    pid = in_child(child, wait=False)
    try:
        settings = client_.settings_.Settings(socket=str(run_dir / "s.sock"))
        peer.Connection(settings, client_.time.monotonic() + 20).close()
    finally:
        os.waitpid(pid, 0)
        listener.close()
