"""Attention on weighted atoms Σ a_i δ_{x_i}: P_ij ∝ a_j e^{s_ij}, perturbations measured by Σ a_i |ε_i|².

A sequence is the case of equal masses. Masses enter the scores as log a_j, that is as one more channel: a key carries
log a_j / scale in it and every query a 1. So the layer on tokens (x_i, log a_i) is a plain one, its derivative and its
curvature are the op's, and what is left are the square roots of the masses on either side:

    J = D^½ (∂f/∂X) D^{−½},  D = diag(a)
"""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError
from howsmooth.spectral import LinearOperator


class WeightedAttention:
    """A self-attention layer as a map of weighted atoms; masses are given by their logarithms, up to a constant.

    In a causal layer an atom sees those up to its own place.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> atoms = WeightedAttention(SelfAttention(eye, eye, eye))
    >>> atoms(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)).shape
    torch.Size([3, 2])
    """

    def __init__(self, attention: SelfAttention):
        if not isinstance(attention, SelfAttention):
            raise InputError(f"expected a SelfAttention, got {type(attention).__name__}")
        a = self.attention = attention
        traits = {
            "rotary positions": a.rotary is not None,
            "a score_bias": a.score_bias is not None,
            "a window": a.window is not None,
            "a soft cap": a.softcap is not None,
        }
        for trait in (name for name, there in traits.items() if there):
            raise InputError(
                f"masses: expected a layer without places and with plain scores, got one with {trait}; "
                "move positions alone"
            )
        if a.scale == 0:
            raise InputError("masses: expected a scale other than 0, got 0: all scores are equal")
        bias = a.wq.new_zeros(a.wq.shape[0]) if a.bq is None else a.bq
        # Heads get one channel more: nothing of the tokens in the query but a 1 by its bias, the log mass in the key.
        ones = a.wq.new_ones(a.heads, 1)
        no_query, mass_key = a.wq.new_zeros(a.heads, 1, a.d + 1), a.wq.new_zeros(a.kv_heads, 1, a.d + 1)
        mass_key[..., -1] = 1 / a.scale
        self.lifted = SelfAttention(
            _join(_widen(a.wq, a.heads), no_query),
            _join(_widen(a.wk, a.kv_heads), mass_key),
            _widen(a.wv, a.kv_heads).flatten(0, 1),
            a.wo,
            bq=torch.cat([bias.unflatten(0, (a.heads, -1)), ones], 1).flatten(),
            bk=None if a.bk is None else torch.nn.functional.pad(a.bk.unflatten(0, (a.kv_heads, -1)), (0, 1)).flatten(),
            bv=a.bv,
            bo=a.bo,
            heads=a.heads,
            kv_heads=a.kv_heads,
            scale=a.scale,
            causal=a.causal,
        )

    def __call__(self, x: Tensor, log_weights: Tensor) -> Tensor:
        """F at atoms x (…, m, d) with log masses (…, m)."""
        return self.lifted(self.lift(x, log_weights))

    def jacobian(self, x: Tensor, log_weights: Tensor, product_dtype: torch.dtype | None = None) -> AtomsJacobian:
        """J in the weighted norm, one for each member of the batch; `product_dtype` as in `SelfAttention.jacobian`."""
        return AtomsJacobian(self, x, log_weights, product_dtype)

    def lift(self, x: Tensor, log_weights: Tensor) -> Tensor:
        """The tokens (x_i, log a_i), (…, m, d + 1)."""
        if not isinstance(x, Tensor):
            raise InputError(f"expected atoms as a tensor (…, m, {self.attention.d}), got {type(x).__name__}")
        self.attention.check_tokens(x, None)
        _refuse_wrong_log_masses(log_weights, x.shape[:-1])
        return torch.cat([x, torch.log_softmax(log_weights, -1).unsqueeze(-1)], -1)

    def weighted(self, log_weights: Tensor):
        """The map √a ∘ f(y/√a) of y = √a ∘ x: its derivative in the plain norm is J."""
        _refuse_wrong_log_masses(log_weights)
        root = roots(log_weights)
        return lambda y: root * self(y / root, log_weights)


