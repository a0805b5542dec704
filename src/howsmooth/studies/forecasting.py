"""What a measurement will take, said before it is taken: a short solve and a product or two, timed on the device.

A solve of q steps takes as long as q + a pairs of products J v and Jᵀu, a for all that is not a step: the products at
higher precision that make it sure, the operator itself, the vectors. Both q and a come from a solve at a length that
is quick, and the time of a pair from the length asked for where that is quick enough, else by b n + c n² through the
two longest that are. Steps grow with n as the certificate's do, with the logarithm of the number of entries.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention import SelfAttention, outline
from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian
from howsmooth.lipschitz.local import single_at_least
from howsmooth.spectral import plan
from howsmooth.spectral.certificate import start_component
from howsmooth.spectral.memory import default_max_steps, stored_after
from howsmooth.studies.inputs import Normalised
from howsmooth.studies.measuring import attention_maps, memory_plan, solve
from howsmooth.studies.room import free_memory, peak, start_peak, taken

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.models.gpt2_file import AttentionFile
    from howsmooth.studies.inputs import Inputs
    from howsmooth.studies.measuring import Settings

SHORTEST = 128  # where timing starts
QUICK_PAIR = 0.5  # seconds of a pair of products up to which a shorter length is probed by a whole solve
QUICK_HERE = 0.05  # … and the length asked for: a plan should not take what the run takes
QUICK_ENOUGH = 4.0  # … and up to which the pair itself is timed at the length asked for
PROBED_MAPS = 4  # of those asked for, evenly spread: layers differ in the steps that they need


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
        return {"device": self.device, "free_bytes": self.free_bytes, "bytes": self.bytes, "seconds": self.seconds,
                "loading": self.loading, "first_call": self.first_call,
                "lengths": [asdict(cost) for cost in self.costs]}


def forecast(model: Model | AttentionFile, inputs: Inputs, settings: Settings, *, loading: float = 0.0,
             clock: Callable[[], float] = time.perf_counter) -> Forecast:
    """Time and memory of `measure` with these arguments; refused where it does not fit.

    `loading` is what it took to get here. `clock` may be another one, such as process time on a busy machine.
    """
    if settings.kind is not None:
        raise InputError(f"expected attention or its heads, got the map {settings.kind}: maps that are differentiated "
                         "automatically have no plan; plan the attention, a layer takes several times as much")
    memory_plan(model, inputs, settings)
    probe = _Probe(model, inputs, settings, clock)
    first_call = probe.first_call()
    costs = tuple(probe.cost(n) for n in settings.lengths)
    free = free_memory(model.device)
    needed = max(cost.bytes["total"] - cost.bytes["taken"] for cost in costs)
    if free is not None and needed > free:
        raise InputError(
            f"expected {needed / 2**30:.1f} GiB of free memory on {model.device} at n = {max(settings.lengths)}, got "
            f"{free / 2**30:.1f} GiB; set --max-memory below that, ask for shorter lengths or use another device")
    return Forecast(str(model.device), free, costs, loading, first_call)


class _Probe:
    def __init__(self, model: Model | AttentionFile, inputs: Inputs, settings: Settings, clock: Callable[[], float]):
        self.model, self.inputs, self.settings, self.clock = model, inputs, settings, clock
        self.taken = taken(model.device) or 0
        self.shortest = min(min(settings.lengths), SHORTEST)
        spread = min(PROBED_MAPS, len(settings.layers))
        self.layers = [settings.layers[round(i * (len(settings.layers) - 1) / max(1, spread - 1))]
                       for i in range(spread)]

    def timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        self._wait()
        began = self.clock()
        found = call()
        self._wait()
        return found, self.clock() - began

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def first_call(self) -> float:
        """What a short solve takes at first, less what it takes again: libraries loaded, kernels compiled."""
        f, x = self.at(self.layers[0], self.shortest)
        first, again = (self.timed(lambda: solve(f, x, self.here(max(self.settings.lengths))))[1] for _ in range(2))
        return max(0.0, first - again)

    def here(self, n: int) -> Settings:
        return self.settings.at(n, self.model.device)

    def at(self, layer: int, n: int) -> tuple[Any, torch.Tensor]:
        """The first map of a layer and its tokens."""
        (_, f), *_ = attention_maps(self.model, layer, n, self.settings.heads, self.inputs)
        piece = self.inputs.pieces(self.model, n, 1, self.settings.special_tokens)[0]
        return single_at_least(f, self.inputs.tokens(self.model, piece, [layer])[layer])

    def pair(self, layer: int, n: int, asked: int) -> float:
        """Seconds of J v and Jᵀu at n tokens, with the products that the length asked for has."""
        f, x = self.at(layer, n)
        operator = jacobian(f, x, products=self.here(asked).product_dtype)
        v = torch.ones(*operator.batch, operator.shape[1], dtype=operator.dtype, device=operator.device)
        v /= math.sqrt(operator.shape[1])
        repeat = lambda: self.timed(lambda: operator.rmatvec(operator.matvec(v)))[1]
        seconds = repeat()
        return seconds if seconds > 1 else statistics.median([repeat() for _ in range(3)])

    def cost(self, n: int) -> Cost:
        layer, pairs, m = self.layers[0], {}, min(n, self.shortest)
        while True:
            pairs[m] = self.pair(layer, m, n)
            longer = min(n, 2 * m)
            if m == n or (longer / m) ** 2 * pairs[m] > (QUICK_HERE if longer == n else QUICK_PAIR):
                break
            m = longer
        probed_at = m
        found = {f"layer {number}": self.probe(number, probed_at, n, pairs[probed_at]) for number in self.layers}
        if probed_at < n and pairs[probed_at] * (n / probed_at) ** 2 <= QUICK_ENOUGH:
            pairs[n] = self.pair(layer, n, n)
        elif probed_at < n:
            while 4 * pairs[m] <= QUICK_ENOUGH and 2 * m < n:
                m *= 2
                pairs[m] = self.pair(layer, m, n)
        pair = pairs[n] if n in pairs else extrapolated(pairs, n)
        width = self.at(layer, 1)[1].shape[-1] if isinstance(self.inputs, Normalised) else self.model.width
        delta = 1 - self.settings.confidence
        more = math.acosh(1 / start_component(n * width, delta)) / math.acosh(
            1 / start_component(probed_at * width, delta))
        limit = self.settings.max_steps or default_max_steps((n * width, n * width), self.settings.tol,
                                                             self.settings.confidence)
        steps = [min(limit, more * steps) for steps, _, _ in found.values()]
        beside = statistics.mean(beside for _, beside, _ in found.values())
        bytes_, stored = self.bytes(n, max(steps), probed_at, max(s for s, _, _ in found.values()),
                                    max((extra for _, _, extra in found.values()), default=0))
        again = sum(max(0.0, s - stored) for s in steps) / len(steps)  # made again in a second pass
        solves = self.settings.estimates // len(self.settings.lengths)
        each = (beside + statistics.mean(steps) + again) * pair
        seconds = {"preparing": self.preparing(n), "solving": solves * each}
        probed = {name: steps for name, (steps, _, _) in found.items()}
        return Cost(n, solves, statistics.mean(steps), limit, seconds, bytes_, probed_at, probed, pairs, n in pairs)

    def probe(self, layer: int, n: int, asked: int, pair: float) -> tuple[int, float, int]:
        """A solve at a quick length: its steps, all else of it in pairs of products, and the memory beyond what was."""
        f, x = self.at(layer, n)
        start_peak(self.model.device)
        before = taken(self.model.device) or 0
        estimate, seconds = self.timed(lambda: solve(f, x, self.here(asked)))
        extra = max(0, (peak(self.model.device) or 0) - before)
        return estimate.steps, max(0.0, seconds / pair - estimate.steps), extra

    def preparing(self, n: int) -> float:
        """Seconds of making the tokens of all pieces, timed once, at no more tokens than are drawn quickly."""
        some = n if not isinstance(self.inputs, Normalised) else min(n, 8192)
        piece = self.inputs.pieces(self.model, some, 1, self.settings.special_tokens)[0]
        _, seconds = self.timed(lambda: self.inputs.tokens(self.model, piece, self.settings.layers))
        return seconds * n / some * self.settings.samples

    def bytes(self, n: int, steps: float, probed_at: int, probed_steps: int, extra: int) -> tuple[dict[str, int], int]:
        """Where memory goes in the largest solve, and how many basis vectors there is room for."""
        layer, device = self.layers[0], self.model.device
        (_, f), *_ = attention_maps(self.model, layer, n, self.settings.heads, self.inputs)
        here = replace(self.here(n), lengths=(n,))
        budget = memory_plan(self.model, self.inputs, here)
        stored = min(budget.stored, stored_after(math.ceil(steps)))
        entries = {"weights": weight_bytes(self.model), "taken": self.taken}
        kept = 1 if isinstance(self.inputs, Normalised) else len(self.settings.layers)
        entries["tokens"] = n * f.d * torch.finfo(self.model.dtype).bits // 8 * kept if isinstance(
            f, SelfAttention) else 0
        entries["vectors"] = stored * budget.bytes_per_vector
        entries["workspace"] = budget.fixed + budget.workspace + budget.held
        if device.type == "cuda" and isinstance(f, SelfAttention):
            # Measured there, where allocators keep books: all but the basis grows with n.
            short = plan(outline(f, probed_at, here.product_dtype), tol=here.tol, confidence=here.confidence)
            basis = min(short.stored, stored_after(probed_steps)) * short.bytes_per_vector
            entries["workspace"] = max(0, extra - basis) * n // probed_at
        entries["total"] = entries["taken"] + entries["tokens"] + entries["vectors"] + entries["workspace"]
        return entries, budget.stored


def extrapolated(pairs: dict[int, float], n: int) -> float:
    """Seconds at n by b n + c n² through the two longest lengths that were timed; neither b nor c negative.

    >>> extrapolated({1: 3.0, 2: 10.0, 4: 36.0}, 8)
    136.0
    """
    (m, s), (k, t) = sorted(pairs.items())[-2:] if len(pairs) > 1 else [(0, 0.0), *pairs.items()]
    c = t / k**2 if m == 0 else (t / k - s / m) / (k - m)
    b = t / k - c * k
    if b < 0 or c < 0:  # noise, or launches: what grows most is what counts
        return t * (n / k) ** 2
    return b * n + c * n**2


def weight_bytes(model: Model | AttentionFile) -> int:
    """Of all parameters, whether a map uses them or not."""
    parameters = model.network.parameters() if hasattr(model, "network") else model.parameters()
    return sum(p.numel() * p.element_size() for p in parameters)
