"""An algorithm of your own, on two backends, checked by the bitwise harness.

Every client trains as in federated averaging. The server keeps a velocity and moves along it, and
each client remembers how often it took part.

Run it with: python examples/own_algorithm.py
"""

from dataclasses import dataclass

import torch

import fedbench
from fedbench.algorithms import Algorithm
from fedbench.verification import Candidate


@dataclass(frozen=True)
class ServerVelocity(Algorithm):
    """Federated averaging with a heavy ball on the server."""

    stateful = True  # clients keep something between rounds

    momentum: float = 0.5

    def init_server(self, setup):
        velocity = torch.zeros_like(setup.model.parameters)
        return super().init_server(setup).keeping(velocity=velocity)

    def init_client(self, model):
        return {"participations": 0}

    def train(self, client, down):
        client.state["participations"] += 1
        return {"loss": client.train(down["model"])}

    def aggregate(self, server, updates):
        velocity = self.momentum * server.extra["velocity"] + updates.mean("delta")
        moved = server.moved(velocity, updates.mean_buffers(server))
        return moved.keeping(velocity=velocity)


def main() -> None:
    algorithm = ServerVelocity(momentum=0.5)
    with fedbench.Simulation("digits-logreg", algorithm=algorithm) as simulation:
        history = simulation.run(rounds=5, evaluate_every=5)
    print(f"accuracy {history.last('test', 'accuracy'):.3f}")

    result = fedbench.verify(
        "digits-logreg",
        algorithm=algorithm,
        candidates=[Candidate("threads", 2, delays=True)],
        rounds=2,
    )
    print(result.to_frame()[["backend", "workers", "compared", "identical"]].to_string(index=False))
    if not result.identical:
        raise SystemExit("the backends differ")


if __name__ == "__main__":
    main()
