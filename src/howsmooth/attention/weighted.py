"""Attention on weighted tokens, that is, on the measure Σ a_i δ_{x_i}.

The probabilities are P_ij ∝ a_j e^{s_ij}, and perturbations have the norm (Σ a_i |ε_i|²)^½. A sequence is the case of
equal weights. Weights enter the scores as log a_j, which is one more channel: log a_j / scale in each key, and 1 in
each query. The layer on lifted tokens (x_i, log a_i) is thus a plain one, with its exact derivatives, and the norm adds
square roots of the weights on both sides:

    J = D^½ (∂f/∂X) D^{−½},  D = diag(a)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.jacobian import MovedJacobian
from howsmooth.errors import InputError
from howsmooth.spectral.operator import FunctionOperator, LinearOperator


class WeightedAttention:
    """A self-attention layer as a map of weighted tokens; weights are given by their logarithms, up to a constant.

    In a causal layer a token sees those up to its own position.

    Args:
        attention: the layer, without rotary positions, offsets, window or soft cap.

    Attributes:
        attention: the layer.
        lifted: the layer on lifted tokens (x_i, log a_i), of width d + 1.

    Raises:
        InputError: if the layer has one of these, or a scale of 0.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> f = WeightedAttention(SelfAttention(eye, eye, eye))
        >>> f(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)).shape
        torch.Size([3, 2])
    """

    def __init__(self, attention: SelfAttention) -> None:
        """Build the layer on lifted tokens."""
        if not isinstance(attention, SelfAttention):
            raise InputError(f"expected a SelfAttention, got {type(attention).__name__}; give a layer")
        a = self.attention = attention
        traits = {
            "rotary positions": a.rotary is not None,
            "a score_bias": a.score_bias is not None,
            "a window": a.window is not None,
            "a soft cap": a.softcap is not None,
        }
        for trait in (name for name, present in traits.items() if present):
            raise InputError(
                f"weighted tokens: expected a layer without positions and with plain scores, got one with {trait}; "
                "perturb tokens of equal weights"
            )
        if a.scale == 0:
            raise InputError("weighted tokens: expected a scale other than 0, got 0: all scores are equal")
        bias = a.wq.new_zeros(a.wq.shape[0]) if a.bq is None else a.bq
        # Each head has one more channel: in the query a 1, by its bias, and in the key the logarithm of the weight.
        ones = a.wq.new_ones(a.heads, 1)
        query_row, key_row = a.wq.new_zeros(a.heads, 1, a.d + 1), a.wq.new_zeros(a.kv_heads, 1, a.d + 1)
        key_row[..., -1] = 1 / a.scale
        self.lifted = SelfAttention(
            _append_row(_append_column(a.wq, a.heads), query_row),
            _append_row(_append_column(a.wk, a.kv_heads), key_row),
            _append_column(a.wv, a.kv_heads).flatten(0, 1),
            a.wo,
            bq=torch.cat([bias.unflatten(0, (a.heads, -1)), ones], 1).flatten(),
            bk=None if a.bk is None else F.pad(a.bk.unflatten(0, (a.kv_heads, -1)), (0, 1)).flatten(),
            bv=a.bv,
            bo=a.bo,
            heads=a.heads,
            kv_heads=a.kv_heads,
            scale=a.scale,
            causal=a.causal,
        )

    def __call__(self, x: Tensor, log_weights: Tensor) -> Tensor:
        """Compute f at tokens x (…, m, d) with log weights (…, m)."""
        return self.lifted(self.lift(x, log_weights))

    def jacobian(self, x: Tensor, log_weights: Tensor, product_dtype: torch.dtype | None = None) -> WeightedJacobian:
        """Return J in the weighted norm, one for each member of the batch; see `SelfAttention.jacobian`."""
        return WeightedJacobian(self, x, log_weights, product_dtype)

    def lift(self, x: Tensor, log_weights: Tensor) -> Tensor:
        """Return the lifted tokens (x_i, log a_i), (…, m, d + 1)."""
        if not isinstance(x, Tensor):
            raise InputError(f"expected tokens as a tensor (…, m, {self.attention.d}), got {type(x).__name__}")
        self.attention.check_tokens(x, None)
        _check_log_weights(log_weights, x.shape[:-1])
        return torch.cat([x, torch.log_softmax(log_weights, -1).unsqueeze(-1).to(x.dtype)], -1)

    def rescaled(self, log_weights: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map √a ∘ f(y/√a) of y = √a ∘ x, whose derivative in the Euclidean norm is J."""
        _check_log_weights(log_weights)
        root = root_weights(log_weights)
        return lambda y: root * self(y / root, log_weights)


