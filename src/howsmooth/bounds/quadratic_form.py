"""One quadratic form for all inputs of a ball: its largest eigenvalue bounds the constant there.

For X' = X + E in the ball, u·J(X')z is u·J(X)z plus a change. Every part of the change is at most a sum of products
`c |α(u)| |β(z)|` of linear functions of u and z, with constants c that hold for all E at once. For any ρ > 0

    c |α(u)| |β(z)| ≤ ½ (c ρ α(u)² + (c/ρ) β(z)²)

so that u·J(X')z ≤ ½ (u, z)·S(u, z) with one symmetric operator S, and ‖J(X')‖ ≤ λ_max(S) for all X'. S is applied
without being formed, and λ_max(S) is certified as any singular value. The ρ are free: a few rounds choose them so
that λ_max(S) becomes small. As in `head_on_ball`, primes mark values at X'; per head, with W_h V_h = U D Zᵀ,

    u_i ← D^½ Uᵀ u_i        v_j = D^½ Zᵀ x_j        P'_ij = P_ij (1 + θ_ij)
    a_ij = ⟨u_i, v_j − o_i⟩        ω_ij = ⟨u_i, D^½ Zᵀ (z_j − Σ_l P_il z_l)⟩
    b_ij = the derivative of the score along z, less its mean under P_i

The proof is under "One quadratic form" in docs/ball.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention.rotary import Rotary
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.norms import TINY, UNIT_ROUNDOFF
from howsmooth.bounds.overlap import CombinedHeads
from howsmooth.errors import InputError
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import FunctionOperator
from howsmooth.spectral.solver import Solver

NAME = "form"
MAX_ENTRIES = 2**22  # of the h·n² probabilities; some twenty tensors of that size are held
MAX_SCORE_CHANGE = 300.0  # probabilities that underflow stay negligible
LANCZOS_STEPS = 20  # of a round
SATURATED = 1.5  # rows whose covariance may change by more than this times itself are bounded by its sign instead
RANDOM_VECTORS = 8
RITZ_VECTORS = 8  # of which a round averages the squares α², β²
SHARPNESS = (6.0, 30.0)  # a Ritz vector of value λ has the weight exp(sharpness·(λ/λ_max − 1)); first and last round
RANDOM_SHARE = (0.5, 0.1)  # of random vectors in the averages, in the first and in the last round
FLOOR = 1e-3  # of the mean of α² or β²: the least that is used for ρ
PATIENCE = 4  # rounds without an improvement by MIN_IMPROVEMENT, after which no more follow
MIN_IMPROVEMENT = 1e-3


class TokenMoves:
    """How far tokens may move: each by ε at most, or all together by ε in the Frobenius norm.

    The methods bound sums over the keys of each row, (h, n, keys) or (h, n, 1), given the gain w_ij ≥ 0 with which a
    move e_j of the key changes a quantity of pair (i, j).

    Attributes:
        moving: which tokens move at all, (n,).
        shared: whether Σ_j |e_j|² ≤ ε², rather than |e_j| ≤ ε for every j.
        distance: bounds on |e_j|, (n,).
    """

    def __init__(self, eps: float, moving: Tensor, shared: bool = False):
        """Store the distances."""
        self.moving, self.shared, self.distance = moving, shared, eps * moving.double()

    @property
    def of_queries(self) -> Tensor:
        """Bounds on |e_i|, (n, 1)."""
        return self.distance.unsqueeze(-1)

    def deviation(self, p: Tensor, w: Tensor, error: Tensor) -> Tensor:
        """Bound |t_j − Σ_l P_l t_l| for all |t_j| ≤ w_j |e_j| + error."""
        rest, at_most = complement(p), w * self.distance
        if self.shared:
            squares = (p * at_most).square()
            others = (squares.sum(-1, keepdim=True) - squares).clamp(min=0)
            return ((rest * at_most).square() + others).sqrt() + 2 * rest * error
        at_most = at_most + error
        mean = (p * at_most).sum(-1, keepdim=True)
        return rest * at_most + (mean - p * at_most).clamp(min=0)

    def difference(self, visible: Tensor, w: Tensor, error: Tensor) -> Tensor:
        """Bound |t_l − t_j| over all l, for the same t."""
        at_most = w * self.distance
        largest = torch.where(visible, at_most, 0.0).amax(-1, keepdim=True)
        return (torch.hypot(at_most, largest) if self.shared else at_most + largest) + 2 * error

    def root_mean_square(self, p: Tensor, w: Tensor, error: Tensor) -> Tensor:
        """Bound (Σ_j P_j t_j²)^½ for the same t and weights P that sum to one at most."""
        at_most = (w * self.distance).expand_as(p)
        largest = torch.where(p > 0, at_most, 0.0).amax(-1, keepdim=True)
        squares = p * at_most.square()
        sums = squares.amax(-1, keepdim=True) if self.shared else squares.sum(-1, keepdim=True)
        return torch.minimum(sums.sqrt(), largest) + error


def quadratic_form(combined: CombinedHeads, moves: TokenMoves, effort: int, solver: Solver) -> float:
    """Return an upper bound on ‖D_X' f‖₂ for all X' in the ball; of the columns of those tokens that move.

    Args:
        combined: the heads of the layer at its real tokens.
        moves: how far these may move.
        effort: rounds in which the weights are improved; fewer follow where they no longer help.
        solver: tolerance, confidence and seed of the largest eigenvalue.

    Raises:
        Refused: if the layer has a soft cap, too many tokens, or scores that change too much over the ball.
    """
    if effort == 0:
        raise Refused(NAME, "an effort of one round at least", "0", "take effort=16")
    if combined.form.f.softcap is not None:
        cap = f"a soft cap of {combined.form.f.softcap:g}"
        raise Refused(NAME, "scores without a soft cap", cap, "take the interval bound")
    n, heads = len(combined.at.real.nonzero()), combined.form.heads
    if heads * n**2 > MAX_ENTRIES:
        limit = f"at most {math.isqrt(MAX_ENTRIES // heads)} tokens for {heads} heads"
        raise Refused(NAME, limit, f"{n}", "take fewer tokens, or the interval bound")
    form = QuadraticForm(LayerQuantities(combined), moves)
    try:
        form.improve(effort)
        return form.bound(solver)
    except InputError as error:  # products that overflow, or are too small to be accurate
        raise Refused(NAME, "products in the range of float64", str(error), "take another bound") from None


class LayerQuantities:
    """What the form needs of a layer at its tokens, for any ε: (h, n, …) each."""

    def __init__(self, combined: CombinedHeads):
        """Compute them."""
        at, form = combined.at, combined.form
        h, real = form.heads, at.real
        x = at.x[real]
        self.n, self.d, self.heads = len(x), form.d, h
        self.scale = at.layer.scale
        positions = real.nonzero().flatten()
        table = at.layer.rotary
        self.rotary = None if table is None else Rotary(table.cos[positions], table.sin[positions], table.interleaved)
        self.p = at.probabilities()[:, :, real]
        self.visible = self.p > 0
        self.q, self.k = at.q[:, real], at.k[:, real]
        self.k = self.k - self.k.mean(1, keepdim=True)  # constant along rows of scores
        u, s, z = combined.overlap.value_svd
        root = s.sqrt().unsqueeze(-2)
        self.value_gain = s.unsqueeze(-2)  # (h, 1, r)
        # (d_out, h·r) and (d, h·…): one product for all heads
        self.to_out, self.to_value = _flat(u * root), _flat(z * root)
        self.to_query, self.to_key = _flat(form.wq.mT), _flat(form.repeat_kv(form.wk).mT)
        self.v = self.heads_of(x - x.mean(0), self.to_value)
        self.o = self.p @ self.v
        if form.is_rotary:
            eye = torch.eye(self.q.shape[-1], dtype=torch.float64)
            gain = (form.scale * form.rotary_gain) ** 2
            self.query_metric = gain * form.query_norm.square()[:, None, None] * eye
            self.key_metric = gain * form.key_norm.square()[:, None, None] * eye
        else:
            key_factor = form.repeat_kv(form.key_factor)
            self.query_metric = form.scale**2 * form.query_factor.mT @ form.query_factor
            self.key_metric = form.scale**2 * key_factor.mT @ key_factor
        self.score_norm = form.score_norm.view(-1, 1, 1)
        self.alpha, self.kappa, self.kappa_rms = (
            torch.stack(parts) for parts in zip(*combined.map_heads(lambda head: head.slope_norms()), strict=True)
        )
        self.kappa_rms = self.kappa_rms.unsqueeze(-1)
        self.errors = {
            name: torch.tensor([getattr(head, f"{name}_error") for head in combined.heads]).double().view(-1, 1, 1)
            for name in ("score", "kappa", "slope", "value")
        }
        # The computed P is one at scores that differ by its own rounding errors as well.
        self.errors["score"] = self.errors["score"] + 8 * self.n * UNIT_ROUNDOFF
        self.value_norm = form.value_norm.view(-1, 1, 1)

    def heads_of(self, t: Tensor, weight: Tensor) -> Tensor:
        """Return t W per head, (h, n, r), for t (n, ·)."""
        return torch.unflatten(t @ weight, -1, (self.heads, -1)).transpose(0, 1)

    def from_heads(self, t: Tensor, weight: Tensor) -> Tensor:
        """Return the sum over heads of t_h W_hᵀ, (n, ·): the adjoint of `heads_of`."""
        return t.transpose(0, 1).flatten(1) @ weight.mT

    def project(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives of queries, keys and values along z, (h, n, ·) each."""
        q, k = (self.heads_of(z, weight) for weight in (self.to_query, self.to_key))
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        return q, k, self.heads_of(z, self.to_value)

    def project_back(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Apply the adjoint of `project`."""
        if self.rotary is not None:
            q, k = self.rotary.transpose(q), self.rotary.transpose(k)
        to = (self.to_query, self.to_key, self.to_value)
        query, key, value = (self.from_heads(t, weight) for t, weight in zip((q, k, v), to, strict=True))
        return query + key + value

    def score_derivative(self, q: Tensor, k: Tensor) -> Tensor:
        """Return b (h, n, n)."""
        b = self.scale * (q @ self.k.mT + self.q @ k.mT)
        return b - (self.p * b).sum(-1, keepdim=True)

    def score_derivative_back(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the adjoint of `score_derivative`."""
        c = self.scale * (c - self.p * c.sum(-1, keepdim=True))
        return c @ self.k, c.mT @ self.q

    def values(self, u: Tensor) -> Tensor:
        """Return a (h, n, n) for u (h, n, r)."""
        return u @ self.v.mT - (u * self.o).sum(-1, keepdim=True)

    def values_back(self, c: Tensor) -> Tensor:
        """Apply the adjoint of `values`."""
        return c @ self.v - c.sum(-1, keepdim=True) * self.o

    def spread(self, t: Tensor) -> Tensor:
        """Return |t_j − Σ_l P_il t_l|², (h, n, n), for t (h, n, r)."""
        mean = self.p @ t
        return (mean.square().sum(-1, keepdim=True) - 2 * mean @ t.mT + t.square().sum(-1).unsqueeze(-2)).clamp(min=0)

    def spread_matrix(self, c: Tensor) -> Tensor:
        """Return the matrices G (h, n, n) with tᵀGt = Σ_ij c_ij (t_j − Σ_l P_il t_l)²."""
        cross = self.p.mT @ c
        return torch.diag_embed(c.sum(-2)) - cross - cross.mT + self.p.mT @ (c.sum(-1, keepdim=True) * self.p)


@dataclass(frozen=True)
class _Ratios:
    """Bounds on P'/P − 1 = θ over the ball: −low ≤ θ ≤ high, and (Σ_j P θ²)^½ ≤ rms; `curvature` bounds e^d − 1 − d."""

    low: Tensor
    high: Tensor
    rms: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class _Product:
    """A bound `coefficient·|α(u)|·|β(z)|`, one per pair (h, n, n) or per row (h, n, 1).

    α² is the square named `left`, summed over the keys with `left_weights` where there are any; likewise β².
    """

    coefficient: Tensor
    left: str
    left_weights: Tensor | None
    right: str
    right_weights: Tensor | None


# The squares of u and z: per pair (h, n, n), or per row (h, n, 1).
_LEFT = ("a", "u", "gain u")  # a_ij, |u_i|, |D^½ u_i|
_RIGHT = ("b", "omega", "query", "key")  # b_ij, |D^½Zᵀ(z_j − …)|, |A z_i|, |Aᵀ(z_j − …)|
_OF_ROWS = ("u", "gain u", "query")


class QuadraticForm:
    """The operator S of one layer on one ball, with weights ρ that `improve` chooses.

    Args:
        layer: the layer at its tokens.
        moves: how far they may move.
    """

    def __init__(self, layer: LayerQuantities, moves: TokenMoves):
        """Bound the changes over the ball, and start with weights from random vectors."""
        self.layer, self.moves = layer, moves
        self.ratios = _ratios(layer, moves)
        self.products = list(self._products())
        self.width = layer.to_out.shape[0]
        self.size = layer.n * (self.width + layer.d)
        self.moving = moves.moving.double().unsqueeze(-1)

    def _products(self) -> Iterator[_Product]:
        layer, moves, of = self.layer, self.moves, self.ratios
        p, own, error = layer.p, self.moves.of_queries, self.layer.errors["score"]
        high = p * (1 + of.high)
        w = layer.alpha + own * layer.score_norm
        one = torch.ones_like(layer.kappa_rms)

        # The value term: Σ_j (P' − P) ω, to first order in the change of scores …
        c = (p * of.curvature).sum(-1, keepdim=True) / 2
        remainder = p * torch.maximum(c, of.curvature - c)
        by_keys = (p * w * moves.distance).square().sum(-1, keepdim=True).sqrt() if moves.shared else None
        per_pair = remainder + p * (error if moves.shared else w * moves.distance + error)
        query_share = own * layer.kappa_rms
        linear = per_pair.sum(-1, keepdim=True) + query_share + (0.0 if by_keys is None else by_keys)
        # … or, where that is larger, by the interval of θ.
        interval = p * torch.maximum(of.high, of.low)
        is_linear = linear <= interval.sum(-1, keepdim=True)
        yield _Product(torch.where(is_linear, query_share, 0.0), "u", None, "omega", p)
        yield _Product(torch.where(is_linear, per_pair, interval), "u", None, "omega", None)
        if moves.shared:
            keys = (p * w * moves.distance).square()
            yield _Product(torch.where(is_linear, one, 0.0), "u", None, "omega", keys)

        # The covariance of a and b under P' less that under P; the rest of it is in `known`.
        capped = (p * of.low).sum(-1, keepdim=True) + of.rms.square() > SATURATED
        low = torch.where(capped, 1.0, of.low)
        half_square = torch.where(capped, 0.0, 0.5 * of.rms.square())
        middle = p * (of.high + low) / 2
        yield _Product(torch.where(capped, 0.0, middle), "a", None, "b", None)
        yield _Product(torch.where(capped, one, 0.0), "a", middle, "b", middle)
        yield _Product(half_square, "a", p, "b", p)
        self.known = p * (1 + (of.high - low) / 2 - half_square)

        # The changes of values and of slopes.
        keys_move = moves.root_mean_square(high, torch.ones_like(p), torch.zeros_like(one))
        yield _Product(keys_move, "gain u", None, "b", high)
        yield _Product(keys_move.square(), "gain u", None, "query", None)
        yield _Product(keys_move * own, "gain u", None, "key", high)
        yield _Product(keys_move, "a", high, "query", None)
        yield _Product(one * own, "a", high, "key", high)

    def squares(self, y: Tensor) -> dict[str, Tensor]:
        """Return the squares of a vector y = (u, z), by name."""
        u, z = self._split(y)
        u, (q, k, v) = self.layer.heads_of(u, self.layer.to_out), self.layer.project(z)
        roots = self.layer.values(u), self.layer.score_derivative(q, k)
        return {
            "a": roots[0].square(),
            "u": u.square().sum(-1, keepdim=True),
            "gain u": (self.layer.value_gain * u.square()).sum(-1, keepdim=True),
            "b": roots[1].square(),
            "omega": self.layer.spread(v),
            "query": ((q @ self.layer.key_metric) * q).sum(-1, keepdim=True),
            "key": self._key_spread(k),
        }

    def _key_spread(self, k: Tensor) -> Tensor:
        """Return |Aᵀ(z_j − Σ_l P_il z_l)|² from the keys of z."""
        mean = self.layer.p @ k
        there, here = k @ self.layer.query_metric, mean @ self.layer.query_metric
        squares = (mean * here).sum(-1, keepdim=True) - 2 * mean @ there.mT + (k * there).sum(-1).unsqueeze(-2)
        return squares.clamp(min=0)

    def weigh(self, squares: dict[str, Tensor]) -> None:
        """Take the ρ that are the best for vectors with these squares on average, and sum the coefficients of S."""
        total = {name: torch.zeros_like(squares[name]) for name in (*_LEFT, *_RIGHT)}
        for term in self.products:
            left, right = (
                squares[name] if weights is None else (weights * squares[name]).sum(-1, keepdim=True)
                for name, weights in ((term.left, term.left_weights), (term.right, term.right_weights))
            )
            left, right = (t + FLOOR * t.mean() + TINY for t in (left, right))
            rho = (right / left).sqrt()
            for name, weights, share in (
                (term.left, term.left_weights, term.coefficient * rho),
                (term.right, term.right_weights, term.coefficient / rho),
            ):
                share = share if weights is None else share * weights
                total[name] += share.sum(-1, keepdim=True) if name in _OF_ROWS else share
        self._sum(total)

    def _sum(self, coefficients: dict[str, Tensor]) -> None:
        self.left = {name: coefficients[name] for name in _LEFT}
        self.right = {name: coefficients[name] for name in _RIGHT}
        self.omega_matrix = self.layer.spread_matrix(self.right["omega"])
        self.key_matrix = self.layer.spread_matrix(self.right["key"])

    def apply(self, y: Tensor) -> Tensor:
        """Return S y, (size,)."""
        layer = self.layer
        u, z = self._split(y)
        u, (q, k, v) = layer.heads_of(u, layer.to_out), layer.project(z)
        a, b = layer.values(u), layer.score_derivative(q, k)
        to_u = layer.p @ v + layer.values_back(self.known * b + self.left["a"] * a)
        to_u = to_u + (self.left["u"] + self.left["gain u"] * layer.value_gain) * u
        to_q, to_k = layer.score_derivative_back(self.known * a + self.right["b"] * b)
        to_q = to_q + self.right["query"] * (q @ layer.key_metric)
        to_k = to_k + self.key_matrix @ (k @ layer.query_metric)
        to_v = layer.p.mT @ u + self.omega_matrix @ v
        image = layer.from_heads(to_u, layer.to_out), self.moving * layer.project_back(to_q, to_k, to_v)
        return torch.cat([t.flatten() for t in image])

    def _split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        u, z = y.split([self.layer.n * self.width, self.layer.n * self.layer.d])
        return u.view(-1, self.width), self.moving * z.view(-1, self.layer.d)

    def improve(self, rounds: int) -> None:
        """Choose the weights in rounds: those that suit the leading eigenvectors of all rounds so far, on average.

        Random vectors have a share in the average, which keeps the weights from suiting a few vectors alone.
        """
        generator = torch.Generator().manual_seed(0)

        def gaussian() -> Tensor:
            y = torch.randn(self.size, generator=generator, dtype=torch.float64)
            return y.mul_(math.sqrt(2) / y.norm())

        def between(ends: tuple[float, float], step: int) -> float:
            return ends[0] * math.exp(math.log(ends[1] / ends[0]) * step / max(1, rounds - 1))

        def mean_squares(values: Tensor, vectors: Tensor, step: int) -> dict[str, Tensor]:
            weights = (between(SHARPNESS, step) * (values / values[0].clamp(min=TINY) - 1)).exp()
            return _average([self.squares(math.sqrt(2) * y) for y in vectors], weights.tolist())

        random = best_squares = _average([self.squares(gaussian()) for _ in range(RANDOM_VECTORS)])
        self._sum({name: torch.zeros_like(t) for name, t in random.items()})  # the known part alone
        values, vectors, _ = leading_eigenvectors(self.apply, gaussian())
        average, best, stale = mean_squares(values, vectors, 0), math.inf, 0
        for step in range(rounds):
            mixed = _mix(average, random, between(RANDOM_SHARE, step))
            self.weigh(mixed)
            values, vectors, residual = leading_eigenvectors(self.apply, vectors[0] + gaussian() / math.sqrt(2))
            value = float(values[0]) + residual
            stale = 0 if value < (1 - MIN_IMPROVEMENT) * best else stale + 1
            if value < best:
                best, best_squares = value, mixed
            if stale == PATIENCE:
                break
            average = _mix(average, mean_squares(values, vectors, step), 1.5 / (step + 4))
        self.weigh(best_squares)

    def bound(self, solver: Solver) -> float:
        """Return an upper bound on λ_max(S), and so on ‖J'‖ over the ball, with the confidence of the solver."""
        operator = FunctionOperator(self.apply, self.apply, (self.size, self.size), dtype=torch.float64)
        found = singular_values(operator, solver=solver, product_dtype=None, strict=False)
        return float(found.upper) + self.rounding()

    def rounding(self) -> float:
        """Bound the change of J' by rounding errors of v, κ and a, over the ball: heads and terms one by one."""
        layer, e = self.layer, self.layer.errors
        distance = float(self.moves.distance.max())
        slope_move = distance * layer.score_norm
        kappa, alpha = (t.amax((-2, -1), keepdim=True) + slope_move for t in (layer.kappa, layer.alpha))
        radius = 2 * (layer.value_gain.sqrt() * (layer.v.abs().amax(1, keepdim=True))).norm(dim=-1, keepdim=True)
        values = radius + 2 * distance * layer.value_norm
        columns = math.sqrt(layer.n)
        total = e["value"] * (kappa + columns * alpha) + (values + e["value"]) * (e["kappa"] + columns * e["slope"])
        return float(total.sum())


def leading_eigenvectors(
    apply: Callable[[Tensor], Tensor], start: Tensor, steps: int = LANCZOS_STEPS, count: int = RITZ_VECTORS
) -> tuple[Tensor, Tensor, float]:
    """Return the largest Ritz values of a symmetric operator, descending, their unit vectors, and a residual norm.

    Lanczos' method with full orthogonalisation; some eigenvalue is within the residual norm of the first value.

    Raises:
        InputError: if a product is not finite.

    Example:
        >>> values, vectors, _ = leading_eigenvectors(lambda y: torch.arange(3.0) * y, torch.ones(3), count=1)
        >>> round(float(values), 4), vectors.abs().round(decimals=3)
        (2.0, tensor([[0., 0., 1.]]))
    """
    basis = [start / start.norm()]
    diagonal, side = [], []
    for _ in range(min(steps, len(start))):
        image = apply(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        so_far = torch.stack(basis)
        for _ in range(2):
            image = image - so_far.mT @ (so_far @ image)
        side.append(float(image.norm()))
        if not math.isfinite(diagonal[-1] + side[-1]):
            raise InputError("expected finite products, got ∞ or NaN; the operator is too large for float64")
        if side[-1] <= 1e-12 * max(abs(t) for t in diagonal):
            break
        basis.append(image / side[-1])
    size = len(diagonal)
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=start.dtype))
    if size > 1:
        off = torch.tensor(side[: size - 1], dtype=start.dtype)
        tridiagonal = tridiagonal + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    return values, vectors.mT @ torch.stack(basis[:size]), side[-1] * abs(float(vectors[-1, 0]))


