"""The ladder has two rungs, and says why it has no third."""

import pytest

from fedbench.reproducibility import Level, check_level


@pytest.mark.parametrize("name", ["L0", "L1"])
def test_rungs(name):
    level = check_level(name)
    assert level is Level(name)
    assert level == name
    assert check_level(level) is level


def test_l2_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="global random stream") as info:
        check_level("L2")
    message = str(info.value)
    assert "one after the other" in message
    assert "recorded" in message
    assert "reproducibility='L1'" in message


@pytest.mark.parametrize("name", ["l1", "L3", "", "bitwise"])
def test_unknown_rungs(name):
    with pytest.raises(ValueError, match=rf"must be 'L0' or 'L1', got '{name}'"):
        check_level(name)


def test_other_types():
    with pytest.raises(TypeError, match="got 1 of type int"):
        check_level(1)
