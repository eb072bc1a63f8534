"""Robust aggregation of this package inside a Flower strategy.

`robust_average` takes and returns what a strategy handles: one dict of arrays per client. It needs
numpy alone. `robust_strategy` puts it into Flower's ``FedAvg`` and needs the extra ``flower``.

Run it with: python examples/flower_strategy.py
"""

import importlib.util
from types import SimpleNamespace

import numpy as np

from fedbench import aggregation


def robust_average(
    states: list[dict[str, np.ndarray]], num_trimmed: int = 1
) -> dict[str, np.ndarray]:
    """Return the trimmed mean of the clients' states: the extremes of each entry are left out."""
    return aggregation.trimmed_mean(states, num_trimmed=num_trimmed)


def robust_strategy(num_trimmed: int = 1, **options):
    """Return a Flower strategy that averages with `robust_average`."""
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    class RobustFedAvg(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            arrays, metrics = super().aggregate_train(server_round, replies)
            states = [
                {name: array.numpy() for name, array in message.content["arrays"].items()}
                for message in replies
                if not message.has_error()
            ]
            if arrays is not None and len(states) > 2 * num_trimmed:
                robust = robust_average(states, num_trimmed)
                arrays = ArrayRecord({name: Array(value) for name, value in robust.items()})
            return arrays, metrics

    return RobustFedAvg(**options)


def main() -> None:
    honest = [{"weight": np.full(3, value, np.float32)} for value in (0.9, 1.0, 1.1)]
    attacker = {"weight": np.full(3, 1e6, np.float32)}
    updates = [*honest, attacker]
    print("mean:        ", aggregation.mean(updates)["weight"])
    print("trimmed mean:", robust_average(updates)["weight"])

    if importlib.util.find_spec("flwr") is None:
        print("Flower is not installed; with the extra `flower`, pass robust_strategy() to it")
        return
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

    strategy = robust_strategy(num_trimmed=1)
    replies = [  # what a strategy looks at in the messages of the clients
        SimpleNamespace(
            has_error=lambda: False,
            content=RecordDict(
                {
                    "arrays": ArrayRecord(list(update.values())),
                    "metrics": MetricRecord({"num-examples": 10}),
                }
            ),
        )
        for update in updates
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    print("in Flower:   ", arrays.to_numpy_ndarrays()[0])


if __name__ == "__main__":
    main()
