import os
import stat
import subprocess
import sys

import pytest

from fedbench.errors import OutputError
from fedbench.report import check_writable, write_atomically


def test_missing_folders_are_made(tmp_path):
    target = tmp_path / "new" / "dir" / "t.csv"
    check_writable(target)
    assert not target.parent.exists()
    write_atomically(target, b"x")
    assert target.read_bytes() == b"x"


def test_unicode_names_with_spaces(tmp_path):
    target = tmp_path / "тест ü" / "表.csv"
    write_atomically(target, b"x")
    assert target.read_bytes() == b"x"


def test_nothing_but_the_file_is_left(tmp_path):
    target = tmp_path / "t.csv"
    check_writable(target)
    assert list(tmp_path.iterdir()) == []
    write_atomically(target, b"old")
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    write_atomically(tmp_path / "a", b"")
    (tmp_path / "b").touch()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"]
    assert modes[0] == modes[1]


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    target = tmp_path / "t.csv"
    target.touch()
    target.chmod(0o640)
    write_atomically(target, b"x")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_links_are_followed(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


@pytest.mark.parametrize("function", [check_writable, lambda path: write_atomically(path, b"x")])
def test_a_folder_is_refused(tmp_path, function):
    with pytest.raises(OutputError, match=r"cannot write '.*': it is a folder\."):
        function(tmp_path)


@pytest.mark.parametrize("function", [check_writable, lambda path: write_atomically(path, b"x")])
@pytest.mark.parametrize("target", ["/proc/x.csv", "/proc/new/x.csv", "file/x.csv"])
def test_folders_that_take_no_files_are_refused(tmp_path, function, target):
    (tmp_path / "file").write_text("I am a file")
    with pytest.raises(OutputError, match=r"^cannot write '") as caught:
        function(tmp_path / target)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_an_error():
    with pytest.raises(OutputError, match="'/dev/full': No space left on device"):
        write_atomically("/dev/full", b"x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)  # not replaced by a file


def test_devices_are_written_to_directly():
    code = "from fedbench.report import write_atomically as w; w('/dev/stdout', b'hello')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"hello"
    write_atomically("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("failing", ["fsync", "replace", "chmod"])
def test_a_failure_halfway_keeps_the_old_file_and_no_other(tmp_path, monkeypatch, failing):
    target = tmp_path / "t.csv"
    target.write_bytes(b"old")

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OutputError, match="No space left on device"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_halfway_keeps_the_old_file_and_no_other(tmp_path, monkeypatch):
    target = tmp_path / "t.csv"
    target.write_bytes(b"old")

    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture
def unprivileged(tmp_path):
    """Run as a user whom permissions bind; root ignores them."""
    if os.geteuid() != 0:
        yield
        return
    os.chmod(tmp_path, 0o777)
    passable = stat.S_IXOTH | stat.S_IXGRP  # the user changes, the group stays
    opened = []
    for folder in tmp_path.parents:  # the base of tmp_path is private to its owner
        mode = folder.stat().st_mode
        if mode & passable != passable:
            opened.append((folder, mode))
            folder.chmod(mode | passable)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in opened:
            folder.chmod(mode)


def test_a_write_protected_file_is_refused_and_kept(tmp_path, unprivileged):
    target = tmp_path / "t.csv"
    target.write_bytes(b"old")
    target.chmod(0o444)
    for function in (check_writable, lambda path: write_atomically(path, b"new")):
        with pytest.raises(OutputError, match="Permission denied"):
            function(target)
    assert target.read_bytes() == b"old"


def test_a_write_protected_folder_is_refused(tmp_path, unprivileged):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    for function in (check_writable, lambda path: write_atomically(path, b"new")):
        with pytest.raises(OutputError, match="Permission denied"):
            function(folder / "t.csv")
