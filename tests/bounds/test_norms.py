"""Certified upper bounds on eigenvalues against all eigenvalues."""

import pytest
import torch

from howsmooth.bounds import norms
from howsmooth.bounds.norms import SecondMoments
from tests.attention.cases import normal
from tests.tolerances import at_most


def with_spectrum(values: torch.Tensor, count: int = 3) -> torch.Tensor:
    q = torch.linalg.qr(normal(1, count, len(values), len(values))).Q
    return q * values @ q.mT


SPECTRA = {
    "flat": torch.ones(64),
    "one": torch.eye(64)[0],
    "slope": torch.linspace(0, 1, 64),
    "close pair": torch.cat([torch.ones(1), torch.full((1,), 1 - 1e-3), torch.linspace(0, 0.99, 62)]),
    "small": 1e-150 * torch.linspace(0, 1, 64).double(),
    "large": torch.linspace(0, 1, 200) ** 0.1,
    "tiny matrices": torch.linspace(0, 1, 5),
}


@pytest.mark.parametrize("steps", [(10, 30), (2, 2)], ids=["default", "too few steps"])
@pytest.mark.parametrize("name", SPECTRA)
def test_certified_eigenvalues_are_above_and_close(name, steps, monkeypatch):
    """With too few Lanczos steps the Cholesky factorisation fails, and all eigenvalues are computed."""
    monkeypatch.setattr(norms, "LANCZOS_STEPS", steps)
    m = with_spectrum(SPECTRA[name].double())
    truth, found = SPECTRA[name].double().max(), norms.certified_eigenvalue(m)
    assert found.shape == (3,)
    assert at_most(truth, found) and at_most(found, truth * (1 + 1.01e-4))


def test_lanczos_values_are_lower_bounds():
    m = with_spectrum(SPECTRA["slope"].double())
    few, more = norms.lanczos_eigenvalue(m, 3), norms.lanczos_eigenvalue(m, 12)
    assert bool((few < more).all()) and bool((more <= 1 + 1e-13).all()) and bool((few < 0.99).all())


def test_zero_matrices():
    # exact: all products with a zero matrix are zero
    assert norms.certified_eigenvalue(torch.zeros(2, 64, 64).double()).tolist() == [0.0, 0.0]
    mixed = torch.stack([torch.zeros(64, 64).double(), with_spectrum(SPECTRA["slope"].double(), 1)[0]])
    assert norms.certified_eigenvalue(mixed).tolist() == pytest.approx([0.0, 1.0], rel=1.01e-4)


@pytest.mark.parametrize("keys", [[0, 1, 2, 3, 4], [0, 2], [3], []])
def test_second_moments_about_a_point(keys):
    """Also where the last keys have no weight, or no key has."""
    t, centre, weights = normal(1, 5, 3), normal(2, 4, 3), torch.zeros(4, 5).double()
    weights[:, keys] = normal(3, 4, 5).abs()[:, keys]
    y = t - centre.unsqueeze(1)
    found, error = SecondMoments(t).about(weights, centre)
    assert torch.allclose(found, torch.einsum("ij,ija,ijb->iab", weights, y, y), rtol=1e-12, atol=1e-14)
    assert bool((error >= 0).all()) and float(error.max()) < 1e-12
