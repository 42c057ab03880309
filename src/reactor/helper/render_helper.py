"""
Render reactor files, describe runners and wheel functions, and call execution functions, for the saltcellar daemon.

The daemon renders Jinja, YAML and JSON natively. It starts this program with Salt's Python, as Salt's user, for tasks that need
Python: ``#!py`` and other renderers, functions of ``salt`` in templates, files of backends other than ``roots``. Standard output is
a socket with one JSON object per line in each direction: a request, then its response. The program itself is read from
standard input.

The first request has the configuration (a master's or a minion's), and whether the process runs a minion's ``caller`` reactions. A
second process does that, so that a state run does not delay templates.

Without Salt it still runs ``#!py`` files, with an empty ``__salt__``.

It is a stand-alone program: it is embedded in the daemon and imports nothing of the extension.
"""

import sys

if __name__ == "__main__" and sys.path[:1] == [""]:
    # Up to Python 3.10 the current directory is first, for a program read from standard input.
    del sys.path[0]

# pylint: disable=wrong-import-position
import base64
import copy
import datetime
import errno
import json
import logging
import math
import os
import pwd
import re
import resource
import site
import sysconfig
import tempfile
import time
import traceback

#: Score of this process for the kernel's OOM killer; the highest is 1000.
OOM_SCORE_ADJ = 500


def enc(value):
    """Encode for JSON. A type that JSON lacks becomes an object with one key that starts with ``$``, see `salt_sls::json_form`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # Some renderers return subclasses of str whose __str__ differs from their content.
        text = str.__str__(value)
        return text if is_unicode(text) else enc_object(text)
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else {"$int": str(int(value))}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, (bytes, bytearray)):
        return {"$bin": base64.b64encode(bytes(value)).decode()}
    if type(value).__name__ == "ExtType":
        # msgpack's own; also a tuple.
        return enc_object(value)
    if isinstance(value, tuple):
        return {"$tuple": [enc(item) for item in value]}
    if isinstance(value, list):
        return [enc(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"$set": [enc(item) for item in value]}
    if hasattr(value, "items"):
        return {enc_key(enc(key)): enc(inner) for key, inner in value.items()}
    return enc_object(value)


def enc_key(form):
    """The key of an object for a key of this form: text, with one more ``$`` if it starts with that; else ``$`` and the form."""
    if isinstance(form, str):
        return "$" + form if form.startswith("$") else form
    return "$" + json.dumps(form, separators=(",", ":"), ensure_ascii=False)


def dec_key(text):
    """The reverse of `enc_key`. Text that starts with ``$`` and is no form stands for itself."""
    if not text.startswith("$"):
        return text
    if text.startswith("$$"):
        return text[1:]
    try:
        form = json.loads(text[1:])
    except (ValueError, RecursionError):
        return text
    if isinstance(form, str):
        return text
    key = dec(form)
    if isinstance(key, set):
        return frozenset(key)
    try:
        hash(key)
    except TypeError:
        return text
    return key


#: msgpack's ext type of timestamps, and Salt's of dates with their format.
EXT_TIMESTAMP, EXT_DATE = -1, 78
DATE_FORMAT = "%Y%m%dT%H:%M:%S.%f"
#: Characters of a date in that format after its year.
DATE_REST = 20


def is_unicode(text):
    """Whether the text can be encoded: names of files may have surrogates instead of bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(text, value):
    """``str`` or ``repr`` of any object, as text that can be encoded."""
    try:
        text = text(value)
    except Exception:  # pylint: disable=broad-except
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def enc_object(value):
    """Encode an object of another type: what is shown of it, and its ext in Salt's codec, or why that cannot pack it."""
    try:
        is_true = bool(value)
    except Exception:  # pylint: disable=broad-except
        is_true = True
    form = {"type": type(value).__name__, "str": shown(str, value), "repr": shown(repr, value), "true": is_true}
    try:
        packed = ext(value)
    except Exception as exc:  # pylint: disable=broad-except
        return {"$object": {**form, "why": shown(str, exc)}}
    if packed is None:
        # Salt packs it as one of the plain types.
        return enc(as_packed(value))
    code, data = packed
    return {"$object": {**form, "ext": [code, base64.b64encode(data).decode()]}}


