"""Particles and their limits: the rate in n, masked and unmasked, and 10⁵ tokens against the Gaussian flow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from howsmooth import InputError
from howsmooth.attention.fields import Field, LinearField, SinkhornField, SoftmaxField
from howsmooth.dynamics import (
    Density,
    GaussianState,
    Grid,
    density_flow,
    gaussian_flow,
    integrate,
    mean_field_convergence,
)
from howsmooth.dynamics.mean_field import fit_convergence_rate
from tests.tolerances import assert_close, less

ONE = torch.ones(1, 1, dtype=torch.float64)
A = torch.tensor([[-0.4, 0.2], [-0.1, 0.2]], dtype=torch.float64)
V = torch.tensor([[0.6, 0.3], [-0.2, 0.5]], dtype=torch.float64)
START = GaussianState.of([0.4, -0.2], [[0.8, 0.2], [0.2, 0.5]])


class Interpolated:
    """The map x ↦ Γ_μ(x) of all tokens, interpolated from Chebyshev points of their bounding box.

    Γ_μ is analytic; the test bounds the error of 14 points along each axis by evaluations of Γ_μ itself.
    """

    def __init__(self, field: Field, count: int = 14):
        self.field, self.count = field, count

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        nodes = np.cos(np.pi * (np.arange(self.count) + 0.5) / self.count)
        low, high = x.amin(0), x.amax(0)
        places = torch.cartesian_prod(*[torch.from_numpy(nodes)] * 2) * (high - low) / 2 + (high + low) / 2
        values = self.field(places, x).reshape(self.count, self.count, 2)
        inverse = torch.linalg.inv(torch.from_numpy(np.polynomial.chebyshev.chebvander(nodes, self.count - 1)))
        coefficients = torch.einsum("ai,bj,ijk->abk", inverse, inverse, values)
        unit = ((x - (high + low) / 2) / ((high - low) / 2)).clamp(-1, 1).numpy()
        first, second = (
            torch.from_numpy(np.polynomial.chebyshev.chebvander(unit[:, i], self.count - 1)) for i in (0, 1)
        )
        return torch.stack([((first @ coefficients[..., k]) * second).sum(1) for k in (0, 1)], 1)


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).square().sum(-1).mean().sqrt())


def test_a_hundred_thousand_tokens_follow_the_gaussian_flow():
    """Softmax attention: the error falls like n^{−½}, from 10³ to 10⁵ tokens."""
    field = SoftmaxField.of(A, V)
    velocity, limit = Interpolated(field), gaussian_flow(field, START, 1.0)
    counts, gaps = [1000] * 4 + [10_000] * 2 + [100_000], []
    for seed, n in enumerate(counts):
        x = START.sample(n, torch.Generator().manual_seed(seed))
        y = integrate([velocity], x, 1.0, solver="rk4", steps=4, frames=2).last
        gaps.append(gap(y, limit.push(x)))
    assert_close(velocity(x)[:40], field(x[:40], x), 1e-5)
    assert -0.75 <= fit_convergence_rate(counts, gaps).exponent <= -0.25
    assert GaussianState.fitted(y).distance(limit.last) < 0.01 < 0.2 < START.distance(limit.last)


def test_linear_attention_on_a_hundred_thousand_tokens():
    """Γ_μ depends on two moments of μ only: tokens follow the Gaussian flow of their own moments exactly."""
    field = LinearField(A, V)
    limit = gaussian_flow(field, START, 1.0)
    counts, gaps = [1000] * 16 + [10_000] * 16 + [100_000] * 8, []
    for seed, n in enumerate(counts):
        x = START.sample(n, torch.Generator().manual_seed(seed))
        y = integrate(field, x, 1.0, solver="rk4", steps=8, frames=2).last
        gaps.append(gap(y, limit.push(x)))
    assert gaps[-1] < 0.01 and -0.7 <= fit_convergence_rate(counts, gaps).exponent <= -0.3
    assert gap(y, gaussian_flow(field, GaussianState.fitted(x), 1.0, frames=2).push(x)) < 1e-5


@pytest.mark.parametrize("field", [SoftmaxField.of(A, V), SinkhornField(A, V, tol=1e-5)], ids=lambda f: f.name)
def test_coupled_rate(field):
    found = mean_field_convergence(field, START, 0.5, (32, 96, 288), repeats=3, rtol=1e-3)
    assert found.distance == "coupled" and len(found.records) == 9
    assert -0.85 <= found.rate.exponent <= -0.2


def test_particles_converge_to_the_density_unmasked_and_masked():
    grid = Grid.square(1, 5.0, 100)
    parts = [Density.gaussian(GaussianState.of([m], [[0.2]]), grid) for m in (-1.5, 0.5)]
    field = SoftmaxField.of(0.7 * ONE, -ONE)
    seen = []
    plain = mean_field_convergence(
        field, Density.mixture(parts), 0.5, (40, 160, 640), repeats=6, rtol=1e-4, progress=seen.append
    )
    assert plain.distance == "W₂" and seen == list(plain.records)  # exact: the same records
    assert -0.75 <= plain.rate.exponent <= -0.25
    masked = mean_field_convergence(field, Density.slices(parts), 0.5, (40, 160, 640), repeats=6, rtol=1e-4)
    assert masked.distance == "d₂" and masked.slices == 2 and -0.75 <= masked.rate.exponent <= -0.25
    for found in (plain, masked):
        last = [record for record in found.records if record["n"] == 640]
        assert all(less(record["distance"], 2 * record["at_start"]) for record in last)
        assert found.as_record()["rate"]["exponent"] == found.rate.exponent  # exact: copied into the record


def test_masked_limit_is_not_the_unmasked_one():
    """d₂ to the masked limit decreases with n; the same tokens moved without a mask do not converge to it."""
    grid = Grid.square(1, 5.0, 100)
    parts = [Density.gaussian(GaussianState.of([m], [[0.2]]), grid) for m in (-1.5, 1.0)]
    field = SoftmaxField.of(0.7 * ONE, -ONE)
    masked = density_flow(field, Density.slices(parts), 0.5, frames=2).last
    whole = density_flow(field, Density.mixture(parts), 0.5, frames=2).last
    assert float((masked.mass.sum(0) - whole.mass).abs().sum()) > 0.05


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda s: mean_field_convergence(SoftmaxField.of(ONE, ONE), s, 1.0, (10,)), "at least two numbers"),
        (lambda s: mean_field_convergence(SoftmaxField.of(ONE, ONE), s, 1.0, (10, 21)), "multiples of the 2 slices"),
        (lambda s: mean_field_convergence(SoftmaxField.of(ONE, ONE), ONE, 1.0, (10, 20)), "GaussianState or a Density"),
        (lambda s: mean_field_convergence(SoftmaxField.of(ONE, ONE), s, 1.0, (10, 20), repeats=0), "repeats"),
        (
            lambda s: mean_field_convergence(SoftmaxField.of(ONE, ONE), GaussianState.standard(1), 1.0, (10, 20)),
            "blew up at t = 0.5",
        ),
        (lambda s: fit_convergence_rate([10, 20], [1.0, 0.0]), "positive distances"),
    ],
)
def test_bad_input(call, said):
    grid = Grid.square(1, 5.0, 50)
    sliced = Density.slices([Density.gaussian(GaussianState.standard(1, 0.2), grid)] * 2)
    with pytest.raises(InputError, match=said):
        call(sliced)
