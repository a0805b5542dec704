"""Two points that make a layer steep: one isolated token y, and n − 1 tokens at one place z.

Moving the isolated token by ε moves the output of each of the crowd by

    Σ_h p_h W_h V_h [ ε + (1 − p_h)(y − z) ⟨a_h, ε⟩ ],    a_h = A_h z + c_h,   p_h = 1/(1 + (n−1) e^{−Δ_h}),
                                                        Δ_h = ⟨a_h, y − z⟩

and under a mask, the isolated token coming first, that of token i ≥ 2 by the same with i − 1 in place of n − 1, and its
own by Σ_h W_h V_h ε. Every y, z and ε gives a true lower bound; all of this is about finding good ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.conditions import check_n, check_radius
from howsmooth.bounds.form import LayerForm, form_of

LOOKED_AT = 24  # candidates, best as far as their own head can tell, of which the whole layer is looked at
KEPT = 4  # of these, by power iterations
CHUNK = 1 << 23  # numbers p held at once


def two_points(f: SelfAttention | LayerForm, n: int, radius: float, refine: bool = False) -> tuple[Tensor, Tensor]:
    """The isolated token y (d,) and the crowd's place z (d,), in the ball of this radius, for a layer of any heads.

    In closed form from each head's A, or improved by gradient ascent if `refine`.

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
    """The best y and z found, and the norm that they prove; refusals are in the name given."""
    check_n(n)
    check_radius(radius)
    asks.no_window(form, name)
    form.one_form(name)
    crowd = RepeatedToken(form, n)
    with torch.no_grad():
        y, z = candidates(form, n, radius)
        y, z = best_of(LOOKED_AT, crowd.first_look(y, z).flatten(), y.flatten(0, 1), z.flatten(0, 1))
        at = crowd.at(y, z)
        y, z = best_of(KEPT, at.gain(sum(at.starts())), y, z)
        values, directions = crowd.at(y, z).norm()
    if refine:
        y, z, values = climb(crowd, y, z, directions, values, radius)
    best = int(values.argmax())
    return y[best], z[best], float(values[best])