def ext(value):
    """The ext of Salt's codec, as type and data; None if it packs the value as a plain type. Raises what that codec raises."""
    if isinstance(value, (datetime.datetime, datetime.date)):
        text = value.strftime(DATE_FORMAT)
        # glibc writes years before 1000 with fewer digits, which Salt does not read.
        return EXT_DATE, (f"{value.year:04}" + text[len(text) - DATE_REST :]).encode()
    found = as_packed(value)
    kind = type(found).__name__
    if kind == "Timestamp":
        return EXT_TIMESTAMP, found.to_bytes()
    return tuple(found) if kind == "ExtType" else None


def as_packed(value):
    """The value as it is after Salt's codec, with an ext as it is. Raises what that codec raises."""
    try:
        import salt.payload
        from salt.utils.msgpack import ExtType, unpackb
    except ImportError:
        raise TypeError(f"can not serialize '{type(value).__name__}' object") from None
    return unpackb(salt.payload.dumps(value, use_bin_type=True), ext_hook=ExtType, raw=False, strict_map_key=False)


def dec_object(form):
    """The object of this form, if it is a date or a constant of Salt; of another one its text."""
    if form["type"] in ("datetime", "date") and "ext" in form:
        return getattr(datetime, form["type"]).fromisoformat(form["str"])
    if "ext" in form:
        import salt.payload
        from salt.utils.msgpack import ExtType, packb

        code, data = form["ext"]
        return salt.payload.loads(packb(ExtType(code, base64.b64decode(data))), encoding="utf-8")
    return form["str"]


