"""Small classes in the manner of the families of algorithms, with their typical habits."""

from __future__ import annotations

import copy

import numpy as np
import torch

from tests.legacy.base import Client, Message, Server, deep_model, linear_model


def zeros_like(values):
    return [torch.zeros_like(value) for value in values]


class AveragingServer(Server):
    """Averages whole models."""

    def update(self):
        share = 1.0 / len(self._received_messages)
        for own in self.model.parameters():
            own.data.mul_(0.0)
        for message in self._received_messages:
            self.add([value * share for value in message["parameters"]])


class AveragedClient(Client):
    """Sends its whole model."""

    def communicate(self, target):
        target._received_messages.append(
            Message(
                self.client_id,
                self.num_samples,
                self._metrics,
                parameters=self.get_detached_model_parameters(),
            )
        )


# -- a server optimizer whose second moment starts at random ---------------------------------------


class AdamServer(Server):
    def _post_init(self):
        self.m = zeros_like(self.get_detached_model_parameters())
        self.v = [1e-4 * torch.randint(1, 9, value.shape).float() for value in self.m]

    def update(self):
        share = 1.0 / len(self._received_messages)
        for i, (m, v) in enumerate(zip(self.m, self.v, strict=True)):
            delta = sum(
                message["delta_parameters"][i] * share for message in self._received_messages
            )
            m.mul_(0.9).add_(delta, alpha=0.1)
            v.mul_(0.99).add_(delta * delta, alpha=0.01)
        self.add([0.1 * m / (v.sqrt() + 1e-3) for m, v in zip(self.m, self.v, strict=True)])


# -- control variates that are committed when they are sent ----------------------------------------


class ScaffoldClient(Client):
    def _post_init(self):
        self._control = zeros_like(self.get_detached_model_parameters())

    def update(self):
        self._server_control = self._received_messages["control"]
        self._steps = 0
        super().update()

    def adjust_gradients(self):
        self._steps += 1
        for p, own, server in zip(
            self.model.parameters(), self._control, self._server_control, strict=True
        ):
            p.grad.add_(server - own)

    def communicate(self, target):
        rate = self.config.lr * self._steps
        new = [
            own - server + (old - now) / rate
            for own, server, old, now in zip(
                self._control,
                self._server_control,
                self._cached_parameters,
                self.get_detached_model_parameters(),
                strict=True,
            )
        ]
        change = [a - b for a, b in zip(new, self._control, strict=True)]
        self._control = new
        super().communicate(target)
        target._received_messages[-1]["control_delta"] = change


class ScaffoldServer(Server):
    client_class = ScaffoldClient

    def _post_init(self):
        self._control = zeros_like(self.get_detached_model_parameters())

    def communicate(self, target):
        super().communicate(target)
        target._received_messages["control"] = copy.deepcopy(self._control)

    def update(self):
        super().update()
        for message in self._received_messages:
            for own, change in zip(self._control, message["control_delta"], strict=True):
                own.add_(change / len(self._clients))


# -- a personal model beside the global one --------------------------------------------------------


class DittoClient(Client):
    def _post_init(self):
        self.model_per = copy.deepcopy(self.model)
        self.optimizer_per = torch.optim.SGD(self.model_per.parameters(), lr=0.1, momentum=0.3)
        self.scheduler_per = torch.optim.lr_scheduler.StepLR(self.optimizer_per, 2, gamma=0.5)

    def update(self):
        super().update()
        self.model_per.train()
        for inputs, targets in self.train_loader:
            self.optimizer_per.zero_grad()
            loss = self.criterion(self.model_per(inputs), targets)
            for own, center in zip(
                self.model_per.parameters(), self._cached_parameters, strict=True
            ):
                loss = loss + 0.25 * (own - center).pow(2).sum()
            loss.backward()
            self.optimizer_per.step()
        self.scheduler_per.step()


class DittoServer(Server):
    client_class = DittoClient


# -- one coin per round, drawn by the server in advance and read from the server's clock -----------


class ProxSkipClient(AveragedClient):
    def _post_init(self):
        self._h = zeros_like(self.get_detached_model_parameters())
        self.pattern = None

    def update(self):
        if "parameters" in self._received_messages:
            received = self._received_messages["parameters"]
            for h, new, own in zip(
                self._h, received, self.get_detached_model_parameters(), strict=True
            ):
                h.add_(new - own, alpha=0.5)
            self.set_parameters(received)
        self.train()

    def adjust_gradients(self):
        for p, h in zip(self.model.parameters(), self._h, strict=True):
            p.grad.sub_(h)

    def communicate(self, target):
        if self.pattern[target.n_iter]:
            super().communicate(target)


class ProxSkipServer(AveragingServer):
    client_class = ProxSkipClient

    def _post_init(self):
        pattern = np.random.random(16) < 0.6
        for client in self._clients:
            client.pattern = pattern  # one array for all
        self._fresh = True

    def communicate(self, target):
        target._received_messages = {}
        if self._fresh:
            super().communicate(target)

    def _update(self):
        self._fresh = bool(self._received_messages)
        super()._update()

    def aggregate_client_metrics(self):
        if self._received_messages:
            super().aggregate_client_metrics()


# -- duals, a coin of every client, and a message that is the client's live list -------------------


