#!/usr/bin/env python3
"""forked_python: runs a command whose SALTCELLAR_SALT_PYTHON costs no imports of Salt. Its exit code is that of the command.

  forked_python.py COMMAND [ARGS...]

The program that the variable names runs a program of Python in a fork of one process that has imported Salt: with its own arguments,
environment, standard streams and exit code, and with the options that the daemon gives to Salt's Python. A case of the reactor needs such
a process of its own, and the imports are most of its processor time (docs/decisions/test-time.md). Runs in the lab's environment, without
the extension: `salt_lab.py in-venv --no-extension -- python tests/lab/forked_python.py COMMAND`.
"""
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import commands  # noqa: E402
import procs  # noqa: E402

#: What src/reactor/helper/render_helper.py imports when it starts.
IMPORTS = ("salt.config", "salt.loader", "salt.minion", "salt.state", "salt.template", "salt.utils.args", "salt.utils.templates", "salt.version")
#: As src/reactor/helper/process.rs starts Salt's Python.
OPTIONS = ("-s", "-B", "-u")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}

#: The program in place of Python: hands its arguments over, and ends as the fork does. If it is killed, so is the fork.
PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({path!r})
    socket.send_fds(server, [json.dumps([sys.argv[1:], dict(os.environ)]).encode()], [0, 1, 2])
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    code = int(server.recv(16) or 1)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def of_any(listener):
    """The next request, from a new connection, which also takes the exit code."""
    while True:
        connection, _ = listener.accept()
        request, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if request:
            return request, [connection.detach(), *fds]
        connection.close()


def serve(path):
    for name in IMPORTS:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    # The caller sees the end of the output: requests are accepted now.
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)

    args, env = commands.serve(listener, of_any)
    sys.argv = args[args.index("-"):]
    os.environ.clear()
    os.environ.update(env)
    os.chdir("/")
    with open(0, encoding="utf-8", closefd=False) as file:
        program = compile(file.read(), "<stdin>", "exec")
    exec(program, {"__name__": "__main__"})  # pylint: disable=exec-used


def run(command, env):
    with tempfile.TemporaryDirectory(prefix="sc-") as tmp:
        path, program = os.path.join(tmp, "socket"), os.path.join(tmp, "python")
        with open(program, "w", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
            file.write(PROGRAM.format(python=sys.executable, path=path))
        server = subprocess.Popen([sys.executable, *OPTIONS, os.path.abspath(__file__), "--serve", path], env={**env, **ENVIRONMENT},
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        try:
            with server.stdout:
                server.stdout.read()
            return procs.run(command, env={**env, "SALTCELLAR_SALT_PYTHON": program}).returncode
        finally:
            procs.end([server.pid])


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
        return 0
    procs.install()
    try:
        code = run(sys.argv[1:], dict(os.environ))
    except procs.Interrupted as exc:
        return 128 + exc.signum
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
