"""Tables of names: the one place where a backend, algorithm, workload or rule is announced.

An entry is text, ``"module:attribute"``, so that listing names imports nothing. A unit test
resolves every entry of every registry, so a typing error shows there and not at a user's.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedbench.errors import MissingExtraError, UnknownNameError

__all__ = [
    "DISTRIBUTION",
    "Entry",
    "Registry",
    "did_you_mean",
    "lazy_exports",
    "missing_extra",
    "own_code",
    "own_frame",
]

DISTRIBUTION = "fedbench-sim"
"""Name of the distribution that provides the package ``fedbench``."""

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """Where a registered object lives.

    Parameters
    ----------
    target : str
        ``"package.module:attribute"``.
    summary : str
        One line for ``fedbench list``.
    extra : str, optional
        The extra whose packages the module needs.
    """

    target: str
    summary: str
    extra: str | None = None


class Registry(Generic[T]):
    """An ordered table from names to lazily imported objects.

    Parameters
    ----------
    kind : str
        What the entries are, for messages: ``"backend"``, ``"algorithm"``, ...
    entries : mapping of str to Entry
        The table, in the order in which it is listed.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __repr__(self) -> str:
        return f"<Registry of {self.kind}: {', '.join(self._entries)}>"

    def names(self) -> tuple[str, ...]:
        """Return the names in table order."""
        return tuple(self._entries)

    def entry(self, name: str) -> Entry:
        """Return the entry of `name`; an ``UnknownNameError`` lists the known names."""
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            known = ", ".join(repr(key) for key in self._entries)
            raise UnknownNameError(
                f"{self.kind} must be one of {known}, got {name!r}."
                f"{did_you_mean(name, self._entries)}"
            ) from None

    def load(self, name: str) -> T:
        """Import and return the object registered as `name`.

        Raises
        ------
        UnknownNameError
            If no entry has this name.
        MissingExtraError
            If the entry's module needs a package that is not installed or cannot be imported.
        """
        entry = self.entry(name)
        module_name, _, attribute = entry.target.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if entry.extra is None or (error.name or "").startswith("fedbench"):
                raise
            raise missing_extra(f"{self.kind} {name!r}", error.name, entry.extra) from error
        except ImportError as error:
            if entry.extra is None or (error.name or "").startswith("fedbench"):
                raise
            raise _broken_extra(f"{self.kind} {name!r}", error, entry.extra) from error
        loaded: T = getattr(module, attribute)
        return loaded


def did_you_mean(word: object, known: Iterable[object], cutoff: float = 0.6) -> str:
    """Return the end of a message about an unknown `word`: `` Did you mean 'fedavg'?``, or nothing.

    Parameters
    ----------
    word : object
        What was given.
    known : iterable
        What there is.
    cutoff : float
        How alike two words must be, from 0 to 1.
    """
    # Capitals are no difference: `l1` means 'L1'.
    spelt = {str(name).casefold(): str(name) for name in known}
    close = difflib.get_close_matches(str(word).casefold(), spelt, n=1, cutoff=cutoff)
    return f" Did you mean {spelt[close[0]]!r}?" if close else ""


def own_code(kind: str, target: str) -> Any:
    """Return what ``module:attribute`` stands for, in code of the user's own.

    The module is looked for in the current folder too.

    Raises
    ------
    ValueError
        If there is no such module or attribute, or the module raises when it is imported; `kind`
        names the argument.
    MissingExtraError
        If the module needs an extra of fedbench that is not installed.
    """
    module_name, _, attribute = target.partition(":")
    if "/" in module_name or not (module_name and attribute):
        raise ValueError(_not_a_module(kind, target))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except MissingExtraError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing == module_name and module_name.endswith(".py"):
            raise ValueError(_not_a_module(kind, target)) from error
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise ValueError(
                f"{kind} must be a name of `fedbench list` or MODULE:NAME of a module that can be "
                f"imported, got {target!r}: {error}."
            ) from error
        reason = " ".join(_message_of(error).split()).rstrip(".")
        raise ValueError(
            f"{kind} must be MODULE:NAME of a module that can be imported, got {target!r}: "
            f"{module_name!r} raised {type(error).__name__}: {reason}{_place_of(error)}."
        ) from error
    if not hasattr(module, attribute):
        raise ValueError(
            f"{kind} must be MODULE:NAME, got {target!r}: the module has no {attribute!r}."
            f"{did_you_mean(attribute, vars(module))}"
        )
    return getattr(module, attribute)


def _not_a_module(kind: str, target: str) -> str:
    """Return the sentence about a file, or half a name, where ``MODULE:NAME`` belongs."""
    file, _, attribute = target.partition(":")
    folder, _, name = file.rpartition("/")
    name = name.removesuffix(".py")
    if not (name and attribute):
        return f"{kind} must be MODULE:NAME, got {target!r}. Give both, the module first."
    where = "" if folder in ("", ".") else f" in the folder {folder!r}"
    return (
        f"{kind} must be MODULE:NAME, got {target!r} with a file in place of the module. "
        f"Write {name}:{attribute}, without .py, and run it{where or ' where the file is'}."
    )


def own_frame(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int, str]:
    """Return the innermost of some frames (file, line, function) that is the user's own code.

    That is not of this package, of Python's library or of installed packages; where there is no
    such frame it is the innermost of all.
    """
    paths = sysconfig.get_paths()
    foreign = [str(Path(__file__).parent), *(paths[name] for name in ("stdlib", "purelib"))]
    own = [frame for frame in frames if not any(_within(frame[0], folder) for folder in foreign)]
    return (own or frames)[-1]


def _within(file: str, folder: str) -> bool:
    return file.startswith(("<frozen", f"{folder}/"))


def _message_of(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)


def _place_of(error: BaseException) -> str:
    """Return ``" (FILE:LINE)"`` of the user's code that cannot be imported."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    file, line, _ = own_frame([(frame.filename, frame.lineno or 0, "") for frame in frames])
    return "" if file.startswith("<frozen") else f" ({file}:{line})"


def missing_extra(what: str, package: str | None, extra: str) -> MissingExtraError:
    """Return the error that tells how to install the packages of `extra`."""
    return MissingExtraError(
        f"{what} needs the package {package!r}, which is not installed. "
        f"Install it in the checkout of fedbench with: "
        f"pip install -c constraints.txt -e '.[{extra}]'.",
        name=package,
    )


def _broken_extra(what: str, error: ImportError, extra: str) -> MissingExtraError:
    """Return the error that tells how to mend the installed packages of `extra`."""
    reason = " ".join(str(error).split()).rstrip(".")
    return MissingExtraError(
        f"{what} needs the packages of the extra {extra!r}, which cannot be imported: {reason}. "
        f"Install the versions that fit in the checkout of fedbench with: "
        f"pip install -c constraints.txt -e '.[{extra}]'.",
        name=error.name,
    )


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` that imports a name's module when it is first used.

    Parameters
    ----------
    package : str
        Name of the package.
    modules : mapping of str to str
        Module inside the package by exported name.
    """

    def export(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return export