def best_of(count: int, gains: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    kept = gains.topk(min(count, len(gains))).indices
    return y[kept], z[kept]


class RepeatedToken:
    """The lower bound in closed form, for a batch of pairs (y, z)."""

    def __init__(self, form: LayerForm, n: int):
        self.form, self.n = form, n
        self.wk, self.wv = form.shared(form.wk), form.shared(form.wv)  # (h, k, d), (h, w, d)
        if form.wo is None:  # heads side by side: W_h puts head h in its place
            h, w = self.wv.shape[:2]
            self.wo = torch.eye(h * w, dtype=torch.float64).unflatten(1, (h, w)).movedim(1, 0)
        else:
            self.wo = form.wo

    def slopes(self, z: Tensor) -> Tensor:
        """scale·q_h at z, (c, h, k), so that a_h = W_kᵀ of it."""
        q = project_heads(z, self.form.wq)
        return self.form.f.scale * (q if self.form.bq is None else q + self.form.bq)

    def out(self, v: Tensor) -> Tensor:
        """W_h v_h, (c, h, w) → (c, h, d_out)."""
        return by_head(v, self.wo.mT)

    def back(self, g: Tensor) -> Tensor:
        """Σ_h V_hᵀ W_hᵀ g_h, (c, h, d_out) → (c, d)."""
        return by_head(g, self.wo).flatten(1) @ self.wv.flatten(0, 1)

    def first_look(self, y: Tensor, z: Tensor) -> Tensor:
        """How steep each head is at pairs of its own, y, z (c, h, d) → (c, h): the size of its two parts, added up."""
        a = _slope(self.form, z)
        moved = by_head(y - z, self.wv.mT)
        moved = moved if self.form.wo is None else by_head(moved, self.form.out_factor.mT)
        turning = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(moved, dim=-1)
        gram = self._gram((a * (y - z)).sum(-1).reshape(-1, 1))
        straight, turned = gram.diagonal(dim1=-2, dim2=-1).sqrt().unbind(-1)
        return straight.view_as(turning) * self.form.value_norm + turned.view_as(turning) * turning

    def at(self, y: Tensor, z: Tensor) -> Around:
        """The derivative of the outputs in the isolated token, for pairs y, z (c, d)."""
        a = by_head(self.slopes(z), self.wk)
        delta = (a @ (y - z).unsqueeze(-1)).squeeze(-1)
        return Around(self, a, self.out(project_heads(y - z, self.wv)), self._gram(delta))

    def _gram(self, delta: Tensor) -> Tensor:
        """Σ over rows of cᵀc (c, 2h, 2h), c = (p_h; p_h(1 − p_h)): all that the many rows have to say."""
        if self.n == 1:  # the token sees itself alone
            p = torch.ones_like(delta).unsqueeze(-1)
            return _products(p, torch.ones(1, dtype=delta.dtype))
        if not self.form.causal:
            return _products(
                torch.sigmoid(delta - math.log(self.n - 1)).unsqueeze(-1), delta.new_tensor([self.n - 1.0])
            )
        total = _products(torch.ones_like(delta).unsqueeze(-1), torch.ones(1, dtype=delta.dtype))
        step = max(1, CHUNK // (2 * delta.numel()))
        for first in range(1, self.n, step):
            seen = torch.arange(first, min(first + step, self.n), dtype=delta.dtype)
            p = torch.sigmoid(delta.unsqueeze(-1) - seen.log())
            total = total + _products(p, torch.ones_like(seen))
        return total


def _products(p: Tensor, weight: Tensor) -> Tensor:
    c = torch.cat([p, p * (1 - p)], 1)  # (c, 2h, rows)
    return (c * weight) @ c.mT


@dataclass(frozen=True)
class Around:
    """ε ↦ outputs, near pairs (y, z), as b_h = W_h V_h ε and b_{H+h} = W_h V_h (y−z) ⟨a_h, ε⟩ weighed by `gram`."""

    crowd: RepeatedToken
    a: Tensor  # (c, h, d)
    moved: Tensor  # W_h V_h (y − z), (c, h, d_out)
    gram: Tensor  # (c, 2h, 2h)

    @cached_property
    def size(self) -> Tensor:
        """How large b is, (c, 1, 1), or 1: far out its squares would leave float64, so that b is kept in this unit."""
        turns = torch.linalg.vector_norm(self.a, dim=-1) * torch.linalg.vector_norm(self.moved, dim=-1)
        return turns.detach().amax(-1).clamp(min=1.0)[:, None, None]

    def parts(self, e: Tensor) -> Tensor:
        """b/size (c, 2h, d_out) of ε (c, d)."""
        turned = self.moved * (self.a / self.size @ e.unsqueeze(-1))
        return torch.cat([self.crowd.out(project_heads(e, self.crowd.wv)) / self.size, turned], 1)

    def gain(self, e: Tensor) -> Tensor:
        """‖J ε‖/‖ε‖ (c,), J restricted to the isolated token."""
        b = self.parts(unit(e))
        return self.size[:, 0, 0] * (self.gram * (b @ b.mT)).sum((-2, -1)).clamp(min=0).sqrt()

    def power_step(self, e: Tensor) -> Tensor:
        """JᵀJ ε/size²."""
        straight, moved = (self.gram @ self.parts(e)).chunk(2, 1)
        turned = (self.moved * moved).sum(-1).unsqueeze(1) @ (self.a / self.size)
        return self.crowd.back(straight / self.size) + turned.squeeze(1)

    def starts(self) -> list[Tensor]:
        """The slope of the head that turns most, and what all heads pull back from their moves, (c, d) each."""
        size = torch.linalg.vector_norm(self.a, dim=-1) * torch.linalg.vector_norm(self.moved, dim=-1)
        steepest = unit(self.a[torch.arange(len(self.a)), size.argmax(-1)])
        pulled = unit(self.crowd.back(self.moved))
        # A little of everything: a start must not be orthogonal to what it looks for.
        return [e + 1e-3 * other + 1e-6 for e, other in ((steepest, pulled), (pulled, steepest))]

    def norm(self, steps: int = 6) -> tuple[Tensor, Tensor]:
        """The largest gain found (c,) and its unit direction (c, d), by power iterations from both starts at once."""
        twice = Around(self.crowd, *(t.repeat(2, 1, 1) for t in (self.a, self.moved, self.gram)))
        e = torch.cat(self.starts())
        for _ in range(steps):
            e = unit(twice.power_step(e))
        gain, e = twice.gain(e).view(2, -1), e.unflatten(0, (2, -1))
        best = gain.argmax(0)
        return gain.amax(0), e[best, torch.arange(len(best))]


def candidates(form: LayerForm, n: int, radius: float) -> tuple[Tensor, Tensor]:
    """Pairs y, z (c, h, d) in closed form, of four kinds for each head and either sign.

    y = ru, z = −ru     u of the least eigenvalue λ of (A + Aᵀ)/2; Δ = −2λr²
    y = ru, z = ru/2    u of the greatest; Δ = λr²/4;  r = R, or where Δ is what many tokens ask for
    largest Δ           z ascends R|Az + c| − ⟨Az + c, z⟩, y = R(Az + c)/|Az + c|
    across              z = Rv, v the right singular vector of ‖A‖; y as far from z as Δ allows: for large R the
                        step y − z may be long, across Az, where Δ need not be
    """
    wanted = math.log(max(2.0, (n - 1) / 2 if form.causal else n - 1))  # Δ at which the crowd is most undecided
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).view(2, 1, 1)
    values, vectors = form.extreme_pairs
    ys, zs = [], []
    for side, place, rate in ((0, -1.0, -2.0), (1, 0.5, 0.25)):
        slope = rate * values[:, side]
        fitting = torch.where(slope > 0, (wanted / slope.clamp(min=1e-300)).sqrt(), radius).clamp(max=radius)
        for r in (torch.full_like(fitting, radius), fitting):
            ys.append(signs * r.unsqueeze(-1) * vectors[:, side])
            zs.append(place * ys[-1])
    for y, z in (
        _largest_difference(form, radius, torch.cat([signs * vectors[:, 0], signs * vectors[:, 1]])),
        _across(form, radius, wanted, signs),
    ):
        ys.append(y)
        zs.append(z)
    return torch.cat(ys), torch.cat(zs)


def _slope(form: LayerForm, z: Tensor) -> Tensor:
    """A_h z_h + c_h for z (·, h, d)."""
    q = by_head(z, form.wq.mT)
    return by_head(form.f.scale * (q if form.bq is None else q + form.bq), form.shared(form.wk))


def _largest_difference(form: LayerForm, radius: float, start: Tensor, steps: int = 6) -> tuple[Tensor, Tensor]:
    wk, z = form.shared(form.wk), radius * start
    for _ in range(steps):
        a = _slope(form, z)
        pulled = by_head(by_head(radius * unit(a) - z, wk.mT), form.wq)
        z = radius * unit(form.f.scale * pulled - a)  # Aᵀ(y − z) − (Az + c)
    return radius * unit(_slope(form, z)), z


def _across(form: LayerForm, radius: float, wanted: float, signs: Tensor) -> tuple[Tensor, Tensor]:
    # With Kᵀ = U_K R_K, Qᵀ = U_Q R_Q: Aᵀ U_K l = scale·Qᵀ R_Kᵀ l, and U_K l is a left singular vector of A if l is one
    # of R_K R_Qᵀ.
    keys = form.shared(form.key_factor)
    core = keys @ form.query_factor.mT
    left = torch.linalg.eigh(core @ core.mT).eigenvectors[..., -1:]
    z = radius * signs * unit(((keys.mT @ left).mT @ form.wq).squeeze(-2))
    a = _slope(form, z)
    size = torch.linalg.vector_norm(a, dim=-1, keepdim=True).clamp(min=1e-300)
    e = a / size
    along = (z * e).sum(-1, keepdim=True)
    height = (along + wanted / size).clamp(-radius, radius)  # of y along Az: Δ = |Az| (height − along)
    return height * e - (radius**2 - height**2).clamp(min=0).sqrt() * unit(z - along * e), z


def project_heads(t: Tensor, weights: Tensor) -> Tensor:
    """Each head's projection of t, (c, d) → (c, h, rows) for weights (h, rows, d)."""
    return (t @ weights.flatten(0, 1).mT).unflatten(-1, weights.shape[:2])


def by_head(t: Tensor, weights: Tensor) -> Tensor:
    """t_h times the matrix of head h, (c, h, rows) → (c, h, cols) for weights (h, rows, cols)."""
    return (t.transpose(0, 1) @ weights).transpose(0, 1)


def unit(t: Tensor) -> Tensor:
    return t / torch.linalg.vector_norm(t, dim=-1, keepdim=True).clamp(min=1e-300)


def climb(crowd: RepeatedToken, y: Tensor, z: Tensor, e: Tensor, values: Tensor, radius: float, steps: int = 150):
    """Gradient ascent of the closed form in y and z within the ball, ε following by one power step at a time."""
    best_y, best_z, best = y.clone(), z.clone(), values.clone()
    y, z = (t.clone().requires_grad_() for t in (y, z))
    optimiser = torch.optim.Adam([y, z], lr=0.03 * radius / math.sqrt(y.shape[-1]), maximize=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        with torch.enable_grad():
            at = crowd.at(y, z)
            gain = at.gain(e)
            gain.log().sum().backward()
        with torch.no_grad():
            better = gain > best
            best = torch.where(better, gain, best)
            best_y, best_z = (torch.where(better.unsqueeze(-1), t, b) for t, b in ((y, best_y), (z, best_z)))
            e = unit(at.power_step(e))
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            for t in (y, z):
                t.mul_((radius / torch.linalg.vector_norm(t, dim=-1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0))
    with torch.no_grad():
        final, _ = crowd.at(best_y, best_z).norm()
    return best_y.detach(), best_z.detach(), torch.maximum(final, best).detach()
