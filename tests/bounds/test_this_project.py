"""Bounds of this project: values from dense matrices, biases and offsets, and how sharp they are."""

import math

import pytest
import torch

from howsmooth import InputError, Rotary, SelfAttention
from howsmooth.attention import reference
from howsmooth.bounds import LayerForm, Refused, castin2024, geshkovski2023, this_project, yudin2025
from tests.attention.cases import LAYERS, layer, normal, rotary
from tests.bounds.test_published import EYE, ONE, jacobian_norm, norms, with_form
from tests.tolerances import at_most, close, less


def three_numbers(f, radius):
    """a, b and ‖WV‖ of one head with plain scores, from d × d matrices."""
    a, v = norms(f)
    c = 0.0 if f.bq is None else float((f.scale * f.wk.T @ f.bq).norm())
    return a * radius**2, radius * (a * radius + c), v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values_from_dense_matrices(causal, bias):
    f = SelfAttention(
        normal(1, 3, 5),
        normal(2, 3, 5),
        normal(3, 2, 5),
        normal(4, 4, 2),
        bk=normal(5, 3),
        bq=normal(6, 3) if bias else None,
        causal=causal,
    )
    n, radius = 7, 0.8
    a, b, v = three_numbers(f, radius)
    assert this_project.upper(f, n, radius).value == pytest.approx(v * (math.sqrt(n) + a + math.sqrt(n / 2) * b))
    assert this_project.theorem1_with_bias(f, n, radius).value == pytest.approx(
        math.sqrt(3) * v * math.sqrt(n + a**2 + 4 * n * b**2)
    )
    n_free = v * (a + (2 + math.sqrt(6) * b if causal else 1 + b) * math.exp(b))
    assert this_project.n_free_upper(f, n, radius).value == pytest.approx(n_free)
    if not bias:
        with_bias = this_project.theorem1_with_bias(f, n, radius).value
        assert with_bias == pytest.approx(castin2024.theorem1_upper(f, n, radius).value)  # without a bias they agree
    if causal:
        for bound in (this_project.upper_in_n_and_a, this_project.n_free_right_exponent):
            with pytest.raises(Refused, match="without a mask"):
                bound(f, n, radius)
    else:
        kappa = n / (1 + (n - 1) * math.exp(-2 * b))
        assert this_project.upper_in_n_and_a(f, n, radius).value == pytest.approx(
            v * (math.sqrt(kappa) + a + min(math.sqrt(kappa), math.sqrt(n / 2)) * b)
        )


def test_a_query_bias_counts_and_theorem_1_without_it_is_false():
    """A = 0, c = (10, 0), tokens (0, ±1), V = I."""
    f = with_form(0 * EYE, bq=torch.tensor([10.0, 0.0]).double())
    x = torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double()
    sigma = jacobian_norm(f, x)
    assert sigma == pytest.approx(10.05, abs=0.005)
    assert castin2024.theorem1_upper(with_form(0 * EYE), 2, 1.0).value == pytest.approx(2.449, abs=1e-3)
    for bound in (
        this_project.upper,
        this_project.theorem1_with_bias,
        this_project.n_free_upper,
        this_project.upper_in_n_and_a,
        this_project.n_free_right_exponent,
    ):
        assert at_most(sigma, bound(f, 2, 1.0).value)
    assert at_most(sigma, this_project.local(f, x).value)


def test_never_above_the_published_bounds():
    for seed in range(200):
        f = with_form(normal(seed, 3, 3), normal(seed + 1, 3, 3))
        n, radius = 1 + seed % 50, 10 ** (seed % 7 / 2 - 2)
        upper, theorem1 = this_project.upper(f, n, radius), castin2024.theorem1_upper(f, n, radius)
        in_both, free = this_project.upper_in_n_and_a(f, n, radius), this_project.n_free_upper(f, n, radius)
        assert at_most(upper.log_value, theorem1.log_value + 1e-12)
        assert at_most(in_both.log_value, min(upper.log_value, free.log_value) + 1e-12)
        assert at_most(free.log_value, geshkovski2023.n_free_upper(f, n, radius).log_value + 1e-12)


