"""What do the layers of a model do to the tokens of a text: how are they spread, and how much has a change grown?

There is a record for each depth. It contains the spread of the tokens, with and without the attention sink, the largest
factor by which a perturbation of the first tokens can have grown, and where the tokens are in their principal axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import numbers, option
from howsmooth.questions.question import Fields, Place, Question, Scope
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, Lengths, ModelSpec, Samples, Tolerance
from howsmooth.records.schema import Count, ModelRecord, TokenShare

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.dynamics.growth import PerturbationGrowth
    from howsmooth.models.layers import Chain
    from howsmooth.models.model import Model
    from howsmooth.questions.inputs import Inputs
    from howsmooth.questions.work import Work
    from howsmooth.spectral.result import SingularTriplets
    from howsmooth.texts.corpora import Corpus
    from howsmooth.texts.cutting import TokenChunk

MAX_LAYERS_ALL_DEPTHS = 12  # by default growth is computed at every depth of models with at most so many layers
NUM_SPACED_DEPTHS = 6  # … and at so many evenly spaced depths of deeper models, besides depths 1 and 2
MAX_ATTENTION_LENGTH = 1024  # tokens up to which the attention probabilities are computed
MAX_POINTS = 2048  # tokens whose coordinates are in a record: of more, every k-th
_DIGITS = 5  # of a coordinate
_NO_GROWTH: dict[str, Any] = {
    **dict.fromkeys(("value", "lower", "upper", "product", "log_product", "relative")),
    **dict.fromkeys(("own", "own_lower", "own_upper", "own_status", "confidence", "seconds")),
    **dict.fromkeys(("top_tokens", "top_responses")),
    "status": "converged",
}


class DepthSpec(ModelSpec):
    """Which texts, after how many layers, and what counts as a cluster."""

    options: ClassVar[tuple[str, ...]] = (
        *(*CHUNK_FIELDS, "tokens", *SOLVER_FIELDS),
        *("depths", "no_growth", "together"),
    )
    per_layer: ClassVar[bool] = False

    question: str = "depth"
    map: Literal["model"] = "model"
    lengths: Lengths = (32,)
    samples: Samples = 1
    tol: Tolerance = 1e-2
    depths: Annotated[
        tuple[int, ...] | Literal["all"] | None,
        numbers("1,2,6", integer=True, minimum=1, keyword="all"),
        option(
            "Numbers of layers after which growth is measured.  [default: all up to 12 layers, else a few]",
            metavar="1,2,6|all",
        ),
    ] = None
    no_growth: Annotated[bool, option("Do not measure the growth of perturbations: one forward pass is enough.")] = (
        False
    )
    # From 0 to 2: angles of 6°, 17° and 35°.
    together: Annotated[
        tuple[float, ...],
        numbers("0.1,0.3,0.6"),
        option(
            "Tokens closer than this form a cluster: distance of their directions, at most 2.", metavar="0.1,0.3,0.6"
        ),
    ] = (0.1, 0.3, 0.6)

    @model_validator(mode="after")
    def _check_depth(self) -> DepthSpec:
        if self.no_growth and self.depths is not None:
            raise ValueError("expected depths or no_growth, got both; leave one of the two out")
        if min(self.lengths) < 4:
            raise ValueError(
                f"expected lengths of at least 4 tokens, to see how they are spread, got {self.lengths[0]}"
            )
        if not all(tol < 2 for tol in self.together):
            raise ValueError(f"expected together between 0 and 2, distances of directions, got {list(self.together)}")
        if len(self.tokens) > 1:
            raise ValueError(f"expected tokens as one choice, got {', '.join(self.tokens)}; ask for one at a time")
        return self

    def growth_depths(self, layers: int) -> tuple[int, ...]:
        """Return the depths at which growth is computed, as numbers of layers.

        Example:
            >>> DepthSpec().growth_depths(3), DepthSpec().growth_depths(30)
            ((1, 2, 3), (1, 2, 5, 10, 15, 20, 25, 30))
        """
        if self.no_growth:
            return ()
        if self.depths is None and layers > MAX_LAYERS_ALL_DEPTHS:
            spaced = (round(layers * k / NUM_SPACED_DEPTHS) for k in range(1, NUM_SPACED_DEPTHS + 1))
            return tuple(sorted({1, 2, *spaced}))
        if self.depths is None or self.depths == "all":
            return tuple(range(1, layers + 1))
        return tuple(sorted(self.depths))


class DepthRecord(ModelRecord, kind="depth"):
    """The tokens of a text after some layers, and how much a perturbation of the first ones can have grown."""

    sample: Count
    depth: Count
    normed: bool  # after the final normalisation
    layers: Count
    sink: Count | None
    sink_token: str | None
    distinct: Count
    tolerances: list[float]
    clusters: list[Count]
    cosine: float
    norm: float
    largest_norm: float
    value: float | None
    lower: float | None
    upper: float | None
    product: float | None
    own: float | None
    top_tokens: list[TokenShare] | None
    top_responses: list[TokenShare] | None
    axes: list[str]
    coordinates: list[list[float]]  # of the tokens, or of every k-th, in the axes
    words: list[str]  # of the same tokens


def places(spec: DepthSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each depth of each sample; the last may be that after the final normalisation."""
    for sample in scope.samples:
        for depth in range(scope.depth + 1):
            yield {"sample": sample, "depth": depth}


