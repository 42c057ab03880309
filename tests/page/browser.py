"""Headless Chromium through the pipe of its DevTools protocol: no package, no port."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

TIMEOUT_S = 30
NAMES = ("chromium", "chromium-browser", "google-chrome")


def program():
    """The path of Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """A process of Chromium. Messages on its pipes end with a zero byte."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="chromium")
        commands, self.out = os.pipe()
        self.answers, events = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={self.profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        # Chromium reads descriptor 3 and writes descriptor 4.
        redirect = f'exec "$@" 3<&{commands} 4>&{events}'
        self.process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", program(), *flags, "about:blank"],
            pass_fds=(commands, events),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self.buffer, self.number, self.events = b"", 0, []

    def close(self):
        with contextlib.suppress(OSError, AssertionError):
            self.send("Browser.close")
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, until):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, until - time.monotonic()))
            if not ready:
                return None
            data = os.read(self.answers, 1 << 20)
            assert data, "Chromium has ended"
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, session=None, seconds=TIMEOUT_S, **params):
        """The result of a command, within so many seconds. Events that arrive meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + seconds
        while True:
            answer = self.receive(until)
            assert answer, f"{method} was not answered within {seconds} s"
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def page(self, **settings):
        return Page(self, **settings)


class Page:
    """A tab with its own cookies. `problems` are messages of the console, exceptions and violations of the policy."""

    def __init__(self, browser, width=1280, height=900, dark=False):
        self.browser, self.problems, self.documents = browser, [], {}
        self.context = browser.send("Target.createBrowserContext")["browserContextId"]
        target = browser.send("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Emulation.setTimezoneOverride", timezoneId="Etc/UTC")
        self.send("Emulation.setLocaleOverride", locale="en-GB")

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def resize(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 640)

    def close(self):
        self.browser.send("Target.disposeBrowserContext", browserContextId=self.context)

    def pump(self, seconds=0.0):
        """Reads the events of this page that have arrived, or arrive in this time."""
        until = time.monotonic() + seconds
        while message := self.browser.receive(until):
            self.browser.events.append(message)
        own = [event for event in self.browser.events if event.get("sessionId") == self.session]
        self.browser.events = [event for event in self.browser.events if event.get("sessionId") != self.session]
        for event in own:
            self.note(event["method"], event["params"])
        return [event["method"] for event in own]

    def note(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"].get("exception", params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append([value.get("value") for value in params["args"]])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {params['message']}")
            self.send("Page.handleJavaScriptDialog", accept=True)
        elif method == "Network.responseReceived" and params["type"] == "Document":
            self.documents[params["response"]["url"]] = params["response"]["status"]

    def open(self, url):
        """Loads a page; the status of the answer."""
        self.pump()
        self.documents.clear()
        self.send("Page.navigate", url=url)
        self.loaded()
        return next(reversed(self.documents.values()), None)

    def loaded(self):
        until = time.monotonic() + TIMEOUT_S
        while "Page.loadEventFired" not in self.pump(0.02):
            assert time.monotonic() < until, "the page did not load"

    def js(self, expression, seconds=TIMEOUT_S):
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, seconds=seconds)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression, seconds=TIMEOUT_S):
        until = time.monotonic() + seconds
        while not (found := self.js(expression)):
            assert time.monotonic() < until, f"not within {seconds} s: {expression}; {self.js('document.body.innerText')[:2000]}"
            self.pump(0.05)
        return found

    def key(self, key, code=0, text=None):
        text = text if text is not None else (key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            params = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **params)

    def screenshot(self, full=False):
        """PNG, base64."""
        return self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full, optimizeForSpeed=False)["data"]
