"""The sequential loop that the classes were written for, and the same with keyed generators."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import torch

from fedbench.reproducibility import generator_scope


def seed_everything(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def sequential_loop(server, rounds, first_round=0):
    """The loop of such code, as it stands in its own server class."""
    every = server.config.eval_every
    for server.n_iter in range(first_round, first_round + rounds):
        evaluates = server.n_iter > 0 and (server.n_iter + 1) % every == 0
        for number in server._sample_clients():
            client = server._clients[number]
            server._communicate(client)
            if evaluates:
                for part in server.dataset.data_parts:
                    client.evaluate(part)
            client._update()
            client._communicate(server)
        if evaluates:
            server.aggregate_client_metrics()
        server._update()


def keyed_loop(server, rounds, seed):
    """The same, with all broadcasts first and generators of everybody's own."""
    every = server.config.eval_every
    for server.n_iter in range(rounds):
        t = server.n_iter
        evaluates = t > 0 and (t + 1) % every == 0
        with generator_scope(seed, "server", "sample", t):
            chosen = [server._clients[number] for number in server._sample_clients()]
        for client in chosen:
            with generator_scope(seed, "server", "communicate", t, client.client_id):
                server._communicate(client)
        for client in chosen:
            for part in server.dataset.data_parts if evaluates else ():
                with generator_scope(seed, client.client_id, t, "evaluate", part), kept(client):
                    client.evaluate(part)
            with generator_scope(seed, client.client_id, t):
                client._update()
                client._communicate(server)
        with generator_scope(seed, "server", "update", t):
            if evaluates:
                server.aggregate_client_metrics()
            server._update()


@contextlib.contextmanager
def kept(client):
    """Restore the mode that an evaluation leaves."""
    modules = [m for v in vars(client).values() if isinstance(v, torch.nn.Module) for m in [v]]
    before = [(part, part.training) for module in modules for part in module.modules()]
    yield
    for part, training in before:
        part.training = training


def local_loop(server, rounds):
    for server.n_iter in range(rounds):
        for client in server._clients:
            client.train()
            if server.n_iter > 0 and (server.n_iter + 1) % server.config.eval_every == 0:
                for part in server.dataset.data_parts:
                    client.evaluate(part)
