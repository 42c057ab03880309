#!/usr/bin/env python3
"""salt_lab: a real salt-master and its minions on 127.0.0.1, for tests and for the demo.

  salt_lab.py venv                                  create the Python environment if missing, print its path
  salt_lab.py in-venv -- pytest salt/tests/unit     run one command in that environment
  salt_lab.py releases                              print the releases that one run of the tests covers
  salt_lab.py start --minions 2                     start, wait for test.ping, print `export` lines
  salt_lab.py env   --dir DIR                       print the same lines again
  salt_lab.py run   --minions 2 -- CMD ARGS...      start, run CMD in the lab's environment, stop
  salt_lab.py stop  --dir DIR [--keep]              stop every process, remove DIR unless --keep

The release is --release, or $SALT_RELEASE, or the newest of those below. Its environment contains Salt, pytest
and this repository's extension (reinstalled when its files change), in target/salt/<release>.
$SALTCELLAR_SALT_VENVS names another directory, $SALT_PYTHON the interpreter to create them with.

All state of a lab is in one directory (default: a new one under $TMPDIR). Its path is short because Salt
puts unix sockets below it and the kernel allows about 107 bytes. Nothing listens outside 127.0.0.1, the
processes run as the current user, and only Python's standard library is needed to run this script.
"""
import argparse
import contextlib
import fcntl
import getpass
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import procs  # noqa: E402

RELEASES = ("3008.3", "3007.15", "3006.28")  # the pinned ones, the default first
TOOLS = ("pytest>=8,<9",)
OLD_TOOLS = ("setuptools<70", "wheel")  # Salt's releases need pkg_resources to be built, and to run
REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXTENSION = os.path.join(REPO, "salt")
STATE = "lab.json"  # the state for `stop` and `env`, next to the lab's files
DIR_LENGTH_MAX = 60  # the rest of the 107 bytes is for Salt's own names


class LabError(Exception):
    """An error that the user can act upon."""


def say(msg):
    with contextlib.suppress(OSError):  # the reader may have closed it during the cleanup
        print(f"salt_lab: {msg}", file=sys.stderr, flush=True)


def default_release():
    return os.environ.get("SALT_RELEASE") or RELEASES[0]


def tested_releases():
    """The releases of one test run: $SALT_RELEASE, or else the first of ours.

    With $CI also one of the others, chosen by the commit: a run can be repeated, and the next commits test the rest.
    """
    if os.environ.get("SALT_RELEASE"):
        return [os.environ["SALT_RELEASE"]]
    if not os.environ.get("CI"):
        return [RELEASES[0]]
    commit = subprocess.run(["git", "-C", REPO, "rev-parse", "HEAD"], capture_output=True, text=True)
    others = RELEASES[1:]
    return [RELEASES[0], others[int(commit.stdout.strip() or "0", 16) % len(others)]]


# ---------------------------------------------------------------- the Python environment
def venv_path(release):
    base = os.environ.get("SALTCELLAR_SALT_VENVS") or os.path.join(REPO, "target", "salt")
    return os.path.join(os.path.abspath(base), release)


