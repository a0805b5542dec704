"""How large is the constant at tokens that are constructed, as the paper describes it and as its scripts compute it?

adversarial
:   The configuration of Theorem 1 for one head, on a sphere, with both signs of the eigenvector. The head alone and the
    whole layer are measured as described, and once more as the released scripts do: BERT's heads concatenated, without
    output projection or mask; for GPT-2 an input built from rows of a matrix whose heads are columns.

gaussian
:   Gaussian tokens in the layer's normalisation, at layer 0 of a file of GPT-2 with the learnt positions.

ball
:   Bounds for a layer or a head on a ball, at no tokens in particular.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

from pydantic import model_validator

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import Radius, option
from howsmooth.questions.measure import Measurement
from howsmooth.questions.question import Fields, Place, Question, Scope
from howsmooth.questions.spec import SOLVER_FIELDS, Lengths, ModelSpec, Samples
from howsmooth.records.schema import Count, ModelRecord

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.attention.heads import SelfAttention
    from howsmooth.models.model import Model
    from howsmooth.questions.inputs import Inputs
    from howsmooth.questions.work import Work
    from howsmooth.texts.corpora import Corpus

EMBEDDING_STD = 0.14  # assumed spread of token embeddings: a file of attention layers does not contain them
OTHER_SIGN, AT_SCRIPTS_INPUT = ", −u", ", scripts' input"  # of a map: where it is differentiated
# The maps and quantities of each construction, or the names of bounds.
SERIES: dict[str, tuple[tuple[str, str], ...]] = {
    "adversarial": (
        ("head", "lipschitz"),
        ("attention", "lipschitz"),
        (f"head{OTHER_SIGN}", "lipschitz"),
        (f"attention{OTHER_SIGN}", "lipschitz"),
        (f"attention{AT_SCRIPTS_INPUT}", "lipschitz"),
        ("attention", "released"),
        (f"attention{AT_SCRIPTS_INPUT}", "released-map"),
    ),
    "gaussian": (("attention", "lipschitz"), ("attention", "released")),
    "ball": (("this_project.upper", "bound"), ("this_project.two_point_lower", "bound")),
}


class ConfigurationSpec(ModelSpec):
    """Which layers or heads, at which constructed tokens, of which norm."""

    options: ClassVar[tuple[str, ...]] = (
        "construction",
        "radius",
        "lengths",
        "samples",
        "layers",
        "heads",
        *SOLVER_FIELDS,
    )

    question: str = "configuration"
    inputs: Literal["normalised"] = "normalised"  # no text is read
    lengths: Lengths = (8, 16, 32, 64)
    samples: Samples = 1
    construction: Annotated[
        Literal[*SERIES],  # type: ignore[valid-type]  # the keys of the table
        option(
            "The configuration of Theorem 1 for a head (by default head 0), Gaussian tokens, or no tokens: bounds on a "
            "ball."
        ),
    ] = "adversarial"
    radius: Radius = "norm"

    @model_validator(mode="after")
    def _check_construction(self) -> ConfigurationSpec:
        if self.radius == "data":
            raise ValueError("expected radius norm or a number, got data; constructed tokens have no data")
        if self.heads is not None and self.construction == "gaussian":
            raise ValueError("expected no heads for gaussian tokens, which enter a whole layer; leave them out")
        return self

    @property
    def label(self) -> str:
        """The field `text` of records."""
        return self.construction if self.radius == "norm" else f"{self.construction}, R = {self.radius:g}"


class BallBoundRecord(ModelRecord, kind="ball bound"):
    """One bound on a ball, for which no constant was measured; `map` is the bound."""

    is_supplementary = True

    sample: Count
    side: str | None
    value: float | None
    log_value: float | None
    R: float
    refused: str | None


def places(spec: ConfigurationSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each map and quantity of each layer and head; only Gaussian tokens have several samples."""
    samples = [sample for sample in scope.samples if sample == 0 or spec.construction == "gaussian"]
    for layer, head, sample in product(scope.layers, scope.heads, samples):
        at = {"layer": layer, "head": 0 if head is None and spec.construction == "adversarial" else head}
        for name, quantity in SERIES[spec.construction]:
            yield {**at, "sample": sample, "map": name, "quantity": quantity}


