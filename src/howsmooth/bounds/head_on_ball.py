"""A layer at given tokens, and one head while every token moves by at most ε: how far the three terms of J can go.

J(E)_i = Σ_j P_ij V ε_j  +  M_i ε_i  +  Σ_j w_ij y_ij ⟨a_ij, ε_j⟩, with w = P (times the slopes of a soft cap),

    y_ij = v_j − o_i        κ_ij = scale·W_qᵀ(k_j − z_i)        M_i = Σ_j w_ij y_ij κ_ijᵀ        a_ij = scale·W_kᵀ q_i

(k and q turned by their places where positions are rotary). z_i = Σ_j P_ij k_j, which changes nothing as
Σ_j P_ij y_ij = 0; under a soft cap z_i = 0. Primes are values at X'. The steps marked (1) … (8) are proved in
docs/ball.md; rounding enters as a further small movement of scores, v, k and a.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from howsmooth.attention import Rotary
from howsmooth.attention.blockwise import Linearisation
from howsmooth.bounds.conditions import check_padding, check_tokens
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.norms import (
    UNIT,
    Outers,
    Within,
    capped,
    distance,
    largest_concentration,
    last_seen,
    least_norm,
    norm_of_nonnegative,
    root_of_top,
    softmax_within,
    top_value,
)

EXACT = 1024  # tokens up to which norms of n × n matrices are computed
ROWS = 128  # queries at once


class AtTokens:
    """A layer in float64 at tokens x (n, d); padded tokens are neither moved nor looked at."""

    def __init__(self, form: LayerForm, x: Tensor, padding: Tensor | None = None):
        check_tokens(x, form.d)
        check_padding(padding, len(x))
        self.form, self.layer = form, form.f.to(device="cpu", dtype=torch.float64)
        self.x = x.detach().to(device="cpu", dtype=torch.float64)
        self.n = len(x)
        self.real = torch.ones(self.n, dtype=torch.bool) if padding is None else padding.cpu()
        jacobian = self.layer.jacobian(self.x, None if padding is None else self.real)
        self.linearised = lin = cast(Linearisation, jacobian.linearised)  # on the CPU it is never the fused one
        self.q, self.o = lin.q[0], lin.o[0]  # (h, n, ·); q and k are rotated where positions are rotary
        self.k, self.v = (form.shared(t[0]) for t in (lin.k, lin.v))

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Rows, the keys that they can see, and P between them, (h, rows, keys)."""
        for at in self.linearised.blocks():
            shape = (self.form.heads, at.last - at.first, at.stop - at.start)
            yield slice(at.first, at.last), slice(at.start, at.stop), at.p.reshape(shape)

    def probabilities(self) -> Tensor:
        """P of the real tokens, (h, n, n)."""
        p = torch.zeros(self.form.heads, self.n, self.n, dtype=torch.float64)
        for rows, keys, part in self.blocks():
            p[:, rows, keys] = part
        return p[:, self.real]

    def probability_norm(self) -> Tensor:
        """‖P‖ (h,) of up to EXACT tokens; beyond, (max row sum · max column sum)^½, which is no smaller."""
        if self.n <= EXACT:
            return torch.tensor([norm_of_nonnegative(p) for p in self.probabilities()], dtype=torch.float64)
        columns, rows = torch.zeros(self.form.heads, self.n, dtype=torch.float64), 0.0
        for at, keys, p in self.blocks():
            p = p[:, self.real[at]]
            columns[:, keys] += p.sum(1)
            rows = max(rows, float(p.sum(-1).max())) if p.numel() else rows
        return (columns.amax(-1) * rows).sqrt()


@dataclass(frozen=True, kw_only=True)
class HeadTerms:
    """Upper bounds on the three terms of one head, `query` and `key` with W_h in them: at X, or over the ball."""

    value: float  # ‖P'‖
    query: Tensor  # ‖W M'_i‖, (n,)
    key: float  # ‖W T'‖
    root: Tensor  # √τ'_i = ‖[w'_ij W y'_ij]_j‖, (n,)
    turned: float = 0.0  # the part of ‖W T'‖ that comes from a'_i − a_i


