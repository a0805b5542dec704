"""An upper bound on the ball that bounds all heads of a layer, and all distances of rotary positions, together.

With B_h = W_h V_h and any weights ω_h > 0, Cauchy and Schwarz over heads and keys at once bound the two terms of the
derivative that move scores by

    ‖[B_1/ω_1 … B_H/ω_H]‖ · R · (μ + (S/2)^½)

    μ          ≥ (Σ_h ω_h² Σ_j P_ij⟨∂s_ij/∂x_i, ε⟩²)^½ for unit ε: the derivative of scores in the query's token
    S          = max_j Σ_{i sees j} α(i−j)²
    α(i−j)     ≥ ‖[ω_h ∂s_ij/∂x_j]_h‖, (d × H): the derivative in the key's token, at one query x_i for all heads

One token cannot be in the leading subspace of every A_h, nor one output in that of every B_h, which the sum over heads
assumes. The proof is in docs/bounds.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.rotary import Rotary
from howsmooth.bounds import normalisation, this_project
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.conditions import check_n, check_radius
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.norms import certified_eigenvalue, lanczos_eigenvalue, spectral_norm
from howsmooth.errors import InputError

REFERENCE = "docs/bounds.md, proof 7"
EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # ω_h = ‖B_h‖^p |∂s/∂x_j|^{p−1} is tried for each
MAX_DISTANCES = 1024  # for which norms of A_ij are computed; beyond, ‖Q‖‖K‖ bounds them
LARGEST_DEFECT = 1e-3  # of tables of rotations, from being a function of the distance


def upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return an upper bound on B_R^n for all heads together, never above `this_project.upper`.

        √m·min(Σ_h‖B_h‖, ‖W‖‖[V_h]‖) + ‖[B_h/ω_h]‖ R (μ + (S/2)^½)

    For every layer. With rotary positions it uses the norm of A_ij at each distance i − j.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Reference:
        docs/bounds.md, proof 7.

    Example:
        >>> wq = torch.eye(4, dtype=torch.float64)  # two heads that read and write different subspaces
        >>> f = SelfAttention(wq, wq, wq, wq, heads=2)
        >>> round(upper(f, 8, 2.0).value / this_project.upper(f, 8, 2.0).value, 3)
        0.707
    """
    form = form_of(f)
    check_n(n)
    check_radius(radius)
    separate = this_project.upper(form, n, radius)
    heads = _HeadsTogether(form, form)
    together = log(heads.value_term(n) + heads.score_terms(n, radius))
    return Bound("heads_together.upper", min(separate.log_value, together), "upper", "on B_R^n", (), REFERENCE)


def upper_on_outputs(f: SelfAttention | LayerForm, n: int, norm: Normalisation) -> Bound:
    """Return an upper bound over all tokens that a normalisation can put out, x_i = g∘z_i + b with |z_i| ≤ √d.

    The formula of `upper` with R = √d, and with the weights times g wherever they multiply tokens, rather than their
    changes. It is never above `upper` on the ball that contains these tokens.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        norm: the normalisation in front of the layer.

    Returns:
        The bound, in the norm of changes of the normalised tokens.

    Raises:
        InputError: if the normalisation has another width than the layer.

    Reference:
        docs/bounds.md, proof 7.

    Example:
        >>> eye = torch.eye(4, dtype=torch.float64)
        >>> f = SelfAttention(eye, eye, eye, scale=1.0)
        >>> norm = Normalisation(torch.tensor([9.0, 1.0, 1.0, 1.0]), centred=False)
        >>> upper_on_outputs(f, 8, norm).holds
        'over outputs of the normalisation'
    """
    form = form_of(f)
    check_n(n)
    if not isinstance(norm, Normalisation) or norm.d != form.d:
        got = f"width {norm.d}" if isinstance(norm, Normalisation) else type(norm).__name__
        raise InputError(f"expected a Normalisation of width {form.d}, got {got}; give the one in front of the layer")
    ball = upper(form, n, normalisation.radius(norm))
    heads = _HeadsTogether(form, LayerForm(normalisation.in_coordinates(form.f, norm)))
    together = log(heads.value_term(n) + heads.score_terms(n, math.sqrt(form.d)))
    name, holds = "heads_together.upper_on_outputs", "over outputs of the normalisation"
    return Bound(name, min(ball.log_value, together), "upper", holds, (), REFERENCE)


