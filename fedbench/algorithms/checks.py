"""Hyperparameters: each is declared with its range, which is checked for all algorithms here."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

__all__ = [
    "WEIGHTINGS",
    "Weighting",
    "check_declared",
    "check_hyperparameters",
    "hyperparameter",
]

Weighting = Literal["samples", "uniform"]

WEIGHTINGS: tuple[Weighting, ...] = ("samples", "uniform")
"""Weigh each update by its client's number of samples, or all alike."""

_RULE = "fedbench-rule"


@dataclass(frozen=True)
class _Rule:
    """What a hyperparameter may be. `low` and `high` belong to the range, the others do not."""

    low: float | None
    above: float | None
    high: float | None
    below: float | None
    choices: tuple[str, ...]


def hyperparameter(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """Return a dataclass field for a hyperparameter that is checked when an algorithm is made.

    Parameters
    ----------
    default : bool, int, float or str
        Its default; the kind of the default is the kind of value that is accepted.
    low, high : float, optional
        Bounds that belong to the range of a number.
    above, below : float, optional
        Bounds that do not.
    choices : sequence of str, optional
        All values that are accepted.
    """
    rule = _Rule(low, above, high, below, tuple(choices))
    return dataclasses.field(default=default, metadata={_RULE: rule})


def check_declared(kind: type) -> None:
    """Raise ``TypeError`` if a class of `kind`'s line declares fields and is no dataclass itself.

    They would be no hyperparameters: nobody could pass them, and no digest would know them.
    """
    for owner in kind.__mro__:
        if "__dataclass_fields__" in vars(owner):
            continue
        for name, annotation in inspect.get_annotations(owner).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                raise TypeError(
                    f"{owner.__name__} must be a dataclass to have the hyperparameter {name!r}, "
                    f"got a class without the decorator. Put @dataclass(frozen=True) above it."
                )


def check_hyperparameters(algorithm: Any) -> None:
    """Raise unless every field that :func:`hyperparameter` declared is in its range.

    Raises
    ------
    TypeError
        If a value is of the wrong kind.
    ValueError
        If a value is not in its range.
    """
    for field in dataclasses.fields(algorithm):
        rule: _Rule | None = field.metadata.get(_RULE)
        if rule is not None:
            _check(field.name, getattr(algorithm, field.name), field.default, rule)


def _check(name: str, value: Any, default: Any, rule: _Rule) -> None:
    given = f"got {value!r}. The default is {default!r}."
    if rule.choices:
        if not isinstance(value, str) or value not in rule.choices:
            known = ", ".join(map(repr, rule.choices))
            raise ValueError(f"{name} must be one of {known}, {given}")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, {given}")
    else:
        kind: Any = int if isinstance(default, int) else Real
        if not isinstance(value, kind) or isinstance(value, bool):
            needed = "an integer" if kind is int else "a number"
            raise TypeError(f"{name} must be {needed}, {given}")
        ranges = [
            (rule.low, ">=", rule.low is None or value >= rule.low),
            (rule.above, ">", rule.above is None or value > rule.above),
            (rule.high, "<=", rule.high is None or value <= rule.high),
            (rule.below, "<", rule.below is None or value < rule.below),
        ]
        if not math.isfinite(value) or not all(holds for _, _, holds in ranges):
            needs = [f"{sign} {bound:g}" for bound, sign, _ in ranges if bound is not None]
            if kind is Real:
                needs.insert(0, "finite")
            raise ValueError(f"{name} must be {' and '.join(needs)}, {given}")