@dataclass(frozen=True, kw_only=True)
class HeadOnBall(HeadTerms):
    """The same over the ball, and changes from the values at X."""

    value_change: float  # ‖P' − P‖
    query_change: Tensor  # ‖W (M'_i − M_i)‖, (n,)
    key_change: float  # ‖W (T' − T)‖
    root_change: Tensor  # ‖[w'_ij W y'_ij − w_ij W y_ij]_j‖, (n,)
    concentration: float  # max_i g₁(P'_i)


class Head:
    """Head h of a layer at its real tokens, in the small coordinates that norms need."""

    def __init__(self, at: AtTokens, h: int):
        form, real = at.form, at.real
        self.h, self.layer, self.pattern = h, at.layer, at.linearised.pattern
        self.places = real.nonzero().flatten()
        self.n, self.rotary = len(self.places), at.layer.rotary
        v, o = at.v[h, real], at.o[h, real]
        if form.wo is not None:  # W_h = U R with orthonormal columns U: the norms of W_h y are those of R y
            v, o = v @ form.out_factor[h].mT, o @ form.out_factor[h].mT
        self.v, self.o = v - v.mean(0), o - v.mean(0)  # y does not see the shift, and cancels less
        self.q, self.k = at.q[h, real], at.k[h, real]
        self.values = Outers(self.v)
        kv = h // form.groups
        self.scale, self.query_factor, self.key_factor = form.scale, form.query_factor[h], form.key_factor[kv]
        self.score_norm, self.value_norm = float(form.score_norm[h]), float(form.value_norm[h])
        self.far_key_norm = float(form.scale * form.rotary_gain * form.key_norm[h])
        # W_qᵀk needs no more than the factor of W_q; with rotary positions it depends on the query's place as well.
        self.keys = Outers(self.scale * (self.k @ self.query_factor.mT if self.rotary is None else self.k))
        self._count_rounding(at, kv)

    def _count_rounding(self, at: AtTokens, kv: int) -> None:
        """What rounding may have done to scores, y, κ and a: sums of up to n + d + 2k products."""
        form = at.form
        radius = float(at.x[at.real].norm(dim=-1).max())

        def size(weight: Tensor, bias: Tensor | None) -> tuple[float, float]:
            return float(weight.norm()), float(weight.norm()) * radius + (0.0 if bias is None else float(bias.norm()))

        wq, q = size(form.wq[self.h], None if form.bq is None else form.bq[self.h])
        wk, k = size(form.wk[kv], None if form.bk is None else form.bk[kv])
        bv = self.layer.bv
        _, v = size(form.wv[kv], None if bv is None else bv.unflatten(0, (self.layer.kv_heads, -1))[kv])
        one = 4 * UNIT * (self.n + form.d + 2 * form.wq.shape[1]) * form.rotary_gain**2
        self.score_noise, self.key_noise, self.slope_noise = (one * self.scale * c for c in (q * k, wq * k, wk * q))
        self.value_noise = one * v * (1.0 if form.wo is None else float(form.wo[self.h].norm()))

    def turned_back(self, t: Tensor, places: Tensor) -> Tensor:
        """R_iᵀ t_i for t (…, i, k): rotary positions undone."""
        if self.rotary is None:
            return t
        return Rotary(self.rotary.cos[places], self.rotary.sin[places], self.rotary.interleaved).transpose(t)

    def scores(self, rows: slice) -> tuple[Tensor, Tensor]:
        """scale·q·k, and what is added to it: offsets, and −∞ where a key is hidden."""
        i, j = self.places[rows].unsqueeze(1), self.places.unsqueeze(0)
        raw = self.pattern.scale * self.q[rows] @ self.k.mT
        added = torch.zeros_like(raw)
        if self.pattern.score_bias is not None:
            every = torch.arange(int(self.places[-1]) + 1)
            bias = self.pattern.bias(every.unsqueeze(1), every.unsqueeze(0), raw.dtype)
            added = bias[self.h if len(bias) > 1 else 0].expand(len(every), len(every))[i, j]
        seen = self.pattern.visible(i, j)
        return raw, added if seen is None else added.masked_fill(~seen, -torch.inf)

    def centre(self, raw: Tensor, added: Tensor) -> Tensor:
        """z_i for rows with these scores, (rows, k)."""
        if self.pattern.softcap is not None:
            return raw.new_zeros(len(raw), self.k.shape[1])
        return torch.softmax(raw + added, -1).nan_to_num(nan=0.0) @ self.k

    def weights(self, rows: slice) -> tuple[Tensor, Tensor]:
        """w_ij (rows, keys) and z_i (rows, k) at X."""
        raw, added = self.scores(rows)
        if self.pattern.softcap is None:
            return torch.softmax(raw + added, -1).nan_to_num(nan=0.0), self.centre(raw, added)
        s, slope = capped(raw, torch.zeros_like(raw), self.pattern.softcap)
        return torch.softmax(s.at + added, -1).nan_to_num(nan=0.0) * slope.at, self.centre(raw, added)

    def key_slopes(self, rows: slice) -> tuple[Tensor, Tensor]:
        """a_i (rows, k) and |a_ij| (rows, keys or 1): slopes of a score in its key's token."""
        q = self.q[rows]
        if self.rotary is None:
            a = self.scale * q @ self.key_factor.mT
            return a, a.norm(dim=-1, keepdim=True)
        keys = self.turned_back(q.unsqueeze(1).expand(-1, self.n, -1), self.places)
        # Each key is turned by its own place, so that only the norm of W_k is common to all ⟨a_ij, ε_j⟩ of a row.
        return self.far_key_norm * q, self.scale * (keys @ self.key_factor.mT).norm(dim=-1)

    def query_slopes(self, rows: slice, centre: Tensor) -> Tensor:
        """|κ_ij| (rows, keys): slopes of a score in its query's token."""
        if self.rotary is None:
            return distance(self.scale * centre @ self.query_factor.mT, self.keys.t)
        queries = self.turned_back(self.k.unsqueeze(1) - centre, self.places[rows]).transpose(0, 1)
        return self.scale * (queries @ self.query_factor.mT).norm(dim=-1)

    def at_centre(self, value: float) -> HeadTerms:
        """The terms at X itself, from ‖P‖."""
        parts = [self._rows_at_centre(slice(first, min(first + ROWS, self.n))) for first in range(0, self.n, ROWS)]
        root, a, *block = (torch.cat(part) for part in zip(*parts, strict=True))
        key = float(top_value(root.unsqueeze(-1) * a))
        return HeadTerms(value=value, query=self.query_norms, key=least_norm(key, *block) if block else key, root=root)

    def _rows_at_centre(self, rows: slice) -> tuple[Tensor, ...]:
        """√τ_i, a_i and, for up to EXACT tokens, the norms of the blocks of T."""
        w, _ = self.weights(rows)
        a, a_size = self.key_slopes(rows)
        found = self._y(w.square(), self.o[rows]), a
        return found if self.n > EXACT else (*found, w * distance(self.o[rows], self.v) * a_size)

    def on_ball(self, eps: float) -> HeadOnBall:
        """All bounds for this head and this ε."""
        parts = [self._rows(slice(first, min(first + ROWS, self.n)), eps) for first in range(0, self.n, ROWS)]
        rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        a, turn = rows["a"], eps * self.score_norm + self.slope_noise
        # (3) entrywise domination; rows of P' sum to one at most.
        value = min(norm_of_nonnegative(rows["p_high"]), float(rows["p_high"].sum(0).max().sqrt()))
        # (6), (7): a_i itself moves by `turn`. All keys of a row together, or block by block.
        turned = turn * least_norm(float(rows["root"].norm()), rows["lever"])
        key = least_norm(float(top_value(rows["root"].unsqueeze(-1) * a)) + turned, rows["block"])
        change = float(top_value(rows["root_change"].unsqueeze(-1) * a))
        return HeadOnBall(
            value=value,
            value_change=norm_of_nonnegative(rows["p_change"]),
            key=key,
            turned=turned,
            key_change=least_norm(change, rows["block_change"]) + turned,
            concentration=float(rows["concentration"].max()),
            **{name: rows[name] for name in ("query", "query_change", "root", "root_change")},
        )

    def _rows(self, rows: slice, eps: float) -> dict[str, Tensor]:
        raw, added = self.scores(rows)
        o, centre, cap = self.o[rows], self.centre(raw, added), self.pattern.softcap
        (a, a_size), kappa_size = self.key_slopes(rows), self.query_slopes(rows, centre)

        # (1) scores move by δ at most, up to a constant per row (none under a soft cap).
        delta = eps * (a_size + kappa_size) + eps**2 * self.score_norm + self.score_noise
        if cap is None:
            p = w = softmax_within(Within(*(raw + added + t for t in (-delta, 0.0, delta))))
        else:
            s, slope = capped(raw, delta, cap)
            p = softmax_within(Within(*(t + added for t in (s.low, s.at, s.high))))
            w = p.times(slope)
        p_change, w_change = p.change, w.change

        alive = ((p.high > 0).sum(-1) > 1).double()  # with one key to see, y = 0 whatever moves
        move = alive * (eps * self.value_norm + self.value_noise)  # of v_j
        turn = alive * (eps * self.score_norm + self.key_noise)  # of κ_ij
        y_size = distance(o, self.v)
        y, kappa = self._y(p.high, o), self._kappa(p.high, centre, rows)

        # (4) how far the row's means of v and of κ can go.
        seen_delta = torch.where(p.high > 0, delta, 0.0)
        rms = torch.minimum((p.high * seen_delta.square()).sum(-1).sqrt(), seen_delta.amax(-1))
        mean = torch.minimum((p_change * y_size).sum(-1), y * rms)
        key_mean = torch.minimum((p_change * kappa_size).sum(-1), kappa * rms)

        # (5) the query term.
        first = self._y(w_change, o) * self._kappa(w_change, centre, rows) + y * turn
        query_change = first + torch.hypot(move, mean) * (kappa + turn)
        if cap is None:
            about_means = first + kappa * move + move * turn + (mean + move) * (key_mean + turn)
            query_change = torch.minimum(query_change, about_means)
        query = torch.minimum(self.query_norms[rows] + query_change, (y + move) * (kappa + turn))

        # (6) the key term, all keys of a row together.
        peak = w.high.amax(-1).sqrt()
        length = torch.minimum(w.high.norm(dim=-1), peak)
        shift = move * torch.minimum(2 * length, peak) + length * mean
        # (7) the key term, block by block.
        shifted = (2 * move + mean).unsqueeze(-1)
        lever = w.high * (y_size + shifted)
        return dict(
            p_high=p.high,
            p_change=p_change,
            concentration=largest_concentration(p),
            a=a,
            query=query,
            query_change=query_change,
            root=self._y(w.high.square(), o) + shift,
            root_change=self._y(w_change.square(), o) + shift,
            lever=lever,
            block=lever * (a_size + eps * self.score_norm + self.slope_noise),
            block_change=a_size * (w_change * y_size + w.high * shifted),
        )

    def _y(self, weights: Tensor, o: Tensor) -> Tensor:
        """‖[√weights_ij y_ij]_j‖ per row."""
        return root_of_top(*self.values.about(weights, o))

    def _kappa(self, weights: Tensor, centre: Tensor, rows: slice) -> Tensor:
        """‖[√weights_ij κ_ij]_j‖ per row."""
        if self.rotary is None:
            return root_of_top(*self.keys.about(weights, self.scale * centre @ self.query_factor.mT))
        gram, slack = self.keys.about(weights, self.scale * centre)
        for _ in range(2):  # R_Q R_iᵀ G R_i R_Qᵀ, one side after the other
            gram = (self._read_by_queries(gram, rows)).mT
        return root_of_top(gram, slack * float(top_value(self.query_factor)) ** 2)

    def _read_by_queries(self, m: Tensor, rows: slice) -> Tensor:
        """M_i R_i R_Qᵀ for matrices (rows, ·, k)."""
        return self.turned_back(m.transpose(0, 1), self.places[rows]).transpose(0, 1) @ self.query_factor.mT

    @cached_property
    def query_norms(self) -> Tensor:
        """‖W M_i‖ at X, (n,)."""
        found, keys = [], self.keys.t
        products = (self.v.unsqueeze(-1) * keys.unsqueeze(-2)).flatten(-2)
        for first in range(0, self.n, ROWS):
            rows = slice(first, first + ROWS)
            o, (w, centre) = self.o[rows], self.weights(rows)
            centre = self.scale * centre
            if self.rotary is None:
                centre = centre @ self.query_factor.mT
            stop = last_seen(w)
            w = w[:, :stop]
            m = (w @ products[:stop]).unflatten(-1, (self.v.shape[1], keys.shape[1]))
            m -= o.unsqueeze(-1) * (w @ keys[:stop]).unsqueeze(-2)
            m -= (w @ self.v[:stop] - w.sum(-1, keepdim=True) * o).unsqueeze(-1) * centre.unsqueeze(-2)
            found.append(top_value(m if self.rotary is None else self._read_by_queries(m, rows), proven=True))
        return torch.cat(found)
