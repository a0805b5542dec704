"""The two-point configuration, at which attention is steep: one isolated token y, and one token z repeated n − 1 times.

A change ε of the isolated token changes the output at each copy of the repeated token by

    Σ_h p_h W_h V_h [ ε + (1 − p_h)(y − z) ⟨a_h, ε⟩ ],    a_h = A_h z + c_h,   p_h = 1/(1 + (n−1) e^{−Δ_h}),
                                                        Δ_h = ⟨a_h, y − z⟩

Under a mask the isolated token comes first. The output at token i ≥ 2 changes by the same formula with i − 1 in place
of n − 1, and the output at the isolated token by `Σ_h W_h V_h ε`. Every y, z and ε gives a valid lower bound. This
module searches for good ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds.conditions import check_n, check_radius, require_no_window
from howsmooth.bounds.form import LayerForm, form_of

SCREENED = 24  # candidates kept by the bound of their own head, and then evaluated for the whole layer
REFINED = 4  # candidates kept by the bound of the whole layer, and then improved by power iterations
MAX_BLOCK_ENTRIES = 1 << 23  # of p that are in memory at once


def two_points(f: SelfAttention | LayerForm, n: int, radius: float, refine: bool = False) -> tuple[Tensor, Tensor]:
    """Return two tokens in the ball such that attention is steep at (y, z, …, z).

    They are found in closed form from A of each head, for any number of heads. The layer needs bilinear scores and no
    window.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.
        refine: whether to improve both tokens by gradient ascent.

    Returns:
        The isolated token y and the repeated token z, (d,) each.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proof 4.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> y, z = two_points(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5)
        >>> round(float(y / z), 3)
        -1.0
    """
    y, z, _ = best_two_points(form_of(f), n, radius, refine)
    return y, z


def best_two_points(
    form: LayerForm, n: int, radius: float, refine: bool, name: str = "two_points"
) -> tuple[Tensor, Tensor, float]:
    """Return the best y and z that were found, and their lower bound; refusals are in the given name."""
    check_n(n)
    check_radius(radius)
    require_no_window(form, name)
    form.require_bilinear_scores(name)
    layer = RepeatedToken(form, n)
    with torch.no_grad():
        y, z = candidates(form, n, radius)
        y, z = _select_best(SCREENED, layer.head_gains(y, z).flatten(), y.flatten(0, 1), z.flatten(0, 1))
        derivative = layer.derivative(y, z)
        first, second = derivative.initial_directions()
        y, z = _select_best(REFINED, derivative.gain(first + second), y, z)
        values, directions = layer.derivative(y, z).norm()
    if refine:
        y, z, values = refine_by_ascent(layer, y, z, directions, values, radius)
    best = int(values.argmax())
    return y[best], z[best], float(values[best])


def _select_best(count: int, gains: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs with the largest gains."""
    kept = gains.topk(min(count, len(gains))).indices
    return y[kept], z[kept]