def inputs(model: Model, corpus: Corpus | None, spec: DepthSpec) -> Inputs:
    """Return the inputs, after checking that the model has the depths of the spec."""
    from howsmooth.questions.inputs import inputs_of

    if beyond := [depth for depth in spec.growth_depths(model.layers) if depth > model.layers]:
        raise InputError(
            f"expected depths from 1 to {model.layers}, the layers of {model.name}, got {beyond[0]}; "
            "choose among them or use all"
        )
    return inputs_of(model, corpus, spec)


def deepest(model: Model, chunk: TokenChunk) -> int:
    """Return the number of layers, plus 1 if the model ends with a normalisation."""
    from howsmooth.models.layers import layer_chain

    return len(layer_chain(model, chunk).maps)


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Follow one chunk of text through the layers, as far as the last of the places."""
    from howsmooth.models.layers import layer_chain

    spec, sample = work.spec, places[0].at["sample"]
    place_of = {place.at["depth"]: place for place in places}
    chunk = work.chunk(sample)
    chain = layer_chain(work.model, chunk)
    states, layers = chain.states(), len(chain.layers)
    statistics, sink = _attention_statistics(work.model, chunk)
    coordinates, axes = _principal_coordinates(states, sink)
    step = -(-work.n // MAX_POINTS)
    growth = _growth(spec, chain, states, chunk, place_of.keys())
    for depth in range(max(place_of) + 1):
        grown = next(growth)
        if depth not in place_of:
            continue
        yield (
            place_of[depth],
            {
                **work.fields,
                **work.sample_fields({"sample": sample}),
                "map": spec.map_name,
                "depth": min(depth, layers),
                "normed": depth > layers,
                **_spread_fields(states[depth], sink, spec.together),
                "sharpness": None,
                "to_sink": None,
                **(statistics[depth] if depth < len(statistics) else {}),
                **grown,
                "layers": layers,
                "d": states[0].shape[1],
                "sink": sink,
                "sink_token": None if sink is None else chunk.words[sink],
                "distinct": len(set(chunk.ids.tolist())),
                "tolerances": list(spec.together),
                "seed": spec.seed,
                "dtype": str(states[0].dtype).removeprefix("torch."),
                "axes": axes,
                "coordinates": coordinates[depth][::step],
                "words": list(chunk.words)[::step],
            },
        )


def _growth(
    spec: DepthSpec, chain: Chain, states: Sequence[Tensor], chunk: TokenChunk, wanted: Sequence[int] | Any
) -> Iterator[dict[str, Any]]:
    """Yield the fields about the growth of perturbations at each depth; only wanted ones have that of the chain."""
    from howsmooth.dynamics.growth import growth_by_map
    from howsmooth.questions.inputs import perturbed_mask

    layers = len(chain.layers)
    chosen = spec.growth_depths(layers)
    if not chosen:
        yield from (_NO_GROWTH for _ in states)
        return
    one = dict.fromkeys(("value", "lower", "upper", "product", "relative", "confidence"), 1.0)
    yield _NO_GROWTH | one | {"log_product": 0.0}
    perturbed = perturbed_mask(chunk.special, spec.tokens[0])
    moved = None if perturbed is None else perturbed.nonzero().flatten().tolist()
    at = [depth for depth in (*chosen, *([layers + 1] if chain.norm is not None else [])) if depth in wanted]
    log_product = 0.0
    for depth, (own, growth) in enumerate(
        growth_by_map(chain.maps, chain.x, at, moved=moved, solver=spec.spectral_solver), start=1
    ):
        sigma = float(own.value[0])
        log_product += math.log(sigma) if sigma > 0 else -math.inf
        fields = _layer_growth(own, log_product)
        yield fields if growth is None else fields | _chain_growth(growth, states[0], states[depth], chunk)


def _layer_growth(own: SingularTriplets, log_product: float) -> dict[str, Any]:
    """Return the fields about the last layer alone, and about the product of all layers so far."""
    return _NO_GROWTH | {
        "own": float(own.value[0]),
        "own_lower": float(own.lower[0]),
        "own_upper": float(own.upper[0]),
        "own_status": own.status,
        "confidence": own.confidence,
        "status": own.status,
        "seconds": own.seconds,
        "log_product": log_product,
        "product": math.exp(log_product) if log_product < 709 else None,  # beyond, exp overflows
    }


def _chain_growth(growth: PerturbationGrowth, first: Tensor, last: Tensor, chunk: TokenChunk) -> dict[str, Any]:
    """Return the fields about the composition of all layers so far; `relative` is scaled by ‖first‖/‖last‖."""
    import torch

    from howsmooth.questions.quantities import top_tokens

    def top(direction: Tensor) -> list[dict[str, Any]]:  # by the share of each token in the squared norm
        return top_tokens(direction.double().square().sum(-1), chunk.words.__getitem__)

    before, after = (float(torch.linalg.vector_norm(x.double())) for x in (first, last))
    return {
        **{key: getattr(growth, key) for key in ("value", "lower", "upper", "confidence")},
        "relative": growth.value * before / after,
        "top_tokens": top(growth.direction),
        "top_responses": top(growth.response),
        **({} if growth.status == "converged" else {"status": growth.status}),
    }


def _attention_statistics(model: Model, chunk: TokenChunk) -> tuple[list[dict[str, float]], int | None]:
    """Return the statistics of each layer, and the sink: the token that receives most attention from the others.

    `sharpness` is the largest probability of a query, `to_sink` the probability that a query of another token gives to
    the sink; both are means over heads and queries. Where probabilities are not computed, there are none.
    """
    import torch

    from howsmooth.attention.heads import SelfAttention
    from howsmooth.dynamics.instruments.geometry import probabilities

    n, maps = len(chunk), [model.attention(layer, len(chunk)) for layer in range(model.layers)]
    if n > MAX_ATTENTION_LENGTH or not all(isinstance(f, SelfAttention) for f in maps):
        return [], None
    inputs = model.activations(chunk, range(model.layers))
    received, sharpness = [], []
    with torch.no_grad():
        for layer, f in enumerate(maps):
            P = probabilities(f, inputs[layer]).double()
            sharpness.append(float(P.amax(-1).mean()))
            mean = P.mean(0)
            received.append((mean.sum(0) - mean.diagonal()) / (n - 1))
    sink = int(torch.stack(received).mean(0).argmax())
    return [{"sharpness": s, "to_sink": float(r[sink])} for s, r in zip(sharpness, received, strict=True)], sink


def _spread_fields(x: Tensor, sink: int | None, tolerances: Sequence[float]) -> dict[str, Any]:
    """Return the fields about the spread of tokens x, (n, d), with and without the sink."""
    import torch

    with_sink = _spread(x, tolerances)
    without_sink = dict.fromkeys(with_sink)
    if sink is not None:
        without_sink = _spread(x[[i for i in range(len(x)) if i != sink]], tolerances)
    return {
        **with_sink,
        **{f"{key}_without_sink": value for key, value in without_sink.items()},
        "sink_norm": None if sink is None else float(torch.linalg.vector_norm(x[sink].double())),
    }


def _spread(x: Tensor, tolerances: Sequence[float]) -> dict[str, Any]:
    from howsmooth.dynamics.instruments.clusters import clusters
    from howsmooth.dynamics.instruments.geometry import diameter, directions, spread

    found, u = spread(x), directions(x)
    groups = [clusters(u, tol) for tol in tolerances]
    return {
        "cosine": found.cosine,
        "effective_rank": found.effective_rank,
        "participation": found.participation,
        "to_mean": found.to_mean,
        "norm": found.size,
        "largest_norm": found.largest,
        "diameter": diameter(x),
        "angular_diameter": diameter(u),
        "clusters": [g.count for g in groups],
        "largest_cluster": [g.sizes[0] for g in groups],
    }


def _principal_coordinates(states: Sequence[Tensor], sink: int | None) -> tuple[list[list[list[float]]], list[str]]:
    """Return the directions of the tokens at all depths in their principal axes, and the names of these.

    The sink is ignored when the axes are computed, and projected like the other tokens.
    """
    import torch

    from howsmooth.dynamics.instruments.geometry import directions, principal_view

    u = torch.stack([directions(x) for x in states])
    view = principal_view(u[:, [i for i in range(u.shape[1]) if i != sink]])
    paths = view(u).tolist()
    return [[[float(f"{c:.{_DIGITS}g}") for c in point] for point in points] for points in paths], list(view.names)


QUESTION = Question(
    spec=DepthSpec,
    records=(DepthRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.flow_tables:depth_tables"),
    charts=deferred("howsmooth.report.flow_charts:depth_picture"),
    plots="spread and growth along depth",
    page="howsmooth.report.flow_page:depth_page",
    about="Follow the tokens of a text through the layers of a model: how they are distributed after each layer "
    "(directions, norms, clusters; with and without the token that receives most attention), and how much a "
    "perturbation of the input tokens can have grown, compared with the product of the constants of the layers.",
    noun="depth",
    places=places,
    together=("sample",),
    inputs=inputs,
    deepest=deepest,
    needs_text=True,
    describe=lambda at: f"n = {at['n']}, sample {at['sample']}, from depth {at['depth']}",
)