def inputs(model: Model, corpus: Corpus | None, spec: ConfigurationSpec) -> Inputs:
    """Return the lengths that tokens are constructed for, after checking that the model has a configuration."""
    from howsmooth.attack.configurations import castin
    from howsmooth.attention.heads import SelfAttention
    from howsmooth.questions.inputs import ConstructedInputs, chosen_heads, chosen_layers

    if spec.construction == "adversarial":
        for layer in chosen_layers(model, spec, spec.models[0].layers):
            f = model.attention(layer, max(spec.lengths))
            if not isinstance(f, SelfAttention):
                raise InputError(
                    f"expected a model whose attention is known by its weights, got {spec.models[0].label}"
                )
            for head in chosen_heads(model, spec):
                castin(f, 2, _radius(model, spec, layer), head=head or 0, sign=1)
    return ConstructedInputs(model, spec.label)


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute one quantity of one map, or one bound."""
    import torch

    from howsmooth.questions.quantities import EvaluationPoint, compute_quantity

    place = places[0]
    at, f, R = place.at, work.attention(place.at["layer"]), _radius(work.model, work.spec, place.at["layer"])
    if at["quantity"] == "bound":
        values = {"kind": BallBoundRecord.kind_name, **_bound(f, at, work.n, R)}
    else:
        g, x = _map_and_tokens(work, f.to(torch.float64), at, R)
        quantity = "released" if at["quantity"] == "released-map" else at["quantity"]
        (values,) = compute_quantity(quantity, EvaluationPoint(g, x, None, None, None, None, work.solver))
        values.pop("direction_shares", None)
    described = {**work.sample_fields(at), "map": at["map"], "quantity": at["quantity"], "R": R}
    yield place, {"model": work.fields["model"], **described, **values, **work.fields, "task": place.key}


def _radius(model: Model, spec: ConfigurationSpec, layer: int) -> float:
    """Return the radius of the sphere or ball; "norm" is the largest norm that the normalisation in front returns."""
    from howsmooth.bounds.normalisation import radius

    return radius(model.normalisation(layer)) if isinstance(spec.radius, str) else spec.radius


def _bound(f: Any, at: dict[str, Any], n: int, R: float) -> Fields:
    from howsmooth.bounds import this_project
    from howsmooth.bounds.bound import Refused
    from howsmooth.bounds.form import LayerForm

    try:
        form = LayerForm(f if at["head"] is None else f.head(at["head"]))
        found = getattr(this_project, at["map"].removeprefix("this_project."))(form, n, R)
    except InputError as error:  # also where the attention is not a `SelfAttention`: there is no bound
        refused = str(error) if isinstance(error, Refused) else f"{at['map']}: {error}"
        return {"value": None, "log_value": None, "side": None, "refused": refused, "status": "refused"}
    return {"value": found.value, "log_value": found.log_value, "side": found.side, "refused": None, "status": "bound"}


def _map_and_tokens(work: Work, f: SelfAttention, at: dict[str, Any], R: float) -> tuple[Any, Tensor]:
    """Return the map of a place and the tokens (n, d) that it is differentiated at, in float64."""
    import torch

    from howsmooth.attack.configurations import castin
    from howsmooth.models.released_scripts import adversarial_map, adversarial_points

    if work.spec.construction == "gaussian":
        return f, _gaussian_tokens(work, at)
    name, head = at["map"], at["head"]
    if name.endswith(AT_SCRIPTS_INPUT):
        known, key, family = _script_points.setdefault(work.model, {}), (at["layer"], head), work.model.family
        if key not in known:
            known[key] = adversarial_points(family, f, head)
        first, others = known[key]
        x = R * torch.cat([first[None], others.expand(work.n - 1, -1)])
        return (adversarial_map(family, f) if at["quantity"] == "released-map" else f), x
    tokens = castin(f, work.n, R, head=head, sign=-1 if name.endswith(OTHER_SIGN) else 1).tokens
    return (f.head(head) if name.startswith("head") else f), tokens


# Of each model, by layer and head: the scripts' first token and the point of all others, for R = 1 and any length.
_script_points: WeakKeyDictionary[Model, dict[tuple[int, int], tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def _gaussian_tokens(work: Work, at: dict[str, Any]) -> Tensor:
    import torch

    from howsmooth.models.gpt2_file import AttentionFile

    norm = work.model.normalisation(at["layer"]).converted(dtype=torch.float64)
    generator = torch.Generator().manual_seed(work.spec.seed * 100_003 + at["sample"])
    x = torch.randn(work.n, norm.d, dtype=torch.float64, generator=generator)
    if at["layer"] == 0 and isinstance(work.model, AttentionFile):
        x = EMBEDDING_STD * x + work.model.learnt_positions(work.n).double()
    return norm(x)


QUESTION = Question(
    spec=ConfigurationSpec,
    records=(Measurement, BallBoundRecord),
    answer=answer,
    tables=deferred("howsmooth.report.reproduction:configuration_tables"),
    charts=deferred("howsmooth.report.reproduction:configuration_picture"),
    plots="growth with length",
    about="Measure attention at the configuration behind the paper's lower bound, or at Gaussian tokens, as described "
    "in the paper and as its released scripts compute it; or bound it on a ball.",
    noun="value",
    places=places,
    together=("layer", "head", "sample", "map", "quantity"),
    inputs=inputs,
    needs_weights=True,
)
