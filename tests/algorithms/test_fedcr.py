"""FedCR: the shared encoder, the local heads, and the distributions of the classes."""

import dataclasses
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

import fedbench
from fedbench.algorithms import Updates
from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.fedcr import FedCR, StochasticHead
from tests.simulation.helpers import (
    NUM_CLIENTS,
    batch_norm_model,
    keyed_init,
    plain_model,
    tiny_workload,
)

MODELS = pytest.mark.parametrize("model", [plain_model, batch_norm_model])


def simulation_of(algorithm, model=plain_model, workload=None, **options):
    changes = workload or {}
    return fedbench.Simulation(tiny_workload(model, **changes), algorithm=algorithm, **options)


def run(algorithm, rounds=3, model=plain_model, workload=None, **options):
    simulation = simulation_of(algorithm, model, workload, seed=6, **options)
    simulation.run(rounds)
    return simulation


def personal_state_dict(simulation, client_id):
    """Return a client's own model by name."""
    model = simulation._side.value.worker_model()
    model.load(simulation.algorithm.personal_model(simulation.client_states[client_id]))
    return model.state_dict()


@dataclasses.dataclass(frozen=True)
class FedPer(FedAvg):
    """Federated averaging of everything but the heads, written independently of FedCR."""

    stateful = True

    def adapt_model(self, module, loss):
        return FedCR().adapt_model(module, loss)

    def train(self, client, down):
        start = down["model"].clone()
        client.model.load(start)
        named = dict(client.model.module.named_parameters())
        with torch.no_grad():
            for name, kept in client.state.items():
                named[name].copy_(kept)
        client.outgoing["start"] = client.model.state()
        loss = client.train(client.outgoing["start"])
        client.state.update(
            {name: p.detach().clone() for name, p in named.items() if ".head." in name}
        )
        return {"loss": loss}

    def uplink(self, client, down):
        delta = client.delta(client.outgoing["start"])
        views = client.model.layout.views(delta)
        for name, view in zip(client.model.layout.names, views, strict=True):
            if ".head." in name:
                view.zero_()
        return client.update(delta=delta)


@MODELS
def test_without_divergence_and_noise_it_is_fedper(model):
    ours = run(FedCR(beta=0.0, samples=0), model=model)
    reference = run(FedPer(weighting="uniform"), model=model)
    left, right = ours.model_state(), reference.model_state()
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
    assert ours.client_states.keys() == reference.client_states.keys()
    for client_id, heads in reference.client_states.items():
        own = personal_state_dict(ours, client_id)
        assert heads
        for name, head in heads.items():
            assert torch.equal(own[name], head)


@dataclasses.dataclass(frozen=True)
class WrongClasses(FedCR):
    """Broadcasts distributions that have nothing to do with the clients."""

    def broadcast(self, server, plan):
        means, deviations = super().broadcast(server, plan)["prior"]
        return {"model": server.model, "prior": (means + 3.0, deviations * 0.5)}


@pytest.mark.parametrize(("beta", "is_same"), [(0.0, True), (0.1, False)])
@pytest.mark.parametrize("divergence", ["prior-encoder", "encoder-prior"])
def test_the_classes_matter_to_the_encoder_exactly_if_beta_is_not_zero(beta, is_same, divergence):
    options = {"beta": beta, "samples": 2, "divergence": divergence}
    left, right = run(FedCR(**options), 1), run(WrongClasses(**options), 1)
    assert torch.equal(left.server.model.parameters, right.server.model.parameters) is is_same


def test_the_noise_does_not_depend_on_beta():
    def first_features(beta):
        seen = {}

        def watch(client):
            head = next(m for m in client.model.module.modules() if isinstance(m, StochasticHead))

            def note(module, inputs):
                seen.setdefault(client.client_id, inputs[0].detach().clone())

            # The worker's model is used again; only the first features of a client are kept.
            handles.append(head.head.register_forward_pre_hook(note))

        handles = []
        run(FedCR(beta=beta, samples=3), 1, around_client=watch)
        for handle in handles:
            handle.remove()
        return seen

    calm, pulled = first_features(0.0), first_features(0.7)
    assert calm.keys() == pulled.keys()
    for client_id, features in calm.items():
        assert torch.equal(features, pulled[client_id])
    draws = {tuple(features.flatten().tolist()) for features in calm.values()}
    assert len(draws) == len(calm), "clients draw from their own streams"


