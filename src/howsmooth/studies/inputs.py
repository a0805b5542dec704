"""The tokens that enter a layer: those of a text through the model, or random ones through the layer's normalisation.

Both kinds answer the same questions, so that the worker and the other loops need not know which they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models import Model, TokenChunk
from howsmooth.studies.provenance import provenance
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus
from howsmooth.texts.cutting import Cutter

ROWS_AT_ONCE = 1024  # tokens drawn at once; part of what a seed means
DRAWN = "random normalised tokens"

Step = Callable[[int, int | None, int | None], None]  # called with (n, layer, head) before each computation


class TextInputs:
    """Chunks of a corpus, cut once for one model."""

    def __init__(self, model: Model, corpus: Corpus, spec: Spec):
        self.model, self.corpus, longest = model, corpus, max(spec.lengths)
        if model.positions is not None and longest > model.positions:
            raise InputError(
                f"expected lengths of at most {model.positions} tokens, the positions of {model.name}, "
                f"got {longest}; ask for shorter lengths, or for tokens without a text "
                "(--inputs normalised)"
            )
        self.cutter: Cutter = model.cutter(
            corpus, spec.cutting, longest=longest, special_tokens=spec.adds_special_tokens
        )
        for n in spec.lengths:
            self.cutter.check(n, spec.samples)

    def release(self) -> None:
        """Forget the model: chunks can be had all the same."""
        del self.model

    def chunk(self, n: int, sample: int) -> TokenChunk:
        return self.cutter.chunk(n, sample)

    def tokens(self, chunk: TokenChunk, sample: int, layers: Iterable[int]) -> dict[int, Tensor]:
        """Return what enters attention at each layer, (n, d), from one forward pass."""
        return self.model.activations(chunk, layers)

    def attention(self, layer: int, n: int) -> Any:
        return self.model.attention(layer, n)

    def facts(self, n: int) -> dict[str, Any]:
        return {}

    @property
    def run_facts(self) -> dict[str, Any]:
        return {"inputs": "text", "text": self.corpus.name, "text_sha256": self.corpus.sha256}


class NormalisedInputs:
    """Standard normal tokens, normalised by each layer's own gain and bias: any length, no text, no positions.

    They are drawn on the CPU whatever the device, and the first n of a longer draw are those of a shorter one: growth
    with n is then growth of one sequence, and under a causal mask the constant cannot fall.
    """

    def __init__(self, model: Model, seed: int = 0):
        self.model, self.seed, self.positions = model, seed, model.positions

    def release(self) -> None:
        """Forget the model: what a record says about the draws can be had all the same."""
        del self.model

    def chunk(self, n: int, sample: int) -> TokenChunk:
        return TokenChunk.drawn(n)

    def tokens(self, chunk: TokenChunk, sample: int, layers: Iterable[int]) -> dict[int, Tensor]:
        return {layer: self.drawn(len(chunk), sample, layer) for layer in layers}

    def drawn(self, n: int, sample: int, layer: int) -> Tensor:
        """Return (n, d) on the model's device and in its dtype, made in blocks: nothing else of this size is held."""
        model = self.model
        norm = model.normalisation(layer).converted(device=model.device, dtype=torch.float32)
        x = torch.empty(n, norm.d, device=model.device, dtype=model.dtype)
        generator = torch.Generator().manual_seed((1_000_003 * self.seed + sample) % 2**63)
        for first in range(0, n, ROWS_AT_ONCE):
            block = x[first : first + ROWS_AT_ONCE]
            # Always a whole block: how the last numbers of a draw come about depends on its size.
            z = torch.randn(ROWS_AT_ONCE, norm.d, generator=generator)[: len(block)]
            block.copy_(norm(z.to(model.device)))
        return x

    def attention(self, layer: int, n: int) -> Any:
        return self.model.attention(layer, n, beyond=True)

    def facts(self, n: int) -> dict[str, Any]:
        """Whether this length is one that the model was made for."""
        return {"extrapolated": self.positions is not None and n > self.positions}

    @property
    def run_facts(self) -> dict[str, Any]:
        return {
            "inputs": "normalised",
            "text": DRAWN,
            "text_sha256": None,
            "special_tokens": "none",
            "drawn": f"standard normal in float32 on the CPU, {ROWS_AT_ONCE} tokens at a time, seed {self.seed}, "
            "then the layer's own normalisation",
        }


Inputs = TextInputs | NormalisedInputs


