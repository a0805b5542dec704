"""Construction of a declared flow: its tokens, field, velocity and trajectory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.integrals import LinearField, SigmoidField
from howsmooth.attention.fields.sinkhorn import SinkhornField
from howsmooth.attention.fields.softmax import L2Field, SoftmaxField
from howsmooth.attention.heads import SelfAttention
from howsmooth.dynamics.declaration import Attention, Example, Matrix, Tokens, check_matrix
from howsmooth.dynamics.integration import integrate
from howsmooth.dynamics.renormalised import Renormalised
from howsmooth.dynamics.trajectory import Trajectory
from howsmooth.dynamics.velocity import Layer, Velocity
from howsmooth.errors import InputError


def field_of(attention: Attention, d: int) -> Field:
    """Return the declared attention as a field on R^d.

    Example:
        >>> field_of(Attention(V=2.0), 3).layer.wv[0].tolist()
        [2.0, 0.0, 0.0]
    """
    A, V = matrix(attention.A, d, "A"), matrix(attention.V, d, "V")
    eye = torch.eye(d, dtype=torch.float64)
    if attention.name == "l2":
        return L2Field(A, eye, V)
    if attention.name == "sinkhorn":
        return SinkhornField(A, V, eps=attention.eps)
    if attention.name == "linear":
        return LinearField(A, V)
    if attention.name == "sigmoid":
        return SigmoidField(A, V, bias=attention.bias)
    pairs = [
        (matrix(h.A, d, f"heads[{i}].A"), matrix(h.V, d, f"heads[{i}].V")) for i, h in enumerate(attention.heads)
    ] or [(A, V)]
    count = len(pairs)
    return SoftmaxField(
        SelfAttention(
            torch.cat([A for A, _ in pairs]),
            eye.repeat(count, 1),
            torch.cat([V for _, V in pairs]),
            eye.repeat(1, count),
            heads=count,
            scale=1.0,
            causal=attention.causal,
        )
    )


def tokens_of(tokens: Tokens, sphere: bool = False) -> Tensor:
    """Return the first tokens (n, d) in float64, normalised if the flow is on the sphere."""
    if tokens.points:
        if len({len(row) for row in tokens.points}) > 1 or not tokens.points[0]:
            raise InputError(f"expected points of one width, got widths {sorted({len(row) for row in tokens.points})}")
        x = torch.tensor(tokens.points, dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(tokens.seed)
        shape = (tokens.count, tokens.dim)
        if tokens.law == "uniform":
            x = tokens.size * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)
        else:
            x = tokens.size * torch.randn(shape, generator=generator, dtype=torch.float64)
            if tokens.law == "sphere":
                x = tokens.size * x / x.norm(dim=-1, keepdim=True)
    if not sphere:
        return x
    norms = x.norm(dim=-1, keepdim=True)
    if not norms.all():
        raise InputError(
            f"expected tokens other than 0 on a sphere, got 0 as token {int(norms.argmin())}; it has no direction"
        )
    return x / norms


def integrate_example(
    example: Example,
    progress: Callable[[float], None] | None = None,
    *,
    layers: Sequence[Layer] | None = None,
    x: Tensor | None = None,
) -> tuple[Trajectory, Field | Layer | list[Layer]]:
    """Integrate a declared flow.

    Args:
        example: The declared flow.
        progress: Called with the depth after every step.
        layers: Replace the declared attention: one layer for all depths, or several, each for an equal part.
        x: Replaces the declared tokens, (n, d).

    Returns:
        The trajectory in the declared coordinates, and the attention that moves the tokens.

    Raises:
        InputError: If a matrix does not fit the dimension, or a setting is not valid.
        Interrupted: On Ctrl-C; its `partial` is the trajectory up to then.

    Example:
        >>> from howsmooth.dynamics import read_example
        >>> trajectory, field = integrate_example(read_example("low_rank").replace("flow", until=1.0))
        >>> trajectory.status, field.name
        ('finished', 'softmax')
    """
    flow = example.flow
    x = tokens_of(example.tokens, flow.sphere) if x is None else x
    field = attention_of(example, x.shape[1], layers)
    if flow.coordinates == "renormalised":
        velocity = Velocity(Renormalised(field).at)
    else:
        velocity = Velocity(field, sphere=flow.sphere)
    trajectory = integrate(
        velocity,
        x,
        flow.until,
        solver=flow.solver,
        rtol=flow.rtol,
        atol=flow.atol,
        steps=flow.steps,
        frames=flow.frames,
        max_steps=flow.max_steps,
        noise=flow.noise,
        seed=example.tokens.seed,
        progress=progress,
    )
    return trajectory, field


def attention_of(example: Example, d: int, layers: Sequence[Layer] | None = None) -> Field | Layer | list[Layer]:
    """Return the declared attention, or `layers` in place of it; a single layer is not wrapped in a list."""
    if layers is None:
        return field_of(example.attention, d)
    return layers[0] if len(layers) == 1 else list(layers)


def unmet_expectations(expect: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Return a line for each expectation that the record does not meet.

    Args:
        expect: For each field of a record a value, or a table with `at_least` and `at_most`.
        record: A record of `trajectory_records`.

    Raises:
        InputError: If an expectation names no field of the record, or no known comparison.

    Example:
        >>> unmet_expectations({"clusters": {"at_most": 3}, "rank": 2}, {"clusters": 4, "rank": 2})
        ['clusters: expected at_most 3, got 4']
    """
    wrong = []
    for key, wanted in expect.items():
        if key not in record:
            raise InputError(f"expected a field of a record ({', '.join(record)}), got {key!r} in [expect]")
        got, bounds = record[key], wanted if isinstance(wanted, dict) else {"equal to": wanted}
        for how, value in bounds.items():
            if how not in ("at_least", "at_most", "equal to"):
                raise InputError(f"expected at_least or at_most for {key} in [expect], got {how!r}")
            fine = got is not None and (
                got >= value if how == "at_least" else got <= value if how == "at_most" else got == value
            )
            if not fine:
                wrong.append(f"{key}: expected {how} {value}, got {got}")
    return wrong


def matrix(given: Matrix, d: int, name: str) -> Tensor:
    """Return a (d, d) matrix given as a multiple of the identity, a diagonal, or rows; `name` is for errors.

    Example:
        >>> matrix([1.0, 2.0], 2, "V").tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    check_matrix(given, d, name)
    t = torch.tensor(given, dtype=torch.float64)
    if t.dim() == 0:
        return t * torch.eye(d, dtype=torch.float64)
    return torch.diag(t) if t.dim() == 1 else t
