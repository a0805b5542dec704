"""The jobs of a figure that read no text: measurements at generated inputs, and bounds.

adversarial
:   The configuration of Theorem 1 for one head, on the sphere of a radius. The head alone and the whole layer are
    measured as described, and once more as the released scripts do: BERT's heads concatenated, without output
    projection or mask; for GPT-2 an input built from rows of a matrix whose heads are columns.

synthetic
:   Gaussian tokens in the layer's normalisation, at layer 0 with the learnt positions if they are known.

bounds
:   Bounds for a layer or a head on a ball.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from howsmooth.attack.configurations import castin
from howsmooth.attention import SelfAttention
from howsmooth.bounds import LayerForm, Refused, this_project
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.models import AttentionFile, Model, load
from howsmooth.models.identity import model_identity
from howsmooth.models.map_types import MAP_VERSION
from howsmooth.models.released_scripts import adversarial_points, without_causal_mask
from howsmooth.questions.quantities import EvaluationPoint, compute_quantity
from howsmooth.questions.spec import EngineSpec
from howsmooth.records import make_record
from howsmooth.records.provenance import provenance
from howsmooth.spectral import Solver
from howsmooth.studies.worker import TaskResult

JOB_HASH_VERSION = 1  # part of every hash: raise it when the same job gives another number
EMBEDDING_STD = 0.14  # assumed spread of token embeddings: a file of attention layers does not contain them

Request = tuple[str, str]  # (map, quantity) of a measurement, or (name, "bound") of a bound
OTHER_SIGN, AT_SCRIPTS_INPUT = ", −u", ", scripts' input"  # of a map: where it is differentiated
ADVERSARIAL: tuple[Request, ...] = (
    ("head", "lipschitz"),
    ("attention", "lipschitz"),
    (f"head{OTHER_SIGN}", "lipschitz"),
    (f"attention{OTHER_SIGN}", "lipschitz"),
    (f"attention{AT_SCRIPTS_INPUT}", "lipschitz"),
    ("attention", "released"),
    ("scripts", "scripts"),
)
SYNTHETIC: tuple[Request, ...] = (("attention", "lipschitz"), ("attention", "released"))
BOUNDS: tuple[Request, ...] = (("this_project.upper", "bound"), ("this_project.two_point_lower", "bound"))

_cached_provenance = cache(provenance)


@dataclass(frozen=True)
class Job:
    """What is computed at one generated input, or on one ball. It is a bundle for the engines.

    Attributes:
        kind: "adversarial", "synthetic" or "bounds".
        source: Keyword arguments of `howsmooth.load`, or {"file": path}.
        layer: The layer.
        head: The head; None for the whole layer.
        n: Number of tokens.
        sample: Number of the sample.
        radius: Radius of the sphere or ball.
        solver: The options of a solve.
        shared_fields: Fields that all records of the job share.
        requests: What is computed -> hash of its task.
        seconds: Estimated time.
    """

    kind: str
    source: dict[str, Any]
    layer: int
    head: int | None
    n: int
    sample: int
    radius: float
    solver: Solver
    shared_fields: dict[str, Any]
    requests: dict[Request, str]
    seconds: float = 1.0

    @property
    def tasks(self) -> list[str]:
        """Hashes of all tasks."""
        return list(self.requests.values())

    def without(self, done: set[str]) -> Job | None:
        """Return a copy without the tasks in `done`, or None if no task remains."""
        remaining = {request: task for request, task in self.requests.items() if task not in done}
        return replace(self, requests=remaining) if remaining else None


@dataclass(frozen=True)
class JobPlan:
    """Jobs as a plan for `run_study`. They run in this process: they are small, and the model is loaded already.

    Attributes:
        figure: Name of the figure.
        jobs: The jobs.
    """

    figure: str
    jobs: tuple[Job, ...]

    @property
    def description(self) -> dict[str, Any]:
        """What the store keeps as the study."""
        return {"made": self.figure}

    @property
    def engine(self) -> EngineSpec:
        """The engine: this process."""
        return EngineSpec(workers=0)

    @property
    def work(self) -> Callable[[Job], Iterator[list[TaskResult]]]:
        """The function that computes the results of a job."""
        return run_job

    def workers_and_threads(self) -> tuple[int, int]:
        """Return no worker processes, and one thread."""
        return 0, 1

    def tasks(self) -> Iterator[str]:
        """Yield the hashes of all tasks."""
        return (task for job in self.jobs for task in job.tasks)

    def bundles(self, done: Callable[[list[str]], set[str]] = lambda tasks: set()) -> Iterator[Job]:
        """Yield the jobs without finished tasks."""
        for job in self.jobs:
            remaining = job.without(done(job.tasks))
            if remaining is not None:
                yield remaining


@dataclass(frozen=True, eq=False)
class LabelledModel:
    """A model, or a file of attention layers, with its name in records.

    Attributes:
        label: Name in records.
        source: Keyword arguments of `howsmooth.load`, or {"file": path}.
        model: The model.
        identity: As `model_identity` returns it.
    """

    label: str
    source: dict[str, Any]
    model: Model
    identity: dict[str, Any] = field(default_factory=dict)

    def radius(self, layer: int) -> float:
        """Return the largest norm that the normalisation in front of a layer can return."""
        return radius_of(self.model.normalisation(layer))


def load_labelled(label: str, source: dict[str, Any]) -> LabelledModel:
    """Load a model, or take it from the cache if it is the last one that was loaded.

    Args:
        label: Name in records.
        source: Keyword arguments of `howsmooth.load`, or {"file": path}.
    """
    model = _load_cached(source)
    return LabelledModel(label, source, model, model_identity(model))


def make_job(
    labelled: LabelledModel,
    kind: str,
    requests: tuple[Request, ...],
    *,
    layer: int,
    head: int | None,
    n: int,
    sample: int = 0,
    radius: float,
    text: str,
    solver: Solver,
) -> Job:
    """Return a job with the hashes of its tasks.

    Args:
        labelled: The model.
        kind: "adversarial", "synthetic" or "bounds".
        requests: What is computed.
        layer: The layer.
        head: The head; None for the whole layer.
        n: Number of tokens.
        sample: Number of the sample.
        radius: Radius of the sphere or ball.
        text: The field `text` of records.
        solver: The options of a solve.
    """
    hashed = {
        "form": [JOB_HASH_VERSION, MAP_VERSION],
        "kind": kind,
        "model": labelled.identity,
        "name": labelled.source.get("name"),
        "layer": layer,
        "head": head,
        "n": n,
        "sample": sample,
        "radius": radius,
        **({} if kind == "bounds" else asdict(solver)),
    }
    prefix = json.dumps(hashed, sort_keys=True)
    tasks = {request: hashlib.sha256(f"{prefix}|{'|'.join(request)}".encode()).hexdigest()[:32] for request in requests}
    shared_fields = {
        "model": labelled.label,
        "checkpoint": None,
        "text": text,
        "cutting": "made",
        "tokens": "all",
        "source": dict(labelled.model.source),
        "weights": labelled.model.source.get("weights"),
        "special_tokens": "none",
        "tol": solver.tol,
        "device": "cpu",
        "model_dtype": "float32",
        **_cached_provenance(),
    }
    return Job(kind, labelled.source, layer, head, n, sample, radius, solver, shared_fields, tasks)


def run_job(job: Job) -> Iterator[list[TaskResult]]:
    """Yield the result of each task of a job; an exception becomes the error of its task alone."""
    model = _load_cached(job.source)
    attention = model.attention(job.layer, job.n)
    for request, task in job.requests.items():
        name, quantity = request
        try:
            if quantity == "bound":
                values = _bound(attention, name, job)
            else:
                values = _measure(*_map_and_input(model, attention, name, job), quantity, job.solver)
        except Exception as error:
            message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            yield [TaskResult(task, None, message)]
            continue
        record = {
            "task": task,
            "layer": job.layer,
            "head": job.head,
            "map": name,
            "n": job.n,
            "quantity": quantity,
            "sample": job.sample,
            "R": job.radius,
            **values,
            **job.shared_fields,
        }
        yield [TaskResult(task, make_record("ball bound" if quantity == "bound" else "measurement", record))]


def _bound(attention: Any, name: str, job: Job) -> dict[str, Any]:
    try:
        form = LayerForm(attention if job.head is None else attention.head(job.head))
        found = getattr(this_project, name.removeprefix("this_project."))(form, job.n, job.radius)
    except Refused as refusal:
        return {"value": None, "log_value": None, "side": None, "refused": str(refusal), "status": "refused"}
    except InputError as error:  # the attention is not a `SelfAttention`: there is no bound
        return {"value": None, "log_value": None, "side": None, "refused": f"{name}: {error}", "status": "refused"}
    return {"value": found.value, "log_value": found.log_value, "side": found.side, "refused": None, "status": "bound"}


def _measure(f: Any, x: Tensor, quantity: str, solver: Solver) -> dict[str, Any]:
    point = EvaluationPoint(f, x, None, None, None, None, solver)
    (values,) = compute_quantity("released" if quantity == "scripts" else quantity, point)
    values.pop("direction_shares", None)
    return values


def _map_and_input(model: Model, attention: Any, name: str, job: Job) -> tuple[Any, Tensor]:
    """Return the map of a request and its input (n, d), in float64."""
    f = attention.to(torch.float64)
    if job.kind == "synthetic":
        return f, _synthetic_input(model, job)
    if name == "scripts":
        return _scripts_map(model.family, f), _scripts_input(model.family, f, job)
    if name.endswith(AT_SCRIPTS_INPUT):
        return f, _scripts_input(model.family, f, job)
    sign = -1 if name.endswith(OTHER_SIGN) else 1
    tokens = castin(f, job.n, job.radius, head=job.head, sign=sign).tokens
    return (f.head(job.head) if name.startswith("head") else f), tokens


def _synthetic_input(model: Model, job: Job) -> Tensor:
    norm = model.normalisation(job.layer).converted(dtype=torch.float64)
    assert isinstance(job.solver.seed, int)
    generator = torch.Generator().manual_seed(job.solver.seed * 100_003 + job.sample)
    x = torch.randn(job.n, norm.d, dtype=torch.float64, generator=generator)
    if job.layer == 0 and isinstance(model, AttentionFile):
        x = EMBEDDING_STD * x + model.learnt_positions(job.n).double()
    return norm(x)


def _scripts_map(family: str, f: SelfAttention) -> SelfAttention:
    """Return the map that the scripts differentiate: of BERT `attention.self`, without a mask even as a decoder."""
    if family != "bert":
        return f
    return without_causal_mask(SelfAttention(f.wq, f.wk, f.wv, bq=f.bq, bk=f.bk, bv=f.bv, heads=f.heads, scale=f.scale))


def _scripts_input(family: str, f: SelfAttention, job: Job) -> Tensor:
    """Return the tokens (n, d) of the scripts; the eigenvector is computed once for all lengths."""
    key = repr((sorted(job.source.items()), job.layer, job.head))
    if key not in _directions:
        if job.head is None:
            raise InputError("expected a head for the input of the scripts, got a whole layer; name a head")
        _directions[key] = adversarial_points(family, f, job.head)
    first, others = _directions[key]
    return job.radius * torch.cat([first[None], others.expand(job.n - 1, -1)])


_model_cache: dict[str, Model] = {}  # source -> model; at most one entry
_directions: dict[str, tuple[Tensor, Tensor]] = {}  # source, layer and head -> first token and the others, R = 1


def _load_cached(source: dict[str, Any]) -> Model:
    key = repr(sorted(source.items()))
    if key not in _model_cache:
        _model_cache.clear()
        _model_cache[key] = AttentionFile(source["file"]) if "file" in source else load(**source)
    return _model_cache[key]