class RepeatedToken:
    """A layer at one isolated token y and one token z repeated n − 1 times, for batches of pairs (y, z).

    Attributes:
        form: quantities of the layer.
        n: number of tokens.
        wk: key weights, (h, k, d).
        wv: value weights, (h, w, d).
        wo: output projections W_h, (h, d_out, w); without one, W_h embeds head h into the concatenation.
    """

    def __init__(self, form: LayerForm, n: int):
        """Take a layer with n tokens."""
        self.form, self.n = form, n
        self.wk, self.wv = form.repeat_kv(form.wk), form.repeat_kv(form.wv)
        if form.wo is None:
            h, w = self.wv.shape[:2]
            self.wo = torch.unflatten(torch.eye(h * w, dtype=torch.float64), 1, (h, w)).movedim(1, 0)
        else:
            self.wo = form.wo

    def project_out(self, v: Tensor) -> Tensor:
        """Return W_h v_h, (c, h, w) → (c, h, d_out)."""
        return _multiply_by_head(v, self.wo.mT)

    def transposed_values(self, g: Tensor) -> Tensor:
        """Return Σ_h V_hᵀ W_hᵀ g_h, (c, h, d_out) → (c, d)."""
        return _multiply_by_head(g, self.wo).flatten(1) @ self.wv.flatten(0, 1)

    def head_gains(self, y: Tensor, z: Tensor) -> Tensor:
        """Estimate the gain of each head at pairs of its own by the sum of its two parts, y, z (c, h, d) → (c, h)."""
        a = _key_slopes(self.form, z)
        difference = _multiply_by_head(y - z, self.wv.mT)
        if self.form.wo is not None:
            difference = _multiply_by_head(difference, self.form.out_factor.mT)
        score_part: Tensor = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(difference, dim=-1)
        gram = self._coefficient_gram((a * (y - z)).sum(-1).reshape(-1, 1))
        value_weight, score_weight = gram.diagonal(dim1=-2, dim2=-1).sqrt().unbind(-1)
        return value_weight.view_as(score_part) * self.form.value_norm + score_weight.view_as(score_part) * score_part

    def derivative(self, y: Tensor, z: Tensor) -> TwoPointDerivative:
        """Return the derivative of the outputs in the isolated token, for pairs y, z (c, d)."""
        q = _project_heads(z, self.form.wq)
        q = self.form.f.scale * (q if self.form.bq is None else q + self.form.bq)
        a = _multiply_by_head(q, self.wk)
        delta = (a @ (y - z).unsqueeze(-1)).squeeze(-1)
        value_difference = self.project_out(_project_heads(y - z, self.wv))
        return TwoPointDerivative(self, a, value_difference, self._coefficient_gram(delta))

    def _coefficient_gram(self, delta: Tensor) -> Tensor:
        """Return Σ cᵀc over the output rows, (c, 2h, 2h), with c = (p_h; p_h(1 − p_h)) and Δ (c, h)."""
        if self.n == 1:  # the token attends only to itself
            p = torch.ones_like(delta).unsqueeze(-1)
            return _weighted_gram(p, torch.ones(1, dtype=delta.dtype))
        if not self.form.causal:
            p = torch.sigmoid(delta - math.log(self.n - 1)).unsqueeze(-1)
            return _weighted_gram(p, delta.new_tensor([self.n - 1.0]))
        total = _weighted_gram(torch.ones_like(delta).unsqueeze(-1), torch.ones(1, dtype=delta.dtype))
        step = max(1, MAX_BLOCK_ENTRIES // (2 * delta.numel()))
        for first in range(1, self.n, step):
            copies = torch.arange(first, min(first + step, self.n), dtype=delta.dtype)
            p = torch.sigmoid(delta.unsqueeze(-1) - copies.log())
            total = total + _weighted_gram(p, torch.ones_like(copies))
        return total


def _weighted_gram(p: Tensor, weight: Tensor) -> Tensor:
    """Return Σ weight·cᵀc over rows, c = (p; p(1 − p)), (c, h, rows) → (c, 2h, 2h)."""
    c = torch.cat([p, p * (1 - p)], 1)  # (c, 2h, rows)
    return (c * weight) @ c.mT


@dataclass(frozen=True)
class TwoPointDerivative:
    """The derivative ε ↦ outputs in the isolated token, for pairs (y, z).

    Its parts are b_h = W_h V_h ε and b_{H+h} = W_h V_h (y−z) ⟨a_h, ε⟩, and ‖J ε‖² = Σ_{gh} gram_gh ⟨b_g, b_h⟩.

    Attributes:
        layer: the layer.
        a: a_h = A_h z + c_h, (c, h, d).
        value_difference: W_h V_h (y − z), (c, h, d_out).
        gram: Gram matrix of the coefficients of the parts, (c, 2h, 2h).
    """

    layer: RepeatedToken
    a: Tensor
    value_difference: Tensor
    gram: Tensor

    @cached_property
    def score_part_norms(self) -> Tensor:
        """|a_h| |W_h V_h (y − z)|, the norm of the second part of each head, (c, h)."""
        norms: Tensor = torch.linalg.vector_norm(self.a, dim=-1) * torch.linalg.vector_norm(
            self.value_difference, dim=-1
        )
        return norms

    @cached_property
    def size(self) -> Tensor:
        """The unit in which b is stored, (c, 1, 1), at least 1: for large radii the squares of b would overflow."""
        return self.score_part_norms.detach().amax(-1).clamp(min=1.0)[:, None, None]

    def parts(self, e: Tensor) -> Tensor:
        """Return b/size (c, 2h, d_out) of ε (c, d)."""
        score_part = self.value_difference * (self.a / self.size @ e.unsqueeze(-1))
        value_part = self.layer.project_out(_project_heads(e, self.layer.wv)) / self.size
        return torch.cat([value_part, score_part], 1)

    def gain(self, e: Tensor) -> Tensor:
        """Return ‖J ε‖/‖ε‖ for ε (c, d), (c,)."""
        b = self.parts(_normalised(e))
        return self.size[:, 0, 0] * (self.gram * (b @ b.mT)).sum((-2, -1)).clamp(min=0).sqrt()

    def power_step(self, e: Tensor) -> Tensor:
        """Return JᵀJ ε/size² for ε (c, d)."""
        value_part, score_part = (self.gram @ self.parts(e)).chunk(2, 1)
        through_scores = (self.value_difference * score_part).sum(-1).unsqueeze(1) @ (self.a / self.size)
        return self.layer.transposed_values(value_part / self.size) + through_scores.squeeze(1)

    def initial_directions(self) -> tuple[Tensor, Tensor]:
        """Return two starts for power iterations, (c, d) each.

        They are a_h of the head with the largest second part, and Σ_h V_hᵀ W_hᵀ W_h V_h (y − z).
        """
        steepest = _normalised(self.a[torch.arange(len(self.a)), self.score_part_norms.argmax(-1)])
        pulled_back = _normalised(self.layer.transposed_values(self.value_difference))
        # Small multiples of other directions: a start must not be orthogonal to the singular vector.
        return steepest + 1e-3 * pulled_back + 1e-6, pulled_back + 1e-3 * steepest + 1e-6

    def norm(self, steps: int = 6) -> tuple[Tensor, Tensor]:
        """Return the largest gain (c,) and its unit direction (c, d), by power iterations from both starts."""
        twice = TwoPointDerivative(self.layer, *(t.repeat(2, 1, 1) for t in (self.a, self.value_difference, self.gram)))
        e = torch.cat(self.initial_directions())
        for _ in range(steps):
            e = _normalised(twice.power_step(e))
        gain, directions = twice.gain(e).view(2, -1), torch.unflatten(e, 0, (2, -1))
        best = gain.argmax(0)
        return gain.amax(0), directions[best, torch.arange(len(best))]


def candidates(form: LayerForm, n: int, radius: float) -> tuple[Tensor, Tensor]:
    """Return pairs y, z (c, h, d) in closed form, of four kinds for each head and either sign.

    y = ru, z = −ru     u the eigenvector of the least eigenvalue λ of (A + Aᵀ)/2; Δ = −2λr²
    y = ru, z = ru/2    u that of the greatest; Δ = λr²/4;  r = R, or such that Δ is about log n
    largest Δ           z by ascent of R|Az + c| − ⟨Az + c, z⟩, y = R(Az + c)/|Az + c|
    orthogonal          z = Rv, v the right singular vector of ‖A‖, and y as far from z as Δ allows: for large R,
                        y − z can be long orthogonally to Az without a large Δ
    """
    target = math.log(max(2.0, (n - 1) / 2 if form.causal else n - 1))  # the Δ with p near ½, where softmax is steepest
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).view(2, 1, 1)
    values, vectors = form.extreme_pairs
    ys, zs = [], []
    for side, ratio, rate in ((0, -1.0, -2.0), (1, 0.5, 0.25)):  # z = ratio·y, Δ = rate·λ·r²
        slope = rate * values[:, side]
        fitting = torch.where(slope > 0, (target / slope.clamp(min=1e-300)).sqrt(), radius).clamp(max=radius)
        for r in (torch.full_like(fitting, radius), fitting):
            ys.append(signs * r.unsqueeze(-1) * vectors[:, side])
            zs.append(ratio * ys[-1])
    for y, z in (
        _largest_difference_pairs(form, radius, torch.cat([signs * vectors[:, 0], signs * vectors[:, 1]])),
        _orthogonal_pairs(form, radius, target, signs),
    ):
        ys.append(y)
        zs.append(z)
    return torch.cat(ys), torch.cat(zs)


