"""Maps that autograd differentiates to something else, or that change at each evaluation, are refused by name."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch

from howsmooth import InputError, local_lipschitz
from howsmooth.lipschitz.autodiff import captured_modules
from howsmooth.quantised import refuse_quantised
from tests.tolerances import assert_close

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def linear() -> torch.nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Linear(6, 6)


@pytest.fixture(scope="module")
def quantised():
    """A module with dynamically quantised products."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch names the successor of its quantisation
        return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(linear()).eval(), {torch.nn.Linear})


@pytest.mark.parametrize("wrap", ["module", "function", "residual"])
def test_quantised_products_are_refused(quantised, wrap):
    f = {"module": quantised, "function": lambda z: quantised(z), "residual": lambda z: z + quantised(z)}[wrap]
    with pytest.raises(InputError, match=r"a quantised one \((torch.ao.nn.quantized|quantized::).*derivative is zero"):
        local_lipschitz(f, X)


def test_quantised_activations_are_refused():
    with pytest.raises(InputError, match=r"quantised one \(aten::quantize_per_tensor\), whose derivative is zero"):
        local_lipschitz(lambda z: torch.quantize_per_tensor(z, 0.1, 0, torch.qint8).dequantize(), X)


@pytest.mark.parametrize(
    "name", ["Linear8bitLt", "Linear4bit", "QuantLinear", "WQLinear_GEMM", "FP8Linear", "BitLinear"]
)
def test_quantised_modules_of_other_packages_are_known_by_their_names(name):
    part = type(name, (torch.nn.Linear,), {})(6, 6)
    with pytest.raises(InputError, match=rf"{name} in 1\), whose derivative is zero"):
        local_lipschitz(torch.nn.Sequential(linear(), part), X)


def test_weights_of_eight_bits_are_refused():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"quantised"):
        refuse_quantised(module)


def test_what_is_prepared_for_quantisation_is_measured_as_it_is():
    stubs = torch.nn.Sequential(torch.ao.quantization.QuantStub(), linear(), torch.ao.quantization.DeQuantStub())
    value = local_lipschitz(stubs.eval(), X).value
    assert value == pytest.approx(float(torch.linalg.matrix_norm(stubs[1].weight.detach(), 2)), rel=1e-3)


def test_a_derivative_that_is_lost_is_not_zero():
    f = linear()
    with pytest.raises(InputError, match="derivative is zero although its output changes with x; look for detach"):
        local_lipschitz(lambda z: f(z.detach()), X)


@pytest.mark.parametrize(
    "f, x",
    [
        (lambda z: 0 * z + 3, X),
        (torch.relu, -X.abs()),
        (torch.round, torch.full((3, 3), 2.2)),
        (lambda z: z**2, torch.zeros(3, 3)),
        (lambda z: z**3, torch.zeros(3, 3)),
        (lambda z: z.softmax(-1).sum(-1), X[:4, :1]),
    ],
    ids=["constant", "relu", "round", "square", "cube", "sum of weights"],
)
def test_maps_whose_derivative_is_zero_have_the_constant_zero(f, x):
    assert local_lipschitz(f, x).upper == 0  # exact: every product is zero


def batch_norm() -> torch.nn.BatchNorm1d:
    return torch.nn.BatchNorm1d(6).train()


def spectral_norm() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.utils.parametrizations.spectral_norm(linear()).train()


class Holder:
    """An object that is a map, and holds its module in a container."""

    def __init__(self, module: torch.nn.Module):
        self.parts = {"first": [module]}

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        return self.parts["first"][0](z)


WRAPS = {
    "module": lambda module: module,
    "function": lambda module: lambda z: 2 * module(z),
    "partial": lambda module: functools.partial(module.forward),
    "object": Holder,
    "method": lambda module: Holder(module).__call__,
    "object in a closure": lambda module: (lambda held: lambda z: held.parts["first"][0](z))(Holder(module)),
}


@pytest.mark.parametrize("make, buffer", [(batch_norm, "running_mean of BatchNorm1d"), (spectral_norm, "_u of ")])
@pytest.mark.parametrize("wrap", WRAPS)
def test_maps_that_change_their_state_are_refused_and_left_as_they_were(make, buffer, wrap):
    module = make()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    f = WRAPS[wrap](module)
    with pytest.raises(InputError, match=rf"changes the buffer {buffer}.*\(it is in training mode\); call .eval\(\)"):
        local_lipschitz(f, X)
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])  # exact: restored
    module.eval()
    assert local_lipschitz(f, X).status == "converged"


def test_the_state_is_restored_after_an_error():
    module = batch_norm()

    def f(z):
        module(z)
        raise KeyError("later")

    with pytest.raises(KeyError, match="later"):
        local_lipschitz(f, X)
    assert not module.running_mean.any()


def test_statistics_of_the_input_alone_are_part_of_the_map():
    module = torch.nn.BatchNorm1d(6, track_running_stats=False).double()
    x = X.double()
    truth = torch.autograd.functional.jacobian(module, x).reshape(48, 48)
    assert local_lipschitz(module, x).value == pytest.approx(float(torch.linalg.matrix_norm(truth, 2)), rel=1e-3)


GLOBAL = linear()


def through_a_global(z):
    return GLOBAL(z)


def test_modules_that_a_function_uses():
    first, second = linear(), linear()
    assert {*captured_modules(lambda z, module=first: module(second(z)))} == {first, second}
    assert captured_modules(lambda z: through_a_global(z)) == [GLOBAL]
    assert captured_modules(lambda z: z.GLOBAL) == []  # an attribute, not the global
    layers = [first, second]
    assert {*captured_modules(lambda z: layers[0](z))} == {first, second}


@pytest.mark.parametrize("scale", [1e-170, 1e-200, 1e-300, 1e170])
def test_derivatives_whose_squares_underflow(scale):
    w = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = local_lipschitz(lambda z: scale * (z @ w), X.double())
    assert_close(found.value / scale, float(torch.linalg.matrix_norm(w, 2)), 1e-3)


def test_random_maps_are_refused_also_if_they_are_tiny():
    with pytest.raises(InputError, match="random"):
        local_lipschitz(lambda z: 1e-170 * torch.rand_like(z) * z, X.double())