def ensure_venv(release, progress=say, extension=True):
    """The environment of this release, created if missing.

    It is complete once its stamp is written, which is the last step; an incomplete one is deleted. A file lock
    serialises concurrent creations.
    """
    path = venv_path(release)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares {path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        make_venv(path, release, progress)
        if extension:
            install_extension(path, progress)
    return path


def make_venv(path, release, progress):
    wanted = json.dumps({"salt": release, "tools": [*OLD_TOOLS, *TOOLS]})
    stamp = os.path.join(path, ".made-of")
    python = os.path.join(path, "bin", "python")
    # a venv stops working if its interpreter was upgraded
    if read(stamp) == wanted and subprocess.call([python, "-c", ""], stderr=subprocess.DEVNULL) == 0:
        return
    maker = os.environ.get("SALT_PYTHON") or sys.executable
    check_python(maker)
    progress(f"creating a Python environment with salt {release} (once, a minute or two) in {path}")
    shutil.rmtree(path, ignore_errors=True)
    log = f"{path}.log"
    with open(log, "w"):
        pass
    step(log, progress, maker, "-m", "venv", path)
    pip(path, log, progress, *OLD_TOOLS)
    pip(path, log, progress, f"salt=={release}", *TOOLS)
    write(stamp, wanted)


def check_python(python):
    """Checks the prerequisites before anything is started."""
    probe = "import sys, venv, ensurepip; sys.exit(3 if sys.version_info < (3, 10) else 0)"
    try:
        p = subprocess.run([python, "-c", probe], capture_output=True, text=True)
    except OSError as exc:
        raise LabError(f"cannot run {python}: {exc.strerror}; set SALT_PYTHON to a Python of 3.10 or later") from exc
    if p.returncode == 3:
        raise LabError(f"{python} is older than 3.10; set SALT_PYTHON to a newer one")
    if p.returncode:
        raise LabError(f"{python} cannot create virtual environments. Install the missing part and try again:\n"
                       "  Debian, Ubuntu:  apt-get install python3-venv\n"
                       "  Fedora, RHEL:    dnf install python3-pip\n"
                       "  or set SALT_PYTHON to a Python that has `venv` and `ensurepip`")


def install_extension(path, progress):
    if not os.path.exists(os.path.join(EXTENSION, "pyproject.toml")):
        raise LabError(f"{EXTENSION} has no pyproject.toml: is this a whole checkout?")
    files = [os.path.join(EXTENSION, "pyproject.toml")]
    for base, _, names in os.walk(os.path.join(EXTENSION, "src")):
        files += [os.path.join(base, n) for n in names if n.endswith(".py") or ".egg-info" not in base]
    h = hashlib.sha256()
    for f in sorted(f for f in files if "__pycache__" not in f):
        with open(f, "rb") as src:
            h.update(os.path.relpath(f, EXTENSION).encode() + b"\0" + src.read() + b"\0")
    stamp = os.path.join(path, ".extension")
    if read(stamp) == h.hexdigest():
        return
    progress("installing the extension from salt/")
    with contextlib.suppress(FileNotFoundError):
        os.remove(stamp)
    # setuptools copies the contents of build/ from an earlier build, including deleted files
    shutil.rmtree(os.path.join(EXTENSION, "build"), ignore_errors=True)
    # Salt, its one dependency, and the build tools are installed already: nothing is downloaded
    pip(path, f"{path}.log", progress, "--no-deps", "--no-build-isolation", "--force-reinstall", EXTENSION)
    write(stamp, h.hexdigest())


def pip(path, log, progress, *what):
    step(log, progress, os.path.join(path, "bin", "python"), "-m", "pip", "install",
         "--disable-pip-version-check", "--no-input", *what)


def step(log, progress, *cmd):
    """Runs one command with its output in `log`; pip's messages about packages are shown as progress."""
    with open(log, "a", errors="replace") as out:
        def line(text):
            print(text, file=out, flush=True)
            m = re.match(r"\s*(Collecting|Building wheel for|Installing collected) (\S+)", text)
            if m and not re.search(r": finished", text):
                progress(f"pip: {m[1]} {m[2]}".replace("collected packages:", "the packages"))
        p = procs.run(cmd, lines=line, env={**os.environ, "PIP_NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
                      stdin=subprocess.DEVNULL)
    if p.returncode:
        with open(log, errors="replace") as f:
            tail = "".join(f.readlines()[-15:])
        raise LabError(f"`{' '.join(cmd)}` failed:\n{tail}(complete log: {log})")


def read(path):
    try:
        with open(path) as f:
            return f.read()
    except FileNotFoundError:
        return None


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as out:
        out.write(text)


# ---------------------------------------------------------------- configuration
def new_dir(prefix):
    """A new directory whose path is short enough for the sockets below it."""
    base = tempfile.gettempdir()
    if len(base) + len(prefix) + 10 > DIR_LENGTH_MAX:
        base = "/tmp"
    return os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=base))


