"""Published bounds: values from dense matrices, inputs that attain them, and the layers that they refuse."""

import math

import pytest
import torch

from howsmooth import SelfAttention
from howsmooth.attention import reference
from howsmooth.bounds import Refused, castin2024, geshkovski2023, kim2021, this_project, yudin2025
from tests.attention.cases import normal, rotary
from tests.tolerances import at_most, close

EYE = torch.eye(2, dtype=torch.float64)
ONE = torch.ones(1, 1, dtype=torch.float64)


def jacobian_norm(f, x) -> float:
    return float(torch.linalg.matrix_norm(reference.jacobian(f, x), 2))


def with_form(a: torch.Tensor, v: torch.Tensor | None = None, **options) -> SelfAttention:
    """One head with ⟨A x, y⟩ as its scores."""
    eye = torch.eye(len(a), dtype=torch.float64)
    return SelfAttention(a, eye, eye if v is None else v, scale=1.0, **options)


def norms(f) -> tuple[float, float]:
    """‖A‖ and ‖WV‖ of one head, from d × d matrices."""
    a = f.scale * f.wk.T @ f.wq
    v = f.wv if f.wo is None else f.wo @ f.wv
    return tuple(float(torch.linalg.matrix_norm(m, 2)) for m in (a, v))


@pytest.mark.parametrize("causal", [False, True])
def test_theorem1_upper_and_the_n_free_one_by_dense_matrices(causal):
    f = SelfAttention(
        normal(1, 3, 5),
        normal(2, 3, 5),
        normal(3, 2, 5),
        normal(4, 4, 2),
        bk=normal(5, 3),
        bv=normal(6, 2),
        causal=causal,
    )
    a, v = norms(f)
    assert castin2024.theorem1_upper(f, 7, 1.5).value == pytest.approx(
        math.sqrt(3) * v * math.sqrt(a**2 * 1.5**4 * 29 + 7), rel=1e-12
    )
    if causal:
        with pytest.raises(Refused, match="without a mask"):
            geshkovski2023.n_free_upper(f, 7, 1.5)
    else:
        assert geshkovski2023.n_free_upper(f, 7, 0.5).value == pytest.approx(
            v * (1 + 3 * a / 4) * math.exp(a / 2), rel=1e-12
        )


def test_the_published_n_free_bound_is_false_under_a_mask():
    f, n = with_form(0 * EYE, causal=True), 64
    assert jacobian_norm(f, torch.zeros(n, 2, dtype=torch.float64)) > 1.5  # the running mean; the published bound is 1
    assert this_project.n_free_upper(f, n, 1.0).value == pytest.approx(2)
    assert at_most(jacobian_norm(f, torch.zeros(n, 2, dtype=torch.float64)), 2)


def test_multi_head_upper_is_the_published_sum():
    f = SelfAttention(normal(1, 4, 3), normal(2, 4, 3), normal(3, 4, 3), normal(4, 3, 4), heads=2)
    expected = 0.0
    for i in range(2):
        head = f.head(i)
        without_out = SelfAttention(head.wq, head.wk, head.wv)
        expected += float(torch.linalg.matrix_norm(head.wo, 2)) * castin2024.theorem1_upper(without_out, 6, 2.0).value
    assert castin2024.multi_head_upper(f, 6, 2.0).value == pytest.approx(expected, rel=1e-12)
    assert this_project.upper(f, 6, 2.0).value <= expected


def test_heads_enter_with_the_norm_of_their_product():
    """W_h V_h may be far smaller than ‖W_h‖‖V_h‖: here it is zero."""
    v, w = torch.tensor([[1.0, 0], [0, 0]]).double(), torch.tensor([[0.0, 1], [0, 0]]).double()
    f = SelfAttention(EYE, EYE, v, w)
    # exact: a factor of both is zero
    assert this_project.upper(f, 5, 1.0).value == 0 == castin2024.theorem1_upper(f, 5, 1.0).value
    assert castin2024.multi_head_upper(f, 5, 1.0).value > 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("eigenvalues, gamma, ratio", [((-0.5, 0.3), 0.5, -1.0), ((8.0, 1.0), 1.0, 0.5)])
def test_theorem1_lower_is_attained_by_its_configuration(eigenvalues, gamma, ratio, causal):
    f = with_form(torch.diag(torch.tensor(eigenvalues).double()), causal=causal)
    for n, radius in ((2, 0.3), (10, 1.5), (40, 1.0)):
        bound = castin2024.theorem1_lower(f, n, radius)
        expected = math.sqrt(n - 1) / (1 + (n - 1) * math.exp(-2 * radius**2 * gamma))
        assert bound.value == pytest.approx(expected, rel=1e-12)
        x = radius * ratio * EYE[:1].repeat(n, 1)
        x[0] = radius * EYE[0]
        assert at_most(bound.value, this_project.lower(f, n, radius).value)
        assert at_most(bound.value, jacobian_norm(f, x))


