"""The tokens that enter a layer, from a text, token ids, images or sounds, or drawn in its own normalisation.

All kinds of inputs have the same methods, so that the callers do not distinguish them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.files import check_positions
from howsmooth.questions import find_question
from howsmooth.questions.spec import ModelSpec, select_indices
from howsmooth.texts.corpora import Corpus, corpus_name
from howsmooth.texts.cutting import Cutter, TokenChunk, word

if TYPE_CHECKING:
    from howsmooth.models.model import Model


DRAW_BLOCK = 1024  # random tokens are drawn in blocks of this size; changing it changes the tokens of every seed
RANDOM_TEXT = "random normalised tokens"  # the field `text` of records without a text
RANDOM_IDS = "random token ids"
TOKEN_NAMES = {"images": "patch", "audio": "frame"}  # what tokens are called where they are no words


class Inputs(ABC):
    """The inputs of a model, as samples of n tokens."""

    model: Model

    def release(self) -> None:
        """Drop the reference to the model; `chunk` and the fields of records are still available."""
        del self.model

    @abstractmethod
    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return a sample of n tokens."""

    def tokens(self, chunk: TokenChunk, sample: int, layers: Iterable[int]) -> dict[int, Tensor]:
        """Return the inputs of attention, layer -> (n, d), from one forward pass."""
        return self.model.activations(chunk, layers)

    def attention(self, layer: int, n: int) -> Any:
        """Return the attention map of a layer for n tokens."""
        return self.model.attention(layer, n)

    def length_fields(self, n: int) -> dict[str, Any]:
        """Return the fields that all records of one length share."""
        return {}

    @property
    @abstractmethod
    def run_fields(self) -> dict[str, Any]:
        """The fields that all records of a run share."""


