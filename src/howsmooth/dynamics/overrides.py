"""A declared flow with other values, as the options of commands give them; without torch, but for random matrices."""

from __future__ import annotations

import math
from typing import Any

from howsmooth import choices
from howsmooth.dynamics.declaration import Example, check_matrix, parse_example, read_example
from howsmooth.errors import InputError

# Keys of each section of an example that a question may change, and the names of its options where they differ.
OVERRIDES = {
    "tokens": ("count", "dim", "size", "seed"),
    "attention": ("name", "causal"),
    "flow": ("coordinates", "sphere", "until", "solver", "steps", "rtol", "noise", "frames"),
    "watch": ("tol", "lipschitz"),
}
_OPTIONS = {"count": "particles", "name": "attention", "tol": "together"}


def override_example(declared: Example, changes: dict[str, Any]) -> Example:
    """Return the example with other values by option, each in its section; values of None are ignored."""
    for section, names in OVERRIDES.items():
        declared = declared.replace(section, **{name: changes.get(_OPTIONS.get(name, name)) for name in names})
    return declared


def declared_attention(
    example: str | None,
    *,
    name: str | None,
    a: Any,
    v: Any,
    dim: int | None,
    until: float | None,
    seed: int,
    default_dim: int,
) -> Example:
    """Return an example or file with these changes; without an example, softmax attention with A = V = I."""
    if example is None:
        declared = parse_example("flow", {"tokens": {"dim": dim or default_dim}, "flow": {"until": 1.0}})
    else:
        declared = read_example(example).replace("tokens", dim=dim)
    d = declared.tokens.dim
    if declared.flow.sphere or declared.flow.noise:
        raise InputError(
            f"expected a flow off the sphere and without noise, got {example} with "
            f"{'sphere' if declared.flow.sphere else 'noise'}; use howsmooth flow particles"
        )
    if declared.attention.heads and (a is not None or v is not None):
        raise InputError(
            f"expected --A and --V for attention of one head, got them with the heads of {example}; change the file"
        )
    declared = declared.replace(
        "attention", name=name, A=named_matrix(a, d, 2 * seed), V=named_matrix(v, d, 2 * seed + 1)
    ).replace("flow", until=until)
    for name in ("A", "V"):
        check_matrix(getattr(declared.attention, name), d, name)
    return declared


def named_matrix(given: Any, d: int, seed: int) -> Any:
    """Return the matrix named identity, -identity, rotation or random in dimension d; other types unchanged.

    Example:
        >>> named_matrix("rotation", 2, 0)
        [[0.0, -1.0], [1.0, 0.0]]
    """
    if not isinstance(given, str):
        return given
    if given == choices.RANDOM_MATRIX:  # entries of variance 1/d: eigenvalues of size one, whatever d
        import torch

        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(d, d, dtype=torch.float64, generator=generator) / math.sqrt(d)).tolist()
    if given == choices.ROTATION:
        if d % 2:
            raise InputError(f"expected an even dimension for a rotation by a quarter turn, got {d}; add --dim 2")
        return [[float((i == j + 1) - (j == i + 1)) if i // 2 == j // 2 else 0.0 for j in range(d)] for i in range(d)]
    if given not in choices.MATRIX_NAMES:
        raise InputError(f"expected a matrix, or one of {', '.join(choices.MATRIX_NAMES)}, got {given!r}")
    return 1.0 if given == choices.IDENTITY else -1.0
