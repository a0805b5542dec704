"""Flows of tokens whose velocity is the attention of a real model: one layer repeated, or all layers in sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from howsmooth.dynamics.declaration import Example, InstrumentSettings, Integration, Tokens
from howsmooth.errors import InputError
from howsmooth.questions.spec import select_indices

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.attention import SelfAttention
    from howsmooth.models import Model
    from howsmooth.texts.corpora import Corpus

CLUSTER_TOLERANCE = 0.1  # default: tokens closer than this share of their median norm are one cluster


@dataclass(frozen=True, eq=False)
class ModelFlow:
    """The arguments of `howsmooth.dynamics.follow`.

    Attributes:
        example: The declared flow.
        layers: The attention layers, in float64.
        x: The tokens that enter the first layer, (n, d).
    """

    example: Example
    layers: list[SelfAttention]
    x: Tensor


def parse_weights(given: str) -> tuple[str, int, int | None]:
    """Return (model, layer, head) from a string MODEL:LAYER or MODEL:LAYER/HEAD.

    Example:
        >>> parse_weights("minilm:3/5"), parse_weights("random:bert:0")
        (('minilm', 3, 5), ('random:bert', 0, None))
    """
    model, _, numbers = given.rpartition(":")
    layer, slash, head = numbers.partition("/")
    if not model or not layer.isdecimal() or (slash and not head.isdecimal()):
        raise InputError(f"expected weights as MODEL:LAYER or MODEL:LAYER/HEAD, as minilm:3/5, got {given!r}")
    return model, int(layer), int(head) if slash else None


def model_flow(model: Model, text: Corpus, n: int, layer: int | None = None, head: int | None = None) -> ModelFlow:
    """Return the flow of a model's attention on the first tokens of a text.

    One unit of depth is one layer, and the flow is as deep as the model. Tokens stay on spheres, which replaces the
    model's normalisations. The flow starts from the tokens that enter the attention of its first layer.

    Args:
        model: The model.
        text: The text.
        n: Number of tokens.
        layer: The layer whose attention is the velocity at all depths; None takes all layers in sequence.
        head: One head of it.

    Raises:
        InputError: The attention of the model is not available as a `SelfAttention`.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> flow = model_flow(model, text, 8, layer=3)
        >>> flow.example.name, len(flow.layers), tuple(flow.x.shape)
        ('minilm:3', 1, (8, 384))
    """
    import torch  # here, so that `parse_weights` does not import it

    from howsmooth.attention import SelfAttention

    numbers = select_indices("all" if layer is None else (layer,), model.layer_numbers, f"layers of {model.name}")
    layers = []
    for number in numbers:
        f = model.attention(number, n)
        if not isinstance(f, SelfAttention):
            raise InputError(
                f"expected a model whose attention is known by its weights, got {model.name} "
                f"({model.family}); follow its true layers: howsmooth flow model {model.name}"
            )
        if head is not None:
            f = f.head(*select_indices((head,), tuple(range(model.heads)), f"heads of {model.name}"))
        layers.append(f.converted(dtype=torch.float64))
    chunk, *_ = model.chunks(text, n, 1)
    x = model.activations(chunk, [numbers[0]])[numbers[0]].double()
    size = float(torch.linalg.vector_norm(x, dim=-1).median())
    description = (
        "its attention layers one after the other"
        if layer is None
        else f"attention of layer {layer}" + ("" if head is None else f", head {head}")
    )
    tol = CLUSTER_TOLERANCE * size
    tol = round(tol, 1 - math.floor(math.log10(tol)))  # two digits, since it is shown
    words = "the embedded text" if text.name == "embedded" else text.name
    about = (
        f"Tokens of {words} under {description}, in place of the whole Transformer layers: no MLP, norms as spheres."
    )
    name = model.name if layer is None else f"{model.name}:{layer}" + ("" if head is None else f"/{head}")
    example = Example(
        name=name,
        title=f"{model.name}: {description}",
        about=about,
        tokens=Tokens(count=n, dim=x.shape[1]),
        flow=Integration(until=float(model.layers), sphere=True),
        watch=InstrumentSettings(tol=tol),
    )
    return ModelFlow(example, layers, x)