def inputs_of(model: Model, corpus: Corpus | None, spec: Spec) -> Inputs:
    """Return the inputs that the spec asks for, with everything checked that can be checked beforehand."""
    if spec.inputs == "text":
        if corpus is None or not model.reads_text:
            raise InputError(
                f"expected a model that reads text, got {model.name}, a file of attention layers alone; "
                "use --inputs normalised"
            )
        inputs: Inputs = TextInputs(model, corpus, spec)
    else:
        inputs = NormalisedInputs(model, spec.seed)
    for n in {min(spec.lengths), max(spec.lengths)}:
        for tokens in spec.tokens:
            moved_tokens(inputs.chunk(n, 0).special, tokens)
    return inputs


def moved_tokens(special: Tensor, tokens: str) -> Tensor | None:
    """Return which of the tokens a perturbation may move, as booleans of the shape of `special`; None for all."""
    if tokens == "all":
        return None
    moved = ~special if tokens == "no-special" else (torch.arange(special.shape[-1]) > 0).expand(special.shape)
    if not moved.any(-1).all():
        raise InputError(
            f"expected a token left to perturb with the choice of tokens {tokens}, got a chunk of "
            f"{special.shape[-1]} tokens without one; ask for longer lengths, or let all of them move "
            "(--tokens all)"
        )
    return moved


@dataclass(frozen=True, eq=False)
class Site:
    """One place to compute at: the map f of a layer or head and the tokens x (n, d) that enter it."""

    n: int
    sample: int
    chunk: TokenChunk
    layer: int
    head: int | None
    f: Any
    x: Tensor

    @property
    def place(self) -> dict[str, Any]:
        """The fields of a record that say where."""
        return {"layer": self.layer, "head": self.head, "n": self.n, "sample": self.sample}


def sites(
    model: Model, corpus: Corpus | None, spec: Spec, *, samples: int | None = None, step: Step | None = None
) -> Iterator[Site]:
    """Yield every length, sample, layer and head of a spec with its map and tokens: one forward pass per chunk."""
    inputs = inputs_of(model, corpus, spec)
    layers, heads = chosen_layers(model, spec), chosen_heads(model, spec)
    for n in spec.lengths:
        maps = {layer: inputs.attention(layer, n) for layer in layers}
        for sample in range(spec.samples if samples is None else samples):
            chunk = inputs.chunk(n, sample)
            together = inputs.tokens(chunk, sample, layers) if isinstance(inputs, TextInputs) else {}
            for layer in layers:
                x = together[layer] if layer in together else inputs.tokens(chunk, sample, [layer])[layer]
                for head in heads:
                    if step is not None:
                        step(n, layer, head)
                    f = maps[layer] if head is None else maps[layer].head(head)
                    yield Site(n, sample, chunk, layer, head, f, x)


def resolve(model: Model, corpus: Corpus | None, spec: Spec) -> Spec:
    """Return the spec with layers and heads as numbers, checked against the model and the text."""
    inputs_of(model, corpus, spec)
    return spec.model_copy(
        update={
            "layers": chosen_layers(model, spec),
            "heads": chosen_heads(model, spec) if spec.kind == "head" else None,
        }
    )


def run_facts(model: Model, corpus: Corpus | None, spec: Spec) -> dict[str, Any]:
    """Return what every record of a run says, so that each can be read, and made again, alone."""
    own = (
        NormalisedInputs(model, spec.seed).run_facts
        if spec.inputs == "normalised" or corpus is None
        else {"inputs": "text", "text": corpus.name, "text_sha256": corpus.sha256}
    )
    return {
        "device": str(model.device),
        "model_dtype": str(model.dtype).removeprefix("torch."),
        "tokens": spec.tokens[0],
        "cutting": spec.cutting,
        "special_tokens": spec.special_tokens,
        "tol": spec.tol,
        "stop": spec.stop,
        "max_steps": spec.max_steps,
        "weights": model.source.get("weights"),
        "source": dict(model.source),
        **own,
        **provenance(),
    }


def chosen_layers(model: Model, spec: Spec, own: Any = None) -> tuple[int, ...]:
    """Return the layers of a spec, each once; `own` stands in place of the spec's."""
    return chosen(own or spec.layers, model.layer_numbers, f"layers of {model.name}")


def chosen_heads(model: Model, spec: Spec) -> tuple[int | None, ...]:
    """Return the heads of a spec, or (None,) for whole layers."""
    if spec.kind != "head":
        return (None,)
    return chosen(spec.heads or "all", tuple(range(model.heads)), f"heads of {model.name}")


def chosen(wanted: Any, known: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Return the wanted indices among those known; "all" is all of them."""
    if isinstance(wanted, str) and wanted == "all":
        return known
    unknown = [index for index in wanted if index not in known]
    if unknown or not wanted:
        whole = known == tuple(range(len(known)))
        among = f"between 0 and {len(known) - 1}" if whole else "among " + ", ".join(map(str, known))
        raise InputError(
            f"expected {what} {among}, got {unknown[0] if unknown else 'none'}; choose among them or say all"
        )
    return tuple(dict.fromkeys(wanted))
