"""The cost model: time and memory of solves, known from a short solve and a product or two timed on the device.

A solve of q steps takes as long as q + a pairs of products J v and Jᵀu, a for all that is not a step: the products at
higher precision that make it certain, the operator itself, the vectors. Both q and a come from a solve at a length that
is quick, and the time of a pair from the length asked for where that is quick enough, else by b n + c n² through the
two longest that are. Steps grow with n as the certificate's do, with the logarithm of the number of entries.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention import SelfAttention, abstract_jacobian
from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian, local_lipschitz
from howsmooth.lipschitz.local import promote_half
from howsmooth.spectral import plan as plan_memory
from howsmooth.spectral.certificate import start_component
from howsmooth.spectral.memory import default_max_steps, stored_after
from howsmooth.studies.inputs import NormalisedInputs
from howsmooth.studies.memory import free_memory, peak, solver_limit, start_peak, taken

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.studies.plan import Subject

SHORTEST = 128  # where timing starts
QUICK_PAIR = 0.01  # seconds of a pair of products up to which a longer length is timed for a study
PLAN_PAIR = 0.5  # … and for `howsmooth plan`, which is asked for nothing else
QUICK_HERE = 0.05  # … of the length asked for: a plan should not take what the run takes
QUICK_ENOUGH = 4.0  # … and up to which the pair itself is timed at the length asked for
PROBED_MAPS = 4  # of those asked for, evenly spread: layers differ in the steps that they need
UNKNOWN_SECONDS, UNKNOWN_RATE = 0.1, 5e-10  # of maps that are differentiated automatically


@dataclass(frozen=True)
class Cost:
    """One length: what its solves take, and what that is known from."""

    n: int
    solves: int
    steps: float  # the mean over maps
    most_steps: int
    seconds: dict[str, float]  # preparing: tokens and maps; solving: all solves
    bytes: dict[str, int]  # of the largest solve
    probed_at: int
    probed: dict[str, int] = field(default_factory=dict)  # map -> steps of its solve at that length
    pairs: dict[int, float] = field(default_factory=dict)  # length -> seconds of J v and Jᵀu
    measured_pair: bool = True  # at n itself


@dataclass(frozen=True)
class Forecast:
    """A whole run, length by length. In seconds: until the model was there, the first call of anything, the rest."""

    device: str
    free_bytes: int | None
    costs: tuple[Cost, ...]
    loading: float
    first_call: float

    @property
    def seconds(self) -> float:
        """Until the run is over; the first call counts once, and less where compiled kernels are kept on disk."""
        return self.loading + self.first_call + sum(sum(cost.seconds.values()) for cost in self.costs)

    @property
    def bytes(self) -> int:
        return max(cost.bytes["total"] for cost in self.costs)

    def as_record(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "free_bytes": self.free_bytes,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "loading": self.loading,
            "first_call": self.first_call,
            "lengths": [asdict(cost) for cost in self.costs],
        }


class CostModel:
    """What the solves of one model take. Each length is timed at most once, and only when it is asked for."""

    def __init__(
        self,
        model: Model,
        subject: Subject,
        *,
        clock: Callable[[], float] = time.perf_counter,
        patience: float = QUICK_PAIR,
    ):
        self.model, self.subject, self.spec = model, subject, subject.spec
        self.inputs, self.clock, self.patience = subject.inputs[0], clock, patience
        self.known = self.spec.kind in ("attention", "head")
        self.shortest = min(min(self.spec.lengths), SHORTEST)
        layers = [layer for layer in subject.layers if layer is not None] or [0]
        spread = min(PROBED_MAPS if patience > QUICK_PAIR else 1, len(layers))
        self.layers = [layers[round(i * (len(layers) - 1) / max(1, spread - 1))] for i in range(spread)]
        self.pairs: dict[int, float] = {}
        self._shorter: dict[int, dict[int, tuple[int, float, int]]] = {}  # length -> its probes

    def release(self) -> None:
        """Forget the model once the quick lengths are timed: `seconds` can be asked for all the same."""
        if self.known:
            _ = self._probed
        del self.model

    def seconds(self, n: int) -> float:
        """Return the seconds of one solve of n tokens."""
        if not self.known:
            d = self.subject.width
            return UNKNOWN_SECONDS + UNKNOWN_RATE * (16.0 * n * d * d + 20.0 * n * n * d)
        steps, beside, _ = self._solves(n)
        pair = self.pairs[n] if n in self.pairs else extrapolated(self.pairs, n)
        return (beside + statistics.mean(steps)) * pair

    def cost(self, n: int) -> Cost:
        """Return time and memory of all solves of one length."""
        self._time_pair(n)
        steps, beside, limit = self._solves(n)
        probed_at, found = self._probes(n)
        bytes_, stored = self._bytes(n, max(steps))
        again = sum(max(0.0, s - stored) for s in steps) / len(steps)  # made again in a second pass
        pair = self.pairs[n] if n in self.pairs else extrapolated(self.pairs, n)
        solves = self.subject.maps * len(self.subject.inputs) * self.spec.samples
        seconds = {
            "preparing": self._preparing(n),
            "solving": solves * (beside + statistics.mean(steps) + again) * pair,
        }
        probed = {f"layer {layer}": count for layer, (count, _, _) in found.items()}
        pairs = {m: s for m, s in self.pairs.items() if m <= n}
        return Cost(
            n,
            solves,
            statistics.mean(steps),
            limit,
            seconds,
            bytes_,
            probed_at,
            probed,
            pairs,
            measured_pair=n in self.pairs,
        )

    def forecast(self, loading: float = 0.0) -> Forecast:
        """Return time and memory of the whole run; refused where it does not fit."""
        if not self.known:
            raise InputError(
                f"expected attention or its heads, got the map {self.spec.kind}: maps that are "
                "differentiated automatically have no plan; plan the attention, a layer takes several "
                "times as much"
            )
        first_call = self._first_call()
        costs = tuple(self.cost(n) for n in self.spec.lengths)
        free = free_memory(self.model.device)
        needed = max(cost.bytes["total"] - cost.bytes["taken"] for cost in costs)
        if free is not None and needed > free:
            raise InputError(
                f"expected {needed / 2**30:.1f} GiB of free memory on {self.model.device} at n = "
                f"{max(self.spec.lengths)}, got {free / 2**30:.1f} GiB; set --max-memory below that, ask for shorter "
                "lengths or use another device"
            )
        return Forecast(str(self.model.device), free, costs, loading, first_call)

    @cached_property
    def _probed(self) -> tuple[int, dict[int, tuple[int, float, int]]]:
        """(length, layer -> (steps, all else in pairs of products, bytes beyond what was taken)) of quick solves."""
        n, longest = self.shortest, max(self.spec.lengths)
        while True:
            self.pairs[n] = self._pair(n, longest)
            longer = min(longest, 2 * n)
            limit = QUICK_HERE if longer == longest and self.patience > QUICK_PAIR else self.patience
            if n == longest or (longer / n) ** 2 * self.pairs[n] > limit:
                break
            n = longer
        return n, {layer: self._probe(layer, n, longest) for layer in self.layers}

    def _probes(self, n: int) -> tuple[int, dict[int, tuple[int, float, int]]]:
        """The probes that n tokens are known from: those at n itself where a plan is asked for and n is quick."""
        probed_at, found = self._probed
        if n >= probed_at or self.patience <= QUICK_PAIR:
            return probed_at, found
        if n not in self._shorter:
            self._time_pair(n)
            self._shorter[n] = {layer: self._probe(layer, n, n) for layer in self.layers}
        return n, self._shorter[n]

    def _solves(self, n: int) -> tuple[list[float], float, int]:
        """(steps of each probed map, all else of a solve in pairs of products, the limit of steps) at n tokens."""
        probed_at, found = self._probes(n)
        width, delta = self.subject.width, 1 - self.spec.confidence
        more = math.acosh(1 / start_component(n * width, delta)) / math.acosh(
            1 / start_component(probed_at * width, delta)
        )
        limit = self.spec.max_steps or default_max_steps((n * width, n * width), self.spec.tol, self.spec.confidence)
        return (
            [min(limit, more * steps) for steps, _, _ in found.values()],
            statistics.mean(beside for _, beside, _ in found.values()),
            limit,
        )

    def _time_pair(self, n: int) -> None:
        """Time the products at n, or at the longest lengths that are quick."""
        probed_at, _ = self._probed
        if n in self.pairs:
            return
        if self.pairs[probed_at] * (n / probed_at) ** 2 <= QUICK_ENOUGH:
            self.pairs[n] = self._pair(n, n)
            return
        m = max(self.pairs)
        while 4 * self.pairs[m] <= QUICK_ENOUGH and 2 * m < n:
            m *= 2
            self.pairs[m] = self._pair(m, n)

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        self._wait()
        began = self.clock()
        found = call()
        self._wait()
        return found, self.clock() - began

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def _first_call(self) -> float:
        """What a short solve takes at first, less what it takes again: libraries loaded, kernels compiled."""
        f, x = self._at(self.layers[0], self.shortest)
        first, again = (self._timed(lambda: self._solve(f, x, max(self.spec.lengths)))[1] for _ in range(2))
        return max(0.0, first - again)

    def _solve(self, f: Any, x: torch.Tensor, asked: int) -> Any:
        options = self.subject.solver(asked, self.spec.confidence)
        return local_lipschitz(
            f, x, strict=False, **{**options, "max_memory": solver_limit(x.device, options["max_memory"])}
        )

    def _at(self, layer: int, n: int) -> tuple[Any, torch.Tensor]:
        """The first map of a layer and its tokens."""
        f, head = self.inputs.attention(layer, n), self.subject.heads[0]
        x = self.inputs.tokens(self.inputs.chunk(n, 0), 0, [layer])[layer]
        return promote_half(f if head is None else f.head(head), x)

    def _pair(self, n: int, asked: int) -> float:
        """Seconds of J v and Jᵀu at n tokens, with the products that the length asked for has."""
        f, x = self._at(self.layers[0], n)
        operator = jacobian(f, x, product_dtype=self.subject.solver(asked, 0.5)["product_dtype"])
        v = torch.ones(*operator.batch, operator.shape[1], dtype=operator.dtype, device=operator.device)
        v /= math.sqrt(operator.shape[1])

        def repeat():
            return self._timed(lambda: operator.rmatvec(operator.matvec(v)))[1]

        seconds = repeat()
        return seconds if seconds > 1 else statistics.median([repeat() for _ in range(3)])

    def _probe(self, layer: int, n: int, asked: int) -> tuple[int, float, int]:
        """A solve at a quick length: its steps, all else of it in pairs of products, and the memory beyond what was."""
        f, x = self._at(layer, n)
        start_peak(self.model.device)
        before = taken(self.model.device) or 0
        estimate, seconds = self._timed(lambda: self._solve(f, x, asked))
        extra = max(0, (peak(self.model.device) or 0) - before)
        return estimate.steps, max(0.0, seconds / self.pairs[n] - estimate.steps), extra

    def _preparing(self, n: int) -> float:
        """Seconds of making the tokens of all chunks, timed once, at no more tokens than are drawn quickly."""
        some = min(n, 8192) if isinstance(self.inputs, NormalisedInputs) else n
        layers = [layer for layer in self.subject.layers if layer is not None]
        _, seconds = self._timed(lambda: self.inputs.tokens(self.inputs.chunk(some, 0), 0, layers))
        return seconds * n / some * self.spec.samples

    def _bytes(self, n: int, steps: float) -> tuple[dict[str, int], int]:
        """Where memory goes in the largest solve, and how many basis vectors there is room for."""
        from howsmooth.studies.plan import solve_memory

        layer, device, drawn = self.layers[0], self.model.device, isinstance(self.inputs, NormalisedInputs)
        f = self.inputs.attention(layer, n)
        head = self.subject.heads[0]
        f = f if head is None else f.head(head)
        budget = solve_memory(self.model, self.inputs, self.spec.model_copy(update={"lengths": (n,)}), layer)
        stored = min(budget.stored, stored_after(math.ceil(steps)))
        entries = {"weights": self.subject.weights, "taken": taken(device) or 0}
        kept = 1 if drawn else len(self.subject.layers)
        entries["tokens"] = (
            n * f.d * torch.finfo(self.model.dtype).bits // 8 * kept if isinstance(f, SelfAttention) else 0
        )
        entries["vectors"] = stored * budget.bytes_per_vector
        entries["workspace"] = budget.fixed + budget.workspace + budget.held
        if device.type == "cuda" and isinstance(f, SelfAttention):
            # Measured there, where allocators keep books: all but the basis grows with n.
            probed_at, found = self._probes(n)
            product_dtype = self.subject.solver(n, 0.5)["product_dtype"]
            short = plan_memory(
                abstract_jacobian(f, probed_at, product_dtype), tol=self.spec.tol, confidence=self.spec.confidence
            )
            basis = min(short.stored, stored_after(max(s for s, _, _ in found.values()))) * short.bytes_per_vector
            extra = max((extra for _, _, extra in found.values()), default=0)
            entries["workspace"] = max(0, extra - basis) * n // probed_at
        entries["total"] = entries["taken"] + entries["tokens"] + entries["vectors"] + entries["workspace"]
        return entries, budget.stored


def extrapolated(pairs: dict[int, float], n: int) -> float:
    """Return the seconds at n by b n + c n² through the two longest lengths that were timed; neither b nor c negative.

    >>> extrapolated({1: 3.0, 2: 10.0, 4: 36.0}, 8)
    136.0
    """
    (m, s), (k, t) = sorted(pairs.items())[-2:] if len(pairs) > 1 else [(0, 0.0), *pairs.items()]
    c = t / k**2 if m == 0 else (t / k - s / m) / (k - m)
    b = t / k - c * k
    if b < 0 or c < 0:  # noise, or launches: what grows most is what counts
        return t * (n / k) ** 2
    return b * n + c * n**2
