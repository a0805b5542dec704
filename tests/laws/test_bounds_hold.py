"""No bound is ever on the wrong side, tried on thousands of inputs, drawn and optimised."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from howsmooth import SelfAttention
from howsmooth.attention import reference
from howsmooth.bounds import LayerForm, Refused, every, this_project, two_points, yudin2025
from tests.attention.cases import LAYERS, normal

ROUNDING = 1e-9  # of a logarithm
D = 3
seeds = st.integers(0, 100_000)
kinds = st.sampled_from([name for name in LAYERS if name != "bias table"])
plain = st.sampled_from(["one head", "two heads", "causal", "grouped", "one key head", "scale"])
radii = st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0])
many = settings(max_examples=250, deadline=None, derandomize=True)
some = settings(max_examples=40, deadline=None, derandomize=True)


def drawn(name: str, seed: int) -> SelfAttention:
    """A layer with weights of several sizes, with or without biases and output projection."""
    options = LAYERS[name]
    h, hkv, k, w = options["heads"], options.get("kv_heads", options["heads"]), 4, 2
    sizes = [0.3, 1.0, 2.0][seed % 3]
    weights = [sizes * normal(seed, h * k, D), normal(seed + 1, hkv * k, D), normal(seed + 2, hkv * w, D)]
    biases = dict(bq=normal(seed + 4, h * k), bk=3 * normal(seed + 5, hkv * k)) if seed % 2 else {}
    return SelfAttention(*weights, normal(seed + 3, 4, h * w) if seed % 5 else None, **biases, **options)


def tokens(seed: int, count: int, n: int, radius: float) -> torch.Tensor:
    """Inputs (count, n, d) in the ball: on the sphere, inside, on few points, on a line."""
    x = normal(seed, count, n, D)
    x = x / x.norm(dim=-1, keepdim=True)
    few = x[:, torch.arange(n) % 2]
    line = x[:, :1] * normal(seed + 1, count, n, 1).clamp(-1, 1)
    kind = torch.arange(count).view(-1, 1, 1) % 4
    inside = x * torch.rand(count, n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return radius * torch.where(kind == 0, x, torch.where(kind == 1, inside, torch.where(kind == 2, few, line)))


def steepness(f: SelfAttention, x: torch.Tensor) -> torch.Tensor:
    """‖D_X f‖ at each input (count, n, d), from dense matrices."""
    return torch.stack([torch.linalg.matrix_norm(reference.jacobian(f, each), 2) for each in x])


def ascended(f: SelfAttention, x: torch.Tensor, radius: float, steps: int = 12) -> torch.Tensor:
    """Inputs steeper than these, by gradient ascent on the dense norm within the ball."""
    def map_(each):
        q, k, v = f.project(each)
        o = reference.forward(q, k, v, **f.pattern()).transpose(-3, -2).flatten(-2)
        return o if f.wo is None else o @ f.wo.T

    def norm(each):
        return torch.linalg.matrix_norm(torch.func.jacrev(map_)(each).reshape(-1, each.numel()), 2)

    gradient = torch.func.vmap(torch.func.grad(norm))
    for step in range(steps):
        slope = gradient(x).nan_to_num()
        slope = slope / slope.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        x = x + radius * 0.3 * (1 - step / steps) * slope
        x = x * (radius / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)).clamp(max=1)
    return x


def assert_not_passed(f: SelfAttention, n: int, radius: float, sigma: float) -> None:
    for bound in every(f, n, radius):
        if not isinstance(bound, Refused) and bound.side == "upper":
            assert math.log(sigma) <= bound.log_value + ROUNDING, bound


@many
@given(kinds, seeds, st.integers(1, 7), radii)
def test_no_upper_bound_is_passed(name, seed, n, radius):
    f, x = drawn(name, seed), tokens(seed, 12, n, radius)
    sigma = steepness(f, x)
    assert_not_passed(f, n, radius, float(sigma.max()))
    form = LayerForm(f)
    for each, value in zip(x[:4], sigma[:4], strict=True):
        assert math.log(value) <= this_project.local(form, each).log_value + ROUNDING


@some
@given(kinds, seeds, st.integers(2, 6), radii)
def test_no_upper_bound_is_passed_by_an_attack(name, seed, n, radius):
    f = drawn(name, seed)
    x = ascended(f, tokens(seed, 6, n, radius), radius)
    sigma = steepness(f, x)
    assert_not_passed(f, n, radius, float(sigma.max()))
    for each, value in zip(x, sigma, strict=True):
        assert math.log(value) <= this_project.local(f, each).log_value + ROUNDING


@many
@given(st.booleans(), seeds, st.integers(1, 7), radii)
def test_the_local_bound_is_never_above_that_of_yudin(causal, seed, n, radius):
    f = SelfAttention(normal(seed, 4, D), normal(seed + 1, 4, D), normal(seed + 2, 3, D), causal=causal)
    for x in tokens(seed, 4, n, radius):
        ours, theirs = this_project.local(f, x).log_value, yudin2025.local(f, x).log_value
        assert math.log(steepness(f, x[None])[0]) - ROUNDING <= ours <= theirs + ROUNDING


@many
@given(plain, seeds, st.integers(2, 12), radii, st.booleans())
def test_no_lower_bound_is_above_what_its_tokens_reach(name, seed, n, radius, refine):
    f = drawn(name, seed)
    y, z = two_points(f, n, radius, refine and seed % 10 == 0)
    assert max(float(y.norm()), float(z.norm())) <= radius * (1 + 1e-12)
    sigma = float(steepness(f, torch.cat([y[None], z.expand(n - 1, D)])[None])[0])
    bound = this_project.two_point_lower(f, n, radius, refine and seed % 10 == 0)
    assert bound.log_value <= math.log(sigma) + ROUNDING


@many
@given(plain, seeds, st.integers(2, 300), radii)
def test_no_lower_bound_is_above_an_upper_one(name, seed, n, radius):
    found = [bound for bound in every(drawn(name, seed), n, radius) if not isinstance(bound, Refused)]
    # What is stated for the supremum over n is compared with what holds for all n; what is asymptotic, with nothing.
    lower = [b for b in found if b.side == "lower" and b.holds == "on B_R^n"]
    upper = [b for b in found if b.side == "upper"]
    assert lower and upper
    assert max(b.log_value for b in lower) <= min(b.log_value for b in upper) + ROUNDING
    sup = [b.log_value for b in found if b.name == "this_project.two_dirac_lower"]
    assert max(sup, default=-math.inf) <= min(b.log_value for b in upper if b.holds == "for all n") + ROUNDING
