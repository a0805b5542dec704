"""Gradient ascent: monotone, within the constraint set, and as good as brute force on small problems."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from howsmooth import InputError, SelfAttention
from howsmooth.attack import Ball, Ellipsoid, Near, Sphere, ascend
from howsmooth.attack.ascent import CERTIFICATE_SEED_OFFSET, certify_consistently
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.weighted import WeightedAttention
from howsmooth.spectral.products import solver_generator
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import at_most, close, less


def scalar(sign: float, **options) -> SelfAttention:
    """A layer of width 1 with A = sign and V = 1."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return SelfAttention(sign * one, one, one, scale=1.0, **options)


def largest(J) -> torch.Tensor:
    return torch.linalg.matrix_norm(J.dense(), 2)


def grid(n: int, radius: float, points: int) -> torch.Tensor:
    """All configurations of n scalar tokens on a grid, (…, n, 1)."""
    line = torch.linspace(-radius, radius, points, dtype=torch.float64)
    return torch.cartesian_prod(*[line] * n).reshape(-1, n, 1)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "constraint",
    [Ball(1.0), Sphere(1.0), Ellipsoid(Normalisation(normal(1, 6), normal(2, 6))), Near(normal(3, 4, 6), 0.3)],
    ids=lambda c: type(c).__name__,
)
def test_values_increase_and_tokens_stay_in_the_set(name, constraint):
    f = layer(name)
    x = constraint.decode(constraint.draw((3, 4, 6), torch.Generator().manual_seed(4)))
    found = ascend(f, x, constraint, steps=12)
    x = constraint.decode(constraint.project(constraint.encode(x)))
    assert torch.allclose(found.start, largest(f.jacobian(x)), rtol=1e-3)
    assert (found.path.diff(dim=0) >= 0).all() and found.path.shape == (found.steps + 1, 3)
    assert at_most(found.values.max(), found.value) and less(found.start.max(), found.values.max() * (1 - 1e-12))
    assert constraint.contains(found.x, 1e-12)
    truth = float(largest(f.jacobian(found.x)))
    assert at_most(found.value, truth)
    assert at_most(found.estimate.lower, truth, found.estimate.upper) and found.estimate.dtype == torch.float64


@pytest.mark.parametrize("sign, causal, n", list(itertools.product((1.0, -1.0), (False, True), (2, 3))))
def test_as_good_as_brute_force(sign, causal, n):
    f, radius = scalar(sign, causal=causal), 2.0
    every = grid(n, radius, 41)
    best = float(largest(f.jacobian(every)).max())
    starts = Ball(radius).draw((24, n, 1), torch.Generator().manual_seed(0))
    found = ascend(f, starts, Ball(radius), steps=150)
    assert at_most(best, found.value, best * 1.02)  # the resolution of the grid


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_masses_are_as_good_as_brute_force(sign):
    """Two atoms at fixed points, where one number is searched over; then with the points free as well."""
    f, radius = scalar(sign), 1.5
    atoms = WeightedAttention(f)
    logit = torch.linspace(-12, 12, 481, dtype=torch.float64)
    log_weights = torch.stack([torch.zeros_like(logit), logit], -1)
    x = torch.tensor([[1.5], [-0.4]], dtype=torch.float64)
    best = float(largest(atoms.jacobian(x.expand(481, 2, 1), log_weights)).max())
    masses = torch.tensor([[10.0, 1.0], [1.0, 1.0], [1.0, 10.0]], dtype=torch.float64)  # there are two maxima
    found = ascend(f, x.expand(3, 2, 1), Ball(radius), move="masses", masses=masses, steps=150)
    assert at_most(best, found.value, tol=1e-9) and at_most(found.value, best * 1.001)
    assert torch.equal(found.x, x)  # exact: positions that are not moved are copied
    assert math.isclose(found.masses.sum(), 1.0)

    points = grid(2, radius, 31)
    every = points.repeat_interleave(61, 0), log_weights[::8].repeat(len(points), 1)
    best = float(largest(atoms.jacobian(*every)).max())
    found = ascend(
        f, Ball(radius).draw((16, 2, 1), torch.Generator().manual_seed(0)), Ball(radius), move="both", steps=150
    )
    assert at_most(best, found.value, best * 1.02)
    assert at_most(found.estimate.lower, found.value, found.estimate.upper)
    assert found.estimate.radius == pytest.approx(found.x.abs().max())


