"""A monitor of a training: σ₁ of the maps of each layer, and what attention looks like, every so many steps.

σ₁ changes slowly from one measurement to the next, and so do its singular vectors: a few Golub–Kahan steps from the
last ones are enough. The value is ‖J v‖ for a unit vector v, so it is never above σ₁ except for rounding. The residual
‖Jᵀu − σv‖ says how far (u, v) is from a pair of singular vectors; steps are added until it is small. Nothing is known
above: `howsmooth.measure` certifies a checkpoint.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attention.statistics import AttentionStatistics, attention_statistics
from howsmooth.errors import InputError, first_line
from howsmooth.lipschitz.local import promote_half
from howsmooth.lipschitz.penalty import unchecked_jacobian
from howsmooth.models.hook import read_attention
from howsmooth.models.map_types import MAPS, parse_map
from howsmooth.models.maps import MapAt
from howsmooth.questions.quantities import all_shares, top_tokens
from howsmooth.questions.spec import select_indices
from howsmooth.records import make_record
from howsmooth.records.provenance import provenance
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.power import warm_triplet
from howsmooth.spectral.result import LOWER_ONLY_STEP_LIMIT, WARM_START
from howsmooth.spectral.rounding import allowance
from howsmooth.texts.cutting import word
from howsmooth.training.history import History
from howsmooth.training.probe import Probe, digest, load_as_trained, unwrapped

if TYPE_CHECKING:
    from howsmooth.measurements import Measurements

_RANDOM_PART = 1e-2  # norm of the random vector that is added to a warm start, in case singular values have crossed
_ROUNDS = (4, 8, 16)  # Golub–Kahan steps, each round from the vectors of the last, until the residual is small


@dataclass(frozen=True)
class _Triplet:
    """A singular triplet with its residual relative to σ."""

    sigma: float
    residual: float
    v: Tensor
    steps: int


class Monitor:
    """Measures a model while it is trained. It changes neither the training nor its random numbers.

    An error of its own becomes one warning; the monitor is off from then on, and the training goes on.

    Args:
        model: A transformers model, also inside of DistributedDataParallel, torch.compile or peft. Of several
            processes only that of rank 0 measures.
        every: How many training steps are from one measurement to the next.
        maps: Which maps, as `howsmooth.measure` takes them, except "head".
        layers: Which layers: "all", or a list.
        probe: Token numbers (n,) or (b, n) at which the constants are taken, or another input as `Model.map_at` takes
            it. By default the first sequence of the batch that was trained on last.
        tokenizer: Names the tokens of the worst direction in the records.
        path: A file of JSON lines that gets the records. One that exists is continued.
        tol: The residual, relative to σ₁, at which no more steps are taken.
        seed: Seed of the first starts.

    Attributes:
        records: All records so far, those of `howsmooth.measure` with `training_step` and statistics of attention.
        active: Whether the monitor is on.

    Raises:
        InputError: An argument is invalid, or the model has no such map.

    Example:
        >>> import torch, transformers
        >>> config = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=2, n_head=2,
        ...     bos_token_id=0, eos_token_id=0)
        >>> network = transformers.GPT2Model(config).train()
        >>> monitor = Monitor(network, every=10)
        >>> for step in range(11):
        ...     loss = network(torch.arange(8)[None]).last_hidden_state.square().mean()
        ...     loss.backward()  # … and a step of the optimiser
        ...     found = monitor.step(step)
        >>> found
        Measurements(2 records of GPT2Model at n = 8)
        >>> sorted({record["training_step"] for record in monitor.records})
        [0, 10]
    """

    def __init__(
        self,
        model: Any,
        *,
        every: int = 50,
        maps: Sequence[str] = ("attention",),
        layers: Any = "all",
        probe: Any = None,
        tokenizer: Any = None,
        path: str | None = None,
        tol: float = 0.02,
        seed: int = 0,
    ) -> None:
        """Check the arguments with one forward pass."""
        self.every, self.maps = check_options(every, maps)
        if not 0 < tol < 1:
            raise InputError(f"Monitor: expected tol as a number between 0 and 1, got {tol!r}; 0.02 is the default")
        self.tol, self.active, self.tokenizer = tol, True, tokenizer
        self._generator = torch.Generator().manual_seed(seed)
        self._seed = seed
        self._given = model
        self._network = unwrapped(model)
        self._load()
        self._layers = select_indices(layers, self._model.layer_numbers, f"layers of {self._model.name}")
        self._places = [
            (layer, name, None)
            for name in self.maps
            for layer in (self._layers if parse_map(name).type.per_layer else (None,))
        ]
        self._probe = Probe(model if isinstance(model, torch.nn.Module) else self._network, self._model, probe)
        with torch.random.fork_rng(devices=[]):
            first = None if self._probe.fixed is None else self._probe.fixed[0]
            self._model.maps_at(self._model._placeholder_input(8) if first is None else first, self._places)
        self._directions: dict[tuple[Any, ...], Tensor] = {}
        self._counter = 0
        self._said: set[str] = set()
        self._provenance = provenance()
        self._history = History(path)
        self._run = self._history.run or uuid.uuid4().hex[:12]

    def __repr__(self) -> str:
        """Return what is measured, and how often."""
        state = "" if self.active else ", off"
        return (
            f"Monitor({self._model.name}: {', '.join(self.maps)} of {len(self._layers)} layers every {self.every} "
            f"steps{state})"
        )

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records so far."""
        return self._history.records

    @property
    def measurements(self) -> Measurements:
        """All records, with their table, figure, page and files."""
        from howsmooth.measurements import Measurements

        return Measurements(list(self.records))

    def step(self, step: int | None = None) -> Measurements | None:
        """Measure if the step is a multiple of `every`; call it once after each step of the optimiser.

        Args:
            step: The number of the training step; by default one more than in the last call, from 0.

        Returns:
            What was measured; None at other steps, on processes of another rank, and once the monitor is off.
        """
        number = self._counter if step is None else step
        self._counter = number + 1
        if not self.active or number % self.every or _rank() > 0:
            return None
        try:
            found = self._measure(number)
        except Exception as error:  # whatever it is: the training goes on
            self.switch_off(f"from step {number} on", error)
            return None
        return found

    def switch_off(self, when: str, error: Exception) -> None:
        """Measure no more, and say why in one warning."""
        self.active = False
        self._probe.close()
        message = first_line(error) if isinstance(error, InputError) else f"{type(error).__name__}: {first_line(error)}"
        warnings.warn(f"the monitor is off {when}, and the training goes on: {message}", stacklevel=3)

    def scalars(self, *, prefix: str = "howsmooth") -> dict[str, float]:
        """Return the numbers of the last measurement by name, for a logger; see `Measurements.scalars`."""
        from howsmooth.measurements import Measurements

        last = max((record["training_step"] for record in self.records), default=None)
        return Measurements([record for record in self.records if record["training_step"] == last]).scalars(
            prefix=prefix
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the singular vectors, for a checkpoint."""
        return {"step": self._counter, "directions": {key: v.cpu() for key, v in self._directions.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._counter, self._directions = state["step"], dict(state["directions"])

    def _load(self) -> None:
        self._model = load_as_trained(self._network)
        self._storages = [parameter.data_ptr() for parameter in self._network.parameters()]
        self._checked = False

    def _say(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            warnings.warn(text, stacklevel=4)

    def _measure(self, step: int) -> Measurements:
        from howsmooth.measurements import Measurements

        if not self._network.training:
            self._say(
                "mode",
                f"expected a model in training mode, got one in evaluation mode at step {step}; it is measured without "
                "dropout in both: call its .train() if it is to be trained",
            )
        if self._storages != [parameter.data_ptr() for parameter in self._network.parameters()]:
            self._load()  # its weights were moved or converted, so that the copy does not share them any more
        records: list[dict[str, Any]] = []
        with torch.random.fork_rng(devices=[]), torch.autocast(self._model.device.type, enabled=False):
            for sample, sequence in enumerate(self._probe.sequences()):
                records += self._records(step, sample, sequence)
        self._history.add(step, records)
        return Measurements(records)

    def _records(self, step: int, sample: int, sequence: Any) -> Iterator[dict[str, Any]]:
        """Return the records of one sequence, from one forward pass for all layers."""
        calls: list[tuple[torch.nn.Module, AttentionStatistics]] = []

        def read(module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> None:
            calls.append((module, attention_statistics(q, k, v, **options)))

        # The adapters are compared with the modules at the first step only.
        with self._model.skip_adapter_check(self._layers if self._checked else ()), read_attention(read):
            found = self._model.maps_at(sequence, self._places)
        self._checked = True
        for at in found:
            f, x = promote_half(at.f, at.x)
            began = time.perf_counter()
            J = unchecked_jacobian(f, x)
            triplet = self._triplet(J, (at.map, at.layer, sample), step)
            seconds = time.perf_counter() - began
            yield self._record(step, sample, sequence, at, J, triplet, seconds, self._statistics(calls, at))

    def _statistics(
        self, calls: Sequence[tuple[torch.nn.Module, AttentionStatistics]], at: MapAt
    ) -> AttentionStatistics | None:
        """Return the statistics of the attention of a map's layer, of the calls of one forward pass."""
        own = [statistics for module, statistics in calls if module is at.module]
        if at.layer is None or not own or at.map != self.maps[0]:  # once for each layer
            return None
        return own[at.layer] if len(own) > at.layer and len(own) == len(calls) else own[-1]  # ALBERT shares a module

    def _triplet(self, J: LinearOperator, key: tuple[Any, ...], step: int) -> _Triplet:
        """Return the largest singular triplet, from the vectors of the last measurement."""
        draw = torch.randn(J.shape[1], generator=self._generator, dtype=torch.float64)
        draw = (draw / torch.linalg.vector_norm(draw)).to(J.device, J.dtype)
        previous, taken = self._directions.get(key), 0
        if previous is not None and previous.shape != draw.shape:
            self._say(
                "shape",
                f"expected batches of one shape, got another at step {step}; σ₁ starts from a random vector there, and "
                "constants at different lengths are not comparable: give the monitor a probe",
            )
            previous = None
        start = draw if previous is None else previous.to(draw) + _RANDOM_PART * draw
        with torch.no_grad():
            for steps in _ROUNDS:
                sigma, u, v = warm_triplet(J, start, steps)
                residual = float(torch.linalg.vector_norm(J.rmatvec(u) - sigma.to(v) * v))
                taken, start = taken + steps, v
                if residual <= self.tol * float(sigma):
                    break
        self._directions[key] = v
        return _Triplet(float(sigma), residual, v, taken)

    def _record(
        self,
        step: int,
        sample: int,
        sequence: Any,
        at: MapAt,
        J: LinearOperator,
        triplet: _Triplet,
        seconds: float,
        attention: AttentionStatistics | None,
    ) -> dict[str, Any]:
        n, model = at.x.shape[0], self._model
        norms = torch.linalg.vector_norm(at.x.double(), dim=-1)
        shares = triplet.v.double().reshape(n, -1).square().sum(-1)
        has_ids = isinstance(sequence, Tensor) and not sequence.is_floating_point()
        ids = sequence.tolist() if has_ids else None
        converged = triplet.residual <= self.tol * triplet.sigma
        return make_record(
            "measurement",
            {
                "model": model.name,
                "layer": at.layer,
                "head": None,
                "map": at.map,
                "n": n,
                "tokens": "all",
                "quantity": "lipschitz",
                "sample": sample,
                "training_step": step,
                "checkpoint": f"step {step}",
                "value": triplet.sigma,
                "lower": triplet.sigma * max(0.0, 1 - allowance(J)),
                "upper": None,
                "confidence": None,
                "residual": triplet.residual,
                "status": WARM_START if converged else LOWER_ONLY_STEP_LIMIT,
                "steps": triplet.steps,
                "radius": float(norms.max()),
                "mean_radius": float(norms.square().mean().sqrt()),
                "seconds": seconds,
                **({} if attention is None else attention._asdict()),
                "top_tokens": top_tokens(shares, lambda i: "" if ids is None else word(self.tokenizer, ids[i])),
                "shares": all_shares(shares) if has_ids else None,
                "inputs": "ids" if has_ids else model.modality,
                "text": self._probe.name,
                "text_sha256": digest(sequence),
                "weights": "in training",
                "source": dict(model.source),
                "dtype": str(J.dtype).removeprefix("torch."),
                "model_dtype": str(model.dtype).removeprefix("torch."),
                "device": str(model.device),
                "tol": self.tol,
                "seed": self._seed,
                "study": "training",
                "run": self._run,
                **self._provenance,
            },
        )


def check_options(every: Any, maps: Any) -> tuple[int, tuple[str, ...]]:
    """Return how often which maps are measured, checked."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InputError(f"Monitor: expected every as a whole number of steps from 1, got {every!r}; 50 is the default")
    names = (maps,) if isinstance(maps, str) else tuple(maps)
    known = [name for name in MAPS if name != "head"]
    if not names:
        raise InputError(f"Monitor: expected maps among {', '.join(known)}, got none; name one")
    return every, tuple(str(parse_map(name, known)) for name in names)


def _rank() -> int:
    """Return the rank of this process; 0 without torch.distributed."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
