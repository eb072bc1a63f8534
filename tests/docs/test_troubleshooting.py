"""Every error that the package raises has its section and its message on the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbench import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / errors.TROUBLESHOOTING).read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^### (\w+)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
}
FILLED_IN = "\0"


def documented_messages(name: str) -> list[re.Pattern[str]]:
    """Return the messages in the table of a section; ``...`` is what the message fills in."""
    found = re.findall(r"^\| `([^`]+)` \|", SECTIONS[name], re.MULTILINE)
    return [re.compile(".*".join(map(re.escape, text.split("...")))) for text in found]


def text_of(node: ast.expr) -> str:
    """Return the words of a message as far as the source has them."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return FILLED_IN


def raised() -> Iterator[tuple[str, str, str]]:
    """Yield class, place and words of every error of ``fedbench.errors`` in the package."""
    for path in sorted((ROOT / "fedbench").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            function = node.func
            name = function.id if isinstance(function, ast.Name) else ""
            words = text_of(node.args[0])
            # Messages that are put together elsewhere have no words of their own here.
            if name in errors.__all__ and re.search(r"\w{3}", words):
                yield name, f"{path.relative_to(ROOT)}:{node.lineno}", words


@pytest.mark.parametrize("name", errors.__all__)
def test_every_class_has_a_section_that_its_help_names(name: str) -> None:
    assert name in SECTIONS
    section = re.search(r"#(\w+)$", vars(errors)[name].help.fget(_blank(name)))
    assert section is not None
    assert section[1] == name.lower()


def _blank(name: str) -> errors.FedbenchError:
    kind: type[errors.FedbenchError] = vars(errors)[name]
    return kind.__new__(kind)


def test_sections_are_of_classes_that_exist() -> None:
    assert set(SECTIONS) == set(errors.__all__)


# What these say is made of the case at hand; their sections have the general remedy.
GENERAL = {"ClientTaskError", "DataFormatError", "VectorizationError"}


def test_every_message_is_on_the_page() -> None:
    unknown = [
        f"{place}: {name}: {words.replace(FILLED_IN, '...')}"
        for name, place, words in raised()
        if name not in GENERAL
        and not any(message.search(words) for message in documented_messages(name))
    ]
    assert not unknown


def test_the_page_has_no_message_that_is_not_raised() -> None:
    everything = list(raised())
    gone = [
        f"{name}: {message.pattern}"
        for name in SECTIONS
        for message in documented_messages(name)
        if not any(message.search(words) for kind, _, words in everything if kind == name)
    ]
    # Put together by functions that return the words.
    assert set(gone) == {
        "EnclosureError: must\\ draw\\ from\\ their\\ own\\ generators",
        "NestedExecutorError: by\\ server\\ code,\\ got\\ a\\ call\\ inside\\ a\\ client\\ task",
    }


def test_the_help_stays_out_of_the_message_and_survives_pickling() -> None:
    import pickle

    error = errors.LayoutError("the message")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "the message"
        assert one.__notes__ == [f"Help: {errors.TROUBLESHOOTING}#layouterror"]


def test_a_class_of_another_package_is_helped_by_the_page_on_its_base() -> None:
    class OwnError(errors.ResourceError):
        pass

    assert OwnError("x").help.endswith("#resourceerror")
