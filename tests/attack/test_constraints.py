"""Constraint sets: coordinates, projections, random points."""

import pytest
import torch

from howsmooth import InputError
from howsmooth.attack import Ball, Ellipsoid, Near, Sphere
from howsmooth.attention.normalisation import Normalisation
from tests.attention.cases import normal
from tests.tolerances import assert_close, at_most

GAIN = torch.tensor([2.0, -0.5, 1.0, 0.1, 3.0], dtype=torch.float64)
ZERO_GAIN = torch.tensor([2.0, 0.0, 1.0, 0.0, 3.0], dtype=torch.float64)
SETS = {
    "ball": Ball(1.5),
    "sphere": Sphere(1.5),
    "layer norm": Ellipsoid(Normalisation(GAIN, normal(1, 5))),
    "rms norm": Ellipsoid(Normalisation(GAIN, centred=False)),
    "zero gain": Ellipsoid(Normalisation(ZERO_GAIN, normal(1, 5))),
    "near": Near(100 * normal(2, 4, 5), 1e-3),
    "near, all together": Near(100 * normal(2, 4, 5), 1e-3, "frobenius"),
}


@pytest.mark.parametrize("name", SETS)
def test_draws_and_projections_stay_in_the_set(name):
    c = SETS[name]
    drawn = c.draw((7, 4, 5), torch.Generator().manual_seed(0))
    assert c.contains(c.decode(drawn))
    far = c.project(10 * c.coordinate_radius * normal(3, 7, 4, 5))
    assert c.contains(c.decode(far))
    assert_close(c.project(far), far, tol=1e-14)
    # Coordinates of channels with zero gain are free, so a point may need a larger factor to leave the set.
    assert not c.contains(c.decode((5 if name == "zero gain" else 1.001) * far))


@pytest.mark.parametrize("name", SETS)
def test_coordinates_round_trip_and_gradients_are_pulled_back(name):
    c = SETS[name]
    y = c.draw((4, 5), torch.Generator().manual_seed(0))
    x = c.decode(y)
    assert_close(c.decode(c.encode(x)), x)
    assert c.contains(c.decode(c.project(c.encode(x))))
    direction, g = c.project_to_subspace(normal(4, 4, 5)), normal(5, 4, 5)
    change = c.decode(y + direction) - x
    assert_close((g * change).sum(), (c.pull_back(g) * direction).sum())


@pytest.mark.parametrize("name", SETS)
def test_the_projection_is_the_nearest_point(name):
    c = SETS[name]
    outside = 3 * c.coordinate_radius * normal(6, 4, 5)
    dims = (-2, -1) if name == "near, all together" else (-1,)
    here = (outside - c.project(outside)).norm(dim=dims)
    others = c.draw((500, 4, 5), torch.Generator().manual_seed(1))
    if name == "sphere":
        others = c.project(others)
    assert at_most(here, (outside - others).norm(dim=dims))


def test_outputs_of_a_normalisation_are_in_its_ellipsoid():
    for centred in (True, False):
        norm = Normalisation(GAIN, normal(1, 5), centred=centred)
        assert Ellipsoid(norm).contains(norm(100 * normal(7, 50, 5)))
        assert not Ellipsoid(norm).contains(norm(normal(7, 50, 5)) + 1)
    zero_gain = SETS["zero gain"]
    assert zero_gain.contains(zero_gain.norm(normal(7, 50, 5)))
    off = zero_gain.norm(normal(7, 50, 5))
    off[:, 1] += 1e-6
    assert not zero_gain.contains(off)


def test_the_origin_is_projected_onto_the_sphere():
    assert Sphere(2.0).contains(Sphere(2.0).project(torch.zeros(3, 2)))
    assert not Sphere(2.0).contains(torch.ones(3, 2))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Ball(0.0), "Ball: expected a finite radius above 0, got 0.0"),
        (lambda: Sphere(float("nan")), "Sphere: expected a finite radius"),
        (lambda: Ball("1"), "Ball: expected"),
        (lambda: Ball(1e200), r"Ball: expected radius from 1e-100 to 1e\+100, got 1e\+200; .*into the weights"),
        (lambda: Ball(10**400), r"Ball: expected radius from 1e-100 to 1e\+100"),
        (lambda: Sphere(1e-200), "Sphere: expected radius from 1e-100"),
        (lambda: Near(torch.zeros(3, 2), 1e101), "Near: expected eps from 1e-100"),
        (lambda: Near(1e200 * normal(1, 3, 2), 1.0), r"Near: expected tokens x0 with entries up to 1e\+100"),
        (lambda: Ellipsoid(Normalisation(1e120 * GAIN)), r"Ellipsoid: expected a gain with entries up to 1e\+100"),
        (lambda: Ellipsoid(Normalisation(GAIN, 1e120 * GAIN)), "Ellipsoid: expected a bias with entries"),
        (lambda: Ellipsoid(GAIN), "Ellipsoid: expected a Normalisation, got Tensor"),
        (lambda: Near(torch.zeros(3, 2), 1.0, "text"), "Near: expected norm as one of frobenius, token"),
        (lambda: Near(torch.zeros(3), 1.0), r"Near: expected x0 as tokens \(n, d\)"),
        (lambda: Near(torch.zeros(3, 2), -1.0), "Near: expected a finite eps above 0"),
        (lambda: Near(torch.full((3, 2), torch.inf), 1.0), "Near: expected finite"),
        (lambda: Near(torch.zeros(3, 2), 1.0).check(4, 2), r"Near: expected tokens of the shape of x0, \(3, 2\)"),
        (lambda: SETS["layer norm"].check(3, 4), "Ellipsoid: expected tokens of width 5, got 4"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InputError, match=message):
        make()
