"""The exact constant of a sequence with k tokens at y and all other tokens at z.

Only the log ratio L of the two numbers of tokens matters, so that lengths may be as large as e^1000. Take as basis the
perturbations that move all tokens at y, or all at z, alike, normalised in ‖X‖. With δ = y − z, a_x = Ax + c and σ the
logistic function, the derivative in this basis is

    P_yy = σ(⟨a_y, δ⟩ − L)    P_zy = σ(⟨a_z, δ⟩ − L)

    J = V [ P_yy (I + P_yz δ(Aᵀδ + a_y)ᵀ)            e^{−L/2} P_yz (I − P_yy δ a_yᵀ)  ]
          [ e^{L/2} P_zy (I + P_zz δ a_zᵀ)            P_zz (I + P_zy δ(Aᵀδ − a_z)ᵀ)    ]

This is the weighted Jacobian of the measure with two atoms. Tokens at the same point may also be perturbed differently:
perturbations with sum zero at one point x are mapped by `V C_x A`, with `C_x = P_xy P_xz δδᵀ`. They are orthogonal to
the common perturbations, and so are their images. So the norm for the whole sequence is the maximum of ‖J‖ and of ‖V
C_x A‖ over the points with at least two tokens.

All norms are returned as logarithms, since e^{L/2}, the square root of a length, may overflow.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from howsmooth.errors import InputError


def two_atom_norm(
    A: Tensor, V: Tensor, y: Tensor, z: Tensor, log_ratio: Tensor | float, c: Tensor | None = None
) -> Tensor:
    """Compute log ‖J‖ of two atoms whose masses are 1 : e^{log_ratio}, in the weighted norm.

    Args:
        A: Form of the scores `⟨Ax + c, y⟩`, (d, d). All tensors are float64.
        V: Values, (d_out, d).
        y: First atom, (…, d).
        z: Second atom, (…, d).
        log_ratio: Logarithm of the mass at z divided by the mass at y, (…).
        c: Constant part of the scores, (d,); zero by default.

    Returns:
        The logarithms, (…).

    Raises:
        InputError: If shapes or dtypes do not match.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> R = torch.tensor([4.0], dtype=torch.float64)
        >>> float(two_atom_norm(-one, one, R, -R, 32.0))  # masses 1 : e^{2γR²}: log of ½ e^{γR²} (1 + γR²), γ = 1
        18.140...
    """
    scale, matrix = _scaled_matrix(A, V, y, z, log_ratio, c)
    return scale + _log_norm(matrix)


def zero_sum_norm(
    A: Tensor, V: Tensor, y: Tensor, z: Tensor, log_ratio: Tensor | float, c: Tensor | None = None, at: str = "z"
) -> Tensor:
    """Compute log ‖V C_x A‖ at x = z or x = y, the norm on perturbations with sum zero at x, (…).

    The arguments are those of `two_atom_norm`; `at` is "y" or "z".
    """
    _check_shapes(A, V, y, z, c)
    if at not in ("y", "z"):
        raise InputError(f"expected at to be 'y' or 'z', got {at!r}")
    delta = y - z
    t = _logit(A, c, y if at == "y" else z, delta, log_ratio)
    # ‖V δ δᵀ A‖ = |Vδ| |Aᵀδ|.
    norms: Tensor = torch.linalg.vector_norm(delta @ V.mT, dim=-1) * torch.linalg.vector_norm(delta @ A, dim=-1)
    return logsigmoid(t) + logsigmoid(-t) + norms.log()


def sequence_norm(
    A: Tensor,
    V: Tensor,
    y: Tensor,
    z: Tensor,
    log_count_z: Tensor | float,
    log_count_y: Tensor | float = 0.0,
    c: Tensor | None = None,
) -> Tensor:
    """Compute log ‖D_X f‖ of the sequence with e^{log_count_y} tokens at y and e^{log_count_z} at z.

    The other arguments are those of `two_atom_norm`.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> y, z = torch.tensor([1.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
        >>> from howsmooth import SelfAttention, local_lipschitz
        >>> tokens = torch.cat([y, z.expand(4)]).unsqueeze(1)
        >>> whole = local_lipschitz(SelfAttention(-one, one, one, scale=1.0), tokens, tol=1e-9).value
        >>> abs(float(sequence_norm(-one, one, y, z, torch.tensor(4.0).double().log()).exp()) - whole) < 1e-8
        True
    """
    count_z, count_y = (torch.as_tensor(t, dtype=y.dtype) for t in (log_count_z, log_count_y))
    norm = two_atom_norm(A, V, y, z, count_z - count_y, c)
    at_least_two = torch.log(torch.tensor(1.5, dtype=y.dtype))  # the threshold between one token and two
    for at, count in (("z", count_z), ("y", count_y)):
        zero_sum = zero_sum_norm(A, V, y, z, count_z - count_y, c, at)
        norm = torch.where(count > at_least_two, torch.maximum(norm, zero_sum), norm)
    return norm


def _scaled_matrix(
    A: Tensor, V: Tensor, y: Tensor, z: Tensor, log_ratio: Tensor | float, c: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return s (…) and the matrix e^{−s} J (…, 2 d_out, 2 d), with s ≥ 0 such that it does not overflow."""
    _check_shapes(A, V, y, z, c)
    L = torch.as_tensor(log_ratio, dtype=y.dtype)
    delta = y - z
    ty, tz = _logit(A, c, y, delta, L), _logit(A, c, z, delta, L)
    a_y, a_z, At_delta = _score_gradient(A, c, y), _score_gradient(A, c, z), delta @ A
    # One of the blocks off the diagonal may be as large as the square root of the ratio: e^{L/2} or e^{−L/2}.
    log_zy, log_yz = L / 2 + logsigmoid(tz), -L / 2 + logsigmoid(-ty)
    s = torch.stack([log_zy, log_yz, torch.zeros_like(log_zy)]).amax(0)

    def block(log_weight: Tensor, factor: Tensor, row: Tensor) -> Tensor:
        """Return e^{log_weight − s} V (I + factor · δ rowᵀ)."""
        rank_one = factor[..., None, None] * (delta @ V.mT).unsqueeze(-1) * row.unsqueeze(-2)
        return (log_weight - s).exp()[..., None, None] * (V + rank_one)

    top = [block(logsigmoid(ty), torch.sigmoid(-ty), At_delta + a_y), block(log_yz, -torch.sigmoid(ty), a_y)]
    bottom = [block(log_zy, torch.sigmoid(-tz), a_z), block(logsigmoid(-tz), torch.sigmoid(tz), At_delta - a_z)]
    return s, torch.cat([torch.cat(top, -1), torch.cat(bottom, -1)], -2)


def _log_norm(m: Tensor) -> Tensor:
    if m.shape[-2:] != (2, 2):
        norm: Tensor = torch.linalg.matrix_norm(m, 2)
        return norm.log()
    # σ₁² + σ₂² = Σ m², σ₁σ₂ = |det|: so σ₁ ± σ₂ are the square roots of two sums of squares.
    (p, q), (r, t) = m.unbind(-2)[0].unbind(-1), m.unbind(-2)[1].unbind(-1)
    return (torch.hypot(p + t, q - r) + torch.hypot(p - t, q + r)).log() - torch.log(torch.tensor(2.0, dtype=m.dtype))


def _score_gradient(A: Tensor, c: Tensor | None, x: Tensor) -> Tensor:
    """Return a_x = Ax + c, the gradient of the scores of query x in the key."""
    return x @ A.mT if c is None else x @ A.mT + c


def _logit(A: Tensor, c: Tensor | None, x: Tensor, delta: Tensor, log_ratio: Tensor | float) -> Tensor:
    """Return the t with P_xy = σ(t): the difference of the scores of y and z, minus the log ratio."""
    return (_score_gradient(A, c, x) * delta).sum(-1) - log_ratio


def _check_shapes(A: Tensor, V: Tensor, y: Tensor, z: Tensor, c: Tensor | None) -> None:
    d = y.shape[-1] if isinstance(y, Tensor) and y.dim() else 0
    arguments = {"A": A, "V": V, "y": y, "z": z} | ({} if c is None else {"c": c})
    if not all(isinstance(t, Tensor) and t.dtype == torch.float64 for t in arguments.values()):
        raise InputError(
            "two atoms: expected A, V, y, z (and c) as float64 tensors, got "
            + ", ".join(f"{name}: {getattr(t, 'dtype', type(t).__name__)}" for name, t in arguments.items())
        )
    if (
        d < 1
        or A.shape != (d, d)
        or V.dim() != 2
        or V.shape[1] != d
        or z.shape[-1:] != (d,)
        or (c is not None and c.shape != (d,))
    ):
        raise InputError(
            "two atoms: expected A (d, d), V (d_out, d), y and z (…, d) and c (d), got "
            + ", ".join(f"{name} {tuple(t.shape)}" for name, t in arguments.items())
        )