PORTS = range(20000, 32000)  # below the range for outgoing connections
_next_port = PORTS[os.getpid() * 16 % len(PORTS)]


def free_ports(n, addresses=("127.0.0.1",)):
    """Ports without a listener on these addresses. Other processes' labs start at another port, and this process uses each port once."""
    global _next_port
    found = []
    for _ in PORTS:
        port, _next_port = _next_port, _next_port + 1 if _next_port + 1 in PORTS else PORTS[0]
        if all(is_free(address, port) for address in addresses):
            found.append(port)
        if len(found) == n:
            return found
    raise LabError(f"no {n} free ports from {PORTS[0]} to {PORTS[-1]}")


def is_free(address, port):
    with socket.socket() as s:
        try:
            s.bind((address, port))
        except OSError:
            return False
    return True


def to_yaml(d):
    """JSON is YAML; one key per line keeps the files readable."""
    return "".join(f"{k}: {json.dumps(v)}\n" for k, v in d.items())


def common(root, name, module_dirs):
    base = os.path.join(root, name)
    for d in ("pki", "cache", "run", "extmods"):
        os.makedirs(f"{base}/{d}", exist_ok=True)
    return {
        "user": getpass.getuser(),
        "root_dir": base,
        "pki_dir": f"{base}/pki",
        "cachedir": f"{base}/cache",
        "sock_dir": f"{base}/run",
        "pidfile": f"{base}/salt.pid",
        "log_file": f"{base}/log",
        "key_logfile": f"{base}/key.log",
        "log_level_logfile": os.environ.get("SALT_LAB_LOG_LEVEL", "info"),
        "extension_modules": f"{base}/extmods",
        "module_dirs": module_dirs,
        "enable_fqdns_grains": False,  # these two probe the host slowly
        "enable_gpu_grains": False,
    }


def write_master(lab, extra):
    root = lab["dir"]
    conf = common(root, "master", lab["module_dirs"])
    conf.update({
        "interface": lab["interface"], "publish_port": lab["publish_port"], "ret_port": lab["ret_port"],
        "auto_accept": True, "worker_threads": 3, "timeout": 15, "gather_job_timeout": 5,
        "file_roots": {"base": [f"{root}/srv/salt"]}, "pillar_roots": {"base": [f"{root}/srv/pillar"]},
        **extra,
    })
    write(f"{root}/conf/master", to_yaml(conf))
    for d in ("conf/master.d", "srv/salt", "srv/pillar"):
        os.makedirs(f"{root}/{d}", exist_ok=True)


def write_minion(lab, mid, extra):
    root = lab["dir"]
    conf = common(root, mid, lab["module_dirs"])
    conf.update({
        "id": mid, "master": lab["interface"], "master_port": lab["ret_port"],
        "publish_port": lab["publish_port"], "random_startup_delay": 0, "mine_enabled": False,
        "acceptance_wait_time": 2, "master_alive_interval": 0, "start_event_grains": ["id"],
        **extra,
    })
    write(f"{root}/conf-{mid}/minion", to_yaml(conf))
    os.makedirs(f"{root}/conf-{mid}/minion.d", exist_ok=True)


# ---------------------------------------------------------------- processes
def salt_command(lab, name):
    """Uses the interpreter instead of the script's #! line, which breaks on long paths."""
    return [lab["python"] or os.path.join(lab["bin"], "python"), os.path.join(lab["bin"], name)]


def spawn(lab, name, *cmd):
    def note(p):
        lab["procs"][name] = p.pid
        save(lab)
    with open(f"{lab['dir']}/{name}.out", "ab") as out:
        return procs.spawn([*salt_command(lab, cmd[0]), *cmd[1:]], note, stdout=out, stderr=out,
                           stdin=subprocess.DEVNULL, env={**own_env(), "PYTHONWARNINGS": "ignore"})


def save(lab):
    tmp = f"{lab['dir']}/{STATE}.tmp"
    write(tmp, json.dumps(lab, indent=1))
    os.replace(tmp, f"{lab['dir']}/{STATE}")