def complement(p: Tensor) -> Tensor:
    """Return an upper bound on Σ_{l≠j} P_l = 1 − P_j."""
    return (1 - p).clamp(min=0) + 4 * p.shape[-1] * UNIT_ROUNDOFF


def phi(x: Tensor) -> Tensor:
    """Return an upper bound on (eˣ − 1 − x)/x² for x ≥ 0, to nine digits: ½ at 0, and increasing.

    Example:
        >>> phi(torch.tensor([0.0, 1e-6, 1.0], dtype=torch.float64)).round(decimals=6).tolist()
        [0.5, 0.5, 0.718282]
    """
    small = 1 / 2 + x / 6 + x.square() / 24 + x**3 / 120 + x**4 / 600
    large = (torch.expm1(x) - x) / x.clamp(min=1e-2).square()
    return torch.where(x < 1e-2, small, large) * (1 + 1e-9)


def _ratios(layer: LayerQuantities, moves: TokenMoves) -> _Ratios:
    """Bound the ratios of probabilities over the ball, step 1."""
    p, own, error, visible = layer.p, moves.of_queries, layer.errors["score"], layer.visible
    w = (layer.alpha + own * layer.score_norm).expand_as(p)
    by_query = own * layer.kappa
    change = moves.deviation(p, w, error) + by_query
    if not float(change.max()) <= MAX_SCORE_CHANGE:
        raise Refused(
            NAME,
            f"scores that change by {MAX_SCORE_CHANGE:g} at most over the ball",
            f"{float(change.max()):.3g}",
            "take a smaller ε",
        )
    change = torch.where(visible, change, 0.0)
    largest = change.amax(-1, keepdim=True)
    second_moment = (moves.root_mean_square(p, w, error) + own * layer.kappa_rms).square()
    second_moment = torch.minimum(second_moment, (p * change.square()).sum(-1, keepdim=True))

    # e^d/Z, with Z between 1 and this number
    normaliser = phi(largest) * second_moment
    low = (normaliser - torch.expm1(-change)) / (1 + normaliser)
    # 1/(1 + θ_j) = Σ_l P_l e^{d_l − d_j}: from below by Jensen's inequality over l ≠ j …
    rest = complement(p)
    fall = rest * torch.expm1(-change / (1 - p - 4 * p.shape[-1] * UNIT_ROUNDOFF).clamp(min=TINY))
    high = -fall / (1 + fall).clamp(min=TINY)
    # … from above with the largest difference of the keys' parts, and the queries' parts to second order
    most = torch.where(visible, by_query, 0.0).amax(-1, keepdim=True)
    queries = phi(most) * (own * layer.kappa_rms).square()
    rise = torch.expm1(moves.difference(visible, w, error)) * (1 + queries - p * (-by_query).exp()).clamp(min=0)
    rise = rise + queries - torch.expm1(-by_query)
    low = torch.minimum(low, (rise / ((-by_query).exp() + rise)).nan_to_num(nan=1.0))
    # and from both sides with every score at one end of its own interval.
    each = torch.where(visible, w * moves.distance + by_query + error, 0.0)
    is_small = each.amax(-1, keepdim=True) <= MAX_SCORE_CHANGE
    each = torch.where(is_small, each, 0.0)
    down, up = torch.expm1(-each), torch.expm1(each)
    gain = -down * rest - (1 + down) * ((p * down).sum(-1, keepdim=True) - p * down).clamp(max=0)
    loss = up * rest + (1 + up) * ((p * up).sum(-1, keepdim=True) - p * up).clamp(min=0)
    high = torch.minimum(high, torch.where(is_small & (gain < 1), gain / (1 - gain).clamp(min=TINY), math.inf))
    low = torch.minimum(low, torch.where(is_small, loss / (1 + loss), 1.0)).clamp(0, 1)
    high = torch.minimum(high, complement(p) / p.clamp(min=TINY))  # P' ≤ 1
    low, high = (torch.where(visible, t, 0.0) for t in (low, high))

    square = second_moment * (torch.expm1(largest) / largest.clamp(min=TINY)).clamp(min=1).square()
    square = torch.minimum(square, (p * torch.maximum(high, low).square()).sum(-1, keepdim=True))
    curvature = phi(change) * change.square()
    return _Ratios(low=low, high=high, rms=square.sqrt(), curvature=curvature)


def _flat(t: Tensor) -> Tensor:
    """Return weights (h, d, r) as one matrix (d, h·r)."""
    return t.movedim(0, 1).flatten(1)


def _mix(one: dict[str, Tensor], other: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    return {name: (1 - share) * one[name] + share * other[name] for name in one}


def _average(squares: list[dict[str, Tensor]], weights: list[float] | None = None) -> dict[str, Tensor]:
    weights = [1.0] * len(squares) if weights is None else weights
    total = {name: torch.zeros_like(t) for name, t in squares[0].items()}
    for weight, each in zip(weights, squares, strict=True):
        for name, t in each.items():
            total[name] += weight / sum(weights) * t
    return total