def dec(value):
    if isinstance(value, list):
        return [dec(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key == "$bin":
            return base64.b64decode(inner)
        if key == "$int":
            return int(inner)
        if key == "$float":
            return float(inner)
        if key == "$tuple":
            return tuple(dec(item) for item in inner)
        if key == "$set":
            return {dec(item) for item in inner}
        if key == "$object":
            return dec_object(inner)
    return {dec_key(key): dec(inner) for key, inner in value.items()}


class Records(logging.Handler):
    """Log records from WARNING on, of the loggers named in `hello`."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.rows, self.loggers = [], ()

    def emit(self, record):
        if not record.name.startswith(self.loggers):
            return
        row = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        info = record.exc_info
        if info is True:
            info = sys.exc_info()
        if info and info[0]:
            row["cause"] = f"{info[0].__name__}: {info[1]}"
        self.rows.append(row)

    def take(self):
        rows, self.rows = self.rows, []
        return rows


def raised(exc):
    message = str(exc)
    if isinstance(exc, MemoryError) and not message:
        message = f"out of memory: the limit is {resource.getrlimit(resource.RLIMIT_DATA)[0]} bytes (reactor.helper_memory)"
    return {"type": type(exc).__name__, "message": message + remedy(exc)}


def remedy(exc):
    """What to do about a read-only file system, as a suffix of a message."""
    if not isinstance(exc, OSError) or exc.errno != errno.EROFS:
        return ""
    place = exc.filename if isinstance(exc.filename, str) else "its directory"
    return f" (if the daemon's systemd unit makes it read-only, add ReadWritePaths= for {place} to the unit)"


def check_writable(directory):
    """Raise the OSError of a write to ``directory``, which is created if it is missing."""
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
        pass


class Recorded:
    """A function that records its calls."""

    def __init__(self, name, function, rows):
        self.name, self.function, self.rows = name, function, rows

    def __call__(self, *args, **kwargs):
        row = {"fun": self.name, "args": enc(list(args)), "kwargs": enc(kwargs)}
        self.rows.append(row)
        try:
            value = self.function(*args, **kwargs)
        except Exception as exc:
            row["raised"] = raised(exc)
            raise
        row["return"] = enc(value)
        return value


class NotCalled(Exception):
    """A check calls no function of ``salt``."""


class Uncalled:
    """A function, or a module of functions, of ``salt`` during a check."""

    #: The names of those that the checked file calls.
    calls = []

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        # Jinja and Python look for marks on functions.
        if name.startswith(("__", "jinja_")) or name in ("unsafe_callable", "alters_data"):
            raise AttributeError(name)
        return Uncalled(f"{self._name}.{name}")

    def __call__(self, *args, **kwargs):
        Uncalled.calls.append(self._name)
        raise NotCalled(self._name)


class Stopped(Exception):
    """A check is at a renderer that it does not run, with the text before it."""

    def __init__(self, name, text):
        super().__init__(name)
        self.name, self.text = name, text


#: Renderers without effects and without code of the site: a check runs them, unless the site has replaced them.
PURE = ("jinja", "yaml", "json", "toml", "msgpack", "yamlex")
#: Renderers of Python programs. A check compiles their text.
PROGRAMS = ("py", "pydsl", "pyobjects")
#: Salt's filters of Jinja that use the network.
NETWORK_FILTERS = ("http_query", "dns_check")


class CheckedRenderers:
    """The renderers of a check: those that are not pure stop it."""

    def __init__(self, rend):
        self.rend = rend

    def __getitem__(self, name):
        function = self.rend[name]
        if name in PURE and is_of_salt(function):
            return function

        def stop(*args, **_kwargs):
            text = args[0]
            raise Stopped(name, text.read() if hasattr(text, "read") else text)

        return stop

    def __contains__(self, name):
        return name in self.rend


def packages_have_renderers():
    """Whether an installed package may have renderers, by Salt's entry points. Imports neither Salt nor what the entry points name."""
    try:
        import importlib.metadata
        import importlib.util
    except ImportError:
        # Python before 3.8 cannot tell.
        return True

    for distribution in importlib.metadata.distributions():
        for point in distribution.entry_points:
            if point.group == "salt.loader" and may_have_renderers(point.value):
                return True
    return False


def may_have_renderers(value):
    """Whether an entry point of Salt's loader may name renderers."""
    # A function, which says where the modules are. Only Salt calls it.
    if ":" in value:
        return True
    try:
        spec = importlib.util.find_spec(value.split("[")[0].strip())
    except Exception:  # pylint: disable=broad-except
        # The package above may raise anything when it is imported. Salt skips it as well, or not.
        return True
    places = spec.submodule_search_locations if spec else ()
    return any(os.path.isdir(os.path.join(place, "renderers")) for place in places or ())


def is_of_salt(renderer):
    """Whether it is one of Salt's own. The loader names a module by whether its file is below Salt's package."""
    return renderer.__module__.startswith("salt.loaded.int.")


def compiled(text, path):
    """What a check found in the text of a Python program."""
    # Lines such as `import salt://map.sls` are for the renderer pyobjects.
    text = re.sub(r"^(\s*)(from\s+salt://|import\s+salt://).*$", r"\1pass", text, flags=re.MULTILINE)
    try:
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as exc:
        return {"failed": raised(exc)}
    return {"compiled": "a check compiles a program and does not run it"}


class RecordedModule:
    """``salt.module``, whose functions record their calls."""

    def __init__(self, name, module, helper):
        self._name, self._module, self._helper = name, module, helper

    def __getattr__(self, name):
        full = f"{self._name}.{name}"
        stub = self._helper.stub(full)
        return Recorded(full, stub or getattr(self._module, name), self._helper.calls)


def retcode(explicit, value):
    """The retcode that a minion would return: the function's own, or one derived from its value."""
    if explicit:
        return int(explicit) if isinstance(explicit, int) else 1
    if isinstance(value, dict) and not all(value.get(key, True) for key in ("result", "success")):
        return 1
    return 0


def stubbed(spec):
    def function(*args, **kwargs):
        if "raise" in spec:
            try:
                import salt.exceptions as kinds
            except ImportError:
                kinds = None
            kind = getattr(kinds, spec["raise"]["type"], Exception)
            raise kind(spec["raise"]["message"])
        return dec(spec["return"])

    return function


class Plain:
    """Python without Salt: ``#!py`` files only."""

    version = None

    def __init__(self, stubs):
        self.stubs, self.calls = stubs, []

    def stub(self, name):
        spec = self.stubs.get(name)
        return stubbed(spec) if spec else None

    def function(self, name):
        stub = self.stub(name)
        if stub is None:
            raise LookupError(f"this Python has no Salt, which {name} needs")
        return stub

    def context(self):
        return {}

    def grains(self):
        return None

    def fetch(self, reference):
        raise LookupError(f"this Python has no Salt, which fetches {reference}")

    def renderers(self, state):
        raise LookupError("this Python has no Salt, which has renderers")

    def signature(self, client, name):
        raise LookupError(f"this Python has no Salt, which has the {client} function {name}")

    def check(self, request, _data):
        with open(request["source"], encoding="utf-8") as file:
            text = file.read()
        if text.split("\n", 1)[0].strip() != "#!py":
            raise LookupError("this Python has no Salt, which the file's renderers need")
        return compiled(text, request["path"])

    def render(self, request, data):
        with open(request["source"], encoding="utf-8") as file:
            text = file.read()
        if text.split("\n", 1)[0].strip() != "#!py":
            raise LookupError("this Python has no Salt, which the file's renderers need")
        known = {"test.ping": lambda: True, "test.echo": lambda text: text, "environ.get": os.environ.get}
        known.update({name: self.stub(name) for name in self.stubs})
        functions = {name: Recorded(name, function, self.calls) for name, function in known.items()}
        scope = {
            "__name__": os.path.basename(request["path"]).split(".")[0],
            "__file__": request["path"],
            "data": data,
            "tag": request["tag"],
            "saltenv": "base",
            "sls": "",
            "__env__": "base",
            "__sls__": "",
        }
        for name, value in (("salt", functions), ("grains", {}), ("opts", {}), ("pillar", {})):
            scope[name] = scope[f"__{name}__"] = value
        exec(compile(text, request["path"], "exec"), scope)  # pylint: disable=exec-used
        return scope["run"](), []


def user_site():
    """The directory of ``pip install --user``. Python was started with ``-s``, because it would trust the environment."""
    if sys.prefix != sys.base_prefix:
        return None
    try:
        base = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".local")
    except KeyError:
        return None
    return sysconfig.get_path("purelib", "posix_user", {"userbase": base})


def search_user_site():
    """Add the directory of ``pip install --user`` to ``sys.path``, before the system's, as in a Python without ``-s``."""
    path = user_site()
    if path is None or not os.path.isdir(path):
        return
    known = list(sys.path)
    site.addsitedir(path)
    new = [entry for entry in sys.path if entry not in known]
    place = next((n for n, entry in enumerate(known) if entry.endswith(("site-packages", "dist-packages"))), len(known))
    sys.path[:] = known[:place] + new + known[place:]


def be_killed_first():
    """Make the OOM killer choose this process before the daemon."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            if int(file.read()) < OOM_SCORE_ADJ:
                file.seek(0)
                file.write(str(OOM_SCORE_ADJ))
    except OSError as exc:
        logging.getLogger(__name__).debug("oom_score_adj cannot be changed: %s", exc)


def limit_memory(size):
    """Limit the data segment to ``size`` bytes; children inherit the limit."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def use_options(options, path):
    """
    Make Salt use ``options`` as the contents of the file at ``path`` and its includes.

    Salt's daemons read their configuration as root and switch to their user afterwards, so that user may be unable to read it.
    Salt treats an unreadable file as empty.
    """
    import salt.config

    load, include = salt.config.load_config, salt.config.include_config

    def load_config(wanted, *args, **kwargs):
        if wanted != path:
            return load(wanted, *args, **kwargs)
        return {**copy.deepcopy(options), "conf_file": path}

    def include_config(pattern, orig_path, *args, **kwargs):
        return {} if orig_path == path else include(pattern, orig_path, *args, **kwargs)

    salt.config.load_config, salt.config.include_config = load_config, include_config


class Salt:
    """Salt's renderers and functions, as its reactor has them."""

    def __init__(self, config, stubs, role):
        import salt.config
        import salt.loader
        import salt.minion
        import salt.state
        import salt.template
        import salt.utils.args
        import salt.utils.templates
        import salt.version

        self.version = salt.version.__version__
        self.stubs, self.calls, self.renders = stubs, [], []
        self.template, self.compiler = salt.template, salt.state.Compiler
        self.loader, self.args = salt.loader, salt.utils.args
        read = salt.config.minion_config if role == "minion" else salt.config.master_config
        opts = read(config)
        self.opts = opts
        minion_opts = opts.copy()
        minion_opts["file_client"] = "local"
        self.minion = salt.minion.MasterMinion(minion_opts)
        self._spy(salt.utils.templates)
        #: Whether a file is checked now, so that no function of ``salt`` is called.
        self.checking = False
        #: The state of the site's renderers that ``rend`` was loaded in.
        self.rend, self.rend_state = self.minion.rend, None

    def renderers(self, state):
        """Each renderer by name, and whether it is the site's. They are reloaded if the state of their directories is another one."""
        self.load_renderers(state)
        own = {}
        for name in self.rend:
            own[name] = not is_of_salt(self.rend[name])
        return own

    def load_renderers(self, state):
        if self.rend_state not in (None, state):
            self.rend = self.loader.render(self.minion.opts, self.minion.functions)
        self.rend_state = state

    def _spy(self, templates):
        helper, real, loader = self, templates.JINJA, templates.AliasedLoader

        def jinja(source, *args, **kwargs):
            row = {"file": kwargs.get("tmplpath")}
            helper.renders.append(row)
            answer = real(source, *args, **kwargs)
            if answer.get("result"):
                row["text"] = answer["data"]
            return answer

        class Loader(loader):
            def __getitem__(self, name):
                if helper.checking:
                    return Uncalled(f"salt['{name}']")
                function = helper.stub(name) or super().__getitem__(name)
                return Recorded(name, function, helper.calls)

            def __getattr__(self, name):
                if helper.checking:
                    return Uncalled(f"salt.{name}")
                if any(stub.startswith(f"{name}.") for stub in helper.stubs):
                    return RecordedModule(name, None, helper)
                found = super().__getattr__(name)
                return RecordedModule(name, found, helper) if type(found).__name__ == "LoadedMod" else found

            def __contains__(self, name):
                return name in helper.stubs or super().__contains__(name)

        Loader.__module__ = loader.__module__
        templates.JINJA, templates.AliasedLoader = jinja, Loader

    def stub(self, name):
        spec = self.stubs.get(name)
        return stubbed(spec) if spec else None

    def function(self, name):
        return self.stub(name) or self.minion.functions[name]

    def context(self):
        return self.minion.functions.pack["__context__"]

    def grains(self):
        return dict(self.minion.opts.get("grains") or {})

    def fetch(self, reference):
        path = self.minion.functions["cp.cache_file"](reference)
        if not path:
            # Some backends log only "Unable to cache file", without the cause.
            check_writable(self.opts["cachedir"])
        return path or None

    def signature(self, client, name):
        """The arguments of a runner or wheel function as Salt's reactor sees them; None if there is no such function."""
        # A new loader: modules may have changed.
        functions = (self.loader.runner if client == "runner" else self.loader.wheels)(self.opts)
        if name not in functions:
            return None
        spec = self.args.get_function_argspec(functions[name])
        found = self.args.arg_lookup(functions[name], spec)
        return {
            "name": functions[name].__name__,
            "required": found["args"],
            "optional": [[key, enc(value)] for key, value in found["kwargs"].items()],
            "any_keyword": bool(spec.keywords),
        }

    def check(self, request, data):
        """What is wrong with a file, as far as that is known without calling a function of ``salt`` or running code of the site."""
        from jinja2.exceptions import TemplateSyntaxError
        from salt.utils.decorators.jinja import JinjaFilter

        # Salt's error does not tell these, which depend on no data, from errors of a rendering.
        real, seen = TemplateSyntaxError.__init__, []

        def noted(error, *args, **kwargs):
            real(error, *args, **kwargs)
            seen.append(str(error))

        TemplateSyntaxError.__init__ = noted
        filters = JinjaFilter.salt_jinja_filters
        kept = {name: filters[name] for name in NETWORK_FILTERS if name in filters}
        filters.update({name: Uncalled(f"the filter {name}") for name in kept})
        self.checking = True
        Uncalled.calls.clear()
        try:
            self.render(request, data, CheckedRenderers)
            return {}
        except Stopped as stop:
            if stop.name in PROGRAMS and is_of_salt(self.rend[stop.name]) and isinstance(stop.text, str):
                return compiled(stop.text, request["path"])
            return {"compiled": f"a check does not run the renderer \"{stop.name}\""}
        except Exception as exc:  # pylint: disable=broad-except
            if seen:
                return {"broken": raised(exc)}
            if Uncalled.calls:
                return {"compiled": f"a check does not call {Uncalled.calls[0]}"}
            raise
        finally:
            self.checking = False
            filters.update(kept)
            TemplateSyntaxError.__init__ = real

    def render(self, request, data, renderers=None):
        self.renders = []
        self.load_renderers(request.get("renderers", 0))
        path = request["path"]
        if request.get("reference"):
            path = self.minion.functions["cp.cache_file"](request["reference"]) or path
        value = self.template.compile_template(
            path,
            renderers(self.rend) if renderers else self.rend,
            self.opts["renderer"],
            self.opts["renderer_blacklist"],
            self.opts["renderer_whitelist"],
            tag=request["tag"],
            data=data,
        )
        if hasattr(value, "read"):
            raise TypeError("the last renderer returned text instead of data: end the pipe with yaml")
        if value and isinstance(value, dict):
            value = self.compiler.pad_funcs(None, value)
        return value, self.renders


class Caller:
    """A minion's execution functions, as ``salt-call`` has them."""

    def __init__(self, config):
        import salt.client
        import salt.version

        self.version = salt.version.__version__
        self.config, self.client, self.until = config, salt.client.Caller, 0
        self.functions = None

    def function(self, name):
        # Pillar, grains and modules are refreshed as often as by Salt's reactor.
        if time.monotonic() >= self.until:
            caller = self.client(self.config)
            self.functions = caller.sminion.functions
            self.until = time.monotonic() + caller.opts["reactor_refresh_interval"]
        return self.functions[name]

    def context(self):
        return self.functions.pack["__context__"]


class Helper:
    def __init__(self, request):
        config, stubs, role = request["config"], request["stubs"], request.get("role")
        try:
            if request.get("options") is not None:
                use_options(dec(request["options"]), config)
            self.salt = Caller(config) if request.get("caller") else Salt(config, stubs, role)
        except ImportError:
            self.salt = Plain(stubs)

    def call(self, request):
        try:
            function = self.salt.function(request["fun"])
        except LookupError as exc:
            return {"error": str(exc)} if self.salt.version is None else {"raised": raised(exc)}
        context = self.salt.context()
        context["retcode"] = 0
        try:
            value = function(*dec(request["args"]), **dec(request["kwargs"]))
            return {"return": enc(value), "retcode": retcode(context.get("retcode"), value)}
        except (Exception, SystemExit) as exc:  # pylint: disable=broad-except
            return {"raised": raised(exc)}

    def render(self, request):
        self.salt.calls.clear()
        data = dec(request["data"])
        before = copy.deepcopy(data)
        answer = {}
        try:
            value, answer["renders"] = self.salt.render(request, data)
            answer["result"] = enc(value)
        except LookupError as exc:
            if self.salt.version is None and "no Salt" in str(exc):
                return {"error": str(exc)}
            answer["raised"] = raised(exc)
        except BaseException as exc:  # pylint: disable=broad-except
            answer["raised"] = raised(exc)
            answer["raised"]["message"] = shorten(answer["raised"]["message"])
        answer.setdefault("renders", getattr(self.salt, "renders", []))
        answer["salt_calls"] = list(self.salt.calls)
        if data != before:
            answer["data"] = enc(data)
        return answer

    def check(self, request):
        self.salt.calls.clear()
        try:
            found = self.salt.check(request, dec(request["data"]))
        except LookupError as exc:
            if self.salt.version is None:
                return {"error": str(exc)}
            found = {"failed": raised(exc)}
        except BaseException as exc:  # pylint: disable=broad-except
            found = {"failed": raised(exc)}
        if "failed" in found and request["is_static"]:
            found["broken"] = found.pop("failed")
        for error in found.values():
            if isinstance(error, dict):
                # Without the lines of the file, which Salt appends, on one line.
                text = shorten(error["message"]).split("\n\n---", 1)[0]
                error["message"] = " ".join(text.split())
        return found

    def answer(self, request):
        verb = request["op"]
        if verb == "check":
            return self.check(request)
        if verb == "signature":
            return {"signature": self.salt.signature(request["client"], request["fun"])}
        if verb == "grains":
            return {"grains": enc(self.salt.grains())}
        if verb == "renderers":
            return {"renderers": self.salt.renderers(request["state"])}
        if verb == "call":
            return self.call(request)
        if verb == "render":
            return self.render(request)
        if verb == "fetch":
            return {"path": self.salt.fetch(request["reference"])}
        return {"error": f"unknown request {verb}"}


def shorten(text):
    """The last line of a traceback; other text without paths of site-packages."""
    if "Traceback (most recent call last)" in text:
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else text
    return re.sub(r"/\S*/site-packages/", "", text)


def main():
    # Set by the daemon for this process only, not for programs that modules and files start.
    for name in ("PYTHONHASHSEED", "PYTHONSAFEPATH"):
        os.environ.pop(name, None)
    # Files of modules and states get the permissions of Salt's processes; the daemon's umask is stricter.
    os.umask(0o022)  # pylint: disable=blacklisted-function
    be_killed_first()
    # Output and input of modules and files must not interfere with requests and answers.
    requests = os.fdopen(os.dup(1), encoding="utf-8", newline="\n")
    # Strings of logs and errors may have surrogates, which are no valid JSON.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace", newline="\n")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    records = Records()
    logging.getLogger().addHandler(records)
    logging.getLogger().setLevel(logging.WARNING)
    helper = None
    for line in requests:
        try:
            request = json.loads(line)
            if request["op"] == "hello":
                records.loggers = tuple(request["loggers"])
                if request.get("memory"):
                    limit_memory(request["memory"])
                search_user_site()
                helper = Helper(request)
                answer = {}
                # The daemon reads these only if this process fails to start.
                os.dup2(null, 1)
                os.dup2(null, 2)
            elif request["op"] == "packages":
                search_user_site()
                answer = {"packages": packages_have_renderers()}
            else:
                answer = helper.answer(request)
        except BaseException as exc:  # pylint: disable=broad-except
            answer = {"error": traceback.format_exc().strip().splitlines()[-1] + remedy(exc)}
        answer["logs"] = records.take()
        try:
            text = json.dumps(answer, ensure_ascii=False)
        except MemoryError as exc:
            del answer
            text = json.dumps({"error": ": ".join(raised(exc).values())})
        answers.write(text + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