def load(path):
    text = read(os.path.join(path, STATE))
    if text is None:
        raise LabError(f"no lab in {path}")
    return json.loads(text)


def strays(lab):
    """Processes of this lab outside its process groups: a minion runs each job in a new session."""
    mark = f"{lab['dir']}/conf".encode()
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            with open(path, "rb") as f:
                line = f.read()
            if mark in line and re.search(rb"salt-(master|minion)\b", line):
                found.append(int(path.split("/")[2]))
    return found


def stop(lab, keep=False):
    left = procs.end(list(lab["procs"].values()))
    for signum in (signal.SIGTERM, signal.SIGKILL):
        procs.signal_each(strays(lab), signum, os.kill)
        if procs.poll(lambda: not strays(lab), 3):
            break
    left += strays(lab)
    if left:
        raise LabError(f"processes {left} did not exit")
    if not keep:
        shutil.rmtree(lab["dir"], ignore_errors=True)


def wait_for(what, until, probe, watched):
    while not probe():
        for p in watched:
            if p.poll() is not None:
                raise LabError(f"a Salt process exited (exit code {p.returncode}) while waiting for {what}")
        if time.monotonic() > until:
            raise LabError(f"timed out waiting for {what}")
        time.sleep(0.2)


def env_of(lab):
    root = lab["dir"]
    return {
        "SALT_LAB_DIR": root, "SALT_RELEASE": lab["release"],
        "SALT_LAB_SOCK_DIR": f"{root}/master/run",
        "SALT_LAB_ROOT_KEY": f"{root}/master/cache/.{lab['user']}_key",
        "SALT_LAB_RET_PORT": str(lab["ret_port"]),
        "SALT_CONFIG_DIR": f"{root}/conf",  # read by every salt command
        "PYTHONWARNINGS": "ignore",
    }


def own_env():
    """The environment without SALTCELLAR_SOCKET and STATE_DIR: the caller's values, perhaps of another lab, would override
    the lab's own configuration."""
    return {k: v for k, v in os.environ.items() if k not in ("SALTCELLAR_SOCKET", "SALTCELLAR_STATE_DIR")}


def full_env(lab):
    env = {**own_env(), **env_of(lab)}
    env["PATH"] = lab["bin"] + os.pathsep + env.get("PATH", "")
    return env


def documents(text):
    """The JSON documents in Salt's output: one per minion, or per progress event."""
    found, rest, reader = [], text.strip(), json.JSONDecoder()
    while rest:
        value, end = reader.raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    return found


def connected(lab):
    """Whether all minions are connected to the master's publisher; true where the kernel does not say.

    A look at the sockets costs nothing, and Salt's command line most of a second of processor time.
    """
    lines = [line.split() for path in ("/proc/net/tcp", "/proc/net/tcp6") for line in (read(path) or "").splitlines()[1:]]
    publisher, established = f"{kernel_address(lab['interface'])}:{lab['publish_port']:04X}", "01"
    return not lines or sum(line[1] == publisher and line[3] == established for line in lines) >= len(lab["minions"])


def kernel_address(address):
    """An address as in /proc/net/tcp and tcp6: words of four bytes, each in the processor's order."""
    raw = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return "".join(f"{int.from_bytes(raw[at:at + 4], sys.byteorder):08X}" for at in range(0, len(raw), 4))


