"""Mitigations against dense references, and as replacements of a model's attention."""

from __future__ import annotations

import pytest
import torch

from howsmooth import InputError, SelfAttention, load, local_lipschitz
from howsmooth.attack.mitigation import L2, Cap, DistanceAttention, Temperature
from howsmooth.models import replace_attention
from tests.attention.cases import LAYERS, layer, normal
from tests.models.tiny import tiny_network
from tests.tolerances import FLOAT32, assert_close, at_most, close


def test_cap_clips_every_head_and_nothing_else():
    f = layer("grouped")
    g = Cap(0.6, of="qv")(f)
    for name, heads in (("wq", 4), ("wv", 2)):
        before, after = (torch.linalg.svdvals(getattr(h, name).unflatten(0, (heads, -1))) for h in (f, g))
        assert_close(after, torch.minimum(before, 0.6 * before[:, :1]))
    # exact: the same draw, unchanged
    assert g.wk is f.wk and g.bq is f.bq and torch.equal(f.wq, layer("grouped").wq)
    assert_close(Cap(1.0)(f)(normal(3, 5, 6)), f(normal(3, 5, 6)))


def test_temperature_divides_the_scores():
    f, x = layer("rotary"), normal(3, 5, 6)
    hot = SelfAttention(f.wq / 3, f.wk, f.wv, f.wo, bq=f.bq / 3, bk=f.bk, bv=f.bv, bo=f.bo, heads=2, rotary=f.rotary)
    assert_close(Temperature(3.0)(f)(x), hot(x))
    mean = Temperature(1e9)(layer("two heads"))
    assert_close(mean(x), mean(x).mean(0).expand(5, -1), 1e-6)  # all weights are equal
    both = (Cap(0.5) >> Temperature(2.0))(f)
    assert_close(both(x), Temperature(2.0)(Cap(0.5)(f))(x))


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in ("softcap", "bias table")])
def test_distance_attention_against_a_dense_reference(kind):
    """Softmax of distances, with the mask of the softmax layer."""
    f, x = layer(kind), normal(3, 2, 5, 6)
    q, _, v = f.project(x)
    v = v.repeat_interleave(f.heads // f.kv_heads, -3)
    scores = -f.scale / 2 * (q.unsqueeze(-2) - q.unsqueeze(-3)).square().sum(-1)
    i, j = torch.arange(5)[:, None], torch.arange(5)[None]
    if f.score_bias is not None:
        scores = scores + f.score_bias(i, j)
    seen = (j <= i) if f.causal else torch.ones(5, 5, dtype=torch.bool)
    seen = seen if f.window is None else seen & ((i - j).abs() < f.window)
    P = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    assert_close(DistanceAttention(f)(x), (P @ v).transpose(-3, -2).flatten(-2) @ f.wo.T + f.bo)


def test_tied_values_are_the_layer_of_kim_et_al():
    w = normal(1, 6, 6), normal(2, 6, 6), normal(3, 6, 6)
    f = SelfAttention(w[0], w[1], w[1], w[2], heads=2)
    x = normal(4, 5, 6)
    assert_close(L2("tied")(f)(x), L2("tied")(SelfAttention(w[0], w[2], w[1], w[2], heads=2))(x))  # keys do not matter
    far = local_lipschitz(L2("tied")(f), 100 * x).value
    from howsmooth.bounds import kim2021

    assert at_most(far, kim2021.l2_two(L2("tied")(f), 5).value)


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_replaced_attention_in_a_model(family):
    """Replacing attention by its own map changes nothing; another map changes the layers after it."""
    model = load(tiny_network(family, torch.float64))
    ids = torch.arange(5, 14)
    clean = model.map_at(ids, map="model")()
    own = {layer: model.attention(layer, 9) for layer in range(model.layers)}
    with replace_attention(model, own):
        assert_close(model.map_at(ids, map="model")(), clean, 1e-5)
    entering = model.activations(ids, range(3))
    with replace_attention(model, {1: Temperature(4.0)(own[1])}):
        now = model.activations(ids, range(3))
        at = model.map_at(ids, map="model")
        moved = at()
        assert local_lipschitz(at.f, at.x, tol=0.1).value > 0  # it is differentiable
    assert close(now[1], entering[1], FLOAT32) and (now[2] - entering[2]).abs().max() > 1e-3
    assert (moved - clean).abs().max() > 1e-3
    assert close(model.map_at(ids, map="model")(), clean, FLOAT32)  # the replacement has ended


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Cap(0.0), "above 0 and up to 1"),
        (lambda: Cap(1.5), "above 0 and up to 1"),
        (lambda: Cap(0.5, of="x"), "letters"),
        (lambda: Temperature(0), "above 0"),
        (lambda: L2("free"), "own, tied"),
        (lambda: Cap(0.5)(torch.nn.Identity()), "expected a SelfAttention"),
        (lambda: (L2() >> Cap(0.5))(layer("two heads")), "apply L2 last"),
        (lambda: L2()(layer("softcap")), "soft cap"),
        (lambda: L2("tied")(layer("causal")), "without mask"),
        (lambda: Cap(0.5) >> 3, "another mitigation"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()