def test_heads_are_never_sent():
    sent = []
    simulation = simulation_of(
        FedCR(), observer=lambda phase, client, state: phase == "uplink" and sent.append(state)
    )
    before = simulation.model_state()
    simulation.run(3)
    mask = simulation.server.extra["local"]
    numel = simulation.server.model.parameters.numel()
    assert 0 < int(mask.sum()) < numel
    for tensors in sent:
        assert set(tensors) == {"delta", "precisions", "weighted_means"}
        assert tensors["delta"].shape == (numel - int(mask.sum()),)
    after = simulation.model_state()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ".head." not in name}
    heads = [personal_state_dict(simulation, c)["2.head.weight"] for c in simulation.client_states]
    assert len({tuple(head.flatten().tolist()) for head in heads}) == len(heads)


def test_a_class_of_nobody_is_standard_normal():
    # Client 0 has four samples; one round of it alone leaves a class out.
    simulation = run(FedCR(), 1, workload={"cohort_size": 1})
    cohort = simulation.history.records[0].cohort
    targets = simulation.dataset.client(simulation.dataset.client_ids.index(cohort[0])).targets
    absent = sorted(set(range(3)) - set(targets.tolist()))
    present = sorted(set(targets.tolist()))
    extra = simulation.server.extra
    assert torch.equal(extra["means"][absent], torch.zeros_like(extra["means"][absent]))
    assert torch.equal(extra["deviations"][absent], torch.ones_like(extra["means"][absent]))
    assert (extra["deviations"][present] < 1.0).all()


@dataclasses.dataclass
class Sent:
    """Updates of a round, recorded."""

    updates: list


def recorded(algorithm, **workload):
    """Return a simulation after one round, its updates, and the server state before it."""
    kept = Sent([])

    class Recording(type(algorithm)):
        def aggregate(self, server, updates):
            kept.updates = list(updates)
            kept.server = server
            return super().aggregate(server, updates)

        def reduction(self, server):
            return None

    options = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}
    simulation = run(Recording(**options), 1, workload=workload)
    return simulation, kept


def test_one_expert_is_shrunk_by_the_standard_normal():
    simulation, kept = recorded(FedCR(), cohort_size=1)
    ((_, update),) = kept.updates
    precision, weighted = update.tensors["precisions"], update.tensors["weighted_means"]
    seen = precision[:, 0] > 0
    mean, variance = weighted[seen] / precision[seen], 1.0 / precision[seen]
    extra = simulation.server.extra
    assert torch.allclose(extra["means"][seen], mean / (1.0 + variance), rtol=1e-5)
    assert torch.allclose(extra["deviations"][seen] ** 2, variance / (1.0 + variance), rtol=1e-5)


def test_the_product_of_experts_is_the_normalised_product_of_the_densities():
    simulation, kept = recorded(FedCR(), cohort_size=NUM_CLIENTS)
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    label = 1
    for dimension in range(3):
        density = -0.5 * grid**2
        for _, update in kept.updates:
            precision = update.tensors["precisions"][label, dimension].double()
            if precision:
                mean = update.tensors["weighted_means"][label, dimension].double() / precision
                density = density - 0.5 * precision * (grid - mean) ** 2
        weights = torch.softmax(density, 0)
        mean = (weights * grid).sum()
        variance = (weights * (grid - mean) ** 2).sum()
        extra = simulation.server.extra
        assert extra["means"][label, dimension].item() == pytest.approx(mean.item(), abs=1e-4)
        assert extra["deviations"][label, dimension].item() == pytest.approx(
            variance.sqrt().item(), rel=1e-2
        )


def test_the_order_of_the_experts_does_not_show():
    _, kept = recorded(FedCR(), cohort_size=NUM_CLIENTS)

    def aggregate(pairs):
        updates = Updates([client for client, _ in pairs], [update for _, update in pairs])
        return FedCR().aggregate(kept.server, updates).extra

    forward, backward = aggregate(kept.updates), aggregate(kept.updates[::-1])
    assert all(torch.equal(forward[name], backward[name]) for name in forward)