class WeightedJacobian(LinearOperator):
    """J = D^½ (∂f/∂X) D^{−½} at weighted tokens.

    Args:
        f: the map.
        x: tokens (batch…, m, d).
        log_weights: logarithms of the weights, (batch…, m), up to a constant; in float64, `precise` has the digits that
            the dtype of x does not hold.
        product_dtype: as in `SelfAttention.jacobian`.
    """

    def __init__(
        self, f: WeightedAttention, x: Tensor, log_weights: Tensor, product_dtype: torch.dtype | None = None
    ) -> None:
        """Linearise the layer at the lifted tokens."""
        self.f, self.x, self.log_weights, self.product_dtype = f, x, log_weights, product_dtype
        self.lifted = f.lifted.jacobian(f.lift(x, log_weights), product_dtype=product_dtype)
        self.m, self.d, self.d_out = x.shape[-2], x.shape[-1], f.lifted.d_out
        self.root = root_weights(log_weights).to(x.dtype)
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
        """The output f(x), of shape (batch…, m, d_out)."""
        return self.lifted.image

    def matvec(self, v: Tensor) -> Tensor:
        """Compute J v: (batch…, m·d) → (batch…, m·d_out)."""
        return self._push(self.lifted, v)

    def rmatvec(self, u: Tensor) -> Tensor:
        """Compute Jᵀ u: (batch…, m·d_out) → (batch…, m·d)."""
        return self._pull(self.lifted, u)

    def gradient(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradient of ⟨u, J v⟩ in x, (batch…, m, d), and in the log weights, (batch…, m)."""
        whole = self.lifted.gradient(self._scale_output(u), self._lift_input(v))
        # The square roots on both sides: ∂√a/∂log a = √a/2.
        left = (u * self.matvec(v)).view(*self.batch, self.m, -1).sum(-1)
        right = (v * self.rmatvec(u)).view(*self.batch, self.m, -1).sum(-1)
        # A constant added to the log weights changes nothing, so that normalising Σa to 1 does not affect the gradient.
        return whole[..., :-1], whole[..., -1] + (left - right) / 2

    def precise(self) -> WeightedJacobian | None:
        """Return the same derivative in float64, or, if products are in half precision, without their rounding."""
        if self.lifted.rounded:
            return WeightedJacobian(self.f, self.x, self.log_weights, self.dtype)
        if self.dtype == torch.float64:
            return self
        if self.product_dtype is not None:
            return None
        return WeightedAttention(self.f.attention.converted(dtype=torch.float64)).jacobian(
            self.x.double(), self.log_weights.double()
        )

    def perturbed(self) -> LinearOperator | None:
        """Return the same derivative at tokens and logarithms moved by a unit of rounding; None in float64."""
        if self.lifted.rounded or self.dtype == torch.float64:
            return None
        lifted = MovedJacobian(self.lifted)
        return FunctionOperator(
            lambda v: self._push(lifted, v),
            lambda u: self._pull(lifted, u),
            self.shape,
            dtype=self.dtype,
            device=self.device,
            batch=self.batch,
        )

    def _push(self, lifted: LinearOperator, v: Tensor) -> Tensor:
        """Apply J v with this derivative at the lifted tokens, or the moved one."""
        return (self.root * lifted.matvec(self._lift_input(v)).view(*self.batch, self.m, self.d_out)).flatten(-2)

    def _pull(self, lifted: LinearOperator, u: Tensor) -> Tensor:
        image = lifted.rmatvec(self._scale_output(u)).view(*self.batch, self.m, self.d + 1)
        return (image[..., :-1] / self.root).flatten(-2)

    def _lift_input(self, v: Tensor) -> Tensor:
        """Apply D^{−½} and append a zero to each token, for the channel of the weight."""
        e = v.reshape(*self.batch, self.m, self.d) / self.root
        return F.pad(e, (0, 1)).flatten(-2)

    def _scale_output(self, u: Tensor) -> Tensor:
        """Apply D^½."""
        return (self.root * u.reshape(*self.batch, self.m, self.d_out)).flatten(-2)


def root_weights(log_weights: Tensor) -> Tensor:
    """Return √a (…, m, 1), normalised to Σa = 1."""
    return torch.log_softmax(log_weights, -1).div(2).exp().unsqueeze(-1)


def _check_log_weights(log_weights: Tensor, shape: torch.Size | None = None) -> None:
    wanted = "" if shape is None else f" of shape {tuple(shape)}, one for each token"
    if not isinstance(log_weights, Tensor):
        raise InputError(f"expected log_weights as a tensor{wanted}, got {type(log_weights).__name__}")
    if shape is not None and log_weights.shape != shape:
        raise InputError(f"expected log_weights{wanted}, got shape {tuple(log_weights.shape)}")
    wrong = ~torch.isfinite(log_weights)
    if wrong.any():
        raise InputError(
            f"expected finite log_weights, got {float(log_weights[wrong][0])}; leave out tokens of weight 0"
        )


def _append_column(weight: Tensor, heads: int) -> Tensor:
    """Reshape (h·k, d) to (h, k, d + 1), with zeros in the last column."""
    return torch.unflatten(F.pad(weight, (0, 1)), 0, (heads, -1))


def _append_row(weight: Tensor, row: Tensor) -> Tensor:
    """Append a row (h, 1, c) to each head of (h, k, c), with the result (h·(k + 1), c)."""
    return torch.cat([weight, row], 1).flatten(0, 1)
