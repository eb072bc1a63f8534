"""Times candidates in turns, so that a busy machine slows all of them alike."""

import statistics
import time


def interleaved(candidates, repeats, calls=1):
    """Return the seconds of a call of each candidate, by name, one number per repeat.

    Every repeat times every candidate once, in order. A first repeat warms up and is dropped; where
    one is asked for, to see that the benchmark runs, it is the only one.

    Parameters
    ----------
    candidates : dict of str to callable
        What to time.
    repeats : int
        How often.
    calls : int, default 1
        How many calls are timed together. With more than one, what takes microseconds is timed with
        its data in the caches, whichever candidate ran before.
    """
    seconds = {name: [] for name in candidates}
    warm_ups = 1 if repeats > 1 else 0
    for _ in range(warm_ups + repeats):
        for name, run in candidates.items():
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            seconds[name].append((time.perf_counter() - begin) / calls)
    return {name: values[warm_ups:] for name, values in seconds.items()}


def ratios(seconds, reference):
    """Return how many times longer each candidate takes than `reference`: medians over repeats."""
    return {
        name: statistics.median(
            value / base for value, base in zip(values, seconds[reference], strict=True)
        )
        for name, values in seconds.items()
    }


def table(title, seconds, reference, per=1, unit=1e6):
    """Return lines that show medians (by default in microseconds) and ratios."""
    relative = ratios(seconds, reference)
    lines = [title]
    for name, values in seconds.items():
        lines.append(
            f"  {name:44s} {statistics.median(values) / per * unit:12.1f}"
            f"   {relative[name]:7.2f} x {reference}"
        )
    return "\n".join(lines)
