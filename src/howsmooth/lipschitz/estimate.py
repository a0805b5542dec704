"""The result of a measurement: a value with its interval, its status and the perturbation that attains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from howsmooth.display import Displayed
from howsmooth.errors import InputError
from howsmooth.spectral.result import REMEDY, SingularTriplets

if TYPE_CHECKING:
    from howsmooth.lipschitz.gains import TokenGains

_RECORD_FIELDS = (
    "value",
    "lower",
    "upper",
    "confidence",
    "residual",
    "status",
    "steps",
    "products",
    "seed",
    "seconds",
    "relative",
    "radius",
    "mean_radius",
)


class TopToken(NamedTuple):
    """A token with a large share of the worst direction.

    Attributes:
        token: The token as a string; None if the estimate has no token strings.
        position: Its position in the sequence.
        share: Its share of the squared norm of the direction.
    """

    token: str | None
    position: int
    share: float


def check_token_strings(strings: Sequence[str], n: int) -> tuple[str, ...]:
    """Return the strings as a tuple; raise an InputError unless there is one for each of n tokens."""
    if isinstance(strings, str) or len(strings) != n:
        got = "a single string" if isinstance(strings, str) else f"{len(strings)} strings"
        raise InputError(
            f"with_tokens: expected {n} strings, one for each token, got {got}; special tokens count as well"
        )
    return tuple(strings)


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Displayed):
    """The local Lipschitz constant `‖D_X f‖₂` at one input, with a certified interval.

    With probability `confidence` over the solver's random starting vectors, the constant lies in `[lower, upper]`.
    The lower end is attained by `direction`. If k > 1 singular values were requested, `triplets` contains all of them,
    and the attributes describe the largest.

    `float(estimate)` is `value`. An estimate can be pickled. The map that was measured is not pickled with it, so
    `check` is not available on the copy.

    Attributes:
        value: The estimate of σ₁.
        lower: Lower end of the interval.
        upper: Upper end of the interval, or None if only the lower end is certified (see `status`).
        confidence: Probability that the interval contains the constant.
        residual: `‖Jᵀu − value·v‖` for the singular vectors v (`direction`) and u (`response`).
        status: "converged", or why the solver stopped earlier; `remedy` explains what to do.
        direction: Right singular vector v in the shape of x, of unit norm: the perturbation that is amplified most.
        response: Left singular vector u in the shape of f(x), of unit norm: the change of the output.
        steps: Lanczos steps.
        products: Products with J and Jᵀ.
        dtype: Dtype in which the solver ran.
        seed: Seed of the starting vectors; None if nothing was random.
        seconds: Wall-clock time of the solve. A batch is solved at once, and each of its estimates has the total.
        relative: `value·‖X‖/‖f(X)‖`, the amplification of a relative error; comparable across models.
        radius: `max_i |x_i|`, the largest norm of a token.
        mean_radius: `(mean_i |x_i|²)^½`.
        triplets: The solver's result, with all k singular values and vectors.
        finite_difference: `η ↦ ‖f(X + ηU) − f(X − ηU)‖ / 2η`; None after unpickling.
        tokens: The tokens as strings, one for each row of x; see `with_tokens`.
        gains: The gains of the single tokens, for the notebook display; see `with_tokens`.
    """

    value: float
    lower: float
    upper: float | None
    confidence: float
    residual: float
    status: str
    direction: Tensor
    response: Tensor
    steps: int
    products: int
    dtype: torch.dtype
    seed: int | None
    seconds: float
    relative: float
    radius: float
    mean_radius: float
    triplets: SingularTriplets
    finite_difference: Callable[[float], float] | None
    tokens: tuple[str, ...] | None = field(default=None)
    gains: TokenGains | None = field(default=None)

    @property
    def width(self) -> float | None:
        """The relative width of the interval, `(upper − lower) / value`; None without an upper end."""
        if self.upper is None:
            return None
        return (self.upper - self.lower) / self.value if self.upper > self.lower else 0.0

    @property
    def shares(self) -> Tensor:
        """The share of each token in the squared norm of the direction, (n,), with sum 1."""
        return self.direction.double().square().sum(-1)

    @property
    def remedy(self) -> str:
        """What to do about the status."""
        return REMEDY[self.status]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the solver did differently from what was asked for, such as products in another dtype."""
        return self.triplets.notes

    def with_tokens(self, strings: Sequence[str], gains: TokenGains | None = None) -> Estimate:
        """Return a copy with the tokens as strings, which `top_tokens` and the notebook display use.

        Args:
            strings: One string for each row of x, special tokens included.
            gains: The result of `token_gains` at the same input; a notebook then colours the tokens by gain, too.

        Raises:
            InputError: If the number of strings or of gains is not the number of tokens.
        """
        shares = self.shares
        if shares.dim() != 1:
            raise InputError(f"with_tokens: expected an input of shape (n, d), got shares {tuple(shares.shape)}")
        checked = check_token_strings(strings, len(shares))
        if gains is not None and len(gains.value) != len(shares):
            raise InputError(
                f"with_tokens: expected the gains of {len(shares)} tokens, got {len(gains.value)}; compute them at the "
                "same input"
            )
        return replace(self, tokens=checked, gains=gains)

    def top_tokens(self, k: int = 3) -> list[TopToken]:
        """Return the k tokens with the largest shares of the direction, largest first.

        Example:
            >>> import torch
            >>> from howsmooth import local_lipschitz
            >>> scale = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
            >>> estimate = local_lipschitz(lambda x: scale * x, torch.ones(2, 1, dtype=torch.float64))
            >>> token, position, share = estimate.with_tokens(["a", "b"]).top_tokens(1)[0]
            >>> token, position, round(share, 6)
            ('b', 1, 1.0)
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"top_tokens: expected a number of tokens k ≥ 1, got {k!r}")
        shares = self.shares.flatten()
        values, positions = shares.topk(min(k, len(shares)))
        return [
            TopToken(None if self.tokens is None else self.tokens[position], position, share)
            for position, share in zip(positions.tolist(), values.tolist(), strict=True)
        ]

    def check(self, eta: float | None = None) -> float:
        """Return the finite difference `‖f(X + ηU) − f(X − ηU)‖ / 2η` along the direction U.

        It tends to `value` as η → 0. The map is evaluated in float64 if it can be, otherwise in its own dtype.

        Args:
            eta: Step size η; 10⁻⁴ of `mean_radius` by default.

        Raises:
            InputError: If the estimate was unpickled or copied, and has no map.
        """
        if self.finite_difference is None:
            raise InputError("check: expected an estimate with its map, got one that was pickled; measure again")
        return self.finite_difference(1e-4 * (self.mean_radius or 1.0) if eta is None else eta)

    def as_record(self) -> dict[str, Any]:
        """Return the numbers and the notes as plain Python values, under the field names of records."""
        record = {name: getattr(self, name) for name in _RECORD_FIELDS}
        return record | {"dtype": str(self.dtype).removeprefix("torch."), "notes": list(self.notes)}

    def __float__(self) -> float:
        """Return `value`."""
        return self.value

    def __repr__(self) -> str:
        """Return value, interval, confidence and status on one line."""
        upper = "None" if self.upper is None else f"{self.upper:.6g}"
        return (
            f"Estimate(value={self.value:.6g}, lower={self.lower:.6g}, upper={upper}, "
            f"confidence={self.confidence:.6g}, status={self.status!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the map, which may be large or impossible to pickle."""
        return self.__dict__ | {"finite_difference": None}
