"""One head while every token moves by at most ε: how far scores, probabilities and the three terms of J can go.

J(E)_i = Σ_j P_ij V ε_j  +  M_i ε_i  +  Σ_j w_ij y_ij ⟨a_ij, ε_j⟩, with w = P (times the slopes of a soft cap),

    y_ij = v_j − o_i        κ_ij = scale·W_qᵀ(k_j − z_i)        M_i = Σ_j w_ij y_ij κ_ijᵀ        a_ij = scale·W_kᵀ q_i

(k and q turned by their places where positions are rotary). z_i = Σ_j P_ij k_j, which changes nothing as
Σ_j P_ij y_ij = 0; under a soft cap z_i = 0. Primes are values at X'. The steps marked (1) … (8) are proved in
docs/ball.md; rounding enters as a further small movement of scores, v, k and a.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention import Rotary
from howsmooth.bounds.at_tokens import AtTokens, top_value

UNIT = 2.0**-53
ROWS = 128  # queries at once
TINY = 1e-300


@dataclass(frozen=True)
class HeadOnBall:
    """Upper bounds over the ball for one head, W_h included in `query` and `key`, and how far each is from its centre."""

    value: float  # ‖P'‖
    value_change: float  # ‖P' − P‖
    query: Tensor  # ‖W M'_i‖, (n,)
    query_change: Tensor  # ‖W (M'_i − M_i)‖, (n,)
    key: float  # ‖W T'‖
    key_change: float  # ‖W (T' − T)‖
    concentration: float  # max_i g₁(P'_i)


@dataclass(frozen=True)
class Within:
    """Entrywise intervals, (rows, keys)."""

    low: Tensor
    at: Tensor
    high: Tensor

    @property
    def change(self) -> Tensor:
        """By how much an entry can leave its value at the centre; differences are rounded up."""
        gap = torch.maximum(self.high - self.at, self.at - self.low).clamp(min=0)
        return gap + 4 * UNIT * self.high

    def times(self, other: Within) -> Within:
        return Within(self.low * other.low, self.at * other.at, self.high * other.high)


def softmax_within(s: Within) -> Within:
    """(2) Probabilities of rows whose scores, up to a constant per row, lie in these intervals; −∞ is hidden.

    >>> s = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    >>> p = softmax_within(Within(s - 0.5, s, s + 0.5))
    >>> torch.allclose(p.high, torch.sigmoid(torch.ones(1, 2, dtype=torch.float64)))
    True
    """
    seen = s.at > -torch.inf
    top = s.high.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    high, low = (s.high - top).exp(), (s.low - top).exp()
    # The others: all less the entry itself, with the rounding of that difference taken to the safe side.
    slack = 4 * s.at.shape[-1] * UNIT
    all_high, all_low = high.sum(-1, keepdim=True), low.sum(-1, keepdim=True)
    others_high = (all_high - high).clamp(min=0) + slack * all_high
    others_low = (all_low - low - slack * all_low).clamp(min=0)
    p = torch.softmax(s.at, -1).nan_to_num(nan=0.0)
    p_high = torch.where(seen, (high + TINY) / (high + TINY + others_low), 0.0)
    return Within(torch.minimum(low / (low + others_high + TINY), p), p, torch.maximum(p_high, p))


def capped(s: Tensor, change: Tensor, cap: float) -> tuple[Within, Within]:
    """Scores under a soft cap, and the slopes of the cap there."""
    def slope(t: Tensor) -> Tensor:
        return torch.cosh((t / cap).clamp(max=300.0)).pow(-2)

    scores = Within(*(cap * torch.tanh(t / cap) for t in (s - change, s, s + change)))
    return scores, Within(slope(s.abs() + change), slope(s.abs()), slope((s.abs() - change).clamp(min=0)))


def largest_concentration(p: Within) -> float:
    """(8) max of g₁(p) = p₍₁₎(1 − p₍₁₎ + p₍₂₎) over probability rows in the intervals, and over rows of one entry 0."""
    first, second = torch.nn.functional.pad(p.high, (0, 1)).topk(2, -1).values.unbind(-1)
    least = p.low.amax(-1)
    corners = (least, first, second, torch.full_like(first, 0.5), 1 - second, (1 + second) / 2)
    at = torch.stack([torch.minimum(torch.maximum(c, least), first) for c in corners])
    g = at * (1 - at + torch.minimum(second, torch.minimum(at, 1 - at)))
    return float(g.max())


class Head:
    """Head h of a layer at its real tokens, in the small coordinates that norms need."""

    def __init__(self, at: AtTokens, h: int):
        form, real = at.form, at.real
        self.h, self.layer, self.pattern = h, at.layer, at.linearised.pattern
        self.places = real.nonzero().flatten()
        self.n, self.rotary = len(self.places), at.layer.rotary
        v, o = at.out(h, at.v[h, real]), at.out(h, at.o[h, real])
        self.v, self.o = v - v.mean(0), o - v.mean(0)  # y does not see the shift, and cancels less
        self.q, self.k = at.q[h, real], at.k[h, real]
        kv = h // form.groups
        self.scale, self.query_factor, self.key_factor = form.scale, form.query_factor[h], form.key_factor[kv]
        self.score_norm, self.value_norm = float(form.score_norm[h]), float(form.value_norm[h])
        self.far_key_norm = float(form.scale * form.rotary_gain * form.key_norm[h])
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

    def scores(self, rows: slice) -> tuple[Tensor, Tensor, Tensor | float]:
        """q·k scaled, what sees what (−∞ where hidden), and the offsets."""
        i, j = self.places[rows].unsqueeze(1), self.places.unsqueeze(0)
        raw = self.pattern.scale * self.q[rows] @ self.k.mT
        hidden = torch.zeros_like(raw)
        seen = self.pattern.visible(i, j)
        if seen is not None:
            hidden = hidden.masked_fill(~seen, -torch.inf)
        if self.pattern.score_bias is None:
            return raw, hidden, 0.0
        every = torch.arange(int(self.places[-1]) + 1)
        bias = self.pattern.bias(every.unsqueeze(1), every.unsqueeze(0), raw.dtype)
        return raw, hidden, bias[self.h if len(bias) > 1 else 0].expand(len(every), len(every))[i, j]

    def on_ball(self, eps: float) -> HeadOnBall:
        """All bounds for this head and this ε."""
        parts = [self._rows(slice(first, min(first + ROWS, self.n)), eps) for first in range(0, self.n, ROWS)]
        p_high, p_change, block, block_change, block_turn = (torch.cat([part[name] for part in parts]) for name in
                                                             ("p_high", "p_change", "block", "block_change", "turn"))
        root, change, a = (torch.cat([part[name] for part in parts]) for name in ("root", "root_change", "a"))
        turn = eps * self.score_norm + self.slope_noise
        # (3) entrywise domination; rows of P' sum to one at most.
        value = min(norm_of_nonnegative(p_high), float(p_high.sum(0).max().sqrt()))
        # (6), (7): the turn of a_i costs `turn`, either over all rows together or block by block.
        both = turn * least_norm(float(root.norm()), block_turn)
        key = least_norm(float(top_value(root.unsqueeze(-1) * a)) + both, block)
        key_change = least_norm(float(top_value(change.unsqueeze(-1) * a)), block_change) + both
        return HeadOnBall(value, norm_of_nonnegative(p_change), torch.cat([part["query"] for part in parts]),
                          torch.cat([part["query_change"] for part in parts]), key, key_change,
                          max(part["concentration"] for part in parts))

    def _rows(self, rows: slice, eps: float) -> dict:
        places, q, o = self.places[rows], self.q[rows], self.o[rows]
        raw, hidden, offsets = self.scores(rows)
        cap = self.pattern.softcap
        centre = torch.zeros_like(q)
        if cap is None:
            centre = torch.softmax(raw + hidden + offsets, -1).nan_to_num(nan=0.0) @ self.k
        # |a_ij| and |κ_ij|: the slopes of a score in its key's and in its query's token.
        if self.rotary is None:
            a = self.scale * q @ self.key_factor.mT
            a_size = a.norm(dim=-1, keepdim=True).expand_as(raw)
            kappa_size = distance(centre @ self.query_factor.mT, self.k @ self.query_factor.mT) * self.scale
        else:
            a = self.far_key_norm * q
            keys = self.turned_back(q.unsqueeze(1).expand(-1, self.n, -1), self.places)
            a_size = self.scale * (keys @ self.key_factor.mT).norm(dim=-1)
            turned = self.turned_back((self.k.unsqueeze(1) - centre), places).transpose(0, 1)
            kappa_size = self.scale * (turned @ self.query_factor.mT).norm(dim=-1)

        # (1) scores move by no more than δ, up to a constant per row (none under a soft cap).
        delta = eps * (a_size + kappa_size) + eps**2 * self.score_norm + self.score_noise
        if cap is None:
            s = raw + offsets + hidden
            p = w = softmax_within(Within(s - delta, s, s + delta))
        else:
            s, slope = capped(raw, delta, cap)
            p = softmax_within(Within(*(t + offsets + hidden for t in (s.low, s.at, s.high))))
            w = p.times(slope)
        p_change, w_change = p.change, w.change
        alive = ((p.high > 0).sum(-1) > 1).double()  # with one key to see, y = 0 whatever moves

        y_size = distance(o, self.v)
        move = alive * (eps * self.value_norm + self.value_noise)  # of v_j
        turn = alive * (eps * self.score_norm + self.key_noise)  # of κ_ij, and of a_i
        y, kappa = self._gram(p.high, o), self._key_gram(p.high, centre, places)
        # (4) how far the row's means of v and of κ can go.
        seen_delta = torch.where(p.high > 0, delta, 0.0)
        rms = torch.minimum((p.high * seen_delta.square()).sum(-1).sqrt(), seen_delta.amax(-1))
        mean = torch.minimum((p_change * y_size).sum(-1), y * rms)
        key_mean = torch.minimum((p_change * kappa_size).sum(-1), kappa * rms)

        # (5) the query term.
        first = self._gram(w_change, o) * self._key_gram(w_change, centre, places)
        query_change = first + y * turn + torch.hypot(move, mean) * (kappa + turn)
        if cap is None:
            query_change = torch.minimum(query_change, first + y * turn + kappa * move + move * turn
                                         + (mean + move) * (key_mean + turn))
        query = torch.minimum(self._query_norm(w.at, o, centre, places) + query_change, (y + move) * (kappa + turn))

        # (6) the key term, all keys of a row together; (7) block by block.
        peak = w.high.amax(-1).sqrt()
        length = torch.minimum(w.high.norm(dim=-1), peak)
        shift = move * torch.minimum(2 * length, peak) + length * mean
        lever = (2 * move + mean).unsqueeze(-1)
        block_turn = w.high * (y_size + lever)
        slope_noise = eps * self.score_norm + self.slope_noise
        return dict(p_high=p.high, p_change=p_change, query=query, query_change=query_change, a=a,
                    root=self._gram(w.high.square(), o) + shift, root_change=self._gram(w_change.square(), o) + shift,
                    turn=block_turn, block=block_turn * (a_size + slope_noise),
                    block_change=a_size * (w_change * y_size + w.high * lever), concentration=largest_concentration(p))

    def _gram(self, weights: Tensor, o: Tensor) -> Tensor:
        """‖[√weights_ij y_ij]_j‖ per row."""
        return root_of_top(*centred_gram(weights, self.v, o))

    def _key_gram(self, weights: Tensor, centre: Tensor, places: Tensor) -> Tensor:
        """‖[√weights_ij κ_ij]_j‖ per row."""
        gram, slack = centred_gram(weights, self.k, centre)
        factor = self.query_factor
        for _ in range(2):  # R_Q R_iᵀ G R_i R_Qᵀ, one side after the other
            gram = (self.turned_back(gram.transpose(0, 1), places).transpose(0, 1) @ factor.mT).mT
        return self.scale * root_of_top(gram, slack * float(top_value(factor)) ** 2)

    def _query_norm(self, w: Tensor, o: Tensor, centre: Tensor, places: Tensor) -> Tensor:
        """‖W M_i‖ per row."""
        m = weighted_outer(w, self.v, self.k) - o.unsqueeze(-1) * (w @ self.k).unsqueeze(-2)
        m = m - (w @ self.v - w.sum(-1, keepdim=True) * o).unsqueeze(-1) * centre.unsqueeze(-2)
        return self.scale * top_value(self.turned_back(m.transpose(0, 1), places).transpose(0, 1) @ self.query_factor.mT)


def centred_gram(weights: Tensor, t: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j weights_ij (t_j − centre_i)(t_j − centre_i)ᵀ, and what cancellation may have left in it."""
    cross = (weights @ t).unsqueeze(-1) * centre.unsqueeze(-2)
    total = weights.sum(-1)
    gram = weighted_outer(weights, t, t) - cross - cross.mT
    gram = gram + total[:, None, None] * centre.unsqueeze(-1) * centre.unsqueeze(-2)
    size = weights @ t.square().sum(-1) + total * centre.square().sum(-1)
    return gram, 8 * UNIT * size * len(t) ** 0.5


