"""The plain hand-written loop in a process of its own.

Simulations change what the allocator of their process does (freed memory is kept), which a loop
beside them would profit from.
"""

import multiprocessing

import cloudpickle
import torch

from fedbench.peers.plain import PlainLoop


class PlainProcess:
    """Runs rounds of the plain loop with one intra-op thread; use it in a ``with`` statement.

    Parameters
    ----------
    workload : Workload
        The first clients of it are trained, as many as its cohort has.
    """

    def __init__(self, workload):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, cloudpickle.dumps(workload)), daemon=True
        )
        self._process.start()
        other.close()
        self._pipe.recv()

    def run_round(self):
        """Run a round there and return when it is done."""
        self._pipe.send("round")
        self._pipe.recv()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._pipe.close()
        self._process.join()


def _serve(pipe, workload):
    torch.set_num_threads(1)
    loop = PlainLoop(cloudpickle.loads(workload))
    cohort = range(loop.workload.cohort_size)
    pipe.send("ready")
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        loop.run_round(cohort)
        pipe.send("done")
