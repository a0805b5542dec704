"""Work of a figure that reads no text: inputs made for a layer, and the bounds that hold there.

adversarial   the configuration of Theorem 1 for one head, on the sphere of a radius: the head alone and the whole
              layer as described, and what the released scripts measure: BERT's heads side by side without output
              projection or mask; for GPT-2 an input made from rows of a matrix whose heads are its columns
synthetic     Gaussian tokens, at layer 0 with the learnt positions if they are known, through the layer's norm
bounds        of a layer or a head on a ball
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.attack.configurations import castin
from howsmooth.attention import SelfAttention
from howsmooth.bounds import LayerForm, Refused, this_project
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.models import AttentionFile, Model, load
from howsmooth.models.released import without_mask
from howsmooth.records import stamped
from howsmooth.studies.provenance import provenance
from howsmooth.studies.quantities import At, compute
from howsmooth.studies.spec import EngineSpec
from howsmooth.studies.worker import Row, identity_of

JOB_FORM = 1  # part of every hash: raise it when the same job comes to mean another number
EMBEDDING = 0.14  # spread of token embeddings beside the positions: assumed, a file of attention does not hold them
ADVERSARIAL = (("head", "lipschitz"), ("attention", "lipschitz"), ("attention", "released"), ("scripts", "scripts"))
SYNTHETIC = (("attention", "lipschitz"), ("attention", "released"))
_provenance = cache(provenance)
BOUNDS = (("this_project.upper", "bound"), ("this_project.two_point_lower", "bound"))


@dataclass(frozen=True)
class Job:
    """One made input, or one ball, and what is asked there: (map or bound, quantity) → task."""

    kind: str
    source: dict[str, Any]  # arguments of `load`, or {"file": path}
    layer: int
    head: int | None
    n: int
    sample: int
    radius: float
    solver: dict[str, Any]
    facts: dict[str, Any]
    asked: dict[tuple[str, str], str]
    cost: float = 1.0

    @property
    def tasks(self) -> list[str]:
        return list(self.asked.values())

    def without(self, done: set[str]) -> Job | None:
        left = {what: task for what, task in self.asked.items() if task not in done}
        return replace(self, asked=left) if left else None


@dataclass(frozen=True)
class Jobs:
    """Jobs as something that `run_study` runs, in this process: they are small, and models are loaded already."""

    label: str
    jobs: tuple[Job, ...]

    @property
    def spec(self) -> Jobs:
        return self

    @property
    def engine(self) -> EngineSpec:
        return EngineSpec(workers=0)

    def model_dump(self, mode: str = "json") -> dict[str, Any]:
        return {"made": self.label}

    def split(self) -> tuple[int, int]:
        return 0, 1

    def tasks(self) -> Iterator[str]:
        return (task for job in self.jobs for task in job.tasks)

    def bundles(self, done: Callable[[list[str]], set[str]] = lambda tasks: set()) -> Iterator[Job]:
        for job in self.jobs:
            left = job.without(done(job.tasks))
            if left is not None:
                yield left

    @staticmethod
    def work(job: Job) -> Iterator[list[Row]]:
        return run_job(job)


@dataclass(frozen=True, eq=False)
class Weights:
    """A model, or a file of attention layers, with what its records say."""

    label: str
    source: dict[str, Any]
    model: Model
    identity: dict[str, Any] = field(default_factory=dict)

    def radius(self, layer: int) -> float:
        return radius_of(self.model.normalisation(layer))


def weights_of(label: str, source: dict[str, Any]) -> Weights:
    model = _weights(source)
    return Weights(label, source, model, identity_of(model))


def job(
    weights: Weights,
    kind: str,
    what: tuple,
    *,
    layer: int,
    head: int | None,
    n: int,
    sample: int = 0,
    radius: float,
    text: str,
    solver: dict[str, Any],
) -> Job:
    decided = {
        "form": JOB_FORM,
        "kind": kind,
        "model": weights.identity,
        "name": weights.source.get("name"),
        "layer": layer,
        "head": head,
        "n": n,
        "sample": sample,
        "radius": radius,
        **({} if kind == "bounds" else solver),
    }
    resolved = json.dumps(decided, sort_keys=True)
    asked = {item: hashlib.sha256(f"{resolved}|{'|'.join(item)}".encode()).hexdigest()[:32] for item in what}
    facts = {
        "model": weights.label,
        "checkpoint": None,
        "text": text,
        "cutting": "made",
        "tokens": "all",
        "source": dict(weights.model.source),
        "weights": weights.model.source.get("weights"),
        "special_tokens": "none",
        "tol": solver["tol"],
        "device": "cpu",
        "model_dtype": "float32",
        **_provenance(),
    }
    return Job(kind, weights.source, layer, head, n, sample, radius, solver, facts, asked)


def run_job(job: Job) -> Iterator[list[Row]]:
    """The rows of a job, each as soon as it is known."""
    model = _weights(job.source)
    f = model.attention(job.layer, job.n)
    for (what, quantity), task in job.asked.items():
        try:
            if quantity == "bound":
                numbers = _bound(f, what, job)
            else:
                g, x = _at(model, f, what, job)
                numbers = _measured(g, x, quantity, job.solver)
        except Exception as error:  # the other rows go on
            yield [Row(task, None, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")]
            continue
        yield [
            Row(
                task,
                stamped(
                    "ball bound" if quantity == "bound" else "measurement",
                    {
                        "task": task,
                        "layer": job.layer,
                        "head": job.head,
                        "map": what,
                        "n": job.n,
                        "quantity": quantity,
                        "sample": job.sample,
                        "R": job.radius,
                        **numbers,
                        **job.facts,
                    },
                ),
            )
        ]


def _bound(f: SelfAttention, name: str, job: Job) -> dict[str, Any]:
    try:
        form = LayerForm(f if job.head is None else f.head(job.head))
        found = getattr(this_project, name.removeprefix("this_project."))(form, job.n, job.radius)
    except Refused as refusal:
        return {"value": None, "log_value": None, "side": None, "refused": str(refusal), "status": "refused"}
    except InputError as error:  # no formula, no bound
        return {"value": None, "log_value": None, "side": None, "refused": f"{name}: {error}", "status": "refused"}
    return {"value": found.value, "log_value": found.log_value, "side": found.side, "refused": None, "status": "bound"}


def _at(model, f: SelfAttention, what: str, job: Job) -> tuple[SelfAttention, Tensor]:
    """The map and the input, in float64."""
    f = f.converted(dtype=torch.float64)
    if job.kind == "synthetic":
        return f, _synthetic(model, job)
    if what == "scripts":
        return _scripts_map(model.family, f), _scripts_input(model.family, f, job)
    return (f.head(job.head) if what == "head" else f), castin(f, job.n, job.radius, head=job.head).tokens


def _synthetic(model, job: Job) -> Tensor:
    norm = model.normalisation(job.layer).converted(dtype=torch.float64)
    generator = torch.Generator().manual_seed(job.solver["seed"] * 100_003 + job.sample)
    x = torch.randn(job.n, norm.d, dtype=torch.float64, generator=generator)
    if job.layer == 0 and hasattr(model, "learnt_positions"):
        x = EMBEDDING * x + model.learnt_positions(job.n).double()
    return norm(x)


def _scripts_map(family: str, f: SelfAttention) -> SelfAttention:
    """BERT: `attention.self`, heads side by side, no mask even as a decoder. GPT-2: attention."""
    if family != "bert":
        return f
    return without_mask(SelfAttention(f.wq, f.wk, f.wv, bq=f.bq, bk=f.bk, bv=f.bv, heads=f.heads, scale=f.scale))


def _scripts_input(family: str, f: SelfAttention, job: Job) -> Tensor:
    """(−Ru, Ru, …) or (Ru, Ru/2, …), u as NumPy has it; with a query bias its free sign matters."""
    key = repr((sorted(job.source.items()), job.layer, job.head))
    if key not in _directions:
        rows = slice(job.head * (f.wq.shape[0] // f.heads), (job.head + 1) * (f.wq.shape[0] // f.heads))
        wq, wk = (f.wq.T, f.wk.T) if family == "gpt2" else (f.wq, f.wk)  # GPT-2: as if Conv1D were Linear
        values, vectors = np.linalg.eig((f.scale * wk[rows].T.float() @ wq[rows].float()).numpy())
        real = np.isreal(values)
        values, vectors = values[real].real, torch.from_numpy(vectors[:, real].real).double()
        greatest = values.max() > -8 * values.min()
        u = vectors[:, values.argmax() if greatest else values.argmin()]
        _directions[key] = (u, u / 2) if greatest else (-u, u)
    first, others = _directions[key]
    return job.radius * torch.cat([first[None], others.expand(job.n - 1, -1)])


def _measured(f: SelfAttention, x: Tensor, quantity: str, solver: dict[str, Any]) -> dict[str, Any]:
    (numbers,) = compute("released" if quantity == "scripts" else quantity, At(f, x, None, None, None, None, solver))
    numbers.pop("direction_shares", None)
    return numbers


_kept: dict[str, Any] = {}  # of this process: the last weights used
_directions: dict[str, tuple[Tensor, Tensor]] = {}


def _weights(source: dict[str, Any]) -> Model:
    key = repr(sorted(source.items()))
    if key not in _kept:
        _kept.clear()
        _kept[key] = AttentionFile(source["file"]) if "file" in source else load(**source)
    return _kept[key]
