"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from fedbench.errors import OutputError

__all__ = ["check_writable", "write_atomically"]


def check_writable(path: str | Path) -> None:
    """Find out early whether `path` can be written, without leaving a trace.

    A measurement takes minutes; a wrong ``--out`` should not be found at its end.

    Raises
    ------
    OutputError
        If the target is a folder or write-protected, or its folder takes no new files.
    """
    try:
        target = _resolve(path)
        if _is_special(target):
            return
        folder = target.parent
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _output_error(path, error) from None


def write_atomically(path: str | Path, content: bytes) -> None:
    """Replace `path` by `content`, or leave it as it is.

    The content goes to a temporary file in the same folder, which then takes the target's place;
    readers see the old file or the new one. Missing folders are made. Links are followed. Devices
    and pipes (``/dev/stdout``) are written to directly, as they cannot be replaced.

    Raises
    ------
    OutputError
        If anything fails; the temporary file is gone and the old file is untouched.
    """
    try:
        target = _resolve(path)
        if _is_special(target):
            with target.open("wb") as stream:
                stream.write(content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except OSError as error:
        raise _output_error(path, error) from None


def _resolve(path: str | Path) -> Path:
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if target.exists() and not os.access(
        target, os.W_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        # A rename would succeed and ignore the protection.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # /dev/stdout is a link to something that has no path of its own: devices stay unresolved.
    return target if _is_special(target) else Path(os.path.realpath(target))


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file()


def _replace(target: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            # Without this a crash of the machine may leave an empty file after the rename.
            os.fsync(stream.fileno())
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """Return the permissions of the old file, or those that a new one gets."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _output_error(path: str | Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"cannot write {str(path)!r}: {reason}. Choose another file with --out.")