def weighted_outer(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Σ_j weights_ij left_j right_jᵀ: (rows, keys), (keys, a), (keys, b) → (rows, a, b), as one matrix product."""
    products = (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2)
    return (weights @ products).unflatten(-1, (left.shape[-1], right.shape[-1]))


def root_of_top(gram: Tensor, slack: Tensor) -> Tensor:
    return (torch.linalg.eigvalsh(gram)[:, -1].clamp(min=0) + slack).sqrt()


def distance(left: Tensor, right: Tensor) -> Tensor:
    """|left_i − right_j|, from the differences themselves."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def least_norm(known: float, block: Tensor) -> float:
    """The smaller of a known bound and ‖block‖; the norm is computed only where it can be the smaller."""
    if float(block.norm(dim=-1).max()) >= known or float(block.norm(dim=-2).max()) >= known:
        return known
    return min(known, norm_of_nonnegative(block))


def norm_of_nonnegative(m: Tensor, steps: int = 60, tol: float = 1e-10) -> float:
    """‖m‖ for entries ≥ 0, from above: ‖m‖² ≤ max_j (mᵀm u)_j/u_j for every u > 0 (Collatz–Wielandt).

    >>> norm_of_nonnegative(torch.ones(3, 3, dtype=torch.float64))
    3.0
    """
    m = m[:, m.amax(0) > 0]
    if m.numel() == 0:
        return 0.0
    size = m.max()
    m = m / size
    u = torch.ones(m.shape[1], dtype=m.dtype)
    for _ in range(steps):
        image = m.mT @ (m @ u)
        ratio = image / u
        if float(ratio.max()) <= (1 + tol) * float(ratio.min()):
            return float(size * ratio.max().sqrt())
        u = image / image.max()
        if float(u.min()) < 1e-200:
            break
    return float(size * top_value(m))
