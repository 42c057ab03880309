"""Programs that a process of root may run: nobody else can replace them."""

import os

import pytest

from saltext.saltcellar.utils import trusted


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "venv" / "bin" / "prog"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    for made in (path, path.parent, path.parent.parent):
        made.chmod(0o755)
    links = tmp_path / "links"
    links.mkdir(mode=0o755)
    (links / "prog").symlink_to("../links/../venv/bin/prog")
    monkeypatch.setenv("PATH", str(links))
    return path


def test_a_program_is_run_only_if_nobody_else_can_replace_any_step_to_it(program, monkeypatch):
    found = str(program.parent.parent.parent / "links" / "prog")
    assert trusted.program("prog") == found, "the link's own name"
    assert trusted.program("no-such-program") is None
    for opened, mode in ((program, 0o757), (program.parent, 0o757), (program.parent.parent, 0o777)):
        opened.chmod(mode)
        with pytest.raises(trusted.Untrusted) as raised:
            trusted.program("prog")
        assert str(raised.value) == f"anyone can write to {opened} (`chmod o-w {opened}`)"
        opened.chmod(0o755)
    # A sticky directory, as /tmp.
    program.parent.chmod(0o1777)
    assert trusted.program("prog") == found
    monkeypatch.chdir(program.parent)
    monkeypatch.setenv("PATH", ".")
    with pytest.raises(trusted.Untrusted, match="relative directory"):
        trusted.program("prog")


def test_a_circle_of_links_ends(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="too many links"):
        list(trusted.steps(str(tmp_path / "circle")))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_program_of_another_user_or_group_is_not_run(program):
    for other in (program, program.parent):
        os.chown(other, 12345, -1)
        with pytest.raises(trusted.Untrusted, match=f"{other} belongs to uid 12345"):
            trusted.program("prog")
        os.chown(other, 0, -1)
    # A group with no member but root, and one that nobody lists.
    program.chmod(0o775)
    os.chown(program, -1, 0)
    assert trusted.program("prog")
    os.chown(program, -1, 54321)
    with pytest.raises(trusted.Untrusted, match="members of group 54321"):
        trusted.program("prog")
