"""The form of a layer, the result of a bound, and all bounds at once."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention, bounds
from howsmooth.bounds import Bound, LayerForm, Refused, every
from howsmooth.bounds.bound import log_sum
from tests.attention.cases import LAYERS, layer, normal
from tests.bounds.test_published import EYE, with_form
from tests.tolerances import assert_close, at_most, close


def dense_heads(f: SelfAttention):
    """A, c and W V of each head, as d × d matrices."""
    for i in range(f.heads):
        head = f.head(i)
        c = torch.zeros(f.d).double() if head.bq is None else head.scale * head.wk.T @ head.bq
        yield head.scale * head.wk.T @ head.wq, c, head.wv if head.wo is None else head.wo @ head.wv


@pytest.mark.parametrize("d", [2, 6, 20])
@pytest.mark.parametrize("name", ["one head", "two heads", "grouped", "one key head", "scale"])
def test_norms_and_spectra_are_those_of_dense_matrices(name, d):
    f = layer(name, d=d)
    form = LayerForm(f)
    for i, (a, c, v) in enumerate(dense_heads(f)):
        assert_close(form.score_norm[i], torch.linalg.matrix_norm(a, 2))
        assert_close(form.query_offset[i], c.norm())
        assert_close(form.value_norm[i], torch.linalg.matrix_norm(v, 2))
        symmetric = (a + a.T) / 2
        truth = torch.linalg.eigvalsh(symmetric)
        assert_close(torch.tensor(form.symmetric_extremes(i), dtype=torch.float64), truth[[0, -1]], 1e-10)
        values, vectors = form.extreme_pairs
        for side in (0, 1):
            assert_close(symmetric @ vectors[i, side], values[i, side] * vectors[i, side], 1e-10)
            assert_close(vectors[i, side].norm(), torch.ones(()).double())
        for value, u in form.real_eigenpairs(i):
            assert_close(a @ u, value * u, 1e-8)
    assert form.out_norm == pytest.approx(float(torch.linalg.matrix_norm(f.wo, 2)), rel=1e-12)
    assert float(form.key_offset.abs().max()) == 0  # exact: there is no bias


def test_gamma_includes_the_zero_eigenvalue_of_a_singular_form():
    wq, wk = torch.tensor([[8.0, 0.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
    assert LayerForm(SelfAttention(wq, wk, EYE, scale=1.0)).gamma(0) == pytest.approx(1.0)
    assert LayerForm(SelfAttention(-wq, wk, EYE, scale=1.0)).gamma(0) == pytest.approx(8.0)
    assert LayerForm(SelfAttention(0 * wq, wk, EYE, scale=1.0)).gamma(0) == 0.0  # exact: the form is zero
    rotation = torch.tensor([[0.0, -1], [1, 0], [0, 0]]).double()  # wider heads than tokens: no eigenvalue is added
    with pytest.raises(Refused, match="a real eigenvalue of A"):
        LayerForm(SelfAttention(rotation, torch.eye(3, 2).double(), EYE, scale=1.0)).gamma(0)


def test_tables_of_offsets_that_are_too_small_are_refused():
    f = with_form(EYE, score_bias=normal(1, 3, 3))
    assert float(LayerForm(f).oscillation(2)) >= 0
    with pytest.raises(InputError, match="at least 4 × 4"):
        LayerForm(f).oscillation(4)


@pytest.mark.parametrize("name", LAYERS)
def test_every_bound_or_its_refusal(name):
    f, x = layer(name), normal(50, 4, 6)
    found = every(f, 4, float(x.norm(dim=-1).max()), x)
    names = [b.bound if isinstance(b, Refused) else b.name for b in found]
    assert names == [
        f"{b.__module__.rpartition('.')[2]}.{b.__name__}"
        for b in (*bounds.BALL_BOUNDS, *bounds.LOCAL_BOUNDS, bounds.castin2024.large_radius)
    ]
    assert {"this_project.upper", "this_project.theorem1_with_bias", "this_project.local"} <= {
        b.name for b in found if isinstance(b, Bound)
    }  # these cover every layer
    for b in found:
        if isinstance(b, Bound):
            assert b.reference and b.holds and set(b.as_record()) >= {"value", "log_value", "side", "conditions"}
        else:
            assert str(b).startswith(b.bound) and "expected" in str(b) and "; " in str(b)


def test_every_bound_applies_to_a_plain_head():
    found = every(with_form(-EYE), 6, 1.0, normal(1, 6, 2))
    refused = [str(b) for b in found if isinstance(b, Refused)]
    assert refused == []


def test_a_form_replaces_its_layer():
    form = LayerForm(layer("two heads"))
    assert close(every(form, 5, 1.0)[4].log_value, every(form.f, 5, 1.0)[4].log_value)
    single = every(form.f.converted(dtype=torch.float32), 5, 1.0)[4]
    assert single.log_value == pytest.approx(every(form, 5, 1.0)[4].log_value, rel=1e-5)


def test_invalid_bounds():
    with pytest.raises(InputError, match="NaN or ∞"):
        Bound("x", math.nan, "upper", "at X", (), "")
    with pytest.raises(InputError, match="lower or upper"):
        Bound("x", 0.0, "middle", "at X", (), "")
    assert Bound("x", -math.inf, "lower", "at X", (), "").value == 0  # exact: exp(−∞) is zero
    assert Bound("x", 1e6, "lower", "at X", (), "").as_record()["value"] is None
    assert log_sum(-math.inf, -math.inf) == -math.inf


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("q, v", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_zero_weights_and_zero_radius(q, v, causal):
    for heads in (1, 2):
        f = SelfAttention(q * EYE, EYE, v * EYE, EYE, heads=heads, causal=causal)
        for n, radius in ((1, 0.0), (1, 1.0), (3, 0.0), (3, 1.0)):
            x = radius * normal(1, n, 2) / 4
            sigma = float(torch.linalg.matrix_norm(f.jacobian(x).dense(), 2))
            for b in every(f, n, radius, x):
                if isinstance(b, Bound) and b.side == "upper" and b.holds != "at tX, t → ∞":
                    assert at_most(sigma, b.value)
                elif isinstance(b, Bound) and radius == 0 and b.holds == "on B_R^n":
                    assert at_most(b.value, sigma)  # the ball is a single point