def test_published_lower_bounds_require_a_multiple_of_the_identity():
    plain, tripled = with_form(-EYE), with_form(-EYE, -3 * EYE)
    for bound in (castin2024.theorem1_lower, castin2024.mean_field_lower):
        assert bound(tripled, 9, 1.2).value == pytest.approx(3 * bound(plain, 9, 1.2).value, rel=1e-12)
        for v in (torch.tensor([[1.0, 0], [0, 2]]).double(), normal(1, 2, 2)):
            with pytest.raises(Refused, match="V = I"):
                bound(with_form(-EYE, v), 9, 1.2)
        through = SelfAttention(
            -EYE,
            EYE,
            torch.diag(torch.tensor([2.0, 4]).double()),
            torch.diag(torch.tensor([0.5, 0.25]).double()),
            scale=1.0,
        )  # W V = I, V is not
        assert bound(through, 9, 1.2).value == pytest.approx(bound(plain, 9, 1.2).value, rel=1e-12)


def test_the_mean_field_lower_bound_is_asymptotic():
    f = with_form(-ONE)
    bound = castin2024.mean_field_lower(f, 10, 3.0)
    assert bound.value == pytest.approx(4.5 * math.exp(9.0), rel=1e-12)
    assert any("asymptotic" in condition for condition in bound.conditions) and bound.holds == "sup over n"
    # For large radii it is below the proved two-Dirac bound.
    for radius in (2.0, 4.0, 30.0):
        proved = this_project.two_dirac_lower(f, 10, radius)
        assert at_most(castin2024.mean_field_lower(f, 10, radius).log_value, proved.log_value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_large_radius_is_the_limit_along_a_ray(seed, causal):
    f, x = SelfAttention(*(normal(seed + i, 3, 3) for i in range(3)), causal=causal), normal(seed + 3, 7, 3)
    bound = castin2024.large_radius(f, x)
    assert jacobian_norm(f, 1e4 * x) == pytest.approx(bound.value, rel=1e-6)


def test_large_radius_refuses_ties():
    tokens = torch.tensor([[1.0, 0], [1.0, 0], [0, 1]]).double()
    with pytest.raises(Refused, match=r"unique argmax.*tie in row 0"):
        castin2024.large_radius(with_form(EYE), tokens)


def test_large_radius_refuses_ties_of_scores_near_zero():
    """A = −I and orthogonal tokens: the largest score of each row is 0 for several keys, up to rounding."""
    for seed in range(50):
        tokens = torch.linalg.qr(normal(seed, 5, 5)).Q
        for causal in (False, True):
            with pytest.raises(Refused, match="unique argmax"):
                castin2024.large_radius(with_form(-torch.eye(5).double(), causal=causal), tokens)


def test_the_example_of_the_documentation():
    f, radius, n = with_form(-ONE), math.sqrt(math.log(399) / 2), 400
    assert castin2024.theorem1_upper(f, n, radius).value == pytest.approx(210.4, abs=0.05)
    assert this_project.upper(f, n, radius).value == pytest.approx(65.3, abs=0.05)
    assert this_project.lower(f, n, radius).value == pytest.approx(39.9, abs=0.05)
    x = torch.full((n, 1), -radius, dtype=torch.float64)
    x[0] = radius
    dense = f.jacobian(x).dense()
    assert float(torch.linalg.matrix_norm(dense, 2)) == pytest.approx(40.1, abs=0.05)


@pytest.mark.parametrize("causal", [False, True])
def test_yudin_by_dense_matrices(causal):
    f, x = with_form(normal(1, 3, 3), normal(2, 3, 3), causal=causal), normal(3, 5, 3)
    scores = x @ f.wq.T @ x.T
    p = torch.softmax(scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf) if causal else scores, -1)
    a, v = norms(f)
    ordered = p.sort(-1, descending=True).values
    g = float((ordered[:, 0] * (1 - ordered[:, 0] + ordered[:, 1])).max())
    jacobians = torch.linalg.matrix_norm(torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2), 2)
    assert at_most(float(jacobians.max()), g)
    expected = v * (float(torch.linalg.matrix_norm(p, 2)) + 2 * float(torch.linalg.matrix_norm(x, 2)) ** 2 * a * g)
    assert yudin2025.local(f, x).value == pytest.approx(expected, rel=1e-10)


def test_yudin_ignores_padded_tokens():
    f, x = with_form(normal(1, 3, 3)), normal(3, 5, 3)
    padding = torch.tensor([True, True, False, True, False])
    assert yudin2025.local(f, x, padding).value == pytest.approx(yudin2025.local(f, x[padding]).value, rel=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4, 9, 10])
