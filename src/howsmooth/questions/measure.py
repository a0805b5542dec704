"""How smooth is attention, in this model, on this text, at this length? ‖D_X f‖₂ with a certified interval."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import split_at_commas
from howsmooth.questions.question import Fields, Place, Question, Scope
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, ModelSpec
from howsmooth.records.schema import Count, ModelRecord, Part, TokenShare

if TYPE_CHECKING:
    from howsmooth.questions.work import Work


@dataclass(frozen=True)
class Quantity:
    """A number that is measured for every map and sample.

    Attributes:
        symbol: Its symbol in tables.
        about: A short description.
        function: "module:name" of the function that computes it from an `EvaluationPoint`.
        certified: Whether it has an interval with a confidence.
        every_token: Whether it is defined only for perturbations of all tokens.
        maps: The maps that it is defined for; None for all.
        count: (default, least, most) of the number that may follow its name after a colon; None if none may.
        longest: Largest number of tokens.
    """

    symbol: str
    about: str
    function: str
    certified: bool = False
    every_token: bool = False
    maps: tuple[str, ...] | None = None
    count: tuple[int, int, int] | None = None
    longest: int | None = None


_SPECTRA = "howsmooth.questions.spectra:"

# The only list of quantities: records, tables, charts, pages and the command line use it.
QUANTITIES = {
    "lipschitz": Quantity(
        "Lip", "‖D_X f‖₂ with a certified interval", "howsmooth.questions.quantities:lipschitz", certified=True
    ),
    "released": Quantity(
        "√‖Jᵀf‖",
        "what the paper's scripts return, at the described map",
        "howsmooth.questions.quantities:released",
        every_token=True,
    ),
    "released-map": Quantity(
        "√‖Jᵀf‖",
        "the same for the scripts' own map",
        "howsmooth.questions.quantities:released_map",
        every_token=True,
        maps=("attention",),
    ),
    "spectrum": Quantity(
        "σ₁", "the K largest singular values", f"{_SPECTRA}spectrum", certified=True, count=(16, 1, 64)
    ),
    "density": Quantity(
        "#{σ > σ₁/10}",
        "how many singular values exceed each threshold, from K random starts",
        f"{_SPECTRA}density",
        certified=True,
        every_token=True,
        count=(4, 1, 64),
    ),
    "frobenius": Quantity("‖J‖_F", "the Frobenius norm", f"{_SPECTRA}frobenius", certified=True, every_token=True),
    "effective-rank": Quantity(
        "‖J‖_F²/‖J‖₂²", "the effective rank", f"{_SPECTRA}effective_rank", certified=True, every_token=True
    ),
    "rms": Quantity(
        "‖J‖_RMS", "the norm for the root mean square on both sides", f"{_SPECTRA}rms", certified=True, every_token=True
    ),
    "token-norm": Quantity(
        "‖J‖_token",
        "two sides of the norm for the largest token on both sides",
        f"{_SPECTRA}token_norm",
        every_token=True,
        longest=512,
    ),
    "gains": Quantity(
        "max‖J_ij‖",
        "‖J_ij‖₂ of every pair of tokens",
        f"{_SPECTRA}gains",
        every_token=True,
        longest=512,  # a record contains n² gains
    ),
    "eigenvalues": Quantity(
        "|λ₁|", "the K eigenvalues of largest modulus", f"{_SPECTRA}eigenvalues", every_token=True, count=(6, 1, 64)
    ),
}


def parse_quantity(text: str) -> tuple[str, int | None]:
    """Return the name of a quantity and its number: "spectrum:64", or "spectrum" with the default.

    Raises:
        InputError: There is no such quantity, or it takes no such number.

    Example:
        >>> parse_quantity("lipschitz"), parse_quantity("spectrum"), parse_quantity("spectrum:64")
        (('lipschitz', None), ('spectrum', 16), ('spectrum', 64))
    """
    name, colon, number = text.partition(":")
    if name not in QUANTITIES:
        near = difflib.get_close_matches(name, QUANTITIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"expected a quantity among {', '.join(QUANTITIES)}, got {text[:60]!r}{hint}")
    count = QUANTITIES[name].count
    if not colon:
        return name, None if count is None else count[0]
    if count is None:
        raise InputError(f"expected {name} without a number, got {text[:60]!r}")
    if not (number.isascii() and number.isdigit() and len(number) < 10 and count[1] <= int(number) <= count[2]):
        raise InputError(f"expected {name}:K with K from {count[1]} to {count[2]}, got {text[:60]!r}")
    return name, int(number)


def quantity_of(text: str) -> Quantity:
    """Return the entry of a quantity in `QUANTITIES`, by its name with or without a number."""
    return QUANTITIES[parse_quantity(text)[0]]


def _check_quantity(text: str) -> str:
    name, count = parse_quantity(text)
    return name if count is None else f"{name}:{count}"


class MeasureSpec(ModelSpec):
    """Everything that decides what is measured. The fields are the keyword arguments of `howsmooth.measure`.

    Example:
        >>> spec = MeasureSpec(models=["minilm"], lengths="16..64*2", heads=[0, 3])
        >>> spec.lengths, spec.map_name, spec.tol
        ((16, 32, 64), 'head', 0.001)
    """

    options: ClassVar[tuple[str, ...]] = (
        "inputs",
        "images",
        "audio",
        *CHUNK_FIELDS,
        "cutting",
        "map",
        "layers",
        "heads",
        "tokens",
        "quantities",
        *SOLVER_FIELDS,
        "max_memory",
        "product_dtype",
        "stop",
        "max_steps",
        "simultaneous",
    )
    takes_any_map: ClassVar[bool] = True
    varied: ClassVar[tuple[str, ...]] = ("tokens", "quantities")
    unhashed: ClassVar[tuple[str, ...]] = (*ModelSpec.unhashed, "simultaneous", "confidence")  # of the solver instead

    question: str = "measure"
    quantities: Annotated[
        tuple[Annotated[str, AfterValidator(_check_quantity)], ...],
        BeforeValidator(split_at_commas),
        Field(
            min_length=1,
            description="What is computed: "
            + ", ".join(
                f"{name}{':K' if quantity.count else ''} ({quantity.about})" for name, quantity in QUANTITIES.items()
            )
            + ".",
            json_schema_extra={"metavar": "NAME,…"},
        ),
    ] = ("lipschitz",)
    simultaneous: Annotated[bool, Field(description="The confidence is for all intervals together.")] = False

    @model_validator(mode="after")
    def _check_quantities(self) -> MeasureSpec:
        for name in self.quantities:
            quantity = quantity_of(name)
            if quantity.every_token and "all" not in self.tokens:
                raise ValueError(f'expected "all" among tokens for the quantity {name}, which moves every token')
            if quantity.longest is not None and max(self.lengths) > quantity.longest:
                raise ValueError(
                    f"expected lengths up to {quantity.longest} for the quantity {name}, got {max(self.lengths)}"
                )
            if quantity.maps is not None and self.map_name not in quantity.maps:
                raise ValueError(f'expected map = "{quantity.maps[0]}" for the quantity {name}, got "{self.map_name}"')
        return self

    @property
    def variants(self) -> list[tuple[str, str]]:
        """Combinations of (tokens, quantity); some quantities are defined for tokens = "all" alone."""
        return [
            (tokens, quantity)
            for tokens, quantity in product(self.tokens, self.quantities)
            if tokens == "all" or not quantity_of(quantity).every_token
        ]


class SpectralValue(Part):
    """One of the largest singular values, with its interval."""

    value: float
    lower: float
    upper: float | None


class ThresholdCount(Part):
    """How many singular values exceed a threshold, with an interval."""

    threshold: float
    value: float
    lower: Count
    upper: Count


class EigenvalueAt(Part):
    """An eigenvalue and the residual of its vector."""

    real: float
    imaginary: float
    residual: float


class Measurement(ModelRecord, kind="measurement"):
    """One estimate of `‖D_X f‖₂`, or of another quantity, at one chunk of text."""

    sample: Count
    value: float | None
    lower: float | None
    upper: float | None
    residual: float | None = None
    steps: Count | None = None
    radius: float | None = None
    mean_radius: float | None = None
    relative: float | None = None
    seconds: float | None = None
    top_tokens: list[TokenShare] = []
    shares: list[float] | None = None
    words: list[str] | None = None
    notes: list[str] | None = None
    certificate: str | None = None  # what the interval is, of other quantities than the constant
    spectrum: list[SpectralValue] | None = None
    counts: list[ThresholdCount] | None = None
    gains: list[list[float]] | None = None
    eigenvalues: list[EigenvalueAt] | None = None
    training_step: Count | None = None  # of a monitor, as are the statistics of attention
    largest_logit: float | None = None
    entropy: float | None = None
    sink_share: float | None = None
    sink_position: Count | None = None


def places(spec: MeasureSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each layer, head, choice of tokens and quantity at each sample."""
    for layer, head, (tokens, quantity) in product(scope.layers, scope.heads, spec.variants):
        for sample in scope.samples:
            yield {"layer": layer, "head": head, "tokens": tokens, "quantity": quantity, "sample": sample}