def _key_slopes(form: LayerForm, z: Tensor) -> Tensor:
    """Return A_h z_h + c_h for z (·, h, d)."""
    q = _multiply_by_head(z, form.wq.mT)
    return _multiply_by_head(form.f.scale * (q if form.bq is None else q + form.bq), form.repeat_kv(form.wk))


def _largest_difference_pairs(form: LayerForm, radius: float, start: Tensor, steps: int = 6) -> tuple[Tensor, Tensor]:
    """Return the pairs "largest Δ" of `candidates`."""
    wk, z = form.repeat_kv(form.wk), radius * start
    for _ in range(steps):
        a = _key_slopes(form, z)
        gradient = _multiply_by_head(_multiply_by_head(radius * _normalised(a) - z, wk.mT), form.wq)
        z = radius * _normalised(form.f.scale * gradient - a)  # Aᵀ(y − z) − (Az + c)
    return radius * _normalised(_key_slopes(form, z)), z


def _orthogonal_pairs(form: LayerForm, radius: float, target: float, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs "orthogonal" of `candidates`."""
    # With Kᵀ = U_K R_K and Qᵀ = U_Q R_Q, if l is a left singular vector of R_K R_Qᵀ, then U_K l is one of A, and
    # Aᵀ U_K l = scale·Qᵀ R_Kᵀ l.
    keys = form.repeat_kv(form.key_factor)
    core = keys @ form.query_factor.mT
    left = torch.linalg.eigh(core @ core.mT).eigenvectors[..., -1:]
    z = radius * signs * _normalised(((keys.mT @ left).mT @ form.wq).squeeze(-2))
    a = _key_slopes(form, z)
    size = torch.linalg.vector_norm(a, dim=-1, keepdim=True).clamp(min=1e-300)
    e = a / size
    along = (z * e).sum(-1, keepdim=True)
    height = (along + target / size).clamp(-radius, radius)  # of y along Az: Δ = |Az| (height − along)
    return height * e - (radius**2 - height**2).clamp(min=0).sqrt() * _normalised(z - along * e), z


def _project_heads(t: Tensor, weights: Tensor) -> Tensor:
    """Return the projection of t by each head, (c, d) → (c, h, rows) for weights (h, rows, d)."""
    return torch.unflatten(t @ weights.flatten(0, 1).mT, -1, weights.shape[:2])


def _multiply_by_head(t: Tensor, weights: Tensor) -> Tensor:
    """Return t_h times the matrix of head h, (c, h, rows) → (c, h, cols) for weights (h, rows, cols)."""
    return (t.transpose(0, 1) @ weights).transpose(0, 1)


def _normalised(t: Tensor) -> Tensor:
    """Return unit vectors along the last axis."""
    norms: Tensor = torch.linalg.vector_norm(t, dim=-1, keepdim=True)
    return t / norms.clamp(min=1e-300)


def refine_by_ascent(
    layer: RepeatedToken, y: Tensor, z: Tensor, e: Tensor, values: Tensor, radius: float, steps: int = 150
) -> tuple[Tensor, Tensor, Tensor]:
    """Improve pairs by gradient ascent of the closed form in y and z within the ball.

    After each step of y and z, ε is updated by one power iteration.

    Args:
        layer: the layer.
        y: isolated tokens, (c, d).
        z: repeated tokens, (c, d).
        e: directions ε, (c, d).
        values: gains of these, (c,).
        radius: R.
        steps: number of ascent steps.

    Returns:
        y, z and their gains, which are never below the given ones.
    """
    best_y, best_z, best = y.clone(), z.clone(), values.clone()
    y, z = (t.clone().requires_grad_() for t in (y, z))
    optimiser = torch.optim.Adam([y, z], lr=0.03 * radius / math.sqrt(y.shape[-1]), maximize=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        with torch.enable_grad():
            derivative = layer.derivative(y, z)
            gain = derivative.gain(e)
            torch.autograd.backward(gain.log().sum())
        with torch.no_grad():
            better = gain > best
            best = torch.where(better, gain, best)
            best_y, best_z = (torch.where(better.unsqueeze(-1), t, b) for t, b in ((y, best_y), (z, best_z)))
            e = _normalised(derivative.power_step(e))
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            for t in (y, z):
                norms = torch.linalg.vector_norm(t, dim=-1, keepdim=True)
                t.mul_((radius / norms.clamp(min=1e-300)).clamp(max=1.0))
    with torch.no_grad():
        final, _ = layer.derivative(best_y, best_z).norm()
    return best_y.detach(), best_z.detach(), torch.maximum(final, best).detach()
