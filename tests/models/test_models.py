"""Models: sizes against the papers, initialisation by seed, no global generator touched."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import pytest
import torch
from torch import nn

from fedbench.models import MODELS, initialized
from fedbench.models.text import _Transformer

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(0, 80, (3, 20), generator=torch.Generator().manual_seed(0))

# name: arguments, options, input, output shape, parameters and where the number comes from
CASES = {
    "linear_regression": ((60,), {}, torch.rand(3, 60), (3,), 61),
    "logistic_regression": ((784, 10), {}, torch.rand(3, 1, 28, 28), (3, 10), 7850),
    # McMahan et al. (2017): 199,210 parameters of the "2NN"
    "mlp": ((784, 10), {}, torch.rand(3, 1, 28, 28), (3, 10), 199_210),
    # McMahan et al. (2017): 1,663,370 parameters of the CNN
    "fedavg_cnn": ((), {}, torch.rand(3, 1, 28, 28), (3, 10), 1_663_370),
    # 6*76 + 16*151 + 120*401 + 84*121 + 10*85
    "cifar_cnn": ((), {}, IMAGES, (3, 10), 62_006),
    # 11.17 million is the number that the literature gives for the CIFAR stem
    "resnet18": ((), {}, IMAGES, (3, 10), 11_173_962),
    # Reddi et al. (2021): 820,522 with 90 characters; torch has a second bias per LSTM layer
    "char_lstm": ((90,), {}, TOKENS, (3, 90), 820_522 + 2 * 4 * 256),
    "char_transformer": ((), {}, TOKENS, (3, 80), 160 * 64 + 2 * (12 * 64**2 + 13 * 64) + 128),
}


def build(name, **options):
    arguments, defaults, *_ = CASES[name]
    return MODELS.load(name)(*arguments, **defaults, **options)


def num_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_model_has_a_case():
    assert set(CASES) == set(MODELS)


@pytest.mark.parametrize("name", CASES)
def test_size_and_shapes(name):
    *_, inputs, shape, count = CASES[name]
    model = build(name)
    assert num_parameters(model) == count
    assert model.training
    outputs = model(inputs)
    assert outputs.shape == shape
    outputs.sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None, key


def test_sizes_of_the_other_variants():
    resnet18 = MODELS.load("resnet18")
    with_batch_norm = resnet18(norm="batch")
    assert num_parameters(with_batch_norm) == 11_173_962
    assert sum(key.endswith("running_mean") for key in with_batch_norm.state_dict()) == 20
    # torchvision's ResNet-18: 11,689,512 parameters
    assert num_parameters(resnet18(1000, stem="imagenet", norm="batch")) == 11_689_512
    assert resnet18(stem="imagenet")(IMAGES).shape == (3, 10)
    # FedAvg's CNN with EMNIST's 62 classes, as LEAF and Reddi et al. (2021) size it: 1,690,046
    assert num_parameters(MODELS.load("fedavg_cnn")(num_classes=62)) == 1_690_046


def test_the_transformer_with_the_sizes_of_gpt2_has_its_parameters():
    with torch.device("meta"):
        assert num_parameters(_Transformer(50257, 1024, 768, 12, 12)) == 124_439_808


def test_the_transformer_is_causal_and_knows_positions():
    model = build("char_transformer").eval()
    hidden = {}
    model.blocks.register_forward_hook(lambda *call: hidden.update(value=call[2]))
    model(TOKENS)
    before = hidden["value"]
    changed = TOKENS.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 80
    model(changed)
    assert torch.allclose(before[:, :10], hidden["value"][:, :10])
    assert not torch.allclose(before[:, 10:], hidden["value"][:, 10:])
    assert not torch.allclose(model(TOKENS), model(TOKENS.flip(1)))


@pytest.mark.parametrize("name", CASES)
def test_parameters_depend_on_the_seed_alone(name):
    torch.manual_seed(1)
    first = build(name, seed=3).state_dict()
    torch.manual_seed(2)
    second = build(name, seed=3).state_dict()
    other = build(name, seed=4).state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", CASES)
def test_the_global_generator_does_not_move(name):
    before = torch.get_rng_state()
    build(name)
    assert torch.equal(before, torch.get_rng_state())


def test_models_built_in_threads_are_equal():
    built = []
    threads = [
        threading.Thread(target=lambda: built.append(build("mlp", seed=5))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = build("mlp", seed=5).state_dict()
    assert len(built) == 4
    for model in built:
        state = model.state_dict()
        assert all(torch.equal(state[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", CASES)
def test_models_are_copied_and_pickled(name):
    model = build(name).eval()
    inputs = CASES[name][2]
    with torch.no_grad():
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(inputs), model(inputs))


@pytest.mark.parametrize("name", ["mlp", "fedavg_cnn", "cifar_cnn", "resnet18", "char_lstm"])
def test_initial_parameters_are_distributed_as_torch_does_it(name):
    """Compare with torch's own constructors: same bounds and spread for every tensor."""
    ours = build(name)
    theirs = copy.deepcopy(ours)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for layer in theirs.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    for key, mine in ours.state_dict().items():
        yours = theirs.state_dict()[key]
        if mine.numel() < 400 or not mine.is_floating_point():
            continue
        assert math.isclose(mine.std(), yours.std(), rel_tol=0.15, abs_tol=1e-6), key
        assert math.isclose(mine.mean(), yours.mean(), abs_tol=0.2 * yours.std() + 1e-6), key
        if "embedding" not in key:
            assert mine.abs().max() <= yours.abs().max() * 1.05, key


def test_any_layer_is_drawn_from_the_seed():
    def build_own(seed):
        return initialized(lambda: nn.Sequential(nn.Bilinear(2, 2, 3), nn.PReLU()), seed=seed)

    first, again, other = (build_own(seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("mlp", (64, 0), {}, "integers >= 1, got 0"),
        ("mlp", (64, 10), {"hidden": (5, 2.0)}, "integers >= 1, got 2.0"),
        ("fedavg_cnn", (1, 3), {}, "image_size must be an integer >= 4, got 3"),
        ("resnet18", (), {"norm": "layer"}, "norm must be one of 'group', 'batch', got 'layer'"),
        ("resnet18", (), {"stem": "x"}, "stem must be one of 'cifar', 'imagenet', got 'x'"),
        ("char_transformer", (), {"width": 30}, "multiple of heads \\(4\\), got 30"),
    ],
)
def test_wrong_sizes_are_refused_by_name(name, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        MODELS.load(name)(*arguments, **options)
