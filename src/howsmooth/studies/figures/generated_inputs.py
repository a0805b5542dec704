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
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from howsmooth.attack.configurations import castin
from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import this_project
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.models.gpt2_file import AttentionFile
from howsmooth.models.identity import model_identity
from howsmooth.models.loading import cached_model
from howsmooth.models.map_types import MAP_VERSION
from howsmooth.models.model import Model
from howsmooth.models.released_scripts import adversarial_points, without_causal_mask
from howsmooth.questions.quantities import EvaluationPoint, compute_quantity
from howsmooth.questions.spec import ModelChoice, Spec, load_arguments
from howsmooth.records import make_record
from howsmooth.records.provenance import provenance
from howsmooth.spectral.solver import Solver
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
    ("scripts", "released-map"),
)
SYNTHETIC: tuple[Request, ...] = (("attention", "lipschitz"), ("attention", "released"))
BOUNDS: tuple[Request, ...] = (("this_project.upper", "bound"), ("this_project.two_point_lower", "bound"))

_cached_provenance = cache(provenance)


@dataclass(frozen=True, eq=False)
class LabelledModel:
    """A model, or a file of attention layers, with its name in records.

    Attributes:
        label: Name in records.
        name: The name that it was loaded by; None for a file.
        model: The model.
        identity: As `model_identity` returns it.
        directions: Layer and head -> the scripts' first token and the point of all others, for R = 1.
    """

    label: str
    name: str | None
    model: Model
    identity: dict[str, Any]
    directions: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def load(cls, spec: Spec, choice: ModelChoice, file: str | None = None) -> LabelledModel:
        """Load a model of a spec, or a file of attention layers in its place."""
        arguments = load_arguments(spec, choice)
        model = cached_model(arguments) if file is None else AttentionFile(file)
        return cls(choice.label, arguments["name"] if file is None else None, model, model_identity(model))

    def radius(self, layer: int) -> float:
        """Return the largest norm that the normalisation in front of a layer can return."""
        return radius_of(self.model.normalisation(layer))


@dataclass(frozen=True, eq=False)
class Job:
    """What is computed at one generated input, or on one ball.

    Attributes:
        of: The model.
        kind: "adversarial", "synthetic" or "bounds".
        requests: What is computed.
        layer: The layer.
        head: The head; None for the whole layer.
        n: Number of tokens.
        radius: Radius of the sphere or ball.
        text: The field `text` of records.
        solver: The options of a solve.
        sample: Number of the sample.
    """

    of: LabelledModel
    kind: str
    requests: tuple[Request, ...]
    layer: int
    head: int | None
    n: int
    radius: float
    text: str
    solver: Solver
    sample: int = 0

    @cached_property
    def tasks(self) -> dict[Request, str]:
        """The hash of the task of each request."""
        hashed = {
            "form": [JOB_HASH_VERSION, MAP_VERSION],
            "kind": self.kind,
            "model": self.of.identity,
            "name": self.of.name,
            "layer": self.layer,
            "head": self.head,
            "n": self.n,
            "sample": self.sample,
            "radius": self.radius,
            **({} if self.kind == "bounds" else asdict(self.solver)),
        }
        prefix = json.dumps(hashed, sort_keys=True)
        return {
            request: hashlib.sha256(f"{prefix}|{'|'.join(request)}".encode()).hexdigest()[:32]
            for request in self.requests
        }

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that all records of the job share."""
        source = dict(self.of.model.source)
        return {
            "model": self.of.label,
            "checkpoint": None,
            "text": self.text,
            "cutting": "made",
            "tokens": "all",
            "source": source,
            "weights": source.get("weights"),
            "special_tokens": "none",
            "tol": self.solver.tol,
            "device": "cpu",
            "model_dtype": "float32",
            **_cached_provenance(),
        }


def run_job(job: Job, done: Collection[str] = ()) -> Iterator[TaskResult]:
    """Yield the result of each task that is not done; an exception becomes the error of its task alone."""
    remaining = {request: task for request, task in job.tasks.items() if task not in done}
    attention = job.of.model.attention(job.layer, job.n) if remaining else None
    for (name, quantity), task in remaining.items():
        try:
            if quantity == "bound":
                values = _bound(attention, name, job)
            else:
                values = _measure(*_map_and_input(attention, name, job), quantity, job.solver)
        except Exception as error:
            message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            yield TaskResult(task, None, message)
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
            **job.fields,
        }
        yield TaskResult(task, make_record("ball bound" if quantity == "bound" else "measurement", record))


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
    (values,) = compute_quantity("released" if quantity == "released-map" else quantity, point)
    values.pop("direction_shares", None)
    return values


def _map_and_input(attention: Any, name: str, job: Job) -> tuple[Any, Tensor]:
    """Return the map of a request and its input (n, d), in float64."""
    f, family = attention.to(torch.float64), job.of.model.family
    if job.kind == "synthetic":
        return f, _synthetic_input(job.of.model, job)
    if name == "scripts":
        return _scripts_map(family, f), _scripts_input(f, job)
    if name.endswith(AT_SCRIPTS_INPUT):
        return f, _scripts_input(f, job)
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


def _scripts_input(f: SelfAttention, job: Job) -> Tensor:
    """Return the tokens (n, d) of the scripts; the eigenvector is computed once for all lengths."""
    if job.head is None:
        raise InputError("expected a head for the input of the scripts, got a whole layer; name a head")
    known, key = job.of.directions, (job.layer, job.head)
    if key not in known:
        known[key] = adversarial_points(job.of.model.family, f, job.head)
    first, others = known[key]
    return job.radius * torch.cat([first[None], others.expand(job.n - 1, -1)])
