"""What a study will take, said before it is taken: seconds from two timed solves, memory from the solver's own plan."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian, local_lipschitz
from howsmooth.lipschitz.local import single_at_least
from howsmooth.models import Model
from howsmooth.spectral import plan
from howsmooth.studies.config import Study
from howsmooth.studies.cutting import Cutter

# Solving several short samples at once saves the overhead of small products; long ones only wait for each other.
# MiniLM, 8 samples, one run on a busy machine: 1.6 to 2 times faster at n = 16, even at 64, slower from 128 on. What
# suits a GPU has not been measured; there are more tokens at once because it has more to keep busy.
TOKENS_AT_ONCE = {"cpu": 256, "other": 16384}
BATCH_MEMORY = 2 << 30  # of a batch where the study sets no limit
_TIMED = 128  # the longest of the two timed solves


@dataclass(frozen=True)
class Costs:
    """Seconds of one solve: `fixed` + `per_flop` · operations. Bytes: of the weights, and of a solve of n tokens."""

    fixed: float
    per_flop: float
    width: int
    weights: int
    solve_bytes: int  # at n = `measured_at`
    measured_at: int

    def seconds(self, n: int) -> float:
        return self.fixed + self.per_flop * flops(n, self.width)

    def memory(self, n: int) -> int:
        return int(self.solve_bytes * n / self.measured_at)


def flops(n: int, d: int) -> float:
    """Of one product with J and one with Jᵀ: four projections and five products of n²d, each way."""
    return 16.0 * n * d * d + 20.0 * n * n * d


def costs_of(model: Model, study: Study, layer: int, cutter: Cutter) -> Costs:
    """Time two short solves of the study itself, and plan the longest one."""
    longest = max(study.lengths)
    weights = sum(p.numel() * p.element_size() for p in model.network.parameters())
    if not isinstance(_formula(model, layer, longest), SelfAttention):
        # Maps that are differentiated automatically: no plan of their memory is known, and a product is slower.
        return Costs(0.1, 5e-10, model.width, weights, 200 * longest * model.width * 8, longest)

    def at(n: int) -> tuple[SelfAttention, torch.Tensor]:
        x = model.activations(torch.tensor(cutter.piece(n, 0).ids), [layer])[layer]
        return single_at_least(model.attention(layer, n), x)

    lengths = sorted({min(study.lengths), max((n for n in study.lengths if n <= _TIMED), default=min(study.lengths))})
    times = []
    for n in lengths:
        f, x = at(n)
        local_lipschitz(f, x, tol=0.1, strict=False)  # the first call of anything is slow
        began = time.perf_counter()
        local_lipschitz(f, x, tol=study.tol, confidence=study.confidence, strict=False)
        times.append(time.perf_counter() - began)
    work = [flops(n, model.width) for n in lengths]
    slope = (times[-1] - times[0]) / (work[-1] - work[0]) if len(work) > 1 else 0.0
    slope = max(slope, times[-1] / work[-1] / 10)  # some of it always grows with n
    return Costs(max(0.0, times[0] - slope * work[0]), slope, model.width, weights, _solve_bytes(*at(longest), study),
                 longest)


def _formula(model: Model, layer: int, n: int) -> SelfAttention | None:
    try:
        return model.attention(layer, n)
    except InputError:
        return None


def _solve_bytes(f: SelfAttention, x: torch.Tensor, study: Study) -> int:
    """What the solver plans for at the longest length; a limit that cannot hold it is refused here."""
    derivative, n = jacobian(f, x), x.shape[0]
    accuracy = {"tol": study.tol, "confidence": study.confidence}
    try:
        return plan(derivative, study.max_memory, **accuracy).total
    except InputError:
        least = plan(derivative, **accuracy)
        least = (least.total - (least.stored - 3) * least.bytes_per_vector) / 2**20
        raise InputError(f"expected max_memory of at least {least:.1f} MiB for n = {n}, got "
                         f"{study.max_memory / 2**20:.3g} MiB; allow more memory or ask for shorter lengths") from None


def batch_size(n: int, study: Study, device: str, costs: Costs) -> int:
    """How many samples of n tokens are solved together. It depends on the study alone, so every machine agrees."""
    if study.kind not in ("attention", "head"):
        return 1
    at_once = TOKENS_AT_ONCE["cpu" if device == "cpu" else "other"] // n
    memory = (study.max_memory or BATCH_MEMORY) // max(1, costs.memory(n))
    return max(1, min(study.samples, at_once, memory))
