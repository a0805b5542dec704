"""The cost model: time and memory of solves, extrapolated from a short solve and products timed on the device.

A solve of q steps takes as long as q + a pairs of products J v and Jᵀu. (Where the operator has a product JᵀJ v, which
takes less time, a pair is that product.) The overhead a covers everything that is not a step: the products at higher
precision for the certificate, building the operator, vector operations. Both q and a come from a solve at a length that
is quick. The time of a pair is measured at the requested length if that is quick enough, else it is extrapolated by
b n + c n² through the two longest lengths that were measured. The number of steps grows with n as the certificate's
does, with the logarithm of the number of entries.
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

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.jacobian import abstract_jacobian
from howsmooth.errors import InputError
from howsmooth.lipschitz.local import jacobian, local_lipschitz, promote_half
from howsmooth.models.memory import free_memory, peak_memory, reset_peak_memory, solver_memory_limit, used_memory
from howsmooth.questions.inputs import NormalisedInputs
from howsmooth.spectral.certificate import start_component
from howsmooth.spectral.memory import plan as plan_memory
from howsmooth.spectral.memory import step_limit, stored_after

if TYPE_CHECKING:
    from howsmooth.models.model import Model
    from howsmooth.studies.plan import PlannedModel

SHORTEST_TIMED = 128  # tokens at which timing starts
# A longer length is probed by a whole solve while its pair of products is expected to take at most so many seconds:
STUDY_PAIR_SECONDS = 0.01  # in a study
PLAN_PAIR_SECONDS = 0.5  # in `howsmooth plan`, whose only work this is
REQUESTED_PAIR_SECONDS = 0.05  # … at the longest length itself: a plan should be much quicker than the run
TIMED_PAIR_SECONDS = 4.0  # up to which the pair alone is timed at the requested length
MAX_PROBED_LAYERS = 4  # evenly spaced, since layers differ in the number of steps
AUTODIFF_SECONDS, AUTODIFF_SECONDS_PER_FLOP = 0.1, 5e-10  # a guess for maps that are differentiated automatically

# Of one probed solve: steps, overhead in pairs of products, bytes beyond those in use before.
Probe = tuple[int, float, int]


@dataclass(frozen=True)
class Cost:
    """Estimated time and memory of all solves of one length. The fields are those of `howsmooth plan --json`.

    Attributes:
        n: Number of tokens.
        solves: Number of solves.
        steps: Expected steps of a solve, the mean over the probed layers.
        most_steps: The limit of steps.
        seconds: "preparing" the tokens and maps, and "solving" all solves.
        bytes: Memory of the largest solve, by purpose.
        probed_at: Length at which whole solves were timed.
        probed: Layer -> steps of its solve at that length.
        pairs: Length -> measured seconds of a pair J v and Jᵀu.
        measured_pair: Whether the pair was measured at n itself.
    """

    n: int
    solves: int
    steps: float
    most_steps: int
    seconds: dict[str, float]
    bytes: dict[str, int]
    probed_at: int
    probed: dict[str, int] = field(default_factory=dict)
    pairs: dict[int, float] = field(default_factory=dict)
    measured_pair: bool = True


@dataclass(frozen=True)
class Forecast:
    """Estimated time and memory of a whole run.

    Attributes:
        device: The device.
        free_bytes: Free memory there; None if it is not known.
        costs: The costs of each length.
        loading: Seconds of loading the model.
        first_call: Seconds that the first solve takes longer than later ones: libraries load, kernels compile.
    """

    device: str
    free_bytes: int | None
    costs: tuple[Cost, ...]
    loading: float
    first_call: float

    @property
    def seconds(self) -> float:
        """Time of the whole run; the first call may be quicker if compiled kernels are cached on disk."""
        return self.loading + self.first_call + sum(sum(cost.seconds.values()) for cost in self.costs)

    @property
    def bytes(self) -> int:
        """Peak memory of the run."""
        return max(cost.bytes["total"] for cost in self.costs)

    def as_record(self) -> dict[str, Any]:
        """Return the forecast as plain values."""
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
    """Time and memory of the solves of one model. Each length is timed at most once, when it is needed.

    Args:
        model: The model.
        planned: The plan of its solves.
        clock: Returns the time in seconds.
        max_pair_seconds: Longest pair of products at which whole solves are timed.
    """

    def __init__(
        self,
        model: Model,
        planned: PlannedModel,
        *,
        clock: Callable[[], float] = time.perf_counter,
        max_pair_seconds: float = STUDY_PAIR_SECONDS,
    ):
        """Choose the layers to probe; nothing is timed yet."""
        self.model, self.planned, self.spec = model, planned, planned.spec
        self.inputs, self.clock, self.max_pair_seconds = planned.inputs[0], clock, max_pair_seconds
        self.is_plan = max_pair_seconds > STUDY_PAIR_SECONDS
        self.is_attention = self.spec.is_attention
        self.shortest = min(min(self.spec.lengths), SHORTEST_TIMED)
        layers = [layer for layer in planned.layers if layer is not None] or [0]
        count = min(MAX_PROBED_LAYERS if self.is_plan else 1, len(layers))
        self.layers = [layers[round(i * (len(layers) - 1) / max(1, count - 1))] for i in range(count)]
        self.pairs: dict[int, float] = {}  # length -> seconds of a pair of products
        self._shorter_probes: dict[int, dict[int, Probe]] = {}  # length -> layer -> probe

    def release(self) -> None:
        """Time the quick lengths and drop the reference to the model; `seconds` still works."""
        if self.is_attention:
            _ = self._longest_probes
        del self.model

    def seconds(self, n: int) -> float:
        """Return the seconds of one solve with n tokens."""
        if not self.is_attention:
            d = self.planned.width
            return AUTODIFF_SECONDS + AUTODIFF_SECONDS_PER_FLOP * (16.0 * n * d * d + 20.0 * n * n * d)
        steps, overhead, _ = self._expected_steps(n)
        return (overhead + statistics.mean(steps)) * self._pair_seconds(n)

    def cost(self, n: int) -> Cost:
        """Return time and memory of all solves of one length."""
        self._time_pair(n)
        steps, overhead, max_steps = self._expected_steps(n)
        probed_at, probes = self._probes(n)
        bytes_, stored = self._bytes(n, max(steps))
        recomputed = sum(max(0.0, s - stored) for s in steps) / len(steps)  # vectors that a second pass recomputes
        solves = self.planned.num_maps * sum(len(self.planned.fitted(inputs, n)[1]) for inputs in self.planned.inputs)
        pairs_per_solve = overhead + statistics.mean(steps) + recomputed
        return Cost(
            n=n,
            solves=solves,
            steps=statistics.mean(steps),
            most_steps=max_steps,
            seconds={
                "preparing": self._preparation_seconds(n),
                "solving": solves * pairs_per_solve * self._pair_seconds(n),
            },
            bytes=bytes_,
            probed_at=probed_at,
            probed={f"layer {layer}": count for layer, (count, _, _) in probes.items()},
            pairs={m: s for m, s in self.pairs.items() if m <= n},
            measured_pair=n in self.pairs,
        )

    def forecast(self, loading: float = 0.0) -> Forecast:
        """Return time and memory of the whole run.

        Args:
            loading: Seconds that loading the model took.

        Raises:
            InputError: The run does not fit in memory, or the map is differentiated automatically.
        """
        if not self.is_attention:
            raise InputError(
                f"expected attention or its heads, got the map {self.spec.map_name}: maps that are "
                "differentiated automatically have no plan; plan the attention, a layer takes several "
                "times as much"
            )
        first_call = self._first_call_seconds()
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

    def _pair_seconds(self, n: int) -> float:
        """Return the seconds of a pair of products at n tokens, measured or extrapolated."""
        return self.pairs[n] if n in self.pairs else extrapolate_pair(self.pairs, n)

    @cached_property
    def _longest_probes(self) -> tuple[int, dict[int, Probe]]:
        """The longest length at which a solve is quick, and its probes by layer."""
        n, longest = self.shortest, max(self.spec.lengths)
        while True:
            self.pairs[n] = self._measure_pair(n, longest)
            longer = min(longest, 2 * n)
            limit = REQUESTED_PAIR_SECONDS if longer == longest and self.is_plan else self.max_pair_seconds
            if n == longest or (longer / n) ** 2 * self.pairs[n] > limit:
                break
            n = longer
        return n, {layer: self._probe(layer, n, longest) for layer in self.layers}

    def _probes(self, n: int) -> tuple[int, dict[int, Probe]]:
        """Return a length and its probes, for the extrapolation to n tokens; in a plan it is n itself if n is quick."""
        probed_at, probes = self._longest_probes
        if n >= probed_at or not self.is_plan:
            return probed_at, probes
        if n not in self._shorter_probes:
            self._time_pair(n)
            self._shorter_probes[n] = {layer: self._probe(layer, n, n) for layer in self.layers}
        return n, self._shorter_probes[n]

    def _expected_steps(self, n: int) -> tuple[list[float], float, int]:
        """Return the steps of each probed layer, the overhead in pairs of products, and the limit of steps."""
        probed_at, probes = self._probes(n)
        width, delta = self.planned.width, 1 - self.spec.confidence
        growth = math.acosh(1 / start_component(n * width, delta)) / math.acosh(
            1 / start_component(probed_at * width, delta)
        )
        limit = step_limit((n * width, n * width), self.spec.spectral_solver)
        return (
            [min(limit, growth * steps) for steps, _, _ in probes.values()],
            statistics.mean(overhead for _, overhead, _ in probes.values()),
            limit,
        )

    def _time_pair(self, n: int) -> None:
        """Time a pair of products at n, or at the longest lengths that are quick enough."""
        probed_at, _ = self._longest_probes
        if n in self.pairs:
            return
        if self.pairs[probed_at] * (n / probed_at) ** 2 <= TIMED_PAIR_SECONDS:
            self.pairs[n] = self._measure_pair(n, n)
            return
        m = max(self.pairs)
        while 4 * self.pairs[m] <= TIMED_PAIR_SECONDS and 2 * m < n:
            m *= 2
            self.pairs[m] = self._measure_pair(m, n)

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of a call, and its seconds."""
        self._synchronize()
        began = self.clock()
        result = call()
        self._synchronize()
        return result, self.clock() - began

    def _synchronize(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def _first_call_seconds(self) -> float:
        """Return by how much a short solve takes longer the first time than the second."""
        f, x = self._map_and_tokens(self.layers[0], self.shortest)
        first, second = (self._timed(lambda: self._solve(f, x, max(self.spec.lengths)))[1] for _ in range(2))
        return max(0.0, first - second)

    def _solve(self, f: Any, x: torch.Tensor, requested_n: int) -> Any:
        """Solve at x with the options of the requested length."""
        solver = self.planned.solver(requested_n)
        limit = solver_memory_limit(x.device, solver.max_memory)
        return local_lipschitz(f, x, solver=solver, max_memory=limit, strict=False)

    def _attention(self, layer: int, n: int) -> Any:
        """Return the first map of a layer: its attention, or the first chosen head."""
        attention, head = self.inputs.attention(layer, n), self.planned.heads[0]
        return attention if head is None else attention.head(head)

    def _map_and_tokens(self, layer: int, n: int) -> tuple[Any, torch.Tensor]:
        """Return the first map of a layer and the tokens that enter it."""
        x = self.inputs.tokens(self.inputs.chunk(n, 0), 0, [layer])[layer]
        return promote_half(self._attention(layer, n), x)

    def _measure_pair(self, n: int, requested_n: int) -> float:
        """Return the seconds of JᵀJ v at n tokens, by the products of a step, in the dtype of the requested length."""
        f, x = self._map_and_tokens(self.layers[0], n)
        operator = jacobian(f, x, product_dtype=self.planned.solver(requested_n).product_dtype)
        v = torch.ones(*operator.batch, operator.shape[1], dtype=operator.dtype, device=operator.device)
        v /= math.sqrt(operator.shape[1])

        def pair() -> object:
            return operator.gram(v) if operator.has_gram else operator.rmatvec(operator.matvec(v))

        def pair_seconds() -> float:
            return self._timed(pair)[1]

        seconds = pair_seconds()
        return seconds if seconds > 1 else statistics.median([pair_seconds() for _ in range(3)])

    def _probe(self, layer: int, n: int, requested_n: int) -> Probe:
        """Time a solve at a quick length."""
        f, x = self._map_and_tokens(layer, n)
        reset_peak_memory(self.model.device)
        before = used_memory(self.model.device) or 0
        estimate, seconds = self._timed(lambda: self._solve(f, x, requested_n))
        extra_bytes = max(0, (peak_memory(self.model.device) or 0) - before)
        if seconds > 2 * estimate.steps * self.pairs[n]:
            # Loading a library or other work on the machine: as overhead it would be scaled to every longer length.
            seconds = min(seconds, self._timed(lambda: self._solve(f, x, requested_n))[1])
        return estimate.steps, max(0.0, seconds / self.pairs[n] - estimate.steps), extra_bytes

    def _preparation_seconds(self, n: int) -> float:
        """Return the seconds of making the tokens of all samples, scaled from one (short if it is random) sample."""
        timed_n = min(n, 8192) if isinstance(self.inputs, NormalisedInputs) else n
        layers = [layer for layer in self.planned.layers if layer is not None]
        _, seconds = self._timed(lambda: self.inputs.tokens(self.inputs.chunk(timed_n, 0), 0, layers))
        return seconds * n / timed_n * len(self.planned.fitted(self.inputs, n)[1])

    def _bytes(self, n: int, steps: float) -> tuple[dict[str, int], int]:
        """Return the memory of the largest solve by purpose, and how many basis vectors fit."""
        from howsmooth.studies.plan import solve_memory

        layer, device = self.layers[0], self.model.device
        f = self._attention(layer, n)
        budget = solve_memory(self.model, self.inputs, self.spec.model_copy(update={"lengths": (n,)}), layer)
        stored = min(budget.stored, stored_after(math.ceil(steps)))
        entries = {"weights": self.planned.weight_bytes, "taken": used_memory(device) or 0}
        layers_in_memory = 1 if isinstance(self.inputs, NormalisedInputs) else len(self.planned.layers)
        bytes_per_entry = torch.finfo(self.model.dtype).bits // 8
        entries["tokens"] = n * f.d * bytes_per_entry * layers_in_memory if isinstance(f, SelfAttention) else 0
        entries["vectors"] = stored * budget.bytes_per_vector
        entries["workspace"] = budget.fixed + budget.workspace + budget.held
        if device.type == "cuda" and isinstance(f, SelfAttention):
            # CUDA reports the peak, so the workspace is measured: everything but the basis grows linearly with n.
            probed_at, probes = self._probes(n)
            derivative = abstract_jacobian(f, probed_at, self.planned.solver(n).product_dtype)
            short = plan_memory(derivative, tol=self.spec.tol, confidence=self.spec.confidence)
            basis = min(short.stored, stored_after(max(s for s, _, _ in probes.values()))) * short.bytes_per_vector
            extra = max((extra for _, _, extra in probes.values()), default=0)
            entries["workspace"] = max(0, extra - basis) * n // probed_at
        entries["total"] = entries["taken"] + entries["tokens"] + entries["vectors"] + entries["workspace"]
        return entries, budget.stored


def extrapolate_pair(pairs: dict[int, float], n: int) -> float:
    """Extrapolate the seconds of a pair of products by b n + c n² through the two longest timed lengths, b, c ≥ 0.

    Args:
        pairs: Length -> seconds.
        n: The requested length.

    Example:
        >>> extrapolate_pair({1: 3.0, 2: 10.0, 4: 36.0}, 8)
        136.0
    """
    (m, s), (k, t) = sorted(pairs.items())[-2:] if len(pairs) > 1 else [(0, 0.0), *pairs.items()]
    c = t / k**2 if m == 0 else (t / k - s / m) / (k - m)
    b = t / k - c * k
    if b < 0 or c < 0:  # noise or launch overhead: assume quadratic growth
        return t * (n / k) ** 2
    return b * n + c * n**2
