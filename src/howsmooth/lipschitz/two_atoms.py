"""Two places and any number of tokens: the exact constant of a sequence with k tokens at y and all others at z.

Of such a sequence only the log ratio L of the two crowds matters, and it may be 10³ as well as 1. Write the derivative
in the basis of common moves of each crowd, of unit norm in ‖X‖: with δ = y − z, a_x = Ax + c and σ the logistic
function,

    P_yy = σ(⟨a_y, δ⟩ − L)    P_zy = σ(⟨a_z, δ⟩ − L)

    J = V [ P_yy (I + P_yz δ(Aᵀδ + a_y)ᵀ)            e^{−L/2} P_yz (I − P_yy δ a_yᵀ)  ]
          [ e^{L/2} P_zy (I + P_zz δ a_zᵀ)            P_zz (I + P_zy δ(Aᵀδ − a_z)ᵀ)    ]

That is the weighted Jacobian of the measure with two atoms. Tokens of one crowd are free to move apart, too: moves that
add up to nothing within a crowd are mapped by V C_x A, C_x = P_xy P_xz δδᵀ, and are orthogonal to common moves, as are
their images. So the norm for the whole sequence is the larger of ‖J‖ and of ‖V C_x A‖ over crowds of at least two.

Everything is returned as a logarithm: e^{L/2} is the square root of a length that no float holds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from howsmooth.errors import InputError


def two_atom_norm(
    A: Tensor, V: Tensor, y: Tensor, z: Tensor, log_ratio: Tensor | float, c: Tensor | None = None
) -> Tensor:
    """Log ‖J‖ of two atoms y, z (…, d) whose masses are 1 : e^{log_ratio}, in the weighted norm; (…).

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> R = torch.tensor([4.0], dtype=torch.float64)
    >>> float(two_atom_norm(-one, one, R, -R, 32.0))  # masses 1 : e^{2γR²}: log of ½ e^{γR²} (1 + γR²), γ = 1
    18.140...
    """
    scale, matrix = _scaled_matrix(A, V, y, z, log_ratio, c)
    return scale + _log_norm(matrix)


def apart_norm(
    A: Tensor, V: Tensor, y: Tensor, z: Tensor, log_ratio: Tensor | float, c: Tensor | None = None, at: str = "z"
) -> Tensor:
    """Log ‖V C_x A‖ at x = z or y: what the crowd there gains by tokens that move apart; (…)."""
    _refuse_wrong_shapes(A, V, y, z, c)
    if at not in ("y", "z"):
        raise InputError(f"expected at to be 'y' or 'z', got {at!r}")
    delta = y - z
    t = _lead(A, c, y if at == "y" else z, delta, log_ratio)
    # ‖V δ δᵀ A‖ = |Vδ| |Aᵀδ|.
    sizes = torch.linalg.vector_norm(delta @ V.mT, dim=-1) * torch.linalg.vector_norm(delta @ A, dim=-1)
    return logsigmoid(t) + logsigmoid(-t) + sizes.log()


def sequence_norm(
    A: Tensor,
    V: Tensor,
    y: Tensor,
    z: Tensor,
    log_crowd: Tensor | float,
    log_isolated: Tensor | float = 0.0,
    c: Tensor | None = None,
) -> Tensor:
    """Log ‖D_X f‖ of the sequence with e^{log_isolated} tokens at y and e^{log_crowd} at z, all of them free to move.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> y, z = torch.tensor([1.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    >>> from howsmooth import SelfAttention, local_lipschitz
    >>> tokens = torch.cat([y, z.expand(4)]).unsqueeze(1)
    >>> whole = local_lipschitz(SelfAttention(-one, one, one, scale=1.0), tokens, tol=1e-9).value
    >>> abs(float(sequence_norm(-one, one, y, z, torch.tensor(4.0).double().log()).exp()) - whole) < 1e-8
    True
    """
    crowd, isolated = (torch.as_tensor(t, dtype=y.dtype) for t in (log_crowd, log_isolated))
    together = two_atom_norm(A, V, y, z, crowd - isolated, c)
    several = torch.log(torch.tensor(1.5, dtype=y.dtype))  # one token alone has none to move apart from
    for at, size in (("z", crowd), ("y", isolated)):
        apart = apart_norm(A, V, y, z, crowd - isolated, c, at)
        together = torch.where(size > several, torch.maximum(together, apart), together)
    return together


def _scaled_matrix(
    A: Tensor, V: Tensor, y: Tensor, z: Tensor, log_ratio: Tensor | float, c: Tensor | None
) -> tuple[Tensor, Tensor]:
    """S (…) and the matrix e^{−s} J (…, 2 d_out, 2 d), s ≥ 0 such that it fits into floats."""
    _refuse_wrong_shapes(A, V, y, z, c)
    L = torch.as_tensor(log_ratio, dtype=y.dtype)
    delta = y - z
    ty, tz = _lead(A, c, y, delta, L), _lead(A, c, z, delta, L)
    a_y, a_z, turned = _slope(A, c, y), _slope(A, c, z), delta @ A  # Ay + c, Az + c, Aᵀδ
    # A block off the diagonal may be large, by the root of the ratio: one of them for L > 0, the other for L < 0.
    log_zy, log_yz = L / 2 + logsigmoid(tz), -L / 2 + logsigmoid(-ty)
    s = torch.stack([log_zy, log_yz, torch.zeros_like(log_zy)]).amax(0)

    def block(log_weight: Tensor, share: Tensor, row: Tensor) -> Tensor:
        """e^{log_weight − s} V (I + share · δ rowᵀ)."""
        turn = share[..., None, None] * (delta @ V.mT).unsqueeze(-1) * row.unsqueeze(-2)
        return (log_weight - s).exp()[..., None, None] * (V + turn)

    top = [block(logsigmoid(ty), torch.sigmoid(-ty), turned + a_y), block(log_yz, -torch.sigmoid(ty), a_y)]
    low = [block(log_zy, torch.sigmoid(-tz), a_z), block(logsigmoid(-tz), torch.sigmoid(tz), turned - a_z)]
    return s, torch.cat([torch.cat(top, -1), torch.cat(low, -1)], -2)


def _log_norm(m: Tensor) -> Tensor:
    if m.shape[-2:] != (2, 2):
        return torch.linalg.matrix_norm(m, 2).log()
    # σ₁² + σ₂² = Σ m², σ₁σ₂ = |det|: so σ₁ ± σ₂ are the roots of two sums of squares.
    (p, q), (r, t) = m.unbind(-2)[0].unbind(-1), m.unbind(-2)[1].unbind(-1)
    return (torch.hypot(p + t, q - r) + torch.hypot(p - t, q + r)).log() - torch.log(torch.tensor(2.0, dtype=m.dtype))


def _slope(A: Tensor, c: Tensor | None, x: Tensor) -> Tensor:
    return x @ A.mT if c is None else x @ A.mT + c


def _lead(A: Tensor, c: Tensor | None, x: Tensor, delta: Tensor, log_ratio: Tensor | float) -> Tensor:
    """By how much x prefers y to z, less the log ratio of the crowds: P_xy = σ(lead)."""
    return (_slope(A, c, x) * delta).sum(-1) - log_ratio


def _refuse_wrong_shapes(A: Tensor, V: Tensor, y: Tensor, z: Tensor, c: Tensor | None) -> None:
    d = y.shape[-1] if isinstance(y, Tensor) and y.dim() else 0
    shapes = {"A": A, "V": V, "y": y, "z": z} | ({} if c is None else {"c": c})
    if not all(isinstance(t, Tensor) and t.dtype == torch.float64 for t in shapes.values()):
        raise InputError(
            "two atoms: expected A, V, y, z (and c) as float64 tensors, got "
            + ", ".join(f"{name}: {getattr(t, 'dtype', type(t).__name__)}" for name, t in shapes.items())
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
            + ", ".join(f"{name} {tuple(t.shape)}" for name, t in shapes.items())
        )