def test_upper_and_lower_agree_up_to_a_constant_if_the_least_eigenvalue_is_minus_the_norm():
    f = with_form(-ONE)
    for radius in (0.1, 1.0, 3.0, 10.0, 100.0):
        gap = this_project.n_free_upper(f, 5, radius).log_value - this_project.two_dirac_lower(f, 5, radius).log_value
        assert at_most(0, gap, math.log(2.4))


@pytest.mark.parametrize("g", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_approach_the_two_dirac_bound(g, causal):
    """With k isolated tokens at R and m tokens at −R, where all isolated tokens move by the same vector."""
    f, radius = with_form(-ONE, causal=causal), math.sqrt(g)
    bound = this_project.two_dirac_lower(f, 1, radius).value
    ratio = math.exp(2 * g) * (60 if causal else 3 if (1 + 1.5 * g) * math.sqrt(3) / 4 > (1 + g) / 2 else 1)
    k = 4
    x = torch.full((k + round(k * ratio), 1), -radius, dtype=torch.float64)
    x[:k] = radius
    moved = torch.zeros_like(x)
    moved[:k] = 1 / math.sqrt(k)
    change = f.jacobian(x).matvec(moved.flatten())
    reached = float((change if causal else change[k:]).norm())
    assert reached == pytest.approx(bound, rel=0.04)
    assert this_project.two_dirac_lower(f, 1, radius).holds == "sup over n"  # at n = 1 it is far above


@pytest.mark.parametrize("causal", [False, True])
def test_lower_is_attained_by_its_configuration_at_the_best_radius(causal):
    f = with_form(torch.tensor([[-1.0, 0.4], [-0.4, 0.5]]).double(), normal(1, 2, 2), causal=causal)
    for n in (2, 8, 60):
        radius = 2.0
        bound = this_project.lower(f, n, radius)
        _values, vectors = torch.linalg.eigh((f.wq + f.wq.T) / 2)
        best = 0.0
        for r in torch.linspace(0.05, radius, 40):
            x = -r * vectors[:, 0].repeat(n, 1)
            x[0] = r * vectors[:, 0]
            moved = torch.zeros_like(x)
            moved[0] = vectors[:, 0]
            change = f.jacobian(x).matvec(moved.flatten()).view(n, -1)
            best = max(best, float((change if causal else change[1:]).norm()))
        assert at_most(best, bound.value, tol=1e-9)
        assert at_most(bound.value, best * 1.01)  # the other eigenvector does worse here
        assert at_most(bound.value, this_project.upper(f, n, radius).value)


@pytest.mark.parametrize("n", [2, 40, 41, 42, 300, 20_000])
def test_remaining_rows_are_bounded_from_below(n, monkeypatch):
    """The sum over all rows against the sum over the first forty plus an integral."""
    g = torch.cat([torch.linspace(0, 25, 101), torch.tensor([100.0])]).double()
    t = torch.arange(1, n, dtype=torch.float64)
    p = 1 / (1 + t * (-g).exp().unsqueeze(-1))
    truth = (1 + (p * (1 + g.unsqueeze(-1) * (1 - p))).square().sum(-1)).sqrt()
    monkeypatch.setattr(this_project, "SUMMED_ROWS", 40)
    found = this_project._two_point_gain(g, n, causal=True)
    assert at_most(found, truth)
    assert at_most(0.99 * truth, found) and at_most(0.998 * float(truth.max()), float(found.max()))
    far = this_project._two_point_gain(g.new_tensor([2e200]), n, causal=True)  # all rows attend only to the first token
    assert float(far) == pytest.approx(math.sqrt(n), rel=1e-12)


@pytest.mark.parametrize("least", [-1.0, 0.3, 0.8])
def test_the_right_exponent_is_the_largest_score_difference(least):
    """D bounds R|Az| − zᵀAz, and is attained for symmetric A with eigenvalues of one sign."""
    a = torch.diag(torch.tensor([1.0, least]).double())
    f, radius = with_form(a), 1.7
    angle = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    lengths = torch.linspace(0, radius, 301, dtype=torch.float64)[:, None]
    z = torch.stack([angle.cos(), angle.sin()], 1)[:, None] * lengths
    az = z @ a.T
    largest = float((radius * az.norm(dim=-1) - (az * z).sum(-1)).max())
    found = this_project._largest_score_difference(LayerForm(f), 0, radius)
    assert at_most(largest, found)
    rate = this_project.n_free_right_exponent(f, 5, 3e3).log_value / 9e6
    assert rate == pytest.approx(this_project._largest_score_difference(LayerForm(f), 0, 1.0) / 2, rel=1e-3)


def test_the_right_exponent_is_smaller_for_positive_forms_and_large_radii():
    f = with_form(EYE)
    assert less(
        this_project.n_free_right_exponent(f, 5, 100.0).log_value,
        0.2 * this_project.n_free_upper(f, 5, 100.0).log_value,
    )


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("padding", [None, torch.tensor([True, False, True, True])], ids=["all", "padded"])
def test_local_bounds_every_kind_of_layer(name, padding):
    for d_out in (5, None):
        f, x = layer(name, d_out=d_out), normal(50, 4, 6) / 2
        dense = reference.jacobian(f, x, padding)
        if padding is not None:
            dense = dense.view(4, -1, 4, 6)[padding][:, :, padding].flatten(2).flatten(0, 1)
        sigma, bound = float(torch.linalg.matrix_norm(dense, 2)), this_project.local(f, x, padding).value
        assert at_most(sigma, bound) and less(bound, 6 * sigma)


def test_local_from_dense_matrices():
    f, x = with_form(normal(1, 3, 3), normal(2, 3, 3), bq=normal(3, 3)), normal(4, 5, 3)
    p = torch.softmax((x @ f.wq.T + f.bq) @ x.T, -1)
    spread = x - (p @ x).unsqueeze(1)  # x_j − m_i
    c = torch.einsum("ij,ija,ijb->iab", p, spread, spread)
    through_queries = torch.linalg.matrix_norm(f.wv @ c @ f.wq, 2).max()
    tau = torch.linalg.matrix_norm(torch.einsum("ij,ija,ijb->iab", p.square(), spread @ f.wv.T, spread @ f.wv.T), 2)
    slopes = x @ f.wq.T + f.bq
    through_keys = torch.linalg.matrix_norm(torch.einsum("i,ia,ib->ab", tau, slopes, slopes), 2).sqrt()
    expected = norms(f)[1] * torch.linalg.matrix_norm(p, 2) + through_queries + through_keys
    assert this_project.local(f, x).value == pytest.approx(float(expected), rel=1e-10)


def test_local_of_many_tokens_uses_column_sums(monkeypatch):
    f, x = layer("causal"), normal(50, 9, 6)
    exact = this_project.local(f, x).value
    monkeypatch.setattr("howsmooth.bounds.head_on_ball.MAX_TOKENS_FOR_EXACT_NORM", 8)
    looser = this_project.local(f, x).value
    assert less(exact, looser, 1.5 * exact)


def test_local_is_far_below_yudin_on_random_inputs():
    ratios = []
    for seed in range(60):
        f, x = with_form(normal(seed, 3, 3), normal(seed + 1, 3, 3)), normal(seed + 2, 6, 3)
        ratios.append(yudin2025.local(f, x).value / this_project.local(f, x).value)
    assert min(ratios) >= 1 and sorted(ratios)[30] > 1.5


def test_windows_limit_the_queries_per_key():
    for causal, queries in ((True, 3), (False, 5)):
        f = with_form(EYE, window=3, causal=causal)
        assert LayerForm(f).max_queries_per_key(100) == queries and LayerForm(f).max_queries_per_key(2) == 2
        expected = math.sqrt(queries) + 1 + math.sqrt(queries / 2)
        assert this_project.upper(f, 100, 1.0).value == pytest.approx(expected)
        visible = (torch.ones(100, 100).triu(-2).tril(0 if causal else 2)).sum(0).max()
        assert int(visible) == queries
        for bound in (this_project.n_free_upper, this_project.two_point_lower, this_project.lower):
            with pytest.raises(Refused, match="without a window"):
                bound(f, 100, 1.0)


def test_offsets_enter_by_their_oscillation():
    plain = with_form(EYE)
    shifted = with_form(EYE, score_bias=lambda i, j: 0.5 * (j % 2))
    for n, gain in ((1, 0.0), (4, 0.25)):
        with_offsets, without = (this_project.n_free_upper(f, n, 30.0).log_value for f in (shifted, plain))
        assert with_offsets - without == pytest.approx(gain, abs=1e-9)
    assert this_project.n_free_upper(shifted, 4, 1.0).holds == "on B_R^n"
    assert close(this_project.upper(shifted, 4, 1.0).value, this_project.upper(plain, 4, 1.0).value)
    constant = with_form(EYE, score_bias=lambda i, j: 7.0)
    assert close(this_project.n_free_upper(constant, 4, 1.0).value, this_project.n_free_upper(plain, 4, 1.0).value)
    alibi = with_form(EYE, causal=True, score_bias=lambda i, j: -0.1 * (i - j).abs())
    assert float(LayerForm(alibi).oscillation(6)) == pytest.approx(0.5)


def test_n_free_bounds_refuse_infinite_offsets():
    """Offsets of −∞ above the diagonal make attention causal: at A = 0 its norm exceeds 1, the unmasked bound."""
    hidden = with_form(0 * EYE, score_bias=lambda i, j: torch.where(j > i, -math.inf, 0.0))
    assert jacobian_norm(hidden, torch.zeros(30, 2).double()) > 1.5
    for bound in (this_project.n_free_upper, this_project.upper_in_n_and_a):
        with pytest.raises(Refused, match="finite score offsets"):
            bound(hidden, 30, 1.0)
    assert this_project.upper(hidden, 30, 1.0).value >= 1.5


def test_a_scale_in_the_rotary_table_counts():
    cos, sin = rotary().cos, rotary().sin
    weights = [normal(i, 4, 4) for i in range(3)]
    plain, doubled = (SelfAttention(*weights, rotary=Rotary(s * cos, s * sin)) for s in (1.0, 2.0))
    assert LayerForm(doubled).score_norm == pytest.approx(4 * LayerForm(plain).score_norm)
    x = normal(9, 5, 4)
    radius = float(x.norm(dim=-1).max())
    sigma = jacobian_norm(doubled, x)
    assert at_most(sigma, this_project.upper(doubled, 5, radius).value)
    assert at_most(sigma, this_project.local(doubled, x).value)


def test_a_rotary_key_bias_counts():
    """Scores differ only by the key bias, whose contribution grows with the query."""
    weights = [normal(4, 4, 4), 1e-6 * normal(5, 4, 4), normal(6, 4, 4)]
    f = SelfAttention(*weights, bk=3 * normal(7, 4), rotary=rotary())
    without = SelfAttention(*weights, rotary=rotary())
    x = 10 * normal(8, 5, 4)
    radius = float(x.norm(dim=-1).max())
    sigma = jacobian_norm(f, x)
    assert less(this_project.upper(without, 5, radius).value, sigma)
    assert at_most(sigma, this_project.upper(f, 5, radius).value)
    assert at_most(sigma, this_project.local(f, x).value)


def test_logarithms_where_values_overflow():
    for causal in (False, True):
        f = with_form(-EYE, causal=causal)
        bounds = [
            this_project.n_free_upper,
            this_project.two_dirac_lower,
            this_project.two_point_lower,
            this_project.lower,
            this_project.upper,
            this_project.theorem1_with_bias,
        ]
        bounds += [] if causal else [this_project.upper_in_n_and_a, this_project.n_free_right_exponent]
        for bound in bounds:
            assert math.isfinite(bound(f, 100, 1000.0).log_value)
        assert this_project.n_free_upper(f, 100, 1000.0).value is None
        assert this_project.two_dirac_lower(f, 100, 1000.0).log_value > 1e6


def test_invalid_arguments():
    f = with_form(EYE)
    with pytest.raises(InputError, match="n ≥ 1 up to 2⁵³, got 0"):
        this_project.upper(f, 0, 1.0)
    with pytest.raises(InputError, match="R ≥ 0, got -1"):
        this_project.upper(f, 3, -1.0)
    with pytest.raises(InputError, match="finite radius"):
        this_project.two_point_lower(f, 3, math.inf)
    with pytest.raises(InputError, match="expected a SelfAttention, got int"):
        this_project.upper(3, 3, 1.0)
    with pytest.raises(InputError, match=r"of shape \(n, d\)"):
        this_project.local(f, normal(1, 2, 3, 2))
