"""Starting points for the search of worst cases, and the search: many starts, and ascent from all of them.

The inputs with the largest known constants consist of few distinct points with very unequal multiplicities: one or two
isolated tokens, and a large group of equal tokens that attends to them. Random tokens are rarely in the basin of such
an input, so most starts are clusters of this kind at random points.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from howsmooth.attack.ascent import Ascent, Layer, ascend, refuse_other_maps, softmax_layer
from howsmooth.attack.checks import check_count, check_seed, shift_seed
from howsmooth.attack.configurations import Configuration, castin, far_token, has_query_bias, three_point, two_point
from howsmooth.attack.constraints import Constraint, Ellipsoid, Near, token_norms
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.l2 import L2Attention
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.normalisation import in_coordinates
from howsmooth.errors import InputError

RANDOM_SCALES = (1.0, 0.3, 0.1, 1.0)  # of random tokens, in radii; on a sphere all of them are the same
CLUSTER_DISTANCES = (1.0, 1.0, 0.5, 0.1, 0.0)  # of a cluster's centre from the origin, in radii
CLUSTER_SPREAD = 1e-2  # of the tokens of a cluster, in radii, so that an ascent can separate them
MAX_HEADS = 4  # heads of a layer for which the configuration of Castin et al. is a start
FIRST_ROUND_DIVISOR, SURVIVOR_DIVISOR = 5, 4  # a fifth of the steps for all restarts, the rest for the best quarter


def worst_case(
    f: Layer,
    n: int,
    constraint: Constraint,
    *,
    restarts: int = 32,
    steps: int = 200,
    seed: int = 0,
    tol: float = 1e-3,
    progress: Callable[[int, Tensor], None] | None = None,
) -> Ascent:
    """Search a constraint set for n tokens with a large local Lipschitz constant.

    The search is gradient ascent from `starts`, first from all of them, then from the best quarter. On a convex set
    the result is a certified lower bound on the Lipschitz constant there, not its value. In `Near(x0, eps)` the first
    restart is x0 itself, so the result is never below the constant at x0.

    Args:
        f: the attention layer: a `SelfAttention`, an `L2Attention`, or a `Field` on its own tokens.
        n: the number of tokens; in `Near(x0, eps)` that of x0.
        constraint: the set of inputs: `Ball`, `Sphere`, `Ellipsoid` or `Near`.
        restarts: the number of starting points.
        steps: the largest number of steps of ascent.
        seed: seed of all random draws.
        tol: relative width of the certificate's interval.
        progress: called after each step with its number and the values (restarts,).

    Returns:
        The best input found with its certificate, and the history of all restarts.

    Raises:
        InputError: an argument has the wrong type or shape.

    Example:
        >>> from howsmooth.attack import Ball
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> worst_case(SelfAttention(one, one, one, scale=1.0), 16, Ball(3.0), steps=100).value > 8.49
        True
    """
    check_count("worst_case", "steps", steps, least=0)
    x = starts(f, n, constraint, restarts, seed)
    first_steps = steps // FIRST_ROUND_DIVISOR
    first = ascend(f, x, constraint, steps=first_steps, seed=seed, tol=tol, progress=progress)
    best = first.values.topk(max(1, restarts // SURVIVOR_DIVISOR)).indices
    values = first.values.clone()  # restarts that are dropped keep their value in the path

    def report_all(step: int, survivors: Tensor) -> None:
        if progress is not None:
            progress(first.steps + step, values.index_copy(0, best, torch.maximum(survivors, values[best])))

    second = ascend(
        f,
        first.ends[best],
        constraint,
        steps=steps - first_steps,
        seed=shift_seed(seed, 1),
        tol=tol,
        progress=report_all,
    )
    second_path = values.repeat(second.steps, 1).index_copy(1, best, torch.maximum(second.path[1:], values[best]))
    return replace(
        second if second.value >= first.value else first,
        start=first.start,
        path=torch.cat([first.path, second_path]),
        ends=first.ends.index_copy(0, best, second.ends),
        steps=first.steps + second.steps,
        gradients=first.gradients + second.gradients,
        seconds=first.seconds + second.seconds,
    )


def starts(f: Layer, n: int, constraint: Constraint, restarts: int = 32, seed: int = 0) -> Tensor:
    """Return starting points for `ascend`: closed-form configurations, then clusters and random tokens.

    In `Near(x0, eps)` they are x0 itself and random points within eps, eps/3 and eps/10 of it.

    Closed-form configurations exist for softmax attention alone.

    Args:
        f: the attention layer: a `SelfAttention`, an `L2Attention`, or a `Field` on its own tokens.
        n: the number of tokens.
        constraint: the set of inputs: `Ball`, `Sphere`, `Ellipsoid` or `Near`.
        restarts: the number of starting points.
        seed: seed of all random draws.

    Returns:
        Tokens (restarts, n, d) in the constraint set, with the dtype and device of the layer; in float64 for a field.

    Raises:
        InputError: an argument has the wrong type or shape.

    Example:
        >>> from howsmooth.attack import Near
        >>> eye, x0 = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
        >>> x = starts(SelfAttention(eye, eye, eye), 3, Near(x0, 0.1), restarts=4)
        >>> x.shape, torch.equal(x[0], x0), Near(x0, 0.1).contains(x, 1e-6)
        (torch.Size([4, 3, 2]), True, True)
    """
    f = softmax_layer(f)
    refuse_other_maps("starts", f)
    if not isinstance(constraint, Constraint):
        raise InputError(
            f"starts: expected a constraint (Ball, Sphere, Ellipsoid or Near), got {type(constraint).__name__}"
        )
    check_count("starts", "n", n, least=1)
    check_count("starts", "restarts", restarts, least=1)
    check_seed("starts", seed)
    constraint.check(n, f.d)
    generator = torch.Generator().manual_seed(seed)
    near = isinstance(constraint, Near)
    points = []
    if near:
        points = [torch.zeros(n, f.d, dtype=torch.float64)]
    elif isinstance(f, SelfAttention):
        points = _configurations(f, n, constraint, seed)[: max(1, restarts // 2)]
    while len(points) < restarts:
        i = len(points)
        if near or i % 4 == 0:
            points.append(RANDOM_SCALES[i // 4 % len(RANDOM_SCALES)] * constraint.draw((n, f.d), generator))
        else:
            points.append(_clusters(f.d, n, constraint, 2 + i % 2, generator))
    y = constraint.project(torch.stack(points[:restarts]))
    x = constraint.decode(y)
    return x.to(f.wq) if isinstance(f, (SelfAttention, L2Attention)) else x


def _clusters(d: int, n: int, constraint: Constraint, count: int, generator: torch.Generator) -> Tensor:
    """Draw n tokens in `count` clusters, 2 or 3: one or two tokens in the first, most of them in the last.

    Of three clusters the second may have any size. In half of the draws all centres are on one line.
    """

    def number(most: int) -> int:
        return int(torch.randint(1, max(2, most), (1,), generator=generator))

    centres = constraint.draw((count, d), generator)
    centres = constraint.coordinate_radius * centres / token_norms(centres)
    if number(3) == 1:
        centres = centres[:1] * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)[:count, None]
    distances = torch.tensor(CLUSTER_DISTANCES, dtype=torch.float64)
    centres = centres * distances[torch.randint(len(distances), (count, 1), generator=generator)]
    sizes = [number(3), *([number(n)] if count == 3 else [])]
    cluster = torch.full((n,), count - 1)
    cluster[: sizes[0]] = 0
    if count == 3:
        cluster[sizes[0] : sizes[0] + sizes[1]] = 1
    return centres[cluster] + CLUSTER_SPREAD * constraint.draw((n, d), generator)


def _configurations(f: SelfAttention, n: int, constraint: Constraint, seed: int) -> list[Tensor]:
    """Return the coordinates of all configurations that exist for this layer as a map of the coordinates."""
    layer, radius = layer_in_coordinates(f, constraint), constraint.coordinate_radius
    signs = (1, -1) if has_query_bias(layer) else (1,)  # elsewhere the ascents from both signs are mirror images
    makers: list[Callable[[], Configuration]] = [
        partial(three_point, layer, n, radius),
        partial(two_point, layer, n, radius),
        partial(far_token, layer, n, radius, seed),
        *(
            partial(castin, layer, n, radius, head, sign=sign)
            for head in range(min(layer.heads, MAX_HEADS))
            for sign in signs
        ),
    ]
    points = []
    for make in makers:
        # Rotary positions, soft caps, offsets or heads without scores: the other starts remain.
        with suppress(Refused):
            points.append(make().tokens)
    return points


def layer_in_coordinates(f: SelfAttention, constraint: Constraint) -> SelfAttention:
    """Return z ↦ f(decode(z)) as a layer in float64 on the CPU. Translations (`Near`) are left out."""
    if isinstance(constraint, Ellipsoid):
        return in_coordinates(f, constraint.norm)
    return f.converted(device="cpu", dtype=torch.float64)
