"""Tokens of a text as particles under the attention of a real model: one layer or head repeated, or all in sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from howsmooth.dynamics.declaration import Example, InstrumentSettings, Integration, Tokens, read_example
from howsmooth.errors import InputError
from howsmooth.questions import particles
from howsmooth.questions.fields import option, whole
from howsmooth.questions.flows import POSITIVE
from howsmooth.questions.particles import FLOW_OPTIONS, FlowFields, follow
from howsmooth.questions.question import Fields, Place, Scope
from howsmooth.questions.spec import CHUNK_FIELDS, Lengths, ModelSpec, Samples

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.attention.heads import SelfAttention
    from howsmooth.questions.work import Work

CLUSTER_TOLERANCE = 0.1  # default: tokens closer than this share of their median norm are one cluster


class WeightsSpec(FlowFields, ModelSpec):
    """Which layers and heads of a model, on how many tokens of a text, for how long."""

    options: ClassVar[tuple[str, ...]] = (*CHUNK_FIELDS, "layers", "heads", "seed", *FLOW_OPTIONS)
    varied: ClassVar[tuple[str, ...]] = ("growth", "residual_layers")

    question: str = "weights"
    lengths: Lengths = (32,)
    samples: Samples = 1
    until: Annotated[
        float | None,
        POSITIVE,
        option("Final depth; depth is the time of the flow.  [default: one for each layer]", metavar="DEPTH"),
    ] = None
    rtol: Annotated[float, POSITIVE, option("Relative tolerance of the integrator.", metavar="NUMBER")] = (
        Integration().rtol
    )
    frames: Annotated[int, whole(2), option("Number of depths to keep.", metavar="COUNT")] = Integration().frames
    together: Annotated[
        float | None,
        POSITIVE,
        option("Tokens closer than this form a cluster.  [default: a tenth of their median norm]", metavar="DISTANCE"),
    ] = None


def places(spec: WeightsSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each depth of the flow of each head and sample: all layers are one flow."""
    layers = [layer for layer in scope.layers if layer is not None]
    for head in scope.heads:
        for sample in scope.samples:
            for depth in spec.places_of_flow(spec.frames, len(layers)):
                yield {"layer": layers[0], "layers": layers, "head": head, "sample": sample, **depth}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Integrate the tokens that enter the first layer, with the attention of the layers as velocity."""
    at, model = places[0].at, work.model
    numbers, head = at["layers"], at["head"]
    layers = [_attention(work, number, head) for number in numbers]
    x = work.tokens(numbers[0], at["sample"]).double()
    declared = work.spec.override(flow_of(model.name, model.layers, numbers, head, x, work.fields["text"]))
    fields = {
        **work.fields,
        **work.sample_fields(at),
        "map": work.spec.map_name,
        "layer": numbers[0] if len(numbers) == 1 else None,
        "layers": numbers,
    }
    yield from follow(work, places, declared, fields, layers, x)


def _attention(work: Work, layer: int, head: int | None) -> SelfAttention:
    """Return the attention of a layer, or one head of it, in float64."""
    import torch

    from howsmooth.attention.heads import SelfAttention

    f = work.attention(layer, head)
    if not isinstance(f, SelfAttention):
        raise InputError(
            f"expected a model whose attention is known by its weights, got {work.model.name} "
            f"({work.model.family}); follow its true layers: howsmooth flow model {work.model.name}"
        )
    return f.converted(dtype=torch.float64)


def flow_of(name: str, depth: int, layers: Sequence[int], head: int | None, x: Tensor, text: str) -> Example:
    """Return the flow of a model's attention on tokens.

    One unit of depth is one layer, and the flow is as deep as the model. Tokens stay on spheres, which replaces the
    model's normalisations.

    Args:
        name: Name of the model.
        depth: Number of its layers.
        layers: The layers whose attention is the velocity, each for an equal part of the depth.
        head: One head of each; None for all.
        x: The tokens, (n, d).
        text: Name of the text.

    Example:
        >>> import torch
        >>> flow = flow_of("minilm", 6, [3], 5, torch.ones(8, 4), "embedded")
        >>> flow.name, flow.title, flow.watch.tol
        ('minilm:3/5', 'minilm: attention of layer 3, head 5', 0.2)
    """
    import torch

    listed, part = ",".join(map(str, layers)), "" if head is None else f", head {head}"
    if len(layers) == 1:
        which = f"attention of layer {listed}{part}"
    elif len(layers) == depth:
        which = f"its attention layers one after the other{part}"
    else:
        which = f"attention layers {listed} one after the other{part}"
    tol = CLUSTER_TOLERANCE * float(torch.linalg.vector_norm(x, dim=-1).median())
    words = "the embedded text" if text == "embedded" else text
    every = len(layers) == depth and len(layers) > 1 and head is None
    return Example(
        name=name if every else f"{name}:{listed}" + ("" if head is None else f"/{head}"),
        title=f"{name}: {which}",
        about=f"Tokens of {words} under {which}, in place of the whole Transformer layers: no MLP, norms as spheres.",
        tokens=Tokens(count=len(x), dim=x.shape[1]),
        flow=Integration(until=float(depth), sphere=True),
        watch=InstrumentSettings(tol=round(tol, 1 - math.floor(math.log10(tol)))),  # two digits, since it is shown
    )


QUESTION = replace(
    particles.QUESTION,
    spec=WeightsSpec,
    answer=answer,
    about="Move the tokens of a text by the attention of a model: one layer repeatedly, or several one after the other "
    "(by default all), without the rest of the Transformer layers.",
    grid=None,
    places=places,
    together=("head", "sample"),
    check=lambda spec: spec.override(read_example("sphere")),
    needs_text=True,
)