def responds(lab, run=None, minions=None):
    """One test.ping through the real command line, which also verifies the job cache. `run` runs it, instead of a new process."""
    minions = minions or lab["minions"]
    command = ["salt", "--out=json", "-t", "5", "-L", ",".join(minions), "test.ping"]
    p = run(*command) if run else procs.run([*salt_command(lab, "salt"), *command[1:]], env=full_env(lab), text=True, timeout=60,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        got = documents(p.stdout)
    except ValueError:
        return False
    return all({m: True} in got for m in minions)


def start(*args, **more):
    """Starts a lab and waits until its minions answer, or without `ping` until they are connected. Stops everything on an error."""
    return start_together([settings(*args, **more)])[0]


def settings(release=None, minions=2, prefix="lab-", directory=None, master_conf=None, minion_conf=None,
             module_dirs=(), timeout=procs.WAIT_MAX, progress=say, extension=True, python=None, ping=True, ports=None):
    """What `start` can be told about a lab.

    `python` is another interpreter with Salt, for a master whose user cannot read the environment's library. `ports` are the
    publisher's and the request port; two masters may have the same if each has its own `interface`.
    """
    return argparse.Namespace(**locals())


def start_together(several, has_begun=None, is_ready=None):
    """Starts labs whose masters may need each other, and waits for all of them.

    With `has_begun`, a condition of a lab, each master starts when the one before has begun: two would both make what they share.
    With `is_ready`, the minions start when all masters are ready.
    """
    began, labs = time.monotonic(), []
    try:
        watched = []
        for one in several:
            until = began + one.timeout
            watched.append(launch_master(one, labs))
            if has_begun:
                wait_for("the master to begin", until, lambda: has_begun(labs[-1]), watched)
        if is_ready:
            wait_for("the masters to be ready", until, lambda: all(is_ready(lab) for lab in labs), watched)
        for lab in labs:
            # no need to wait: minions retry until the master answers, and start concurrently
            for mid in lab["minions"]:
                watched.append(spawn(lab, mid, "salt-minion", "-c", f"{lab['dir']}/conf-{mid}", "--disable-keepalive"))
        for one, lab in zip(several, labs):
            wait_until_up(one, lab, began + one.timeout, watched)
    except BaseException as exc:
        interrupted = isinstance(exc, KeyboardInterrupt)
        if interrupted:
            several[0].progress("stopping the started Salt processes")
        for lab in labs:
            clean_up(lab, interrupted)
        raise
    for one, lab in zip(several, labs):
        one.progress(f"salt {lab['release']} with {len(lab['minions'])} minions is up after {time.monotonic() - began:.1f} s in {lab['dir']}")
    return labs


def launch_master(one, labs):
    """Writes a lab's configuration and starts its master, which is returned. The lab is in `labs` before anything has started."""
    release = one.release or default_release()
    venv = ensure_venv(release, one.progress, one.extension)
    root = os.path.realpath(one.directory) if one.directory else new_dir("salt-lab-")
    os.makedirs(root, exist_ok=True)
    if os.path.exists(os.path.join(root, STATE)):
        raise LabError(f"{root} holds a lab already; stop it first")
    if len(root) > DIR_LENGTH_MAX:
        raise LabError(f"{root} is too long a path for the unix sockets that Salt puts below it")
    publish_port, ret_port = one.ports or free_ports(2)
    master_conf = one.master_conf or {}
    lab = {
        "dir": root, "release": release, "bin": os.path.join(venv, "bin"), "publish_port": publish_port,
        "ret_port": ret_port, "module_dirs": [os.path.abspath(d) for d in one.module_dirs],
        "minions": [f"{one.prefix}{i}" for i in range(1, one.minions + 1)], "procs": {},
        "user": master_conf.get("user", getpass.getuser()), "python": one.python,
        "interface": master_conf.get("interface", "127.0.0.1"),
        "keys": f"{master_conf.get('cluster_pki_dir') or f'{root}/master/pki'}/minions",
    }
    save(lab)
    labs.append(lab)
    write_master(lab, master_conf)
    for mid in lab["minions"]:
        write_minion(lab, mid, one.minion_conf or {})
    return spawn(lab, "master", "salt-master", "-c", f"{root}/conf")


def wait_until_up(one, lab, until, watched):
    sock, key = f"{lab['dir']}/master/run/master_event_pull.ipc", env_of(lab)["SALT_LAB_ROOT_KEY"]
    wait_for("the master's event bus", until, lambda: os.path.exists(sock) and os.path.exists(key), watched)
    if lab["minions"]:
        wait_for("the minions' keys", until, lambda: all(os.path.exists(f"{lab['keys']}/{m}") for m in lab["minions"]), watched)
        wait_for("the minions' connections", until, lambda: connected(lab), watched)
        if one.ping:
            wait_for("test.ping", until, lambda: responds(lab), watched)


def clean_up(lab, interrupted):
    """Stops a lab whose start failed, after the ends of its logs."""
    if not interrupted:
        for name in lab["procs"]:
            for path in (f"{lab['dir']}/{name}.out", f"{lab['dir']}/{name}/log"):
                if os.path.exists(path):
                    with open(path, errors="replace") as f:
                        say(f"--- end of {path}\n" + "".join(f.readlines()[-15:]))
        say(f"start failed, the files are in {lab['dir']}")
    stop(lab, keep=not interrupted)
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(lab["dir"], STATE))  # the directory may be used again


