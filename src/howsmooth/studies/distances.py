"""Distances between two texts as measures of tokens, before and after a layer; or between two measures from files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention import SelfAttention, SoftmaxField
from howsmooth.errors import InputError, NotConverged
from howsmooth.questions.inputs import ProgressCallback
from howsmooth.questions.spec import select_indices
from howsmooth.records.provenance import provenance
from howsmooth.texts.corpora import Corpus
from howsmooth.transport import TimedMeasure, TokenMeasure, conditional_distance, push_forward, wasserstein

if TYPE_CHECKING:
    from howsmooth.models import Model

DISTANCES = ("auto", "W", "d")
MAX_RELATIVE_GAP = 1e-9  # a smaller duality gap is rounding


def text_distances(
    model: Model,
    text: Corpus,
    other: Corpus | None,
    *,
    layers: tuple[int, ...] | str,
    lengths: Sequence[int],
    exponents: Sequence[float],
    distance: str = "auto",
    special_tokens: bool = True,
    progress: ProgressCallback | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer and exponent: the distance between the tokens of two texts.

    It is computed before and after attention. Where the layer is a map of such measures (W: no mask and no positions in
    the layer itself; d: any layer), the quotient of the two is a lower bound on its Lipschitz constant on every convex
    set of measures that contains both texts.

    Args:
        model: The model.
        text: The first text.
        other: The second text; None compares two consecutive chunks of the first.
        layers: Layers, or "all".
        lengths: Numbers of tokens n, from the beginning of each text.
        exponents: Exponents p of the distance.
        distance: "W" compares tokens without their positions, "d" with positions as times i/n; "auto" is "d" for
            causal layers and "W" for others.
        special_tokens: Whether chunks get special tokens.
        progress: Called with (n, layer, None) before each layer's distances.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> found = text_distances(model, text, None, layers=(0,), lengths=[4], exponents=[2.0])
        >>> [(record["distance"], record["status"]) for record in found]
        [('W', 'converged')]
    """
    if distance not in DISTANCES:
        raise InputError(f"expected a distance among {', '.join(DISTANCES)}, got {distance!r}")
    layers = select_indices(layers, model.layer_numbers, f"layers of {model.name}")
    names = [text.name, text.name if other is None else other.name]
    shared = {
        "texts": names,
        "special_tokens": "add" if special_tokens else "none",
        "dtype": str(model.dtype).removeprefix("torch."),
        "source": dict(model.source),
        **provenance(),
    }
    for n in lengths:
        if other is None:
            pair = model.chunks(text, n, 2, special_tokens)
        else:
            pair = [model.chunks(corpus, n, 1, special_tokens)[0] for corpus in (text, other)]
        inputs = [model.activations(chunk, layers) for chunk in pair]
        for layer in layers:
            f = model.attention(layer, n)
            timed = getattr(f, "causal", False) if distance == "auto" else distance == "d"
            measure = TimedMeasure.from_sequence if timed else TokenMeasure
            with torch.no_grad():
                before = [measure(x[layer]) for x in inputs]
                after = [measure(f(x[layer])) for x in inputs]
            if progress is not None:
                progress(n, layer, None)
            for p in exponents:
                yield {"model": model.name, "layer": layer, "n": n, "m": n, **compare(before, after, p), **shared}


def file_distances(
    first: TokenMeasure,
    second: TokenMeasure,
    names: Sequence[str],
    *,
    exponents: Sequence[float],
    model: Model | None = None,
    layers: tuple[int, ...] | str | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per exponent, or with a model one per layer and exponent: the distance of two measures.

    Args:
        first: One measure.
        second: The other; both have times, or neither.
        names: Names of the two, for records.
        exponents: Exponents p of the distance.
        model: A model whose attention maps the measures.
        layers: Its layers, or "all".
        progress: Called with (n, layer, None) before each layer's distances.

    Example:
        >>> first, second = (TokenMeasure(torch.full((1, 1), x, dtype=torch.float64)) for x in (0.0, 3.0))
        >>> (record,) = file_distances(first, second, ["a", "b"], exponents=[2.0])
        >>> round(record["before"]["value"], 6)
        3.0
    """
    if isinstance(first, TimedMeasure) != isinstance(second, TimedMeasure):
        raise InputError(
            f"expected times in both or in neither, got {type(first).__name__} from {names[0]} and "
            f"{type(second).__name__} from {names[1]}"
        )
    pair = [first, second]
    shared = {"n": first.n, "m": second.n, "files": list(names), **provenance()}
    if model is None:
        for p in exponents:
            yield {"model": None, "layer": None, **compare(pair, None, p), **shared}
        return
    shared["source"] = dict(model.source)
    pair = [measure.with_points(measure.points.to(model.device, model.dtype)) for measure in pair]
    for layer in select_indices(layers, model.layer_numbers, f"layers of {model.name}"):
        f = model.attention(layer)
        if not isinstance(f, SelfAttention):
            raise InputError(f"expected a model whose attention is known by its weights, got {model.name}; use texts")
        if f.rotary is not None:
            raise InputError(
                f"expected a model whose attention has no positions, got {model.name} with rotary "
                "positions; use texts (without --files) for models with rotary positions"
            )
        images = [push_forward(SoftmaxField(f), measure) for measure in pair]
        if progress is not None:
            progress(first.n, layer, None)
        for p in exponents:
            yield {"model": model.name, "layer": layer, **compare(pair, images, p), **shared}


def compare(before: Sequence[TokenMeasure], after: Sequence[TokenMeasure] | None, p: float) -> dict[str, Any]:
    """Return the fields of a record: the distance of a pair before and after a map, and their quotient."""
    timed = isinstance(before[0], TimedMeasure)

    def solve(pair: Sequence[TokenMeasure]) -> Any:
        first, second = pair
        try:
            if isinstance(first, TimedMeasure) and isinstance(second, TimedMeasure):
                return conditional_distance(first, second, p)
            return wasserstein(first, second, p)
        except NotConverged as error:  # the record reports its gap
            return error.partial

    input_distance = solve(before)
    output_distance = None if after is None else solve(after)
    quotient = None
    if output_distance is not None and 0 < input_distance.value < math.inf:
        quotient = output_distance.value / input_distance.value
    gaps = [
        found.gap for found in (input_distance, output_distance) if found is not None and math.isfinite(found.value)
    ]
    status = "converged" if all(gap <= MAX_RELATIVE_GAP for gap in gaps) else "gap"
    return {
        "distance": "d" if timed else "W",
        "status": status,
        "p": "inf" if math.isinf(p) else p,
        "before": input_distance.as_record(),
        "after": None if output_distance is None else output_distance.as_record(),
        "quotient": quotient,
    }
