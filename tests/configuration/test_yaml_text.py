"""Plain values as in YAML 1.2, lines of keys, and a dump that reads back."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbench.configuration.yaml_text import dump, parse_document, parse_value
from fedbench.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5", 1.5),
        (".5", 0.5),
        ("010", 10),
        ("-3", -3),
        ("no", "no"),
        ("off", "off"),
        ("true", True),
        ("null", None),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        (".inf", math.inf),
        ("fedprox", "fedprox"),
        ("my_module:train", "my_module:train"),
        ("{name: fedprox, mu: 0.1}", {"name": "fedprox", "mu": 0.1}),
        ("[0, 1]", [0, 1]),
        ("", None),
    ],
)
def test_plain_values(text, value):
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_the_line_of_every_key_is_known():
    document = parse_document("a: 1\nb:\n  c: [1,\n      2]\n")
    assert document.lines[("a",)] == 1
    assert document.lines[("b", "c")] == 3
    assert document.lines[("b", "c", 1)] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"line 3: the key 'a' .* on line 1"),
        ("a: [1\nb: 2", "line 2: not YAML"),
        ("a: !!python/object:os.system {}", "line 1: not YAML"),
        ("? [1, 2]\n: 3", "line 1: a key must be plain text"),
        ("a: \x00", "not YAML"),
        ("a: 1\n---\nb: 2", "line 2: not YAML"),
    ],
)
def test_what_cannot_be_read_names_the_line(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_document(text)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
@example("\x85")
@example("a\u2028b\n\tc ")
@example({"a: b": "1e3", "no": "- x", "~": "null"})
def test_a_dump_reads_back_equal(value):
    found = parse_value(dump(value))
    assert found == value
    assert repr(found) == repr(value)  # 1 is not 1.0, 0.0 is not -0.0
