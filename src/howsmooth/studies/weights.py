"""Weights of a real model as a velocity: its attention layers, repeated or one after the other, on its own tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.dynamics.example import Example, InstrumentSettings, Integration, Tokens
from howsmooth.errors import InputError
from howsmooth.studies.inputs import chosen
from howsmooth.texts.corpora import Corpus, read_corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

TOGETHER = 0.1  # tokens closer than this share of their median norm are together, unless said otherwise


@dataclass(frozen=True, eq=False)
class ModelFlow:
    """What `integrate_example` needs: a declared flow, the layers in float64, and the tokens that enter the first."""

    example: Example
    layers: list[SelfAttention]
    x: Tensor


def parse_weights(given: str) -> tuple[str, int, int | None]:
    """MODEL:LAYER or MODEL:LAYER/HEAD.

    >>> parse_weights("minilm:3/5"), parse_weights("random:bert:0")
    (('minilm', 3, 5), ('random:bert', 0, None))
    """
    model, _, place = given.rpartition(":")
    layer, slash, head = place.partition("/")
    if not model or not layer.isdecimal() or (slash and not head.isdecimal()):
        raise InputError(f"expected weights as MODEL:LAYER or MODEL:LAYER/HEAD, as minilm:3/5, got {given!r}")
    return model, int(layer), int(head) if slash else None


def read_model_flow(weights: str | None, depth_weights: str | None, text: str, n: int) -> ModelFlow:
    """Load a model and read a text: MODEL:LAYER or MODEL:LAYER/HEAD in `weights`, or a model in `depth_weights`."""
    from howsmooth.models import load

    name, layer, head = parse_weights(weights) if weights else (depth_weights or "minilm", None, None)
    corpus = read_corpus(text)
    return model_flow(load(name), corpus, n, layer, head)


def model_flow(model: Model, text: Corpus, n: int, layer: int | None = None, head: int | None = None) -> ModelFlow:
    """One layer, or one head of it, for all depths; all layers one after the other where `layer` is None.

    The flow is as deep as the model: one unit of depth for each layer, on spheres, as its norms keep tokens. The first
    tokens are what enters the (first) layer's attention at the beginning of the text.
    """
    numbers = chosen("all" if layer is None else (layer,), model.layer_numbers, f"layers of {model.name}")
    layers = []
    for number in numbers:
        f = model.attention(number, n)
        if not isinstance(f, SelfAttention):
            raise InputError(
                f"expected a model whose attention is known by its weights, got {model.name} "
                f"({model.family}); follow its true layers: howsmooth flow model {model.name}"
            )
        if head is not None:
            f = f.head(*chosen((head,), tuple(range(model.heads)), f"heads of {model.name}"))
        layers.append(f.converted(dtype=torch.float64))
    chunk, *_ = model.chunks(text, n, 1)
    x = model.activations(chunk, [numbers[0]])[numbers[0]].double()
    size = float(torch.linalg.vector_norm(x, dim=-1).median())
    which = (
        "its attention layers one after the other"
        if layer is None
        else f"attention of layer {layer}" + ("" if head is None else f", head {head}")
    )
    # Two digits of a tolerance are all that a reader wants to see.
    tol = round(TOGETHER * size, 1 - math.floor(math.log10(TOGETHER * size)))
    words = "the embedded text" if text.name == "embedded" else text.name
    about = f"Tokens of {words} under {which}, in place of the whole Transformer layers: no MLP, norms as spheres."
    name = model.name if layer is None else f"{model.name}:{layer}" + ("" if head is None else f"/{head}")
    example = Example(
        name=name,
        title=f"{model.name}: {which}",
        about=about,
        tokens=Tokens(count=n, dim=x.shape[1]),
        flow=Integration(until=float(model.layers), sphere=True),
        watch=InstrumentSettings(tol=tol),
    )
    return ModelFlow(example, layers, x)
