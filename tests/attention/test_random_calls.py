"""Random calls of the drop-in against PyTorch's MATH backend in float64: values and first and second derivatives."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth import scaled_dot_product_attention
from tests.attention.cases import normal
from tests.tolerances import assert_close

CALLS, PARTS = 240, 6


def random_call(rng: random.Random):
    """Tensors and options: shared and broadcast heads and sequences, masks of all shapes, or some size that is 0."""
    is_empty = rng.random() < 0.2
    sizes = [0, 1, 4] if is_empty else [1, 2, 5, 9]
    n, m, width, w = (rng.choice(sizes) for _ in range(4))
    heads = rng.choice([1, 2, 4, 6])
    lead = rng.choice([(), (1,), (2,), (3, 2)])
    options = {}
    if rng.random() < 0.4:
        options["enable_gqa"] = True
        divisors = [d for d in (1, 2, 3, 4, 6) if heads % d == 0]
        at_heads = [heads, rng.choice(divisors), rng.choice(divisors)]
    else:
        at_heads = [rng.choice([1, heads]) for _ in range(3)]
    if is_empty:  # the sizes of an empty output do not broadcast in PyTorch
        at_heads[0] = heads
        leads = [lead] * 3
    else:
        leads = [tuple(rng.choice([1, size, size]) for size in lead) for _ in range(3)]
        leads = [some[rng.randrange(len(some) + 1) :] if rng.random() < 0.2 else some for some in leads]
    shapes = [(n, width), (m, width), (m, w)]
    if rng.random() > 0.15:
        shapes = [(*some, h, *shape) for some, h, shape in zip(leads, at_heads, shapes, strict=True)]
    else:
        options, lead, heads = {}, (), None
    kind = rng.random()
    if kind < 0.25:
        options["is_causal"] = True
    elif kind < 0.65:
        full = (n, m) if heads is None else (*lead, heads, n, m)
        some = [size if rng.random() < 0.7 else 1 for size in full]
        table = normal(rng.randrange(1000), *some[rng.randrange(len(some) - 1) :])
        options["attn_mask"] = table > -0.7 if rng.random() < 0.5 else table
    if rng.random() < 0.3:
        options["scale"] = rng.choice([0.3, -1.0, 0.0, 2])
    return [normal(rng.randrange(1000), *shape) for shape in shapes], options


def results(f, at, options):
    leaves = [t.clone().requires_grad_() for t in at]
    o = f(*leaves, **options)
    first = torch.autograd.grad(
        o, leaves, normal(1, *o.shape), create_graph=True, allow_unused=True, materialize_grads=True
    )
    second = torch.autograd.grad(sum((t * t).sum() for t in first) + sum(t.sum() for t in leaves), leaves)
    tangents = tuple(normal(2 + i, *t.shape) for i, t in enumerate(at))
    return o, *first, *second, *torch.func.jvp(lambda *t: f(*t, **options), tuple(at), tangents)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls(part):
    rng = random.Random(part)
    compared = 0
    for _ in range(CALLS // PARTS):
        at, options = random_call(rng)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                expected = results(F.scaled_dot_product_attention, at, options)
        except RuntimeError:
            continue  # PyTorch adds a mask in place, which cannot broadcast the scores
        call = [tuple(t.shape) for t in at], {name: getattr(x, "shape", x) for name, x in options.items()}
        for index, (mine, theirs) in enumerate(
            zip(results(scaled_dot_product_attention, at, options), expected, strict=True)
        ):
            try:
                assert_close(mine, theirs, 1e-10)
            except AssertionError as error:
                raise AssertionError(f"{call}, result {index}: {error}") from None
        compared += 1
    assert compared > 0.9 * CALLS / PARTS
