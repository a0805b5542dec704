"""A layer at given tokens, and bounds on one head while every token moves by at most ε.

The derivative of a head is a sum of three terms, with w = P (times the derivative of a soft cap):

    J(E)_i = Σ_j P_ij V ε_j  +  M_i ε_i  +  Σ_j w_ij y_ij ⟨a_ij, ε_j⟩          value, query and key term
    y_ij = v_j − o_i        κ_ij = scale·W_qᵀ(k_j − z_i)        M_i = Σ_j w_ij y_ij κ_ijᵀ        a_ij = scale·W_kᵀ q_i

k and q are rotated by their positions where these are rotary. z_i = Σ_j P_ij k_j, which changes nothing since
Σ_j P_ij y_ij = 0; under a soft cap z_i = 0. Primes mark values at X'. The steps (1) … (8) are proved in docs/ball.md.
Rounding errors count as a further small change of scores, v, k and a.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from howsmooth.attention.blockwise import Linearisation
from howsmooth.attention.rotary import Rotary
from howsmooth.bounds.conditions import check_padding, check_tokens
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.norms import (
    UNIT_ROUNDOFF,
    Interval,
    SecondMoments,
    largest_concentration,
    norm_from_gram,
    norm_of_nonnegative,
    pairwise_distances,
    smaller_norm,
    softcap_interval,
    softmax_interval,
    spectral_norm,
    visible_key_count,
)

MAX_TOKENS_FOR_EXACT_NORM = 1024  # up to which norms of n × n matrices are computed
QUERY_BLOCK = 128  # queries at once


class LayerAtTokens:
    """A layer in float64 at tokens x (n, d); padded tokens do not move and are not attended to.

    Attributes:
        form: quantities of the layer.
        layer: the layer in float64 on the CPU.
        x: tokens in float64 on the CPU, (n, d).
        n: number of tokens, padded ones included.
        real: which tokens are not padding, (n,).
        q, k: queries and keys, (h, n, k), rotated where positions are rotary.
        v, o: values and outputs of the heads, (h, n, w).
    """

    def __init__(self, form: LayerForm, x: Tensor, padding: Tensor | None = None):
        """Evaluate the layer at x (n, d), with padding (n,) True where a token is real."""
        check_tokens(x, form.d)
        check_padding(padding, len(x))
        with torch.no_grad():  # a bound needs no gradients, even of a layer that is trained
            self.form, self.layer = form, form.f.converted(device="cpu", dtype=torch.float64)
        self.x = x.detach().to(device="cpu", dtype=torch.float64)
        self.n = len(x)
        self.real = torch.ones(self.n, dtype=torch.bool) if padding is None else padding.cpu()
        jacobian = self.layer.jacobian(self.x, None if padding is None else self.real)
        self.linearised = cast(Linearisation, jacobian.linearised)  # on the CPU it is never the fused one
        self.q, self.o = self.linearised.q[0], self.linearised.o[0]
        self.k, self.v = (form.repeat_kv(t[0]) for t in (self.linearised.k, self.linearised.v))

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield rows, the keys visible to them, and P between them, (h, rows, keys)."""
        for at in self.linearised.blocks():
            shape = (self.form.heads, at.last - at.first, at.stop - at.start)
            yield slice(at.first, at.last), slice(at.start, at.stop), at.p.reshape(shape)

    def probabilities(self) -> Tensor:
        """Return P of the real tokens, (h, rows, n)."""
        p = torch.zeros(self.form.heads, self.n, self.n, dtype=torch.float64)
        for rows, keys, part in self.blocks():
            p[:, rows, keys] = part
        return p[:, self.real]

    def probability_norm(self) -> Tensor:
        """Return ‖P‖ (h,); for many tokens the upper bound (max row sum · max column sum)^½."""
        if self.n <= MAX_TOKENS_FOR_EXACT_NORM:
            return torch.tensor([norm_of_nonnegative(p) for p in self.probabilities()], dtype=torch.float64)
        column_sums, row_sum = torch.zeros(self.form.heads, self.n, dtype=torch.float64), 0.0
        for rows, keys, p in self.blocks():
            p = p[:, self.real[rows]]
            column_sums[:, keys] += p.sum(1)
            row_sum = max(row_sum, float(p.sum(-1).max())) if p.numel() else row_sum
        return (column_sums.amax(-1) * row_sum).sqrt()