class _HeadsTogether:
    """The norms of the heads of a layer, side by side or stacked, with weights ω (h,).

    Attributes:
        form: the layer, whose weights multiply changes of tokens.
        placed: the same layer with the weights that multiply the tokens themselves, in other coordinates; or `form`.
    """

    def __init__(self, form: LayerForm, placed: LayerForm):
        """Take a layer; the products of its weights are computed once."""
        self.form, self.placed = form, placed
        self.query_gram, self.key_gram = _gram(form.wq), _gram(form.repeat_kv(form.wk))
        self.placed_query_gram = self.query_gram if placed is form else _gram(placed.wq)
        self.out_gram = None if form.wo is None else _gram(form.wo.mT)
        self.identity = torch.eye(form.wq.shape[1], dtype=torch.float64)

    def value_term(self, n: int) -> float:
        """Bound ‖Σ_h P_h ⊗ B_h‖: the norms of all P_h are at most √m."""
        form = self.form
        stacked = float(spectral_norm(form.repeat_kv(form.wv).flatten(0, 1), certified=True))
        return math.sqrt(form.max_queries_per_key(n)) * min(float(form.value_norm.sum()), form.out_norm * stacked)

    def score_terms(self, n: int, radius: float) -> float:
        """Bound the terms of the derivative that move scores, with the best of a few weights ω."""
        size = radius or 1.0
        outputs, scores = _positive(self.placed.value_norm), _positive(self.placed.slopes(size).key / size)
        weights = torch.stack([outputs**p * scores ** (p - 1) for p in EXPONENTS])
        weights = weights / weights.amax(-1, keepdim=True)  # a common factor cancels
        estimates = [self._terms(omega, n, radius, certified=False) for omega in weights]
        return self._terms(weights[estimates.index(min(estimates))], n, radius, certified=True)

    def _terms(self, omega: Tensor, n: int, radius: float, certified: bool) -> float:
        """Return ‖[B_h/ω_h]‖ R (μ + (S/2)^½); an estimate takes the distance 0 for all."""
        form = self.form
        stacked = self._stacked_norm(omega, certified)
        query = radius * stacked + float((omega * self._key_offset()).norm())
        offset = self._offset_norm(omega)
        if form.is_rotary and certified:
            factor = self.identity * (form.scale * form.rotary_gain**2 * omega * form.key_norm)[:, None, None]
            anywhere = radius * _norm_side_by_side(factor, self.placed_query_gram, certified) + offset
            rows = self._rows_by_distance(omega, n, radius, anywhere)
        else:
            alpha = radius * self._key_norm(omega, self.identity, certified) + offset
            rows = math.sqrt(form.max_queries_per_key(n)) * alpha
        return self._out_norm(omega, certified) * radius * (query + rows / math.sqrt(2))

    def _out_norm(self, omega: Tensor, certified: bool) -> float:
        """Return ‖[B_1/ω_1 … B_H/ω_H]‖."""
        form = self.placed
        if self.out_gram is None:  # the outputs of different heads are orthogonal
            return float((form.value_norm / omega).max())
        factor = form.repeat_kv(form.value_factor) / omega[:, None, None]  # V_hᵀ = U R: B_hᵀ = U (R W_hᵀ)
        return _norm_side_by_side(factor, self.out_gram, certified)

    def _stacked_norm(self, omega: Tensor, certified: bool) -> float:
        """Return the norm of all ω_h A_h below each other, of all ω_h scale‖K_h‖Q_h with rotary positions."""
        form = self.placed  # keys of the tokens, queries of their changes
        if form.is_rotary:
            factor = self.identity * (form.scale * form.rotary_gain**2 * omega * form.key_norm)[:, None, None]
        else:
            factor = form.scale * omega[:, None, None] * form.repeat_kv(form.key_factor)
        return _norm_side_by_side(factor, self.query_gram, certified)

    def _offset_norm(self, omega: Tensor) -> float:
        """Return ‖[ω_h c_h]_h‖, c_h the part of ∂s_ij/∂x_j that does not depend on x_i."""
        form, bq = self.form, self.placed.bq
        if bq is None:
            return 0.0
        if form.is_rotary:
            return float((omega * form.scale * form.rotary_gain**2 * form.key_norm * bq.norm(dim=-1)).norm())
        c = form.scale * (form.repeat_kv(form.wk).mT @ bq.unsqueeze(-1)).squeeze(-1)
        return float(spectral_norm(omega.unsqueeze(-1) * c))

    def _key_offset(self) -> Tensor:
        """Return |c_k| (h,), the part of ∂s_ij/∂x_i that does not depend on x_j; zero where softmax cancels it."""
        form, bk = self.form, self.placed.bk
        if bk is None or not (form.is_rotary or form.f.softcap is not None):
            return torch.zeros(form.heads, dtype=torch.float64)
        bk = form.repeat_kv(bk)
        if form.is_rotary:
            offsets: Tensor = form.rotary_gain**2 * form.query_norm * bk.norm(dim=-1)
        else:
            offsets = (form.wq.mT @ bk.unsqueeze(-1)).squeeze(-1).norm(dim=-1)
        return form.scale * offsets

    def _key_norm(self, omega: Tensor, rotation: Tensor, certified: bool) -> float:
        """Bound ‖[ω_h A_h x]_h‖, (d × H), over unit x, for A_h = scale·K_hᵀ·rotation·Q_h.

        Its square is at most Σ_h ω_h²|A_h x|², and at most the largest Σ_h ω_h²|A_hᵀw|² over unit w.
        """
        form, weight = self.form, self.form.scale * omega[:, None, None]
        below = weight * form.repeat_kv(form.key_factor) @ rotation
        beside = weight * self.placed.query_factor @ rotation.mT
        return min(
            _norm_side_by_side(below, self.placed_query_gram, certified),
            _norm_side_by_side(beside, self.key_gram, certified),
        )

    def _rows_by_distance(self, omega: Tensor, n: int, radius: float, anywhere: float) -> float:
        """Return S^½ with rotary positions; `anywhere` bounds α at every distance."""
        form = self.form
        reach = n if form.f.window is None else min(n, form.f.window)  # distances 0 … reach − 1
        rotations = _relative_rotations(form, n, min(reach, MAX_DISTANCES))
        if rotations is None or anywhere == 0:
            return math.sqrt(form.max_queries_per_key(n)) * anywhere
        table, defect = rotations
        # A_ij differs from A(i−j) by the defect of the table at most.
        slack = form.scale * defect * float((omega * form.key_norm * self.placed.query_norm).norm())
        slack = radius * slack + self._offset_norm(omega)

        def squares(tables: Tensor) -> Tensor:
            """Return (α/anywhere)² at these distances, and 1 at the distances without a table."""
            alpha = [radius * self._key_norm(omega, rotation, certified=True) + slack for rotation in tables]
            scaled = torch.tensor(alpha, dtype=torch.float64) / anywhere
            return torch.cat([scaled.clamp(max=1.0).square(), torch.ones(reach - len(table), dtype=torch.float64)])

        later = squares(table)  # the query after the key
        if form.causal:
            return anywhere * math.sqrt(float(later.sum()))
        earlier = torch.cat([torch.zeros(1, dtype=torch.float64), squares(table[1:].mT)])
        # Key j is seen by the queries at distances −min(j, reach − 1) … min(n − 1 − j, reach − 1).
        j = torch.arange(n)
        last, first = (n - 1 - j).clamp(max=reach - 1), j.clamp(max=reach - 1)
        return anywhere * math.sqrt(float((later.cumsum(0)[last] + earlier.cumsum(0)[first]).max()))


