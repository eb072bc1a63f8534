"""A backend of your own: an executor that finishes tasks in a random order.

It runs everything in the calling thread, takes as many tasks as there is room for, and completes
them in an order that differs from run to run. That makes it a hard test for an algorithm: whoever
depends on the order of arrival gets other bits on it.

Run it with: python examples/own_executor.py
"""

import random

import fedbench
from fedbench.executors import Executor
from fedbench.executors.ambient import intraop_scope
from fedbench.executors.guard import Guarded, isolate
from fedbench.executors.runner import TaskRunner


class ShufflingExecutor(Executor):
    """Completes up to `workers` waiting tasks in random order."""

    backend = "shuffling"

    def _start_workers(self):
        self._waiting = []
        self._runner = None

    def _stop_workers(self):
        self._waiting = []
        self._runner = None

    def _begin(self, job):
        # No task may change what the caller or another task sees of the broadcast.
        broadcast = Guarded(isolate(job.broadcast)) if job.has_broadcast else None
        self._runner = TaskRunner(job.task, broadcast)

    def _room(self):
        return self.workers - len(self._waiting)

    def _submit(self, tickets):
        self._waiting.extend(tickets)

    def _completed(self):
        ticket = self._waiting.pop(random.SystemRandom().randrange(len(self._waiting)))
        with intraop_scope(self.intraop_threads):
            return [self._runner.run(ticket.index, isolate(ticket.item))]

    def _end(self, ending):
        self._waiting = []
        self._runner = None
        return ()


def main() -> None:
    digests = set()
    arrivals = []
    with ShufflingExecutor(workers=8) as executor:
        executor.map(abs, range(8), on_result=lambda index, _: arrivals.append(index))
        simulation = fedbench.Simulation("digits-logreg", executor=executor)
        simulation.run(rounds=2)
        digests.add(simulation.state_digest())
    with fedbench.Simulation("digits-logreg") as simulation:
        simulation.run(rounds=2)
        digests.add(simulation.state_digest())

    print(f"tasks arrived in the order {arrivals}")
    if len(digests) != 1:
        raise SystemExit("the order of arrival changed the result")
    print("and gave the bits of the sequential backend")


if __name__ == "__main__":
    main()
