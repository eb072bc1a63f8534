"""Classes written for a sequential loop: unchanged on every backend, then proved equal to a port.

1. The old loop and `fedbench.legacy.run` at level L0 leave the same bits.
2. At level L1 the same classes have the same bits on every backend.
3. `fedbench verify` compares the old classes with the built-in algorithm that replaces them, after
   every round, bit for bit.

Run it with: python examples/migrating_plain_loop.py
"""

import copy
import dataclasses

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import fedbench
import fedbench.legacy
from fedbench import aggregation
from fedbench.reproducibility import digest, make_loader, python_random
from fedbench.verification import Candidate
from fedbench.workloads import load

WORKLOAD = dataclasses.replace(load("digits-logreg"), cohort_size=10, local_epochs=1)
DATA = WORKLOAD.dataset()

# -- the old code ------------------------------------------------------------------------------


class Client:
    """Trains the model that it received and sends the difference."""

    def __init__(self, client_id, samples, model):
        self.client_id, self.model = client_id, model
        self.data = TensorDataset(samples.inputs, samples.targets)
        self._received_messages = {}

    def loader(self):
        return DataLoader(self.data, WORKLOAD.batch_size, shuffle=True)

    def update(self):
        self.model.load_state_dict(self._received_messages["state"])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=WORKLOAD.lr)
        loader = self.loader()
        for _ in range(WORKLOAD.local_epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                functional.cross_entropy(self.model(inputs), targets).backward()
                optimizer.step()

    def communicate(self, server):
        sent = self._received_messages["state"]
        delta = {name: value - sent[name] for name, value in self.model.state_dict().items()}
        server._received_messages.append({"delta": delta, "samples": len(self.data)})


class Server:
    """Samples clients and moves by the mean of their differences, weighted by samples."""

    client_class = Client

    def __init__(self):
        self.model = WORKLOAD.model()
        self.n_iter, self._received_messages = 0, []
        self._clients = [
            self.client_class(client_id, DATA.client(position), copy.deepcopy(self.model))
            for position, client_id in enumerate(DATA.client_ids)
        ]

    def _sample_clients(self):
        return np.random.choice(len(self._clients), WORKLOAD.cohort_size, replace=False)

    def communicate(self, client):
        state = copy.deepcopy(self.model.state_dict())
        client._received_messages = {"state": state, "round": self.n_iter}

    def update(self):
        total = sum(message["samples"] for message in self._received_messages)
        for name, value in self.model.state_dict().items():
            for message in self._received_messages:
                value += message["delta"][name] * (message["samples"] / total)
        self._received_messages = []


def old_loop(server, rounds):
    for server.n_iter in range(rounds):
        for number in server._sample_clients():
            client = server._clients[number]
            server.communicate(client)
            client.update()
            client.communicate(server)
        server.update()


# -- 1 and 2: the same classes, unchanged ------------------------------------------------------


def seeded_server(server_class=Server):
    torch.manual_seed(0)
    np.random.seed(0)
    return server_class()


def compare_with_the_old_loop():
    plain = seeded_server()
    old_loop(plain, 2)
    hosted = seeded_server()
    fedbench.legacy.run(hosted, 2)
    if digest(fedbench.legacy.state_of(plain)) != digest(fedbench.legacy.state_of(hosted)):
        raise SystemExit("the old loop has other bits")
    print("L0: the bits of the old loop")


def compare_backends():
    digests = {}
    for backend, workers in [("sequential", None), ("threads", 2), ("processes", 1)]:
        server = seeded_server()
        fedbench.legacy.run(
            server, 2, executor=backend, workers=workers, seed=1, reproducibility="L1"
        )
        digests[backend] = digest(fedbench.legacy.state_of(server))
        print(f"L1: {backend:>10}: {digests[backend][:12]}")
    if len(set(digests.values())) != 1:
        raise SystemExit("the backends differ")


# -- 3: the port -------------------------------------------------------------------------------
# Two steps away from the old code, so that the streams and the mean are those of the port.


class KeyedClient(Client):
    def loader(self):
        index = self._received_messages["round"]
        return make_loader(self.data, WORKLOAD.batch_size, 0, self.client_id, index)


class KeyedServer(Server):
    client_class = KeyedClient

    def _sample_clients(self):
        select = python_random(0, "select", self.n_iter)
        return select.sample(range(len(self._clients)), WORKLOAD.cohort_size)

    def update(self):
        deltas = [message["delta"] for message in self._received_messages]
        weights = [message["samples"] for message in self._received_messages]
        mean = aggregation.mean(deltas, weights=weights)
        for name, value in self.model.state_dict().items():
            value += mean[name]
        self._received_messages = []


def keyed_loop():
    """What `fedbench verify --reference` takes: yields the model's state after each round."""
    server = KeyedServer()
    for index in range(100):
        fedbench.legacy.run(server, 1, first_round=index, reproducibility="L1")
        yield server.model.state_dict()


def verify_the_port():
    result = fedbench.verify(
        WORKLOAD,
        algorithm="fedavg",
        reference=keyed_loop,
        candidates=[Candidate("sequential"), Candidate("threads", 2)],
        rounds=2,
    )
    print(result.to_frame()[["backend", "compared", "identical"]].to_string(index=False))
    if not result.identical:
        raise SystemExit("\n".join(map(str, result.differences.values())))


if __name__ == "__main__":
    torch.set_num_threads(1)  # the quickest for models as small as this one
    compare_with_the_old_loop()
    compare_backends()
    verify_the_port()