_GROUP = ("layer", "head", "tokens", "quantity")


def batches(work: Work) -> Iterable[list[Place]]:
    """Return the places in groups of one quantity of one map, for samples that can be solved together."""
    from howsmooth.questions.work import grouped

    return grouped(work.bundle.places, _GROUP if _can_batch(work) else (*_GROUP, "sample"))


def _can_batch(work: Work) -> bool:
    """Whether several samples can be solved in one call: attention or a head by its weights, on token ids."""
    from howsmooth.attention.heads import SelfAttention

    if work.samples.token_ids is None or not work.spec.is_attention:
        return False
    try:
        return isinstance(work.model.attention(work.layers[0], work.n), SelfAttention)
    except InputError:
        return False


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute one quantity of one map at some samples, in one call of the solver."""
    import torch

    from howsmooth.questions.inputs import perturbed_mask
    from howsmooth.questions.quantities import EvaluationPoint, all_shares, compute_quantity, top_tokens

    at = places[0].at
    numbers = [place.at["sample"] for place in places]
    if _can_batch(work):
        f, x = work.attention(at["layer"], at["head"]), work.batch(at["layer"], numbers)
    else:
        f, x = work.map_and_tokens(at)
    perturbed = perturbed_mask(torch.stack([work.special(sample) for sample in numbers]), at["tokens"])
    if perturbed is not None:
        same_for_all = x.ndim == 2 or bool((perturbed == perturbed[:1]).all())
        perturbed = (perturbed[0] if same_for_all else perturbed).to(x.device)
    has_ids = work.samples.token_ids is not None
    ids = torch.stack([ids for sample in numbers if (ids := work.token_ids(sample)) is not None]) if has_ids else None
    point = EvaluationPoint(f, x, work.model, at["layer"], ids, perturbed, work.solver)
    values_by_sample = compute_quantity(at["quantity"], point)
    mean_norms = torch.linalg.vector_norm(x.double(), dim=-1).mean(-1).reshape(-1).tolist()
    has_words = has_ids and all(at[name] == work.bundle.first[name] for name in _GROUP)
    for place, values, mean_norm in zip(places, values_by_sample, mean_norms, strict=True):
        words = work.words(place.at["sample"])
        shares = values.pop("direction_shares", None)  # of each token in the squared norm of the singular vector
        if not work.spec.map_type.of_tokens:
            shares, values = None, {**values, "radius": None, "mean_radius": None}
        described = work.samples.fields[work.index(place.at["sample"])]
        yield (
            place,
            {
                "model": work.fields["model"],
                "layer": at["layer"],
                "head": at["head"],
                "map": work.spec.map_name,
                "n": work.n,
                "tokens": at["tokens"],
                "quantity": at["quantity"],
                **described,
                **values,
                "mean_norm": mean_norm,
                "batch": len(places),
                **work.fields,
                "task": place.key,
                "top_tokens": [] if shares is None else top_tokens(shares, words.__getitem__),
                "shares": None if shares is None or not has_ids else all_shares(shares),
                "words": list(words) if has_words else None,
            },
        )


QUESTION = Question(
    spec=MeasureSpec,
    records=(Measurement,),
    answer=answer,
    tables=deferred("howsmooth.report.measurement_tables:measure_tables"),
    live_tables=deferred("howsmooth.report.measurement_tables:constants_tables"),
    charts=deferred("howsmooth.report.charts:growth_picture"),
    plots="growth with length",
    about="Measure the local Lipschitz constant of a model's attention layers, on a text or on random tokens.",
    noun="estimate",
    places=places,
    batches=batches,
)