def test_given_masses_stay_fixed_when_only_positions_move():
    f, x = layer("two heads"), normal(5, 2, 3, 6)
    masses = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    found = ascend(f, x, Ball(2.0), masses=masses, steps=10)
    best = int(found.values.argmax())
    assert torch.allclose(found.masses, masses[best])
    truth = largest(WeightedAttention(f).jacobian(found.x, masses[best].log()))
    assert found.value == pytest.approx(float(truth), rel=1e-3) and at_most(found.value, truth)
    equal = ascend(f, x, Ball(2.0), masses=torch.ones(3), steps=0)
    assert torch.allclose(equal.start, ascend(f, x, Ball(2.0), steps=0).start, rtol=2e-3)


def test_zero_steps_return_the_start():
    f, x = layer("causal"), 0.3 * normal(5, 4, 6)
    found = ascend(f, x, Ball(2.0), steps=0)
    assert close(found.x, x) and found.steps == 0
    assert at_most(found.start.max(), found.value)


def test_it_leaves_a_saddle():
    """All tokens at the origin: the gradient is zero by symmetry, and the constant is minimal."""
    f = scalar(1.0)
    assert (
        not f.jacobian(torch.zeros(1, 6, 1, dtype=torch.float64))
        .gradient(torch.ones(1, 6, dtype=torch.float64), torch.ones(1, 6, dtype=torch.float64))
        .any()
    )
    found = ascend(f, torch.zeros(6, 1, dtype=torch.float64), Ball(2.0), steps=100)
    assert found.start == pytest.approx(1.0) and found.value > 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_leaves_a_flat_region(sign):
    """Softmax is so saturated that the gradient is rounding; only distant inputs are better."""
    f, radius = scalar(sign), 30.0
    x = torch.full((8, 1), -radius if sign < 0 else radius / 2, dtype=torch.float64)
    x[0] = radius
    J = f.jacobian(x)
    u, s, vh = torch.linalg.svd(J.dense())
    assert less(J.gradient(u[:, 0], vh[0]).abs().max() * radius, 1e-10 * s[0])
    assert less(10 * s[0], ascend(f, x, Ball(radius), steps=100).value)


def test_a_refuted_certificate_is_drawn_again():
    """A start almost orthogonal to v₁ gives an upper end that is too low; a known vector refutes it."""
    draws = [torch.randn(24, generator=solver_generator(5)[0])]  # of the ascent itself

    def certify(seed):
        draws.append(torch.randn(24, generator=solver_generator(seed)[0]))
        return SimpleNamespace(upper=17.0 if len(draws) == 2 else 39.0)

    assert certify_consistently(certify, 39.0, 5).upper == 39.0  # exact: the number is returned as it is
    assert len(draws) == 3 and torch.pdist(torch.stack(draws)).min() > 1  # different seeds could give the same draws


def test_seeds_wrap_around():
    f, x, last = layer("one head"), normal(5, 2, 4, 6), 2**63 - 1
    found = ascend(f, x, Ball(1.0), steps=2, seed=last)
    assert found.estimate.seed == CERTIFICATE_SEED_OFFSET - 1 and found.estimate.status == "converged"


