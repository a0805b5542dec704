"""Where to begin, and the whole search: many starts, and ascent from all of them.

The roughest inputs known are few distinct points with very unequal multiplicities: a crowd, and a token or two that it
looks at. Random tokens are seldom in their basin, so most starts are made of such clusters, at random places.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from howsmooth.attack.ascent import Ascent, ascend
from howsmooth.attack.configurations import castin, far_token, two_point
from howsmooth.attack.constraints import Constraint, Ellipsoid, Near, another_seed, check_count, check_seed
from howsmooth.attention import SelfAttention
from howsmooth.bounds.bound import Refused
from howsmooth.errors import InputError

SPREADS = (1.0, 0.3, 0.1, 1.0)  # of random tokens, in radii; a sphere knows only the first
APART = 1e-2  # radii between the tokens of a cluster: they may part
HEADS_TRIED = 4  # of a layer, each by its own configuration
FIRST_ROUND, KEPT = 5, 4  # a fifth of the steps for all restarts, the rest for the best quarter


def worst_case(
    f: SelfAttention,
    n: int,
    constraint: Constraint,
    *,
    restarts: int = 32,
    steps: int = 200,
    seed: int = 0,
    tol: float = 1e-3,
    progress: Callable[[int, Tensor], None] | None = None,
) -> Ascent:
    """The roughest n tokens found in the constraint: `starts`, and ascent from all of them, then from the best quarter.

    A lower bound on the Lipschitz constant on that set, if it is convex, with a certificate; not its value. In
    `Near(x0, eps)`, with n the length of x0, the first restart begins at x0 itself and the others at points drawn
    around it, so that the result is never below the constant at x0.

    >>> from howsmooth.attack import Ball
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> worst_case(SelfAttention(one, one, one, scale=1.0), 16, Ball(3.0), steps=100).value > 8.49
    True
    """
    check_count("worst_case", "steps", steps, least=0)
    x = starts(f, n, constraint, restarts, seed)
    early = steps // FIRST_ROUND
    first = ascend(f, x, constraint, steps=early, seed=seed, tol=tol, progress=progress)
    best = first.values.topk(max(1, restarts // KEPT)).indices
    # Those that are left behind stay where they are, in the record as well.
    values = first.values.clone()

    def report(step: int, now: Tensor) -> None:
        progress(first.steps + step, values.index_copy(0, best, torch.maximum(now, values[best])))

    second = ascend(
        f,
        first.ends[best],
        constraint,
        steps=steps - early,
        seed=another_seed(seed, 1),
        tol=tol,
        progress=None if progress is None else report,
    )
    later = values.repeat(second.steps, 1).index_copy(1, best, torch.maximum(second.path[1:], values[best]))
    return replace(
        second if second.value >= first.value else first,
        start=first.start,
        path=torch.cat([first.path, later]),
        ends=first.ends.index_copy(0, best, second.ends),
        steps=first.steps + second.steps,
        gradients=first.gradients + second.gradients,
        seconds=first.seconds + second.seconds,
    )


def starts(f: SelfAttention, n: int, constraint: Constraint, restarts: int = 32, seed: int = 0) -> Tensor:
    """Tokens (restarts, n, d) to climb from: configurations first, then clusters and random draws by turns.

    In `Near(x0, eps)` they are x0 itself, unchanged, and points drawn within eps, eps/3 and eps/10 of it: hand them to
    `ascend` to climb from all of them to the end.

    >>> from howsmooth.attack import Near
    >>> eye, x0 = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    >>> x = starts(SelfAttention(eye, eye, eye), 3, Near(x0, 0.1), restarts=4)
    >>> x.shape, torch.equal(x[0], x0), Near(x0, 0.1).contains(x, 1e-6)
    (torch.Size([4, 3, 2]), True, True)
    """
    if not isinstance(f, SelfAttention):
        raise InputError(f"starts: expected a SelfAttention, got {type(f).__name__}; its curvature is needed, too")
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
    made = [torch.zeros(n, f.d, dtype=torch.float64)] if near else _configurations(f, n, constraint, seed)
    made = made[: max(1, restarts // 2)]
    while len(made) < restarts:
        i = len(made)
        if near or i % 4 == 0:
            made.append(SPREADS[i // 4 % len(SPREADS)] * constraint.draw((n, f.d), generator))
        else:
            made.append(_clusters(f, n, constraint, 2 + i % 2, generator))
    y = constraint.project(torch.stack(made[:restarts]))
    return constraint.decode(y).to(f.wq)


def _clusters(f: SelfAttention, n: int, constraint: Constraint, points: int, generator: torch.Generator) -> Tensor:
    """Few distinct points, far out or near the centre: one or two tokens at each but the last, which has the crowd.

    Of three points the second may have any number. All are on one line as often as not.
    """

    def number(most: int) -> int:
        return int(torch.randint(1, max(2, most), (1,), generator=generator))

    places = constraint.draw((points, f.d), generator)
    places = constraint.radius * places / torch.linalg.vector_norm(places, dim=-1, keepdim=True)
    if number(3) == 1:
        places = places[:1] * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)[:points, None]
    distances = torch.tensor([1.0, 1.0, 0.5, 0.1, 0.0], dtype=torch.float64)
    places = places * distances[torch.randint(5, (points, 1), generator=generator)]
    counts = [number(3), *([number(n)] if points == 3 else [])]
    which = torch.full((n,), points - 1)
    which[: counts[0]] = 0
    if points == 3:
        which[counts[0] : counts[0] + counts[1]] = 1
    return places[which] + APART * constraint.draw((n, f.d), generator)


def _configurations(f: SelfAttention, n: int, constraint: Constraint, seed: int) -> list[Tensor]:
    """Coordinates of the configurations that this layer has, made for it as a map of the coordinates."""
    layer = in_coordinates(f, constraint)
    makers = [lambda: two_point(layer, n, constraint.radius), lambda: far_token(layer, n, constraint.radius, seed)]
    makers += [
        lambda head=head: castin(layer, n, constraint.radius, head) for head in range(min(layer.heads, HEADS_TRIED))
    ]
    made = []
    for make in makers:
        with suppress(Refused):  # rotary positions, caps, offsets, heads without scores: there is the rest
            made.append(make().tokens)
    return made


def in_coordinates(f: SelfAttention, constraint: Constraint) -> SelfAttention:
    """Z ↦ f(decode(z)) as a layer, in float64 on the CPU: an ellipsoid's gain, bias and centring become weights."""
    f = f.to(device="cpu", dtype=torch.float64)
    if not isinstance(constraint, Ellipsoid):
        return f
    gain, bias = (constraint.decode(t) for t in (torch.ones(f.d, dtype=torch.float64), torch.zeros(f.d).double()))
    gain = gain - bias

    def weight(w: Tensor) -> Tensor:
        w = w * gain
        return w - w.mean(-1, keepdim=True) if constraint.norm.centred else w

    def offset(w: Tensor, b: Tensor | None) -> Tensor:
        return w @ bias if b is None else w @ bias + b

    return SelfAttention(
        weight(f.wq),
        weight(f.wk),
        weight(f.wv),
        f.wo,
        bq=offset(f.wq, f.bq),
        bk=offset(f.wk, f.bk),
        bv=offset(f.wv, f.bv),
        bo=f.bo,
        heads=f.heads,
        kv_heads=f.kv_heads,
        scale=f.scale,
        causal=f.causal,
        window=f.window,
        rotary=f.rotary,
        softcap=f.softcap,
        score_bias=f.score_bias,
    )
