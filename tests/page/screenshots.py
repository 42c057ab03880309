"""Writes the screenshots of docs/PAGE.md: `make screenshots`."""

import base64
import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

import browser
import conftest
import sample

FORMS = (("light", 1024, 720, False), ("dark", 1024, 720, True), ("phone", 360, 740, False))
#: The views that are shown in every form; the others are shown in the first one.
IN_EVERY_FORM = ("overview", "job", "causes")


def compressed(png):
    """With a palette, which text needs few colours of."""
    if not shutil.which("pngquant"):
        sys.exit("pngquant is not installed (Debian: apt-get install pngquant)")
    return subprocess.run(["pngquant", "--speed", "1", "--strip", "48", "-"], input=png, stdout=subprocess.PIPE, check=True).stdout


def main(target):
    # Without the images of views that no longer exist.
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    # Its name is visible in the views.
    directory = pathlib.Path(tempfile.gettempdir(), "saltcellar")
    directory.mkdir()
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(shutil.rmtree, directory)
        daemon, chromium = conftest.Daemon(directory), browser.Browser()
        try:
            site, jid = sample.fleet()
            daemon.load(site)
            seq = daemon.newest()
            daemon.react()
            token = daemon.token("operator")
            for form, width, height, dark in FORMS:
                page = chromium.page(width=width, height=height, dark=dark)
                conftest.sign_in(page, daemon, token)
                for name, path in conftest.views(jid, seq).items():
                    if form != "light" and name not in IN_EVERY_FORM:
                        continue
                    page.open(daemon.url + path)
                    page.pump(0.7)
                    (target / f"{name}-{form}.png").write_bytes(compressed(base64.b64decode(page.screenshot())))
                page.close()
        finally:
            chromium.close()
            daemon.stop()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
