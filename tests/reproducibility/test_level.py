"""The ladder has two rungs, and says why it has no third."""

import pytest

from fedbench.reproducibility import Level, check_level, level_or_default


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


def test_the_environment_replaces_the_default(monkeypatch):
    monkeypatch.delenv("FEDBENCH_REPRODUCIBILITY", raising=False)
    assert level_or_default(None) is Level.L1
    monkeypatch.setenv("FEDBENCH_REPRODUCIBILITY", "L0")
    assert level_or_default(None) is Level.L0
    assert level_or_default("L1") is Level.L1


def test_a_wrong_level_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("FEDBENCH_REPRODUCIBILITY", "L2")
    with pytest.raises(ValueError, match=r"FEDBENCH_REPRODUCIBILITY.*Use reproducibility='L1'"):
        level_or_default(None)


def test_a_simulation_takes_the_level_of_the_environment(monkeypatch):
    from fedbench import Simulation

    monkeypatch.setenv("FEDBENCH_REPRODUCIBILITY", "L0")
    assert Simulation("digits-logreg").level is Level.L0
    assert Simulation("digits-logreg", reproducibility="L1").level is Level.L1