class FedPDClient(AveragedClient):
    def _post_init(self):
        self._dual = zeros_like(self.get_detached_model_parameters())
        self._consensus = self.get_detached_model_parameters()

    def update(self):
        if "parameters" in self._received_messages:
            self._consensus = copy.deepcopy(self._received_messages["parameters"])
        self.train()
        for dual, own, center in zip(
            self._dual, self.get_detached_model_parameters(), self._consensus, strict=True
        ):
            dual.add_(own - center, alpha=0.5)
        self._consensus = [
            own + 2.0 * dual
            for own, dual in zip(self.get_detached_model_parameters(), self._dual, strict=True)
        ]

    def adjust_gradients(self):
        for p, dual, center in zip(
            self.model.parameters(), self._dual, self._consensus, strict=True
        ):
            p.grad.add_(dual + 0.5 * (p.detach() - center))

    def communicate(self, target):
        if np.random.random() < 0.7:
            target._received_messages.append(
                Message(self.client_id, self.num_samples, self._metrics, parameters=self._consensus)
            )
        else:
            target._num_communications -= 1


class FedPDServer(AveragingServer):
    client_class = FedPDClient

    def _post_init(self):
        self._communicated = {client.client_id for client in self._clients}

    def communicate(self, target):
        target._received_messages = {}
        if target.client_id in self._communicated:
            super().communicate(target)

    def update(self):
        self._communicated = {message["client_id"] for message in self._received_messages}
        super().update()

    def aggregate_client_metrics(self):
        if self._received_messages:
            super().aggregate_client_metrics()


# -- a model for each cluster ----------------------------------------------------------------------


class IFCAClient(Client):
    def update(self):
        centers = self._received_messages["centers"]
        losses = {}
        for cluster, parameters in centers.items():
            self.set_parameters(parameters)
            losses[cluster] = self._loss()
        self.cluster = min(losses, key=lambda one: (losses[one], one))
        self._received_messages["parameters"] = centers[self.cluster]
        super().update()

    def _loss(self):
        with torch.no_grad():
            return sum(
                self.criterion(self.model(inputs), targets).item()
                for inputs, targets in self.train_loader
            )

    def communicate(self, target):
        super().communicate(target)
        target._received_messages[-1]["cluster"] = self.cluster


class IFCAServer(Server):
    client_class = IFCAClient

    def _post_init(self):
        start = self.get_detached_model_parameters()
        self._centers = {
            cluster: {"parameters": [v + 0.5 * torch.randn_like(v) for v in start], "members": []}
            for cluster in range(2)
        }

    def communicate(self, target):
        target._received_messages = {
            "centers": {c: copy.deepcopy(one["parameters"]) for c, one in self._centers.items()}
        }

    def update(self):
        for cluster, one in self._centers.items():
            chosen = [m for m in self._received_messages if m["cluster"] == cluster]
            one["members"] = [message["client_id"] for message in chosen]
            for message in chosen:
                for own, delta in zip(one["parameters"], message["delta_parameters"], strict=True):
                    own.add_(delta / len(chosen))


# -- memories that carry an autograd graph ---------------------------------------------------------


class FedDynClient(AveragedClient):
    def _post_init(self):
        self.memory = [torch.zeros_like(p, requires_grad=False) for p in self.model.parameters()]

    def update(self):
        center = self._received_messages["parameters"]
        self.set_parameters(center)
        self.train()
        self.memory = [
            g - 0.1 * (p - x)  # outside of no_grad: the graph stays
            for g, p, x in zip(self.memory, self.model.parameters(), center, strict=True)
        ]

    def adjust_gradients(self):
        for p, g in zip(self.model.parameters(), self.memory, strict=True):
            p.grad.sub_(g.detach())


class FedDynServer(AveragingServer):
    client_class = FedDynClient


# -- what the server keeps is the client's own list ------------------------------------------------


class FedDCClient(AveragedClient):
    def _post_init(self):
        self._drift = zeros_like(self.get_detached_model_parameters())

    def update(self):
        center = self._received_messages["parameters"]
        self.set_parameters(center)
        self.train()
        self._local_update = [
            own - old for own, old in zip(self.get_detached_model_parameters(), center, strict=True)
        ]
        for drift, step in zip(self._drift, self._local_update, strict=True):
            drift.add_(step, alpha=0.1)

    def communicate(self, target):
        super().communicate(target)
        target._received_messages[-1]["local_update"] = self._local_update


class FedDCServer(AveragingServer):
    client_class = FedDCClient

    def _post_init(self):
        self._updates = {}

    def update(self):
        super().update()
        for message in self._received_messages:
            self._updates[message["client_id"]] = message["local_update"]


# -- gradients that the server reads from the client -----------------------------------------------


class VarianceReducedServer(Server):
    def communicate(self, target):
        super().communicate(target)
        target._received_messages["gradients"] = [
            torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for p in target.model.parameters()
        ]


class VarianceReducedClient(Client):
    def update(self):
        self._buffer = self._received_messages["gradients"]
        super().update()

    def adjust_gradients(self):
        for p, g in zip(self.model.parameters(), self._buffer, strict=True):
            p.grad.sub_(g, alpha=0.1)


VarianceReducedServer.client_class = VarianceReducedClient


# -- noise that the server draws for each client, between the clients' own draws -------------------


class NoisyServer(Server):
    def communicate(self, target):
        super().communicate(target)
        for value in target._received_messages["parameters"]:
            value.add_(torch.randn_like(value), alpha=0.01)


FAMILIES = {
    "fedavg": (Server, linear_model),
    "fedavg with batch normalisation and dropout": (Server, deep_model),
    "fedopt": (AdamServer, linear_model),
    "scaffold": (ScaffoldServer, linear_model),
    "ditto": (DittoServer, deep_model),
    "proxskip": (ProxSkipServer, linear_model),
    "fedpd": (FedPDServer, linear_model),
    "ifca": (IFCAServer, linear_model),
    "feddyn": (FedDynServer, linear_model),
    "feddc": (FedDCServer, linear_model),
    "noisy broadcast": (NoisyServer, linear_model),
    "variance reduction": (VarianceReducedServer, linear_model),
}