class TextInputs(Inputs):
    """Chunks of a corpus, cut for one model.

    Args:
        model: The model that the chunks run through.
        corpus: The text.
        spec: Lengths, samples and how the text is cut.

    Raises:
        InputError: A length exceeds the model's positions, or the corpus is too short.
    """

    def __init__(self, model: Model, corpus: Corpus, spec: ModelSpec):
        """Tokenise the corpus and check that it is long enough."""
        self.model, self.corpus, longest = model, corpus, max(spec.lengths)
        self.cutter: Cutter = model.cutter(
            corpus,
            spec.cutting,
            longest=longest if spec.cutting == "prefixes" else 0,
            special_tokens=spec.adds_special_tokens,
        )
        self.takes_short_texts, self.chosen_samples = spec.takes_short_texts, "samples" in spec.model_fields_set
        for wanted in spec.lengths:
            n, samples = self.fitted(wanted, spec.samples)
            check_positions(model.name, model.positions, n)
            self.cutter.check(n, samples)

    @property
    def cutters(self) -> list[Cutter]:
        """The cutters of all texts."""
        return [self.cutter]

    def fitted(self, n: int, samples: int) -> tuple[int, int]:
        """Return the length and the number of samples that there are, where a text may be shorter than asked for.

        A number of samples that nobody chose is reduced to those that the text has.
        """
        if not self.takes_short_texts:
            if self.chosen_samples:
                return n, samples
            try:
                self.cutter.check(n, samples)
            except InputError:
                return n, self.cutter.count(n)
            return n, samples
        tokens = self.cutter.tokens_up_to(n * samples) + self.cutter.special_count
        n = min(n, tokens)
        return n, samples if tokens >= n * samples else min(samples, self.cutter.count(n))

    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return a sample of n tokens."""
        return self.cutter.chunk(n, sample)

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer adds special tokens to a chunk; some have none to add."""
        return self.cutter.special_count > 0

    def length_fields(self, n: int) -> dict[str, Any]:
        """Return the fields that all records of one length share, as they are whatever was asked."""
        return {} if self.adds_special_tokens else {"special_tokens": "none"}

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields that all records of a run share."""
        return {"inputs": "text", "text": self.corpus.name, "text_sha256": self.corpus.sha256}


class PairInputs(TextInputs):
    """Two chunks of each length: the first of two texts, or two consecutive ones of one text.

    Args:
        model: The model that the chunks run through.
        corpus: The text of sample 0.
        other: The text of sample 1; None for the same text.
        spec: Lengths, and how texts are cut.

    Raises:
        InputError: A length exceeds the model's positions, or a text is too short.
    """

    def __init__(self, model: Model, corpus: Corpus, other: Corpus | None, spec: ModelSpec):
        """Tokenise both texts and check that they are long enough."""
        each = spec.model_copy(update={"samples": 2 if other is None else 1})
        super().__init__(model, corpus, each)
        self.other = None if other is None else TextInputs(model, other, each)

    @property
    def cutters(self) -> list[Cutter]:
        """The cutters of all texts."""
        return [self.cutter] if self.other is None else [self.cutter, self.other.cutter]

    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return the chunk of n tokens of one of the two texts."""
        return super().chunk(n, sample) if self.other is None or sample == 0 else self.other.chunk(n, 0)

    def release(self) -> None:
        """Drop the references to the model; `chunk` still works."""
        super().release()
        if self.other is not None:
            self.other.release()

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields that all records of a run share."""
        second = self if self.other is None else self.other
        return {
            **super().run_fields,
            "texts": [self.corpus.name, second.corpus.name],
            "texts_sha256": [self.corpus.sha256, second.corpus.sha256],
        }


class IdInputs(Inputs):
    """Random token ids, uniform in the vocabulary: a model without a tokenizer runs on them.

    The first n ids of a longer draw are those of a shorter one.

    Args:
        model: The model that the ids run through.
        spec: Lengths and seed.

    Raises:
        InputError: The model takes no token ids, or a length exceeds its positions.
    """

    def __init__(self, model: Model, spec: ModelSpec):
        """Check that the model takes token ids."""
        self.model, self.seed, self.vocabulary = model, spec.seed, model.vocabulary
        check_positions(model.name, model.positions, max(spec.lengths))

    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return a sample of n ids."""
        generator = torch.Generator().manual_seed((1_000_003 * self.seed + sample) % 2**63)
        blocks = [
            torch.randint(self.vocabulary, (DRAW_BLOCK,), generator=generator) for _ in range(-(-n // DRAW_BLOCK))
        ]
        ids = torch.cat(blocks)[:n]
        return TokenChunk(ids, torch.zeros(n, dtype=torch.bool), tuple(word(None, token) for token in ids.tolist()))

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields that all records of a run share."""
        return {
            "inputs": "ids",
            "text": RANDOM_IDS,
            "text_sha256": None,
            "special_tokens": "none",
            "drawn": f"uniform in {self.vocabulary} token ids, {DRAW_BLOCK} at a time, seed {self.seed}",
        }


class FeatureInputs(Inputs):
    """Images or sounds as a vision or speech model takes them; each is a sample, and their size determines n.

    Args:
        model: The model.
        spec: Its `inputs` are "images" or "audio"; a path, the number of samples, the seed of generated ones.

    Raises:
        InputError: The model takes something else, or a file cannot be read.
    """

    def __init__(self, model: Model, spec: ModelSpec):
        """Read or generate all samples, and run the model on the first to count its tokens."""
        self.model, self.inputs = model, spec.inputs
        path = spec.images if self.inputs == "images" else spec.audio
        make = model.images if self.inputs == "images" else model.sounds
        self.path = None if path is None else spec.path(path)
        chosen = spec.samples if path is None or "samples" in spec.model_fields_set else None
        self.features = make(self.path, chosen, spec.seed)[: spec.samples].cpu()
        self.seed, self.samples = spec.seed, len(self.features)
        first = model.layer_numbers[0]
        self.n = model.activations(self.features[0], [first])[first].shape[-2]

    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return a chunk of n tokens without ids."""
        return TokenChunk.placeholder(n, TOKEN_NAMES[self.inputs])

    def tokens(self, chunk: TokenChunk, sample: int, layers: Iterable[int]) -> dict[int, Tensor]:
        """Return the inputs of attention, layer -> (n, d), from one forward pass."""
        return self.model.activations(self.features[sample], layers)

    def attention(self, layer: int, n: int) -> Any:
        """Return the attention map of a layer."""
        return self.model.map_at(self.features[0], layer).f

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields that all records of a run share."""
        what = "images" if self.inputs == "images" else "sounds"
        generated = self.path is None
        return {
            "inputs": self.inputs,
            "text": f"generated {what}" if generated else f"{what} of {Path(self.path or '').name}",
            "text_sha256": None,
            "special_tokens": "none",
            "drawn": f"smooth random {what}, seed {self.seed}" if generated else None,
        }

    def sha256(self, samples: slice | int) -> str:
        """Return the hash of some samples, each as the network takes it, in float32."""
        return hashlib.sha256(self.features[samples].float().numpy().tobytes()).hexdigest()


class NormalisedInputs(Inputs):
    """Standard normal tokens in the normalisation of each layer, with its gain and bias: any length, without a text.

    They are drawn on the CPU whatever the device. The first n tokens of a longer draw are the tokens of a shorter one:
    growth with n is then growth of one sequence, and under a causal mask the constant cannot decrease.

    Args:
        model: The model whose normalisations are applied.
        seed: Seed of the draw; samples have different streams.
    """

    def __init__(self, model: Model, seed: int = 0):
        """Store the model and the seed; tokens are drawn when they are needed."""
        self.model, self.seed, self.positions = model, seed, model.positions

    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return a chunk of n tokens without ids."""
        return TokenChunk.placeholder(n)

    def tokens(self, chunk: TokenChunk, sample: int, layers: Iterable[int]) -> dict[int, Tensor]:
        """Return the inputs of attention, layer -> (n, d)."""
        return {layer: self.draw(len(chunk), sample, layer) for layer in layers}

    def draw(self, n: int, sample: int, layer: int) -> Tensor:
        """Return (n, d) on the model's device and in its dtype, drawn in blocks to save memory."""
        model = self.model
        norm = model.normalisation(layer).converted(device=model.device, dtype=torch.float32)
        x = torch.empty(n, norm.d, device=model.device, dtype=model.dtype)
        generator = torch.Generator().manual_seed((1_000_003 * self.seed + sample) % 2**63)
        for first in range(0, n, DRAW_BLOCK):
            block = x[first : first + DRAW_BLOCK]
            # Always a whole block: the last numbers of a draw depend on its size.
            z = torch.randn(DRAW_BLOCK, norm.d, generator=generator)[: len(block)]
            block.copy_(norm(z.to(model.device)))
        return x

    def attention(self, layer: int, n: int) -> Any:
        """Return the attention map of a layer for n tokens, also beyond the model's positions."""
        return self.model.attention(layer, n, extrapolate=True)

    def length_fields(self, n: int) -> dict[str, Any]:
        """Return whether a length is beyond the model's positions."""
        return {"extrapolated": self.positions is not None and n > self.positions}

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields that all records of a run share."""
        return {
            "inputs": "normalised",
            "text": RANDOM_TEXT,
            "text_sha256": None,
            "special_tokens": "none",
            "drawn": f"standard normal in float32 on the CPU, {DRAW_BLOCK} tokens at a time, seed {self.seed}, "
            "then the layer's own normalisation",
        }


class ConstructedInputs(NormalisedInputs):
    """Tokens that a question constructs itself, of any length.

    Args:
        model: The model.
        label: The field `text` of records.
    """

    def __init__(self, model: Model, label: str):
        """Store the model and the label."""
        super().__init__(model)
        self.label = label

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields that all records of a run share."""
        return {"inputs": "constructed", "text": self.label, "text_sha256": None, "special_tokens": "none"}


def adapt_to_model(model: Model, corpora: Sequence[Corpus], spec: ModelSpec) -> tuple[ModelSpec, list[str]]:
    """Return the spec with inputs and lengths that the model takes, where the user did not choose them, and notes.

    Images and sounds have the number of tokens that their size gives: it replaces `lengths`. Their number replaces
    `samples`, unless that is given.

    Args:
        model: The model.
        corpora: The texts; none with other inputs.
        spec: What the user asked.

    Returns:
        The spec, and a line for each change.

    Raises:
        InputError: The user chose inputs that the model does not take, or lengths for images or sounds.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> adapted, notes = adapt_to_model(load("minilm"), [], spec_of({}))
        >>> adapted.inputs, notes
        ('text', [])
    """
    taken = {"vision": "images", "audio": "audio"}.get(model.modality)
    if taken is None or spec.inputs == "normalised":
        if spec.inputs in ("images", "audio"):
            raise InputError(f"expected a model that takes {spec.inputs}, got {model.name}, which takes text")
        if spec.inputs == "text" and not spec.chooses_inputs and model.reads_text and model.tokenizer is None:
            with_ids, notes = fit_lengths(model, (), spec.model_copy(update={"inputs": "ids"}))
            return with_ids, [
                f"{model.name} has no tokenizer: random token ids are measured in place of a text (--inputs ids); "
                "give --tokenizer NAME to measure a text",
                *notes,
            ]
        return fit_lengths(model, corpora, spec)
    what = "images" if taken == "images" else "sounds"
    if spec.chooses_inputs and spec.inputs != taken:
        raise InputError(
            f"expected {what} for {model.name}, which takes {model.modality}, got {spec.inputs}; give --{taken} PATH"
        )
    if "lengths" in spec.model_fields_set:
        raise InputError(
            f"expected no lengths (--lengths) with {what}, whose size determines the number of tokens, got "
            f"{', '.join(map(str, spec.lengths))}; leave them out"
        )
    notes = []
    if getattr(spec, taken) is None:
        notes.append(f"{model.name} takes {what}: generated ones are measured; give --{taken} PATH to measure your own")
    given = spec.model_copy(update={"inputs": taken})
    found = FeatureInputs(model, given)
    return given.model_copy(update={"lengths": (found.n,), "samples": found.samples}), notes


def fit_lengths(model: Model, corpora: Sequence[Corpus], spec: ModelSpec) -> tuple[ModelSpec, list[str]]:
    """Return the spec with those default lengths that its texts and the model have, and a line that says so.

    If there are none of them, the longest length that there is takes their place. A length that the user chose stays.
    Samples that nobody chose are as many as there are, by `TextInputs.fitted`.

    Args:
        model: The model.
        corpora: The texts; none with other inputs.
        spec: What the user asked.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> fitted, notes = fit_lengths(load("minilm"), [read_corpus("string:It rained all day.")], spec_of({}))
        >>> fitted.lengths, notes
        ((7,), ['the given text has 7 tokens: n = 7 in place of 32, 64, 128, 256; 1 of 4 samples'])
        >>> fit_lengths(load("minilm"), [read_corpus("string:Rain.")], spec_of({}))[0].lengths
        (4,)
    """
    if spec.inputs not in ("text", "ids") or {"lengths", "samples"} <= spec.model_fields_set:
        return spec, []
    make = find_question(spec.question).inputs or inputs_of

    def inputs_at(lengths: tuple[int, ...]) -> list[Inputs]:
        return [make(model, corpus, spec.model_copy(update={"lengths": lengths})) for corpus in corpora or (None,)]

    def fits(n: int) -> bool:
        try:
            return bool(inputs_at((n,)))
        except InputError:
            return False

    lengths = spec.lengths
    if "lengths" not in spec.model_fields_set:
        longest = next((n for n in reversed(lengths) if fits(n)), 0)
        longest = longest or next((n for n in range(lengths[0] - 1, 0, -1) if fits(n)), 0)
        lengths = tuple(n for n in lengths if n <= longest) or (longest,)
    try:
        # The lengths of some questions have a lower limit.
        _ = type(spec).model_validate({**spec.model_dump(exclude_unset=True), "lengths": lengths})
        found = inputs_at(lengths)
    except (ValidationError, InputError):  # for another reason than the text, or of lengths that the user chose
        return spec, []
    fitted = spec if lengths == spec.lengths else spec.model_copy(update={"lengths": lengths})
    return fitted, _fitting_notes(model, found, spec, lengths)


def _fitting_notes(model: Model, found: Sequence[Inputs], spec: ModelSpec, lengths: tuple[int, ...]) -> list[str]:
    """Return a line about the lengths and samples of a spec that there are not, and why; none if there are all."""
    texts = [inputs for inputs in found if isinstance(inputs, TextInputs) and not inputs.takes_short_texts]
    samples = {n: min((inputs.fitted(n, spec.samples)[1] for inputs in texts), default=spec.samples) for n in lengths}
    possible = [n for n in spec.lengths if model.positions is None or n <= model.positions] or [model.positions or 0]
    is_shorter = bool(texts) and max(lengths) < max(possible)
    reasons = [f"{model.name} has {model.positions} positions"] * (max(spec.lengths) > max(possible) and not is_shorter)
    if is_shorter or min(samples.values()) < spec.samples:
        cutters = (cutter for inputs in texts for cutter in inputs.cutters)
        few = min(cutters, key=lambda cutter: len(cutter.corpus.content))
        name = corpus_name(few.corpus.name)
        count = few.tokens + few.special_count if few.rule != "documents" else 0
        reasons.append(f"{name} has {count:,} tokens" if count else f"the documents of {name} are too short or too few")
    changes = []
    if not set(lengths) <= set(spec.lengths):
        changes.append(f"n = {lengths[0]} in place of {', '.join(map(str, spec.lengths))}")
    elif dropped := [n for n in spec.lengths if n not in lengths]:
        changes.append(f"without n = {', '.join(map(str, dropped))}")
    fewer = {n: count for n, count in samples.items() if count < spec.samples}
    if len(set(samples.values())) == 1 and fewer:
        changes.append(f"{samples[lengths[0]]} of {spec.samples} samples")
    elif fewer:
        changes += [f"{count} of {spec.samples} samples at n = {n}" for n, count in fewer.items()]
    return [f"{' and '.join(reasons)}: {'; '.join(changes)}"] if changes else []


def inputs_of(model: Model, corpus: Corpus | None, spec: ModelSpec) -> Inputs:
    """Return the inputs of a spec.

    Raises:
        InputError: The text is too short, the model reads no text, or no token is left to perturb.
    """
    inputs: Inputs
    if spec.inputs == "normalised":
        inputs = NormalisedInputs(model, spec.seed)
    elif not model.reads_text or (spec.inputs == "text" and corpus is None):
        raise InputError(
            f"expected a model that reads text, got {model.name}, a file of attention layers alone; "
            "use --inputs normalised"
        )
    elif corpus is not None and spec.inputs == "text":
        inputs = TextInputs(model, corpus, spec)
    elif spec.inputs == "ids":
        inputs = IdInputs(model, spec)
    else:
        inputs = FeatureInputs(model, spec)
    for n in {min(spec.lengths), max(spec.lengths)}:
        for tokens in spec.tokens:
            perturbed_mask(inputs.chunk(n, 0).special, tokens)
    return inputs


def perturbed_mask(special: Tensor, tokens: str) -> Tensor | None:
    """Return the mask of the tokens that a perturbation may move.

    Args:
        special: Which tokens are special tokens, (n,) or (b, n).
        tokens: "all", "no-special" or "no-first", as in `ModelSpec.tokens`.

    Returns:
        A mask of the shape of `special`; None for all tokens.

    Raises:
        InputError: No token is left to perturb.
    """
    if tokens == "all":
        return None
    mask = ~special if tokens == "no-special" else (torch.arange(special.shape[-1]) > 0).expand(special.shape)
    if not mask.any(-1).all():
        raise InputError(
            f"expected a token left to perturb with the choice of tokens {tokens}, got a chunk of "
            f"{special.shape[-1]} tokens without one; ask for longer lengths, or let all of them move "
            "(--tokens all)"
        )
    return mask


def resolve(model: Model, corpus: Corpus | None, spec: ModelSpec) -> ModelSpec:
    """Return the spec with layers and heads as numbers, checked against the model and the text.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> resolve(model, text, spec_of({"heads": "all", "lengths": [8], "samples": 1})).layers
        (0, 1, 2, 3, 4, 5)
    """
    (find_question(spec.question).inputs or inputs_of)(model, corpus, spec)
    return spec.model_copy(
        update={
            "layers": chosen_layers(model, spec) if spec.map_type.per_layer else spec.layers,
            "heads": chosen_heads(model, spec) if spec.map_name == "head" else None,
        }
    )


def chosen_layers(model: Model, spec: ModelSpec, own: Any = None) -> tuple[int, ...]:
    """Return the layers of a spec, each once; `own`, if given, takes precedence over the spec's."""
    return select_indices(own or spec.layers, model.layer_numbers, f"layers of {model.name}")


def chosen_heads(model: Model, spec: ModelSpec) -> tuple[int | None, ...]:
    """Return the heads of a spec, or (None,) for whole layers."""
    if spec.map_name != "head":
        return (None,)
    return select_indices(spec.heads or "all", tuple(range(model.heads)), f"heads of {model.name}")