def test_r_squared_growth_is_attained_by_its_configuration(n, causal):
    f, radius = with_form(normal(1, 2, 2), normal(2, 2, 2), causal=causal), 3.0
    angle = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    u = torch.stack([angle.cos(), angle.sin()])
    product = (f.wv @ u).norm(dim=0) * (f.wq.T @ u).norm(dim=0)  # ‖Vu‖‖Aᵀu‖
    best = u[:, product.argmax()]
    side = torch.where(torch.arange(n - 1) % 2 == 0, 1.0, -1.0).double().unsqueeze(-1)
    x = torch.cat([radius * side * best, torch.zeros(1, 2, dtype=torch.float64)])
    halves = x[:, :] @ best / radius
    variance = float(halves.square().mean() - halves.mean() ** 2)
    bound = kim2021.r_squared_lower(f, n, radius)
    expected = variance * radius**2 * float(product.max()) - norms(f)[1] / n
    assert bound.value == pytest.approx(max(0.0, expected), rel=1e-6)
    assert at_most(bound.value, jacobian_norm(f, x))


BIASED = dict(bq=torch.tensor([10.0, 0.0]).double())
ROTARY = rotary()


@pytest.mark.parametrize(
    "bound",
    [
        castin2024.theorem1_upper,
        castin2024.theorem1_lower,
        castin2024.multi_head_upper,
        castin2024.mean_field_lower,
        geshkovski2023.n_free_upper,
        kim2021.r_squared_lower,
    ],
)
def test_layers_outside_the_published_statements_are_refused(bound):
    name = f"{bound.__module__.rpartition('.')[2]}.{bound.__name__}: expected "
    with pytest.raises(Refused, match=name + "no query bias"):
        bound(with_form(EYE, **BIASED), 3, 1.0)
    with pytest.raises(Refused, match=name + "attention without a window"):
        bound(with_form(EYE, window=2), 3, 1.0)
    with pytest.raises(Refused, match=name + "scores without offsets"):
        bound(with_form(EYE, score_bias=lambda i, j: -(i - j).abs()), 3, 1.0)
    if bound is not castin2024.multi_head_upper:
        with pytest.raises(Refused, match=name + r"one head, got 2 heads; take f.head\(i\)"):
            bound(SelfAttention(EYE, EYE, EYE, heads=2), 3, 1.0)
    rotated = SelfAttention(*(normal(i, 4, 4) for i in range(3)), rotary=ROTARY)
    capped = with_form(EYE, softcap=1.0)
    with_key_bias = with_form(EYE, softcap=1.0, bk=torch.ones(2).double())
    with pytest.raises(Refused, match=name + "no key bias with rotary or capped scores"):
        bound(with_key_bias, 3, 1.0)
    if bound in (castin2024.theorem1_upper, castin2024.multi_head_upper, geshkovski2023.n_free_upper):
        assert close(bound(capped, 3, 1.0).log_value, bound(with_form(EYE), 3, 1.0).log_value)  # it depends on ‖A‖ only
        by_norms = SelfAttention(*(normal(i, 4, 4) for i in range(3)))
        product = by_norms.scale * math.prod(float(torch.linalg.matrix_norm(w, 2)) for w in (rotated.wq, rotated.wk))
        scaled = with_form(product * torch.eye(4).double(), rotated.wv)
        assert bound(rotated, 3, 0.5).log_value == pytest.approx(bound(scaled, 3, 0.5).log_value, rel=1e-12)
    else:
        with pytest.raises(Refused, match=name + "scores with one A for all positions"):
            bound(rotated, 3, 1.0)
        with pytest.raises(Refused, match=name + "scores that are bilinear"):
            bound(capped, 3, 1.0)


def test_local_and_limit_bounds_refuse_layers():
    x = normal(1, 3, 2)
    for bound in (yudin2025.local, castin2024.large_radius):
        for f, message in (
            (with_form(EYE, **BIASED), "no query bias"),
            (with_form(EYE, window=2), "a window"),
            (with_form(EYE, softcap=1.0), "bilinear"),
            (SelfAttention(EYE, EYE, EYE, heads=2), "one head"),
            (with_form(EYE, score_bias=lambda i, j: i - j), "without offsets"),
        ):
            with pytest.raises(Refused, match=message):
                bound(f, x)


def test_forms_without_real_eigenvalue_are_refused():
    rotation = torch.tensor([[0.0, -1], [1, 0]]).double()
    with pytest.raises(Refused, match="a real eigenvalue of A"):
        castin2024.theorem1_lower(with_form(rotation), 5, 1.0)
    assert this_project.lower(with_form(rotation), 5, 1.0).value > 0


def test_logarithms_where_values_overflow():
    f = with_form(-EYE)
    assert geshkovski2023.n_free_upper(f, 5, 1000.0).value is None
    assert geshkovski2023.n_free_upper(f, 5, 1000.0).log_value == pytest.approx(2e6 + math.log(3e6 + 1), rel=1e-12)
    assert castin2024.mean_field_lower(f, 5, 1000.0).log_value == pytest.approx(1e6 + math.log(5e5), rel=1e-12)
    assert castin2024.theorem1_lower(f, 5, 1000.0).value == pytest.approx(2.0)
    assert math.isfinite(castin2024.theorem1_upper(f, 5, 1e100).log_value)