@dataclass(frozen=True, kw_only=True)
class HeadTerms:
    """Upper bounds on the three terms of one head, at X or over the ball.

    Attributes:
        value: ‖P'‖.
        query: ‖W M'_i‖, (n,).
        key: ‖W T'‖.
        root: √τ'_i = ‖[w'_ij W y'_ij]_j‖, (n,).
        key_from_slopes: the part of the bound on ‖W T'‖ that is due to a'_i − a_i.
    """

    value: float
    query: Tensor
    key: float
    root: Tensor
    key_from_slopes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HeadOnBall(HeadTerms):
    """Upper bounds on the three terms of one head over the ball, and on their changes from X.

    Attributes:
        value_change: ‖P' − P‖.
        query_change: ‖W (M'_i − M_i)‖, (n,).
        key_change: ‖W (T' − T)‖.
        root_change: ‖[w'_ij W y'_ij − w_ij W y_ij]_j‖, (n,).
        concentration: max_i g₁(P'_i).
    """

    value_change: float
    query_change: Tensor
    key_change: float
    root_change: Tensor
    concentration: float


class Head:
    """One head of a layer at its real tokens, in the low-dimensional coordinates that norms need."""

    def __init__(self, at: LayerAtTokens, h: int):
        """Take head h of the layer."""
        form, real = at.form, at.real
        self.h, self.layer, self.pattern = h, at.layer, at.linearised.pattern
        self.positions = real.nonzero().flatten()
        self.n, self.rotary = len(self.positions), at.layer.rotary
        v, o = at.v[h, real], at.o[h, real]
        if form.wo is not None:  # W_h = U R with orthonormal columns U: the norms of W_h y are those of R y
            v, o = v @ form.out_factor[h].mT, o @ form.out_factor[h].mT
        self.v, self.o = v - v.mean(0), o - v.mean(0)  # y = v − o is unchanged, with less cancellation
        self.q, self.k = at.q[h, real], at.k[h, real]
        self.value_moments = SecondMoments(self.v)
        kv = h // form.groups
        self.scale, self.query_factor, self.key_factor = form.scale, form.query_factor[h], form.key_factor[kv]
        self.score_norm, self.value_norm = float(form.score_norm[h]), float(form.value_norm[h])
        self.rotated_key_norm = float(form.scale * form.rotary_gain * form.key_norm[h])
        # W_qᵀk needs only the factor of W_q; with rotary positions it depends on the position of the query as well.
        self.key_moments = SecondMoments(
            self.scale * (self.k @ self.query_factor.mT if self.rotary is None else self.k)
        )
        self._bound_rounding_errors(at, kv)

    def _bound_rounding_errors(self, at: LayerAtTokens, kv: int) -> None:
        """Bound the rounding errors of scores, y, κ and a: sums of up to n + d + 2k products."""
        form = at.form
        radius = float(at.x[at.real].norm(dim=-1).max())

        def sizes(weight: Tensor, bias: Tensor | None) -> tuple[float, float]:
            """Return the Frobenius norm of a projection, and a bound on the norm of its output."""
            return float(weight.norm()), float(weight.norm()) * radius + (0.0 if bias is None else float(bias.norm()))

        wq, q = sizes(form.wq[self.h], None if form.bq is None else form.bq[self.h])
        wk, k = sizes(form.wk[kv], None if form.bk is None else form.bk[kv])
        bv = self.layer.bv
        _, v = sizes(form.wv[kv], None if bv is None else torch.unflatten(bv, 0, (self.layer.kv_heads, -1))[kv])
        relative = 4 * UNIT_ROUNDOFF * (self.n + form.d + 2 * form.wq.shape[1]) * form.rotary_gain**2
        self.score_error, self.kappa_error, self.slope_error = (
            relative * self.scale * size for size in (q * k, wq * k, wk * q)
        )
        self.value_error = relative * v * (1.0 if form.wo is None else float(form.wo[self.h].norm()))

    def undo_rotation(self, t: Tensor, positions: Tensor) -> Tensor:
        """Return R_iᵀ t_i for t (…, i, k) at these positions; t itself without rotary positions."""
        if self.rotary is None:
            return t
        table = Rotary(self.rotary.cos[positions], self.rotary.sin[positions], self.rotary.interleaved)
        return table.transpose(t)

    def scores(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return scale·q·k, and what is added to it: offsets, and −∞ where a key is masked."""
        i, j = self.positions[rows].unsqueeze(1), self.positions.unsqueeze(0)
        raw = self.pattern.scale * self.q[rows] @ self.k.mT
        added = torch.zeros_like(raw)
        every = torch.arange(int(self.positions[-1]) + 1)
        bias = self.pattern.bias(every.unsqueeze(1), every.unsqueeze(0), raw.dtype)
        if bias is not None:
            added = bias[self.h if len(bias) > 1 else 0].expand(len(every), len(every))[i, j]
        visible = self.pattern.visible(i, j)
        return raw, added if visible is None else added.masked_fill(~visible, -torch.inf)

    def centre(self, raw: Tensor, added: Tensor) -> Tensor:
        """Return z_i for rows with these scores, (rows, k)."""
        if self.pattern.softcap is not None:
            return raw.new_zeros(len(raw), self.k.shape[1])
        return torch.softmax(raw + added, -1).nan_to_num(nan=0.0) @ self.k

    def weights(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return w_ij (rows, keys) and z_i (rows, k) at X."""
        raw, added = self.scores(rows)
        if self.pattern.softcap is None:
            return torch.softmax(raw + added, -1).nan_to_num(nan=0.0), self.centre(raw, added)
        s, slope = softcap_interval(raw, torch.zeros_like(raw), self.pattern.softcap)
        return torch.softmax(s.centre + added, -1).nan_to_num(nan=0.0) * slope.centre, self.centre(raw, added)

    def key_slopes(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the derivatives of scores in the key's token: a_i (rows, k), and |a_ij| (rows, keys or 1)."""
        q = self.q[rows]
        if self.rotary is None:
            a = self.scale * q @ self.key_factor.mT
            return a, a.norm(dim=-1, keepdim=True)
        keys = self.undo_rotation(q.unsqueeze(1).expand(-1, self.n, -1), self.positions)
        # Each key is rotated by its own position, so that only the norm of W_k is common to all ⟨a_ij, ε_j⟩ of a row.
        return self.rotated_key_norm * q, self.scale * (keys @ self.key_factor.mT).norm(dim=-1)

    def query_slope_norms(self, rows: slice, centre: Tensor) -> Tensor:
        """Return |κ_ij| (rows, keys), the norms of the derivatives of scores in the query's token."""
        if self.rotary is None:
            return pairwise_distances(self.scale * centre @ self.query_factor.mT, self.key_moments.t)
        queries = self.undo_rotation(self.k.unsqueeze(1) - centre, self.positions[rows]).transpose(0, 1)
        norms: Tensor = (queries @ self.query_factor.mT).norm(dim=-1)
        return self.scale * norms

    def slope_norms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return |a_ij| (n, n or 1), |κ_ij| (n, n) and ‖[√P_ij κ_ij]_j‖ (n,) at X, with their rounding errors."""
        parts = []
        for rows in self._row_blocks():
            raw, added = self.scores(rows)
            centre = self.centre(raw, added)
            p = torch.softmax(raw + added, -1).nan_to_num(nan=0.0)
            kappa = self.query_slope_norms(rows, centre), self._kappa_norms(p, centre, rows)
            parts.append((self.key_slopes(rows)[1] + self.slope_error, *(t + self.kappa_error for t in kappa)))
        a, kappa_norm, kappa_rms = (torch.cat(part) for part in zip(*parts, strict=True))
        return a, kappa_norm, kappa_rms

    def at_centre(self, value: float) -> HeadTerms:
        """Bound the terms at X itself, given ‖P‖."""
        parts = [self._rows_at_centre(rows) for rows in self._row_blocks()]
        root, a, *block = (torch.cat(part) for part in zip(*parts, strict=True))
        key = float(spectral_norm(root.unsqueeze(-1) * a))
        key = smaller_norm(key, *block) if block else key
        return HeadTerms(value=value, query=self.query_norms, key=key, root=root)

    def _row_blocks(self) -> list[slice]:
        return [slice(first, min(first + QUERY_BLOCK, self.n)) for first in range(0, self.n, QUERY_BLOCK)]

    def _rows_at_centre(self, rows: slice) -> tuple[Tensor, ...]:
        """Return √τ_i, a_i and, unless there are too many tokens, the norms of the blocks of T."""
        w, _ = self.weights(rows)
        a, a_norm = self.key_slopes(rows)
        terms = self._y_norms(w.square(), self.o[rows]), a
        if self.n > MAX_TOKENS_FOR_EXACT_NORM:
            return terms
        return *terms, w * pairwise_distances(self.o[rows], self.v) * a_norm

    def on_ball(self, eps: float) -> HeadOnBall:
        """Bound the terms of this head, and their changes, over the ball of radius ε."""
        parts = [self._rows_on_ball(rows, eps) for rows in self._row_blocks()]
        rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        a, a_shift = rows["a"], eps * self.score_norm + self.slope_error
        # (3) entrywise domination; rows of P' sum to one at most.
        value = min(norm_of_nonnegative(rows["p_high"]), float(rows["p_high"].sum(0).max().sqrt()))
        # (6), (7): a_i itself changes by `a_shift`. All keys of a row together, or block by block.
        key_from_slopes = a_shift * smaller_norm(float(rows["root"].norm()), rows["weighted_y"])
        key = smaller_norm(float(spectral_norm(rows["root"].unsqueeze(-1) * a)) + key_from_slopes, rows["block"])
        change = float(spectral_norm(rows["root_change"].unsqueeze(-1) * a))
        return HeadOnBall(
            value=value,
            value_change=norm_of_nonnegative(rows["p_change"]),
            query=rows["query"],
            query_change=rows["query_change"],
            key=key,
            key_change=smaller_norm(change, rows["block_change"]) + key_from_slopes,
            key_from_slopes=key_from_slopes,
            root=rows["root"],
            root_change=rows["root_change"],
            concentration=float(rows["concentration"].max()),
        )

    def _rows_on_ball(self, rows: slice, eps: float) -> dict[str, Tensor]:
        """Return the bounds of a block of rows, by name, (rows, …) each."""
        raw, added = self.scores(rows)
        o, centre, cap = self.o[rows], self.centre(raw, added), self.pattern.softcap
        (a, a_norm), kappa_norm = self.key_slopes(rows), self.query_slope_norms(rows, centre)

        # (1) scores change by δ at most, up to a constant per row (none under a soft cap).
        delta = eps * (a_norm + kappa_norm) + eps**2 * self.score_norm + self.score_error
        if cap is None:
            p = w = softmax_interval(Interval(*(raw + added + t for t in (-delta, 0.0, delta))))
        else:
            s, slope = softcap_interval(raw, delta, cap)
            p = softmax_interval(Interval(*(t + added for t in (s.low, s.centre, s.high))))
            w = p.times(slope)
        p_change, w_change = p.change, w.change

        several_keys = ((p.high > 0).sum(-1) > 1).double()  # with one visible key y = 0, whatever moves
        v_shift = several_keys * (eps * self.value_norm + self.value_error)
        kappa_shift = several_keys * (eps * self.score_norm + self.kappa_error)
        y_norm = pairwise_distances(o, self.v)
        y, kappa = self._y_norms(p.high, o), self._kappa_norms(p.high, centre, rows)

        # (4) the change of the row's means of v and of κ.
        visible_delta = torch.where(p.high > 0, delta, 0.0)
        rms_delta = torch.minimum((p.high * visible_delta.square()).sum(-1).sqrt(), visible_delta.amax(-1))
        mean_shift = torch.minimum((p_change * y_norm).sum(-1), y * rms_delta)
        kappa_mean_shift = torch.minimum((p_change * kappa_norm).sum(-1), kappa * rms_delta)

        # (5) the query term.
        first = self._y_norms(w_change, o) * self._kappa_norms(w_change, centre, rows) + y * kappa_shift
        query_change = first + torch.hypot(v_shift, mean_shift) * (kappa + kappa_shift)
        if cap is None:
            about_means = (
                first
                + kappa * v_shift
                + v_shift * kappa_shift
                + (mean_shift + v_shift) * (kappa_mean_shift + kappa_shift)
            )
            query_change = torch.minimum(query_change, about_means)
        query = torch.minimum(self.query_norms[rows] + query_change, (y + v_shift) * (kappa + kappa_shift))

        # (6) the key term, all keys of a row together.
        peak = w.high.amax(-1).sqrt()
        length = torch.minimum(w.high.norm(dim=-1), peak)
        root_shift = v_shift * torch.minimum(2 * length, peak) + length * mean_shift
        # (7) the key term, block by block.
        y_shift = (2 * v_shift + mean_shift).unsqueeze(-1)
        weighted_y = w.high * (y_norm + y_shift)
        return dict(
            p_high=p.high,
            p_change=p_change,
            concentration=largest_concentration(p),
            a=a,
            query=query,
            query_change=query_change,
            root=self._y_norms(w.high.square(), o) + root_shift,
            root_change=self._y_norms(w_change.square(), o) + root_shift,
            weighted_y=weighted_y,
            block=weighted_y * (a_norm + eps * self.score_norm + self.slope_error),
            block_change=a_norm * (w_change * y_norm + w.high * y_shift),
        )

    def _y_norms(self, weights: Tensor, o: Tensor) -> Tensor:
        """Return ‖[√weights_ij y_ij]_j‖ per row."""
        return norm_from_gram(*self.value_moments.about(weights, o))

    def _kappa_norms(self, weights: Tensor, centre: Tensor, rows: slice) -> Tensor:
        """Return ‖[√weights_ij κ_ij]_j‖ per row."""
        if self.rotary is None:
            return norm_from_gram(*self.key_moments.about(weights, self.scale * centre @ self.query_factor.mT))
        gram, error = self.key_moments.about(weights, self.scale * centre)
        for _ in range(2):  # R_Q R_iᵀ G R_i R_Qᵀ, one side after the other
            gram = self._apply_query_factor(gram, rows).mT
        return norm_from_gram(gram, error * float(spectral_norm(self.query_factor)) ** 2)

    def _apply_query_factor(self, m: Tensor, rows: slice) -> Tensor:
        """Return M_i R_i R_Qᵀ for matrices M_i (rows, ·, k)."""
        return self.undo_rotation(m.transpose(0, 1), self.positions[rows]).transpose(0, 1) @ self.query_factor.mT

    @cached_property
    def query_norms(self) -> Tensor:
        """‖W M_i‖ at X, (n,)."""
        norms, keys = [], self.key_moments.t
        products = (self.v.unsqueeze(-1) * keys.unsqueeze(-2)).flatten(-2)
        for rows in self._row_blocks():
            o, (w, centre) = self.o[rows], self.weights(rows)
            centre = self.scale * centre
            if self.rotary is None:
                centre = centre @ self.query_factor.mT
            stop = visible_key_count(w)
            w = w[:, :stop]
            m = torch.unflatten(w @ products[:stop], -1, (self.v.shape[1], keys.shape[1]))
            m -= o.unsqueeze(-1) * (w @ keys[:stop]).unsqueeze(-2)
            m -= (w @ self.v[:stop] - w.sum(-1, keepdim=True) * o).unsqueeze(-1) * centre.unsqueeze(-2)
            m = m if self.rotary is None else self._apply_query_factor(m, rows)
            norms.append(spectral_norm(m, certified=True))
        return torch.cat(norms)
