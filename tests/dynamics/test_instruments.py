"""Instruments on configurations whose answer is known."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from howsmooth.attention import SelfAttention, SoftmaxField
from howsmooth.attention.reference import probabilities as dense_softmax
from howsmooth.dynamics import Velocity, integrate
from howsmooth.dynamics.instruments import (
    clusters,
    diameter,
    farthest_move,
    hull,
    hyperplanes,
    leading_space,
    log_energy,
    pattern_of_p,
    plateaus,
    probabilities,
    w2,
)
from howsmooth.errors import InputError
from tests.dynamics.fields import every_kind, normal
from tests.tolerances import assert_close


def test_clusters_are_components_of_a_graph():
    x = normal(60, 3)
    tol = 0.9
    close = torch.cdist(x, x) <= tol
    reach = torch.matrix_power(close.double(), 60) > 0  # a path of at most 60 steps
    found = clusters(x, tol)
    assert torch.equal(found.labels[:, None] == found.labels[None], reach)
    assert found.count == len(set(map(tuple, reach.tolist()))) > 3 and sum(found.sizes) == 60
    assert list(found.sizes) == sorted(found.sizes, reverse=True)
    assert found.reach <= tol < found.gap
    assert clusters(x, found.gap * 1.001).count == found.count - 1
    for label in range(found.count):
        assert_close(found.centres[label], x[found.labels == label].mean(0), 1e-12)


def test_one_token_and_equal_tokens():
    assert clusters(torch.zeros(1, 2), 0.1).count == 1
    assert clusters(torch.zeros(5, 2), 1e-12).sizes == (5,)
    assert hull(torch.zeros(5, 2), 0.1).count == 1


@pytest.mark.parametrize("width", [1e17, 1e100])
def test_hull_of_tokens_far_beyond_the_tolerance(width):
    """A plane 1e17 wide and 1 thick is a line in float64, where Qhull reports an error."""
    x = torch.tensor([[0.0, 0], [1, 0], [2, 1e-17], [3, 5e-18]], dtype=torch.float64) * width
    found = hull(x, 0.05)
    assert found.count == 2 and found.dimension == 1


def test_hull_of_tokens_far_from_the_origin():
    line = torch.linspace(-1, 1, 7, dtype=torch.float64)
    found = hull(torch.stack([torch.full_like(line, 1e51), line], -1), 0.05)
    assert found.count == 2 and found.dimension == 1


@pytest.mark.parametrize("thin", [1e-3, 1e-7, 1e-10, 1e-14])
def test_hull_of_a_thin_triangle(thin):
    inside = normal(20, 2).abs()
    inside = inside / (inside.sum(-1, keepdim=True) * 1.5)
    x = torch.cat([torch.tensor([[0.0, 0], [1, 0], [0, 1]], dtype=torch.float64), inside])
    found = hull(x * torch.tensor([1e9, 1e9 * thin]), 1e-6)
    assert found.count == (3 if thin > 1e-12 else 2)


@pytest.mark.parametrize("d, flat", [(2, False), (3, False), (3, True)])
def test_hull_finds_the_corners_of_a_cube(d, flat):
    corners = torch.cartesian_prod(*(torch.tensor([-1.0, 1.0]).double(),) * (2 if flat else d))
    inside = 0.9 * (2 * torch.rand(40, corners.shape[1], generator=torch.Generator().manual_seed(0)).double() - 1)
    points = torch.cat([corners, corners * (1 - 1e-4), inside])  # each corner twice, nearly
    if flat:  # a square in a tilted plane of R³
        axes = torch.linalg.qr(normal(3, 3))[0][:, :2]
        points, corners = points @ axes.mT + 0.3, corners @ axes.mT + 0.3
    found = hull(points, tol=1e-3)
    assert found.count == len(corners) and found.dimension == (2 if flat else d)
    assert float(torch.cdist(found.vertices, corners).min(1).values.max()) < 1e-3
    assert found.at_vertices == pytest.approx(2 * len(corners) / len(points))


def test_hull_on_a_line_and_at_the_origin():
    found = hull(torch.tensor([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0], [2.0, 2.0]]), 1e-6)
    assert found.count == 2 and found.dimension == 1 and found.at_origin == pytest.approx(0.25)


def test_hyperplanes_along_the_left_eigenvector():
    V = torch.tensor([[2.0, 1.0], [0.0, 1.0]], dtype=torch.float64)  # left eigenvector (1, 1)/√2, right one (1, 0)
    z = torch.tensor([[1.0, 1.0], [2.0, 0.0], [-5.0, 5.0]], dtype=torch.float64)
    found = hyperplanes(z, V, 1e-6)
    assert found.eigenvalue == pytest.approx(2.0)
    assert found.values == pytest.approx((0.0, 2**0.5)) and found.sizes == (1, 2)
    assert_close(found.functional @ V, 2 * found.functional)


def test_leading_space_of_a_complex_pair_and_of_the_identity():
    turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -2.0]], dtype=torch.float64)
    value, basis = leading_space(turn)
    assert value == pytest.approx(0.0, abs=1e-12) and basis.shape == (3, 2)
    assert float(basis[2].abs().max()) < 1e-12
    assert leading_space(torch.eye(3))[1].shape == (3, 3)
    with pytest.raises(InputError, match="one leading direction"):
        hyperplanes(normal(4, 3), torch.eye(3), 0.1)


def test_pattern_of_p():
    P = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0.25, 0.75]])
    found = pattern_of_p(P)
    assert (found.rank, found.leaders) == (3, (0, 2, 3)) and found.undecided == pytest.approx(0.25)
    layer = every_kind(3)["two heads"].layer
    x = normal(5, 3)
    q, k, _ = layer.project(x)
    assert_close(probabilities(layer, x), dense_softmax(layer.scale * q @ k.mT))
    masked = probabilities(every_kind(3)["masked"], x)
    assert float(masked[0].triu(1).abs().max()) == 0.0  # exact: softmax of −∞ is zero


def test_energy_in_blocks_increases_along_the_flow(monkeypatch):
    x, A = normal(7, 2), torch.tensor([[1.0, 0.2], [0.2, 0.5]], dtype=torch.float64)
    truth = float(torch.exp(x @ A @ x.mT).mean().log()) - math.log(2)
    monkeypatch.setattr("howsmooth.dynamics.instruments.geometry.BLOCK_ELEMENTS", 14)
    assert log_energy(x, A) == pytest.approx(truth, rel=1e-12)
    assert math.isfinite(log_energy(1e3 * x, A))  # the energy itself overflows
    for sphere in (False, True):  # A = Aᵀ = V: attention ascends it
        path = integrate(Velocity(SoftmaxField.of(A, A), sphere=sphere), x, 3.0, frames=20, rtol=1e-8)
        energies = [log_energy(state, A) for state in path.tokens]
        assert all(b > a for a, b in itertools.pairwise(energies))


def test_distances(monkeypatch):
    x, y = normal(9, 2), normal(9, 2, seed=1)
    monkeypatch.setattr("howsmooth.dynamics.instruments.geometry.BLOCK_ELEMENTS", 18)
    assert diameter(x) == pytest.approx(float(torch.cdist(x, x).max()))
    assert farthest_move(x, y) == pytest.approx(float((x - y).norm(dim=-1).max()))
    from scipy.optimize import linear_sum_assignment

    cost = torch.cdist(x, y).square().numpy()
    assert w2(x, y) == pytest.approx((cost[linear_sum_assignment(cost)].mean()) ** 0.5)
    assert w2(x, x.flip(0)) == pytest.approx(0.0, abs=1e-9)


def test_plateaus():
    times = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0]
    # exact: times as given
    assert [(p.count, p.start, p.end) for p in plateaus(times, [9, 4, 4, 3, 3, 1])] == [(4, 1, 2), (3, 3, 10)]
    assert [p.count for p in plateaus(times, [9, 4, 4, 3, 3, 1], least=0.5)] == [3]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: clusters(normal(3, 2), 0.0), "positive tolerance"),
        (lambda: clusters(normal(3), 0.1), r"\(n, d\)"),
        (lambda: clusters(normal(3, 2) * math.nan, 0.1), "finite"),
        (lambda: clusters(torch.zeros(20_000, 1), 0.1), "at most 10000"),
        (lambda: hull(normal(20, 9), 0.1), "at most 8 dimensions"),
        (lambda: leading_space(torch.zeros(2, 3)), "square"),
        (lambda: log_energy(normal(3, 2), torch.eye(3)), "expected A"),
        (lambda: probabilities(every_kind(2)["l2"], normal(3, 2)), "softmax"),
        (lambda: pattern_of_p(torch.zeros(2, 3, 3)), "one by one"),
        (lambda: plateaus([0.0, 1.0], [1]), "for each"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_probabilities_accept_a_self_attention_layer():
    eye = torch.eye(2, dtype=torch.float64)
    assert_close(
        probabilities(SelfAttention(eye, eye, eye), torch.zeros(4, 2).double()),
        torch.full((1, 4, 4), 0.25, dtype=torch.float64),
    )
