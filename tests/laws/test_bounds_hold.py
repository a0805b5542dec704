"""Upper bounds are above and lower bounds below the norms of thousands of random and optimised inputs."""

import math
from contextlib import suppress

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from howsmooth import SelfAttention
from howsmooth.attack.configurations import castin
from howsmooth.attention import reference
from howsmooth.attention.argmax import argmax_keys
from howsmooth.bounds import (
    EVERY,
    LOCAL_BOUNDS,
    LayerForm,
    Refused,
    castin2024,
    every,
    this_project,
    two_points,
    yudin2025,
)
from tests.attention.cases import LAYERS, normal
from tests.tolerances import at_most

ROUNDING = 1e-9  # of a logarithm
D = 3
seeds = st.integers(0, 100_000)
# Lower bounds in print ask for V = s·I.
KINDS = LAYERS | {"V = sI": dict(heads=1), "V = sI, causal": dict(heads=1, causal=True)}
kinds = st.sampled_from(list(KINDS))
plain = st.sampled_from(
    ["one head", "two heads", "causal", "grouped", "one key head", "scale", "V = sI", "V = sI, causal"]
)
radii = st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0])
many = settings(max_examples=150)
some = settings(max_examples=40)


def drawn(name: str, seed: int, n: int) -> SelfAttention:
    """A layer with weights of several sizes, with or without biases and output projection."""
    options = KINDS[name] | (dict(score_bias=normal(seed + 6, 2, n, n)) if name == "bias table" else {})
    h, hkv, k, w = options["heads"], options.get("kv_heads", options["heads"]), 4, 2
    sizes = [0.3, 1.0, 2.0][seed % 3]
    weights = [sizes * normal(seed, h * k, D), normal(seed + 1, hkv * k, D), normal(seed + 2, hkv * w, D)]
    if name.startswith("V = sI"):
        return SelfAttention(*weights[:2], -sizes * torch.eye(D).double(), **options)
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
    """Inputs with larger norms than these, by gradient ascent on the dense norm within the ball."""

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


NAMES = {f"{bound.__module__.rpartition('.')[2]}.{bound.__name__}" for bound in EVERY}
LOWER = {name for name in NAMES if name.endswith("_lower") or name.endswith(".lower")}


def passed_by_none(f: SelfAttention, x: torch.Tensor, radius: float) -> set[str]:
    """Compare bounds on the ball with the largest norm of these inputs, and bounds at X with each; return their names.

    The limit far out says nothing here; it has a law of its own.
    """
    sigma, form = steepness(f, x), LayerForm(f)
    found = [(bound, sigma.max()) for bound in every(form, x.shape[1], radius)]
    for each, value in zip(x, sigma, strict=True):
        for local in LOCAL_BOUNDS:
            with suppress(Refused):
                found.append((local(form, each), value))
    found = [(bound, value) for bound, value in found if not isinstance(bound, Refused) and bound.side == "upper"]
    for bound, value in found:
        assert at_most(math.log(value), bound.log_value + ROUNDING), bound
    return {bound.name for bound, _ in found}


def test_no_input_exceeds_an_upper_bound():
    tried = set()

    @many
    @given(kinds, seeds, st.integers(1, 7), radii)
    def law(name, seed, n, radius):
        f, x = drawn(name, seed, n), tokens(seed, 12, n, radius)
        x = x[steepness(f, x).argsort(descending=True)[:4]]
        tried.update(passed_by_none(f, x, radius))

    law()
    assert tried == NAMES - LOWER - {"castin2024.large_radius"}


def test_no_attack_exceeds_an_upper_bound():
    tried = set()

    @some
    @given(kinds, seeds, st.integers(2, 6), radii)
    def law(name, seed, n, radius):
        f = drawn(name, seed, n)
        tried.update(passed_by_none(f, ascended(f, tokens(seed, 6, n, radius), radius), radius))

    law()
    assert tried == NAMES - LOWER - {"castin2024.large_radius"}


@some
@given(st.booleans(), seeds, st.integers(1, 7))
def test_norm_of_large_tokens_is_that_of_the_limit(causal, seed, n):
    f, x = drawn("V = sI, causal" if causal else "V = sI", seed, n), normal(seed + 7, n, D)
    gap = argmax_keys(f, x).gap
    far = x if gap == math.inf else math.sqrt(200 / gap) * x
    sigma = float(steepness(f, far[None])[0])
    assert abs(math.log(sigma) - castin2024.large_radius(f, x).log_value) <= ROUNDING


@many
@given(st.booleans(), seeds, st.integers(1, 7), radii)
def test_the_local_bound_is_never_above_that_of_yudin(causal, seed, n, radius):
    f = SelfAttention(normal(seed, 4, D), normal(seed + 1, 4, D), normal(seed + 2, 3, D), causal=causal)
    for x in tokens(seed, 4, n, radius):
        ours, theirs = this_project.local(f, x).log_value, yudin2025.local(f, x).log_value
        assert at_most(math.log(steepness(f, x[None])[0]) - ROUNDING, ours, theirs + ROUNDING)


@many
@given(plain, seeds, st.integers(2, 12), radii, st.booleans())
def test_lower_bounds_are_attained_by_their_tokens(name, seed, n, radius, refine):
    f = drawn(name, seed, n)
    y, z = two_points(f, n, radius, refine and seed % 10 == 0)
    assert at_most(max(float(y.norm()), float(z.norm())), radius)
    sigma = float(steepness(f, torch.cat([y[None], z.expand(n - 1, D)])[None])[0])
    bound = this_project.two_point_lower(f, n, radius, refine and seed % 10 == 0)
    assert at_most(bound.log_value, math.log(sigma) + ROUNDING)


def test_no_lower_bound_is_above_an_upper_one():
    tried = set()

    @many
    @given(plain, seeds, st.integers(2, 300), radii)
    def law(name, seed, n, radius):
        found = [bound for bound in every(drawn(name, seed, n), n, radius) if not isinstance(bound, Refused)]
        lower, upper = ([b for b in found if b.side == side] for side in ("lower", "upper"))
        for low in lower:
            # A supremum over n is compared with what holds for all n; at this n it may be above what is said of it.
            above = [b.log_value for b in upper if b.holds == "for all n" or low.holds == "on B_R^n"]
            assert at_most(low.log_value, min(above) + ROUNDING), low
        assert lower and upper
        tried.update(b.name for b in lower)

    law()
    assert tried == LOWER


@many
@given(st.booleans(), seeds, st.integers(2, 40), radii)
def test_lower_bound_of_theorem_1_is_attained_by_its_tokens(causal, seed, n, radius):
    f = drawn("V = sI, causal" if causal else "V = sI", seed, n)
    sigma = float(steepness(f, castin(f, n, radius).tokens[None])[0])
    assert at_most(castin2024.theorem1_lower(f, n, radius).log_value, math.log(sigma) + ROUNDING)
