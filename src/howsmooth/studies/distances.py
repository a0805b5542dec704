"""How far apart two texts are as measures of tokens, before and after a layer; or two measures from files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention import SelfAttention, SoftmaxField
from howsmooth.errors import InputError, NotConverged
from howsmooth.studies.inputs import chosen
from howsmooth.studies.provenance import provenance
from howsmooth.texts.corpora import Corpus
from howsmooth.transport import TimedMeasure, TokenMeasure, conditional_distance, push_forward, wasserstein

if TYPE_CHECKING:
    from howsmooth.models import Model

DISTANCES = ("auto", "W", "d")
CLOSED = 1e-9  # a relative duality gap below this is rounding


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
    step: Callable[[int, int, int | None], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer and exponent: the distance of two texts' tokens, before and after attention.

    The texts are the first n tokens of each, or two consecutive pieces of one. "W" takes tokens without their places,
    "d" with them as times i/n; "auto" is "d" for causal layers. Where the layer is a map of such measures (W: no mask
    and no places in the layer itself; d: any), the quotient of after by before is a lower bound on its Lipschitz
    constant on every set that holds both texts and the measures between them.
    """
    if distance not in DISTANCES:
        raise InputError(f"expected a distance among {', '.join(DISTANCES)}, got {distance!r}")
    layers = chosen(layers, model.layer_numbers, f"layers of {model.name}")
    names = [text.name, text.name if other is None else other.name]
    facts = {
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
            pair = [model.chunks(one, n, 1, special_tokens)[0] for one in (text, other)]
        inputs = [model.activations(chunk, layers) for chunk in pair]
        for layer in layers:
            f = model.attention(layer, n)
            timed = getattr(f, "causal", False) if distance == "auto" else distance == "d"
            measure = TimedMeasure.from_sequence if timed else TokenMeasure
            with torch.no_grad():
                before = [measure(x[layer]) for x in inputs]
                after = [measure(f(x[layer])) for x in inputs]
            if step is not None:
                step(n, layer, None)
            for p in exponents:
                yield {"model": model.name, "layer": layer, "n": n, "m": n, **compared(before, after, p), **facts}


def file_distances(
    first: TokenMeasure,
    second: TokenMeasure,
    names: Sequence[str],
    *,
    exponents: Sequence[float],
    model: Model | None = None,
    layers: tuple[int, ...] | str | None = None,
    step: Callable[[int, int, int | None], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per exponent, or with a model per layer and exponent: the measures pushed through attention."""
    if isinstance(first, TimedMeasure) != isinstance(second, TimedMeasure):
        raise InputError(
            f"expected times in both or in neither, got {type(first).__name__} from {names[0]} and "
            f"{type(second).__name__} from {names[1]}"
        )
    pair = [first, second]
    facts = {"n": first.n, "m": second.n, "files": list(names), **provenance()}
    if model is None:
        for p in exponents:
            yield {"model": None, "layer": None, **compared(pair, None, p), **facts}
        return
    facts["source"] = dict(model.source)
    pair = [measure.with_points(measure.points.to(model.device, model.dtype)) for measure in pair]
    for layer in chosen(layers, model.layer_numbers, f"layers of {model.name}"):
        f = model.attention(layer)
        if not isinstance(f, SelfAttention):
            raise InputError(f"expected a model whose attention is known by its weights, got {model.name}; use texts")
        if f.rotary is not None:
            raise InputError(
                f"expected a model whose attention knows no places, got {model.name} with rotary "
                "positions; use texts (without --files) for models with rotary positions"
            )
        images = [push_forward(SoftmaxField(f), measure) for measure in pair]
        if step is not None:
            step(first.n, layer, None)
        for p in exponents:
            yield {"model": model.name, "layer": layer, **compared(pair, images, p), **facts}


def compared(before: Sequence[TokenMeasure], after: Sequence[TokenMeasure] | None, p: float) -> dict[str, Any]:
    """The distances of both pairs as parts of a record, and their quotient."""
    timed = isinstance(before[0], TimedMeasure)
    measure = conditional_distance if timed else wasserstein

    def solved(pair):
        try:
            return measure(*pair, p)
        except NotConverged as error:  # its gap says so in the record
            return error.partial

    here = solved(before)
    there = None if after is None else solved(after)
    quotient = None
    if there is not None and 0 < here.value < math.inf:
        quotient = there.value / here.value
    gaps = [part.gap for part in (here, there) if part is not None and math.isfinite(part.value)]
    status = "converged" if all(gap <= CLOSED for gap in gaps) else "gap"
    return {
        "distance": "d" if timed else "W",
        "status": status,
        "p": "inf" if math.isinf(p) else p,
        "before": here.as_record(),
        "after": None if there is None else there.as_record(),
        "quotient": quotient,
    }