def print_env(lab):
    for k, v in env_of(lab).items():
        print(f"export {k}={shlex.quote(v)}")
    print(f"export PATH={shlex.quote(lab['bin'])}:\"$PATH\"")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="cmd", required=True)
    for name in ("venv", "in-venv", "start", "run"):
        p = sub.add_parser(name)
        p.add_argument("--release", default=default_release(), help=f"one of {', '.join(RELEASES)}, or any other")
        p.add_argument("--no-extension", dest="extension", action="store_false", help="Salt alone")
        if name in ("start", "run"):
            p.add_argument("--dir", help="state directory (default: a new temporary one)")
            p.add_argument("--minions", type=int, default=1)
            p.add_argument("--prefix", default="lab-", help="minion ids are PREFIX1, PREFIX2, ...")
            p.add_argument("--master-conf", type=json.loads, metavar="JSON", help="a map of extra master settings")
            p.add_argument("--minion-conf", type=json.loads, metavar="JSON", help="the same for the minions")
            p.add_argument("--module-dir", action="append", default=[], metavar="DIR", help="DIR/modules/x.py, ...")
            p.add_argument("--timeout", type=float, default=procs.WAIT_MAX)
        if name in ("in-venv", "run"):
            p.add_argument("command", nargs="+")
    sub.add_parser("releases")
    for name in ("env", "stop"):
        p = sub.add_parser(name)
        p.add_argument("--dir", default=os.environ.get("SALT_LAB_DIR"), required="SALT_LAB_DIR" not in os.environ)
        if name == "stop":
            p.add_argument("--keep", action="store_true", help="leave the files")
    args = ap.parse_args()

    def begin():
        return start(args.release, args.minions, args.prefix, args.dir, args.master_conf, args.minion_conf,
                     args.module_dir, args.timeout, extension=args.extension)

    procs.install()
    try:
        if args.cmd == "venv":
            print(ensure_venv(args.release, extension=args.extension))
        elif args.cmd == "in-venv":
            path = ensure_venv(args.release, extension=args.extension)
            os.environ["PATH"] = f"{path}/bin{os.pathsep}{os.environ.get('PATH', '')}"
            os.environ["SALT_RELEASE"] = args.release
            # pytest through the interpreter, because a script's #! line has a length limit
            script = os.path.join(path, "bin", args.command[0])
            is_script = os.path.exists(script) and not args.command[0].startswith("python")
            cmd = [os.path.join(path, "bin", "python"), script] if is_script else args.command[:1]
            os.execvp(cmd[0], [*cmd, *args.command[1:]])
        elif args.cmd == "start":
            print_env(begin())
        elif args.cmd == "run":
            lab = begin()
            try:
                rc = procs.run(args.command, env=full_env(lab)).returncode
            finally:
                procs.ignore_signals()
                stop(lab)
            sys.exit(rc)
        elif args.cmd == "releases":
            print(*tested_releases())
        elif args.cmd == "env":
            print_env(load(args.dir))
        else:
            stop(load(args.dir), args.keep)
    except LabError as exc:
        sys.exit(f"salt_lab: {exc}")
    except KeyboardInterrupt as exc:
        sys.exit(128 + getattr(exc, "signum", signal.SIGINT))


if __name__ == "__main__":
    main()