def test_a_client_sends_the_product_over_its_samples_of_the_last_epoch():
    # One full batch, so that the encoder of the only step is the initial one.
    work = {"cohort_size": 1, "local_epochs": 1, "batch_size": 100}
    simulation, kept = recorded(FedCR(), **work)
    model, data = initial_model(simulation)
    features = model[1](model[0](data.inputs))
    mean, spread = model[2].latent(features).chunk(2, dim=-1)
    precision = F.softplus(spread) ** -2
    ((_, update),) = kept.updates
    for label in range(3):
        rows = data.targets == label
        expected = precision[rows].sum(0), (precision * mean)[rows].sum(0)
        for name, value in zip(("precisions", "weighted_means"), expected, strict=True):
            assert torch.allclose(update.tensors[name][label], value, rtol=1e-4, atol=1e-4)


def initial_model(simulation):
    """Return the model before the first round, and the data of the only client of that round."""
    fresh = simulation_of(FedCR(), workload={"cohort_size": 1}, seed=6)
    worker = fresh._side.value.worker_model()
    worker.load(fresh.server.model)
    (client,) = simulation.history.records[0].cohort
    position = simulation.dataset.client_ids.index(client)
    return worker.module.requires_grad_(False), simulation.dataset.client(position)


@pytest.mark.parametrize("divergence", ["prior-encoder", "encoder-prior"])
def test_the_loss_has_beta_times_the_divergence(divergence):
    work = {"cohort_size": 1, "local_epochs": 1, "batch_size": 100}
    losses = [
        run(FedCR(beta=beta, samples=0, divergence=divergence), 1, workload=work)
        for beta in (0.0, 1.0)
    ]
    plain, whole = (s.history.last("train", "loss") for s in losses)
    model, data = initial_model(losses[0])
    features = model[1](model[0](data.inputs))
    mean, spread = model[2].latent(features).chunk(2, dim=-1)
    encoder, prior = Normal(mean, F.softplus(spread)), Normal(0.0, 1.0)
    if divergence == "prior-encoder":
        expected = kl_divergence(prior, encoder)
    else:
        expected = kl_divergence(encoder, prior)
    assert whole - plain == pytest.approx(expected.sum(1).mean().item(), rel=1e-4)
    assert plain == pytest.approx(
        F.cross_entropy(model[2].head(mean), data.targets).item(), rel=1e-5
    )


def test_the_moving_average_keeps_a_part_of_the_old_entries():
    renewed, mixed = run(FedCR(), 1).server.extra, run(FedCR(ema=0.25), 1).server.extra
    assert torch.allclose(mixed["means"], 0.75 * renewed["means"])
    assert torch.allclose(mixed["deviations"], 0.25 + 0.75 * renewed["deviations"])


def test_predictions_draw_nothing():
    simulation = run(FedCR(samples=4), 1)
    model = simulation._side.value.worker_model()
    state = simulation.algorithm.personal_model(next(iter(simulation.client_states.values())))
    model.load(state)
    inputs = simulation.dataset.test_inputs
    assert torch.equal(model.module(inputs), model.module(inputs))
    assert "test" not in simulation.evaluate()


class Tied(nn.Module):
    """Its head is its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 13)
        self.last = nn.Linear(13, 13)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x))


def convolution(seed=0):
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 13)), nn.Conv1d(1, 3, 13), nn.Flatten())


def tied(seed=0):
    return keyed_init(Tied(), seed)


@pytest.mark.parametrize(
    ("algorithm", "model", "workload", "message"),
    [
        (FedCR(), plain_model, {"loss": "mse"}, "fedcr must be given a classification loss"),
        (FedCR(), convolution, {}, "head must be the name of a linear layer .* It has none"),
        (FedCR(head="1"), plain_model, {}, "got '1'. It has '0', '2'"),
        (FedCR(), tied, {}, "head must not share parameters .* got 'first.weight' in both"),
    ],
)
def test_models_that_do_not_fit_are_refused(algorithm, model, workload, message):
    with pytest.raises(ValueError, match=message):
        simulation_of(algorithm, model, workload)


def test_another_layer_may_be_the_head():
    simulation = run(FedCR(head="0"), 1)
    assert any(name.startswith("0.head.") for name in simulation.model_state())


def test_a_single_linear_layer_may_be_the_model():
    module = FedCR().adapt_model(nn.Linear(4, 3), types.SimpleNamespace(score_name="accuracy"))
    assert isinstance(module, StochasticHead)
    assert module(torch.ones(2, 4)).shape == (2, 3)
