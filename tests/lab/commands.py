#!/usr/bin/env python3
"""commands: Salt's command lines, each in a fork of one process that has imported Salt.

A new process spends half a second of processor time on Salt's imports before it does anything. In a fork the rest is the same: the
arguments, the environment, the end of the process with its handlers, the exit code.

`Commands(python, env)` starts this file as that process, which ends with its caller. A request is a datagram: the command's arguments
as JSON, with a connection for its exit code and its three standard streams. `forked_python.py` does the same for programs of Python.
"""
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile

#: The function of each command in `salt.scripts`.
MAINS = {"salt": "salt_main", "salt-run": "salt_run", "salt-call": "salt_call"}
#: What these functions import when they run.
IMPORTS = ("salt.cli.salt", "salt.cli.run", "salt.cli.call", "salt.cli.caller", "salt.client", "salt.runner", "salt.minion", "salt.netapi",
           "salt.pillar.git_pillar")


class Commands:
    """Runs commands of that Python's Salt in this environment, also from several threads."""

    def __init__(self, python, env):
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.server = subprocess.Popen([python, os.path.abspath(__file__), str(theirs.fileno())], env=env, start_new_session=True,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def run(self, *command, timeout):
        """The completed process, with its output as text. Whatever else ends the wait also ends the process and what it has started."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
            connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with connection:
                with theirs:
                    socket.send_fds(self.requests, [json.dumps(command).encode()],
                                    [theirs.fileno(), nothing.fileno(), out.fileno(), err.fileno()])
                connection.settimeout(timeout)
                try:
                    code = connection.recv(16)
                except TimeoutError:
                    raise subprocess.TimeoutExpired(command, timeout) from None
            assert code, f"the process that forks Salt's commands ended, with {self.server.wait()}"
            for stream in (out, err):
                stream.seek(0)
            return subprocess.CompletedProcess(command, int(code), out.read(), err.read())

    def close(self):
        self.requests.close()
        self.server.wait()


def of_the_caller(requests):
    """The next request, as datagram and file descriptors; an empty one if the caller has gone."""
    request, fds, _, _ = socket.recv_fds(requests, 1 << 20, 4)
    return request, fds


def serve(requests, receive=of_the_caller):
    """Forks for each request, until the caller has gone. Returns the request, in its new process."""
    ends, wakes = os.pipe()
    for pipe in (ends, wakes):
        os.set_blocking(pipe, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    running = {}

    while True:
        ready, _, _ = select.select([requests, ends, *running.values()], [], [])

        if ends in ready:
            os.read(ends, 1 << 10)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    with running.pop(pid) as connection, contextlib.suppress(OSError):
                        connection.send(str(os.waitstatus_to_exitcode(status)).encode())

        # A caller sends nothing: it has stopped waiting. A process that has no group yet is killed in the next round.
        for pid, connection in running.items():
            if connection in ready:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

        if requests in ready:
            request, fds = receive(requests)
            if not request:
                for pid in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return None
            connection = socket.socket(fileno=fds[0])
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                for number, fd in enumerate(fds[1:]):
                    os.dup2(fd, number)
                for other in (requests, connection, *running.values()):
                    other.close()
                for fd in (ends, wakes, *fds[1:]):
                    os.close(fd)
                return json.loads(request)
            running[pid] = connection
            for fd in fds[1:]:
                os.close(fd)


def main():
    requests = socket.socket(fileno=int(sys.argv[1]))
    # Salt's own scripts do not have this directory in their path.
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    scripts = importlib.import_module("salt.scripts")
    for name in IMPORTS:
        importlib.import_module(name)

    command = serve(requests)
    if command:
        sys.argv = command
        sys.exit(getattr(scripts, MAINS[command[0]])())


if __name__ == "__main__":
    main()
