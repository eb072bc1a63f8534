"""Tasks, items and reducers that several test files use."""

import dataclasses
import time

import torch


def square(item):
    return item * item


def sleep_and_return(item):
    delay, value = item
    time.sleep(delay)
    return value


class TwoArgumentError(Exception):
    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")
        self.left = left


class SlowToUnpack:
    """A task that imports something large, say."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __setstate__(self, state):
        time.sleep(state["seconds"])

    def __call__(self, item):
        return item


@dataclasses.dataclass
class Order:
    client_id: int
    data: torch.Tensor | None = None


def fail_at_three(item):
    if item == 3:
        raise ZeroDivisionError("three")
    return item


class ExactSum:
    """A sum of integers: order cannot matter."""

    order_independent = True

    def __init__(self, total=0, count=0):
        self.total, self.count = total, count

    def empty(self):
        return ExactSum()

    def add(self, value, weight=1):
        self.total += value * weight
        self.count += 1

    def merge(self, other):
        self.total += other.total
        self.count += other.count


def contribute(item):
    return (item, 2), f"report {item}"
