"""Identities that are valid for every layer and every input, checked on random ones."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from howsmooth import SelfAttention, local_lipschitz
from tests.attention.cases import LAYERS, normal
from tests.tolerances import assert_close, at_most, close

EXAMPLES = settings(max_examples=40)
seeds = st.integers(0, 10_000)
sizes = st.integers(1, 9)
symmetric = st.sampled_from(["one head", "two heads", "one key head", "softcap", "scale"])
causal = st.sampled_from(["causal", "grouped", "rotary interleaved", "causal window"])
anything = st.sampled_from([name for name in LAYERS if name != "bias table"])


def drawn_layer(name: str, seed: int, d: int = 4, out: torch.Tensor | None = None) -> SelfAttention:
    options = LAYERS[name]
    h, hkv, k, w = options["heads"], options.get("kv_heads", options["heads"]), 4, 3
    wo = normal(seed + 3, 5, h * w)
    return SelfAttention(
        normal(seed, h * k, d),
        normal(seed + 1, hkv * k, d),
        normal(seed + 2, hkv * w, d),
        wo if out is None else out @ wo,
        bq=normal(seed + 4, h * k),
        **options,
    )


@EXAMPLES
@given(anything, seeds, sizes)
def test_adjointness_and_linearity(name, seed, n):
    operator = drawn_layer(name, seed).jacobian(normal(seed + 5, n, 4))
    v, w = normal(seed + 6, 2, n * 4)
    u = normal(seed + 7, n * 5)
    assert_close(u @ operator.matvec(v), operator.rmatvec(u) @ v)
    assert_close(operator.matvec(2 * v - 3 * w), 2 * operator.matvec(v) - 3 * operator.matvec(w))


@EXAMPLES
@given(symmetric, seeds, sizes)
def test_permuting_tokens_permutes_everything(name, seed, n):
    f, x, e = drawn_layer(name, seed), normal(seed + 5, n, 4), normal(seed + 6, n, 4)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert_close(f(x[order]), f(x)[order])
    moved = f.jacobian(x[order]).matvec(e[order].flatten()).view(n, -1)
    assert_close(moved, f.jacobian(x).matvec(e.flatten()).view(n, -1)[order])


@EXAMPLES
@given(causal, seeds, st.integers(2, 9))
def test_causal_outputs_ignore_later_tokens_even_with_huge_scores(name, seed, n):
    f, x = drawn_layer(name, seed), normal(seed + 5, n, 4)
    louder = x.clone()
    louder[-1] *= 1e6
    assert close(f(louder)[:-1], f(x)[:-1])
    later = torch.zeros(n, 4, dtype=torch.float64)
    later[-1] = normal(seed + 6, 4)
    moved = f.jacobian(louder).matvec(later.flatten()).view(n, -1)
    assert not moved[:-1].any()


@EXAMPLES
@given(anything, seeds, sizes)
def test_a_padded_token_at_the_end_has_no_effect(name, seed, n):
    f, x = drawn_layer(name, seed), normal(seed + 5, n + 1, 4)
    x[-1] *= 1e6
    padding = torch.arange(n + 1) < n
    assert_close(f(x, padding)[:-1], f(x[:-1]))


@EXAMPLES
@given(anything, seeds, sizes)
def test_norm_is_invariant_under_an_orthogonal_change_of_output_basis(name, seed, n):
    turn = torch.linalg.qr(normal(seed + 8, 5, 5)).Q
    x = normal(seed + 5, n, 4)
    plain, turned = (local_lipschitz(drawn_layer(name, seed, out=q), x, tol=1e-6).value for q in (None, turn))
    assert at_most(abs(plain - turned), 2e-6 * plain)


@EXAMPLES
@given(anything, seeds, sizes, st.floats(1e-3, 1e3))
def test_norm_scales_with_the_output(name, seed, n, factor):
    x = normal(seed + 5, n, 4)
    plain = local_lipschitz(drawn_layer(name, seed), x, tol=1e-6)
    scaled = local_lipschitz(drawn_layer(name, seed, out=factor * torch.eye(5, dtype=torch.float64)), x, tol=1e-6)
    assert at_most(abs(scaled.value - factor * plain.value), 2e-6 * scaled.value)
    assert at_most(abs(scaled.relative - plain.relative), 1e-5 * plain.relative)


@EXAMPLES
@given(anything, seeds, st.integers(2, 9))
def test_norm_does_not_grow_with_fewer_tokens(name, seed, n):
    f, x = drawn_layer(name, seed), normal(seed + 5, n, 4)
    whole, part = local_lipschitz(f, x), local_lipschitz(f, x, tokens=range(n - 1))
    assert at_most(part.lower, whole.upper)
    fewer = local_lipschitz(f, x, tokens=range(n - 1), output_tokens=[0])
    assert at_most(fewer.lower, part.upper)
