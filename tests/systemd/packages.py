"""Packages with the contents that Cargo.toml lists, built from the binary of the test run.

`make deb` and `make rpm` need cargo-deb and cargo-generate-rpm, which take minutes to compile. These packages take seconds: dpkg-deb and
rpmbuild pack the same files and the same scripts. $SALTCELLAR_DEB and $SALTCELLAR_RPM name packages to test instead.
"""
import fcntl
import glob
import os
import shutil
import subprocess
import sys

try:
    import tomllib
except ImportError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEB_CONTROL = """Package: saltcellar
Version: {version}
Architecture: {arch}
Maintainer: {maintainer}
Depends: libc6
Description: tests
"""
RPM_SPEC = """Name: saltcellar
Version: {version}
Release: 1
Summary: {summary}
License: {license}
AutoReqProv: no
%global __os_install_post %{{nil}}
%global _build_id_links none
%global debug_package %{{nil}}
%description
tests
%post
{post_install_script}
%preun
{pre_uninstall_script}
%postun
{post_uninstall_script}
%files
{files}
"""


def run(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO, **how)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def metadata(tool):
    with open(os.path.join(REPO, "Cargo.toml"), "rb") as manifest:
        return tomllib.load(manifest)["package"]["metadata"][tool]


def generate(binary, into):
    """The files that are not in the source tree, as `make deb` makes them.

    In CI with setuptools from an environment of their own, as by hand: Salt's is not needed. Otherwise this Python saves the seconds.
    """
    python = [] if os.environ.get("CI") else [f"PACKAGE_PYTHON={sys.executable}"]
    os.makedirs(os.path.join(REPO, "target"), exist_ok=True)
    # Shards run at the same time, and the environment is made once.
    with open(os.path.join(REPO, "target", "package-files.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("make", "-s", "package-files", f"PACKAGE={into}", f"PACKAGE_BIN={binary}", *python)


def stage(assets, generated, root):
    """Copies the assets (source, destination, mode) below `root`. Returns their destinations."""
    placed = []
    for source, to, mode in assets:
        source = source.replace("target/release/saltcellar", "target/package/saltcellar").replace("target/package", generated)
        found = sorted(glob.glob(os.path.join(REPO, source)))
        assert found, f"Cargo.toml lists {source}, which does not exist"
        for path in found:
            name = os.path.join("/", to, os.path.basename(path)) if to.endswith("/") else os.path.join("/", to)
            os.makedirs(os.path.dirname(root + name), exist_ok=True)
            shutil.copyfile(path, root + name)
            os.chmod(root + name, int(mode, 8))
            placed.append(name)
    return placed


def build_deb(generated, version, scratch, configuration=""):
    """`configuration` is appended to the sample configuration."""
    deb, root = metadata("deb"), os.path.join(scratch, f"deb-{version}")
    stage(deb["assets"], generated, root)
    with open(f"{root}/etc/saltcellar/saltcellar.yaml", "a") as sample:
        sample.write(configuration)
    os.makedirs(f"{root}/DEBIAN")
    arch = run("dpkg", "--print-architecture").strip()
    for name, text in (("control", DEB_CONTROL.format(version=version, arch=arch, **deb)), ("conffiles", "\n".join([*deb["conf-files"], ""]))):
        with open(f"{root}/DEBIAN/{name}", "w") as out:
            out.write(text)
    for script in os.listdir(os.path.join(REPO, deb["maintainer-scripts"])):
        shutil.copyfile(os.path.join(REPO, deb["maintainer-scripts"], script), f"{root}/DEBIAN/{script}")
        os.chmod(f"{root}/DEBIAN/{script}", 0o755)
    path = os.path.join(scratch, f"saltcellar_{version}.deb")
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", root, path)
    shutil.rmtree(root)
    return path


def build_rpm(generated, version, scratch):
    rpm, root = metadata("generate-rpm"), os.path.join(scratch, f"rpm-{version}")
    placed = []
    for asset in rpm["assets"]:
        mark = "%config(noreplace) " if asset.get("config") == "noreplace" else ""
        placed += [mark + name for name in stage([(asset["source"], asset["dest"], asset["mode"])], generated, root)]
    spec = os.path.join(scratch, f"saltcellar-{version}.spec")
    with open(spec, "w") as out:
        out.write(RPM_SPEC.format(version=version, files="\n".join(placed), **rpm))
    run("rpmbuild", "-bb", "--quiet", "--buildroot", root, "--define", f"_topdir {scratch}/rpmbuild", "--define", f"_rpmdir {scratch}",
        "--define", "_binary_payload w0.gzdio", spec)
    (path,) = glob.glob(f"{scratch}/*/saltcellar-{version}-1.*.rpm")
    return path