class AtomsJacobian(LinearOperator):
    """J = D^½ (∂f/∂X) D^{−½} at atoms x (*batch, m, d) with log masses (*batch, m)."""

    def __init__(self, f: WeightedAttention, x: Tensor, log_weights: Tensor, product_dtype: torch.dtype | None = None):
        self.f, self.x, self.log_weights, self.product_dtype = f, x, log_weights, product_dtype
        self.lifted = f.lifted.jacobian(f.lift(x, log_weights), product_dtype=product_dtype)
        self.m, self.d, self.d_out = x.shape[-2], x.shape[-1], f.lifted.d_out
        self.root = roots(log_weights)
        super().__init__(
            (self.m * self.d_out, self.m * self.d),
            dtype=x.dtype,
            device=x.device,
            batch=x.shape[:-2],
            workspace=self.lifted.workspace,
            held=self.lifted.held,
        )
        self.copy_rounding(self.lifted)

    @property
    def image(self) -> Tensor:
        """F at the atoms, (*batch, m, d_out)."""
        return self.lifted.image

    def matvec(self, v: Tensor) -> Tensor:
        return (self.root * self.lifted.matvec(self._in(v)).view(*self.batch, self.m, self.d_out)).flatten(-2)

    def rmatvec(self, u: Tensor) -> Tensor:
        image = self.lifted.rmatvec(self._out(u)).view(*self.batch, self.m, self.d + 1)
        return (image[..., :-1] / self.root).flatten(-2)

    def gradient(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of ⟨u, J v⟩ in x, (*batch, m, d), and in the log masses, (*batch, m)."""
        whole = self.lifted.gradient(self._out(u), self._in(v))
        # The roots on either side: ∂√a/∂log a = √a/2.
        left = (u * self.matvec(v)).view(*self.batch, self.m, -1).sum(-1)
        right = (v * self.rmatvec(u)).view(*self.batch, self.m, -1).sum(-1)
        # A constant in the log masses changes nothing, so that bringing Σa to 1 is not seen by the gradient.
        return whole[..., :-1], whole[..., -1] + (left - right) / 2

    def precise(self) -> AtomsJacobian | None:
        """The same derivative in float64; without the rounding of its products, where these are in half precision."""
        if self.lifted.rounded:
            return AtomsJacobian(self.f, self.x, self.log_weights, self.dtype)
        if self.dtype == torch.float64:
            return self
        if self.product_dtype is not None:
            return None
        return WeightedAttention(self.f.attention.to(torch.float64)).jacobian(
            self.x.double(), self.log_weights.double()
        )

    def _in(self, v: Tensor) -> Tensor:
        e = v.reshape(*self.batch, self.m, self.d) / self.root
        return torch.nn.functional.pad(e, (0, 1)).flatten(-2)

    def _out(self, u: Tensor) -> Tensor:
        return (self.root * u.reshape(*self.batch, self.m, self.d_out)).flatten(-2)


def roots(log_weights: Tensor) -> Tensor:
    """√a (…, m, 1), Σa = 1."""
    return torch.log_softmax(log_weights, -1).div(2).exp().unsqueeze(-1)


def _refuse_wrong_log_masses(log_weights: Tensor, shape: torch.Size | None = None) -> None:
    wanted = "" if shape is None else f" of shape {tuple(shape)}, one for each atom"
    if not isinstance(log_weights, Tensor):
        raise InputError(f"expected log masses as a tensor{wanted}, got {type(log_weights).__name__}")
    if shape is not None and log_weights.shape != shape:
        raise InputError(f"expected log masses{wanted}, got shape {tuple(log_weights.shape)}")
    wrong = ~torch.isfinite(log_weights)
    if wrong.any():
        raise InputError(
            f"expected finite log masses, got {float(log_weights[wrong][0])}; leave out atoms without mass"
        )


def _widen(weight: Tensor, heads: int) -> Tensor:
    """(h·k, d) → (h, k, d + 1): blind to the last channel of a token."""
    return torch.nn.functional.pad(weight, (0, 1)).unflatten(0, (heads, -1))


def _join(weight: Tensor, row: Tensor) -> Tensor:
    """(h, k, c) and (h, 1, c) → (h·(k + 1), c)."""
    return torch.cat([weight, row], 1).flatten(0, 1)
