"""All heads together: the formula from dense matrices, distances of rotary positions, and many attacks."""

import math

import pytest
import torch

from howsmooth import InputError, Rotary, SelfAttention
from howsmooth.attack import Ellipsoid, ascend
from howsmooth.attention.normalisation import Normalisation
from howsmooth.bounds import LayerForm, heads_together, this_project
from howsmooth.bounds.normalisation import radius as radius_of
from tests.attention.cases import LAYERS, layer, normal
from tests.bounds.test_every import dense_heads
from tests.laws.test_bounds_hold import ascended, drawn, steepness, tokens
from tests.tolerances import at_most, close, less

MARGIN = 3e-4  # of certified norms of matrices larger than 32 × 32
norm = torch.linalg.matrix_norm


def pair_forms(f: SelfAttention, n: int) -> torch.Tensor:
    """A_ij of each head and pair of tokens, (h, i, j, d, d)."""
    wq, wk = (torch.unflatten(w, 0, (-1, f.wq.shape[0] // f.heads)) for w in (f.wq, f.wk))
    wk = wk.repeat_interleave(f.heads // f.kv_heads, 0)
    turned = [w.unsqueeze(2).expand(-1, -1, n, -1).movedim(-1, 1) for w in (wq, wk)]  # (h, d, k, n)
    turned = [t.transpose(-1, -2) for t in turned]
    q, k = turned if f.rotary is None else [f.rotary(t) for t in turned]  # (h, d, n, k)
    return f.scale * torch.einsum("hejk,hdik->hijed", k, q)


def dense_bound(f: SelfAttention, n: int, radius: float) -> float:
    """The formula of proof 7 from d × d matrices, the smallest over the same weights ω."""
    form, forms = LayerForm(f), pair_forms(f, n)
    w = form.repeat_kv(form.wv)
    if f.wo is None:
        out = torch.stack([torch.cat([w[h] if g == h else 0 * w[h] for g in range(f.heads)]) for h in range(f.heads)])
    else:
        out = torch.stack([v for _, _, v in dense_heads(f)])
    i, j = torch.arange(n).unsqueeze(1), torch.arange(n)
    visible = f.pattern()["causal"] * (j > i)
    visible = ~visible.bool() & ((i - j).abs() < (f.window or n))
    m = int(visible.sum(0).max())
    c = torch.zeros(f.heads, f.d).double()
    if f.bq is not None and f.rotary is None:
        c = torch.stack([c for _, c, _ in dense_heads(f)])
    value = math.sqrt(m) * min(float(form.value_norm.sum()), form.out_norm * float(norm(w.flatten(0, 1), 2)))
    best = this_project.upper(f, n, radius).value
    size = form.slopes(radius).key / radius
    for p in heads_together.EXPONENTS:
        omega = form.value_norm**p * size ** (p - 1)
        weighted = omega[:, None, None, None, None] * forms
        below = norm(weighted.movedim(0, 2).flatten(2, 3), 2)
        beside = norm(weighted.movedim(0, 3).flatten(3, 4), 2)
        offset = float(norm(omega[:, None] * c, 2)) if f.rotary is None else float((omega * form.query_offset).norm())
        alpha = radius * torch.minimum(below, beside) + offset
        if f.rotary is None:
            stacked = float(below.max())
        else:
            gains = form.scale * form.rotary_gain**2 * omega * form.key_norm
            stacked = float(norm((gains[:, None, None] * form.wq).flatten(0, 1), 2))
            alpha = alpha.clamp(max=radius * stacked + offset)
        rows = math.sqrt(float((visible * alpha.square()).sum(0).max()))
        query = radius * stacked + float((omega * form.key_offset).norm())
        outputs = float(norm((out / omega[:, None, None]).movedim(0, 1).flatten(1), 2))
        best = min(best, value + outputs * radius * (query + rows / math.sqrt(2)))
    return best


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", [name for name in LAYERS if "bias" not in name])
def test_the_formula_from_dense_matrices(name, biases, monkeypatch):
    for d_out, exponent in ((None, 0.5), (5, 0.2)):
        monkeypatch.setattr(heads_together, "EXPONENTS", (exponent,))
        f = layer(name, d_out=d_out, biases=biases)
        for n, radius in ((1, 2.0), (7, 0.3), (7, 3.0)):
            assert heads_together.upper(f, n, radius).value == pytest.approx(dense_bound(f, n, radius), rel=MARGIN)


@pytest.mark.parametrize("name", LAYERS)
def test_never_above_the_sum_over_heads(name):
    f = layer(name)
    for n, radius in ((1, 0.0), (4, 0.1), (4, 30.0)):
        together, apart = heads_together.upper(f, n, radius), this_project.upper(f, n, radius)
        assert at_most(together.log_value, apart.log_value)
    assert f.heads == 1 or less(together.log_value, apart.log_value - 0.01)


def test_one_head_gains_nothing():
    f = layer("one head")
    assert close(heads_together.upper(f, 9, 2.0).log_value, this_project.upper(f, 9, 2.0).log_value)


def test_heads_that_read_and_write_apart_count_once():
    wq = torch.eye(12).double()
    f = SelfAttention(wq, wq, wq, heads=4)
    head = SelfAttention(wq[:3], wq[:3], wq[:3], scale=f.scale)
    together, one = (heads_together.upper(g, 16, 5.0).value for g in (f, head))
    assert together == pytest.approx(one, rel=MARGIN)


def test_the_best_of_several_weights_is_taken():
    f = layer("two heads")
    assert heads_together.upper(f, 7, 3.0).value == pytest.approx(dense_bound(f, 7, 3.0), rel=0.02)


@pytest.mark.parametrize("angles", ["linear", "of another law", "scaled"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", [6, 16])
def test_tables_of_any_kind(angles, causal, positions, monkeypatch):
    """Only tables that depend on the distance have norms for each distance; the bound holds for all."""
    position = torch.arange(float(positions)).double()
    angle = (position.square() if angles == "of another law" else position).unsqueeze(1) * torch.tensor([0.7, 0.01])
    angle = torch.cat([angle, angle], 1).double()
    gain = 1.5 if angles == "scaled" else 1.0
    rotary = Rotary(gain * angle.cos(), gain * angle.sin())
    f = SelfAttention(*(normal(s, 8, 3) for s in (1, 2, 3)), normal(4, 3, 8), heads=2, rotary=rotary, causal=causal)
    x = ascended(f, tokens(5, 4, 6, 2.0), 2.0, steps=6)
    monkeypatch.setattr(heads_together, "EXPONENTS", (0.4,))
    bound = heads_together.upper(f, 6, 2.0)
    assert at_most(math.log(steepness(f, x).max()), bound.log_value, this_project.upper(f, 6, 2.0).log_value)
    if angles != "of another law":
        assert bound.value == pytest.approx(dense_bound(f, 6, 2.0), rel=MARGIN)
        assert less(bound.log_value, this_project.upper(f, 6, 2.0).log_value)
    beyond = heads_together.upper(f, 40, 2.0)  # more tokens than positions: no table, but a bound
    assert less(bound.log_value, beyond.log_value)


def test_far_distances_use_the_norms_of_queries_and_keys(monkeypatch):
    f = layer("rotary interleaved")
    exact = heads_together.upper(f, 12, 2.0)
    monkeypatch.setattr(heads_together, "MAX_DISTANCES", 3)
    assert at_most(exact.log_value, heads_together.upper(f, 12, 2.0).log_value)
    assert at_most(heads_together.upper(f, 12, 2.0).log_value, this_project.upper(f, 12, 2.0).log_value)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_of_a_normalisation(name):
    """Without gains the set is a ball; with gains no output exceeds the bound, and it is below that of the ball."""
    f, n, d = layer(name), 4, 6
    plain = Normalisation(torch.ones(d).double(), centred=False)
    ball = heads_together.upper(f, n, math.sqrt(d))
    assert heads_together.upper_on_outputs(f, n, plain).value == pytest.approx(ball.value, rel=1e-6)
    norm = Normalisation(torch.tensor([4.0, -2.0, 0.5, 0.3, 0.2, 0.1]).double(), 0.3 * normal(8, d))
    bound = heads_together.upper_on_outputs(f, n, norm)
    assert at_most(bound.log_value, heads_together.upper(f, n, radius_of(norm)).log_value)
    z = normal(9, 60, n, d)
    x = norm(torch.where(torch.arange(60).view(-1, 1, 1) % 2 == 0, z, z[:, [0, 1, 1, 1]]))
    found = ascend(f, x[steepness(f, x).argsort()[-2:]], Ellipsoid(norm), steps=15)
    assert at_most(math.log(steepness(f, x).max()), math.log(found.value) + 1e-9, bound.log_value)


def test_gains_that_differ_sharpen_the_bound():
    f, gain = layer("one head", d_out=None), torch.tensor([9.0, 1.0, 0.1, 0.1, 0.1, 0.1]).double()
    norm = Normalisation(gain, centred=False)
    ball = heads_together.upper(f, 16, radius_of(norm)).log_value
    assert less(heads_together.upper_on_outputs(f, 16, norm).log_value, ball - 0.1)
    with pytest.raises(InputError, match="width 6, got width 3"):
        heads_together.upper_on_outputs(f, 16, Normalisation(gain[:3]))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_hundred_thousand_inputs(name):
    """10⁴ random and optimised inputs of each of 13 kinds of layers."""
    for seed in range(80):
        n, radius = 2 + seed % 5 if name != "bias table" else 4, [0.1, 0.5, 1.0, 2.0, 5.0][seed % 5]
        f = drawn(name, seed, n)
        bound = heads_together.upper(f, n, radius).log_value
        x = tokens(seed, 122, n, radius)
        sigma = steepness(f, x)
        assert at_most(math.log(sigma.max()), bound)
        climbed = ascended(f, x[sigma.argsort(descending=True)[:3]], radius, steps=8)
        assert at_most(math.log(steepness(f, climbed).max()), bound)