def test_repeated_singular_values_do_not_stop_it():
    """With two equal blocks, σ₁ has multiplicity two where both halves of the tokens' channels are equal."""
    block = torch.block_diag(*[normal(6, 2, 2)] * 2)
    f = SelfAttention(block, block, torch.eye(4, dtype=torch.float64), heads=2, scale=1.0)
    half = normal(7, 5, 2)
    x = torch.cat([half, half], -1)
    values = torch.linalg.svdvals(f.jacobian(x).dense())
    assert values[0] - values[1] < 1e-12
    found = ascend(f, x, Ball(3.0), steps=60)
    assert less(2 * found.start.max(), found.value)


def test_float32_layers_are_certified_in_float64():
    f, x = layer("two heads").to(torch.float32), normal(5, 2, 4, 6, dtype=torch.float32)
    found = ascend(f, x, Sphere(1.0), steps=10)
    assert found.x.dtype == torch.float64 and Sphere(1.0).contains(found.x, 1e-12)
    assert found.estimate.dtype == torch.float64
    assert found.value == pytest.approx(float(found.values.max()), rel=1e-3)


def test_seeds_reproduce_and_progress_is_reported():
    f, x = layer("one head"), normal(5, 2, 4, 6)
    seen = []
    first = ascend(f, x, Ball(1.0), steps=8, progress=lambda step, values: seen.append((step, float(values.max()))))
    again = ascend(f, x, Ball(1.0), steps=8)
    assert close(first.x, again.x) and close(first.path, again.path)
    # exact: the path contains the values that progress was called with
    assert seen == [(step, float(values.max())) for step, values in enumerate(first.path)][1:]


def test_the_repr_is_short_and_has_no_tensors():
    constraint = Near(normal(3, 4, 6), 0.3)
    found = ascend(layer("one head"), constraint.x0, constraint, steps=2)
    lines = repr(found).splitlines()
    assert lines[0].startswith(f"Ascent(value={found.value:.6g}, lower=") and lines[-1].endswith(
        "eps=0.3, norm='token'))"
    )
    assert len(lines) == 4 and "tensor" not in repr(found)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(f=torch.sin), "expected a SelfAttention"),
        (dict(constraint=3.0), "expected a constraint"),
        (dict(steps=-1), "steps as a whole number"),
        (dict(move="sideways"), "move as one of positions, masses, both"),
        (dict(masses=torch.tensor([1.0, 0.0, 1.0, 1.0])), "positive masses"),
        (dict(masses=torch.ones(3)), r"masses as a tensor of shape \(4,\), .* got torch.float32 of shape \(3,\)"),
        (dict(masses=-torch.ones(4)), "expected positive masses, got -1; leave out"),
        (dict(masses=torch.tensor([1.0, torch.inf, 1.0, 1.0])), "expected finite masses, got inf"),
        (dict(masses=[1.0] * 4), r"masses as a tensor of shape \(4,\), one for each atom, got list"),
        (dict(x=[1.0]), "ascend: expected tokens x as a tensor .* got list"),
        (dict(x=torch.zeros(0, 4, 6, dtype=torch.float64)), "at least one restart"),
        (dict(steps="a"), "steps as a whole number from 0, got 'a'"),
        (dict(seed=-1), "seed as a whole number from 0"),
        (dict(seed=2**63), "seed as a whole number from 0"),
        (dict(seed="a"), "seed as a whole number from 0"),
        (dict(progress=3), "progress as a function"),
        (dict(x=torch.full((4, 6), torch.nan, dtype=torch.float64)), "finite tokens"),
        (dict(f=layer("softcap"), move="masses"), "a soft cap"),
        (dict(f=layer("rotary"), move="both"), "rotary positions"),
        (dict(f=layer("bias table"), masses=torch.ones(4)), "a score_bias"),
        (dict(constraint=Near(normal(1, 3, 6), 1.0)), "shape of x0"),
    ],
)
def test_bad_arguments(change, message):
    arguments = dict(f=layer("one head"), x=normal(5, 4, 6), constraint=Ball(1.0)) | change
    with pytest.raises(InputError, match=message):
        ascend(arguments.pop("f"), arguments.pop("x"), arguments.pop("constraint"), **arguments)