def _positive(t: Tensor) -> Tensor:
    """Return t with zeros replaced by a small number: ω must be positive."""
    return t.clamp(min=max(1e-6 * float(t.max()), 1e-200))


def _gram(m: Tensor) -> Tensor:
    """Return all products M_g M_hᵀ of matrices (h, k, d), as (h, k, h·k)."""
    flat = m.flatten(0, 1)
    return torch.unflatten(flat @ flat.mT, 0, m.shape[:2])


def _norm_side_by_side(left: Tensor, gram: Tensor, certified: bool) -> float:
    """Return ‖[M_1 … M_H]‖ for matrices with M_gᵀM_h = left_g gram_gh left_hᵀ; left (h, r, k), gram (h, k, h·k)."""
    sizes = float(left.abs().max()), float(gram.abs().max())
    if min(sizes) == 0:
        return 0.0
    left, gram = left / sizes[0], gram / sizes[1]
    half = torch.unflatten(left @ gram, -1, (len(left), -1))  # (h, r, h, k)
    product = torch.einsum("grhk,hsk->grhs", half, left).flatten(2).flatten(0, 1)
    product = (product + product.mT) / 2
    value = certified_eigenvalue(product) if certified else lanczos_eigenvalue(product, min(10, len(product)))
    return sizes[0] * math.sqrt(sizes[1] * max(float(value), 0.0))


def _relative_rotations(form: LayerForm, n: int, distances: int) -> tuple[Tensor, float] | None:
    """Return R_0ᵀR_δ for δ < distances, (·, k, k), and a bound on ‖R_jᵀR_i − R_0ᵀR_{i−j}‖ for i − j < distances.

    None if rotations in the table are not functions of the distance, or if it has fewer than n positions.
    """
    rotary = form.f.rotary
    assert rotary is not None
    if len(rotary.cos) < n:
        return None
    rotary = Rotary(rotary.cos[:n].double().cpu(), rotary.sin[:n].double().cpu(), rotary.interleaved)
    halves = [(t[:, ::2], t[:, 1::2]) if rotary.interleaved else t.chunk(2, 1) for t in (rotary.cos, rotary.sin)]
    if any(not torch.equal(first, second) for first, second in halves):  # exact: tables repeat their entries
        return None
    turns = torch.complex(halves[0][0], halves[1][0])  # (n, planes)
    relative = turns[0].conj() * turns
    defect = 0.0
    for distance in range(1, distances):
        pairs = turns[:-distance].conj() * turns[distance:]
        defect = max(defect, float((pairs - relative[distance]).abs().max()))
    defect = max(defect, float((turns.abs().square() - relative[0].abs()).abs().max()))
    if defect > LARGEST_DEFECT:
        return None
    width = form.wq.shape[1]
    identity = torch.eye(width, dtype=torch.float64).unsqueeze(1).expand(width, distances, width)
    rotations = rotary(identity).permute(1, 2, 0)  # R_δ e_c in column c
    return rotations[0].mT @ rotations, defect
