"""What a question is asked of: the places that share a forward pass, with the model and the tokens they need.

A `Bundle` is plain data that travels to another process. A `Work` is a bundle beside its loaded model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.questions.inputs import TOKEN_NAMES, NormalisedInputs
from howsmooth.questions.question import Place
from howsmooth.questions.spec import Spec
from howsmooth.spectral.solver import Solver
from howsmooth.texts.cutting import TokenChunk, word

if TYPE_CHECKING:
    from howsmooth.models.model import Model


@dataclass(frozen=True)
class Samples:
    """The inputs of a bundle: it contains the token ids, so that a worker needs no corpus.

    Attributes:
        load_arguments: Keyword arguments of `howsmooth.load`.
        identity: What `model_identity` must return for the loaded model: hashes, a revision.
        n: Number of tokens.
        numbers: Number of each sample.
        token_ids: Token ids of each sample, (samples, n); None if there are none.
        features: Images or features of sounds, (samples, …); None if there are none. Without ids and features, the
            tokens are random (`NormalisedInputs`).
        second: Of the model that this one is compared with, `load_arguments` and `identity`; None if there is none.
        special: Which tokens are special tokens, (samples, n).
        fields: Fields of the record that describe the sample, one dictionary per sample.
    """

    load_arguments: dict[str, Any]
    identity: dict[str, Any]
    n: int
    numbers: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...] | None
    special: tuple[tuple[bool, ...], ...]
    fields: tuple[dict[str, Any], ...]
    features: Tensor | None = None
    second: tuple[dict[str, Any], dict[str, Any]] | None = None


@dataclass(frozen=True)
class Bundle:
    """Places that are answered together, with everything that a worker needs for them.

    Attributes:
        question: Name of the question.
        spec: Its spec.
        places: The places, without those that have a record.
        fields: Fields that all records share.
        samples: The inputs of a question about models; None for any other.
        solver: The options of a solve.
        first: Coordinates of the first place that was planned.
        seconds: Estimated time of all its places.
    """

    question: str
    spec: Spec
    places: tuple[Place, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    samples: Samples | None = None
    solver: Solver = field(default_factory=Solver)
    first: dict[str, Any] = field(default_factory=dict)
    seconds: float = 1.0

    @property
    def tasks(self) -> list[str]:
        """The keys of all places."""
        return [place.key for place in self.places]

    def without(self, done: set[str]) -> Bundle | None:
        """Return a copy without the places whose keys are in `done`, or None if no place remains."""
        remaining = tuple(place for place in self.places if place.key not in done)
        if not remaining:
            return None
        return replace(self, places=remaining, seconds=self.seconds * len(remaining) / len(self.places))


class Work:
    """A bundle, and the model that it is about.

    Attributes:
        bundle: The bundle.
        spec: Its spec.
        fields: Fields that all records share.
        solver: The options of a solve.
    """

    def __init__(
        self,
        bundle: Bundle,
        model: Model | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
        second: Model | None = None,
    ) -> None:
        """Take the bundle, its model, which a question about anything else does not need, and who is told of steps."""
        self._progress, self._second = progress, second
        self.noted: list[str] = []  # what was said
        self.bundle, self._model = bundle, model
        self.spec: Any = bundle.spec
        self.fields, self.solver = bundle.fields, bundle.solver
        self._activations: dict[int, dict[int, Tensor]] = {}  # of each sample
        self._batch: dict[int, Tensor] | None = None  # of all samples

    def notify(self, at: dict[str, Any]) -> None:
        """Tell the caller where a long computation is; `Question.describe` returns it in words."""
        if self._progress is not None:
            self._progress(at)

    def note(self, text: str) -> None:
        """Say something while the places are answered, once: a command prints it as a note."""
        if text not in self.noted:
            self.noted.append(text)
            self.notify({"note": text})

    @property
    def model(self) -> Model:
        """The model."""
        if self._model is None:
            raise InputError(f"expected a model for the question {self.bundle.question}, got none; name one")
        return self._model

    @cached_property
    def second(self) -> Work:
        """The same places of the model that this one is compared with."""
        from howsmooth.models.loading import cached_model

        if self.samples.second is None:
            raise InputError(f"expected a second model for the question {self.bundle.question}, got none; name one")
        arguments, identity = self.samples.second
        model = self._second or cached_model(arguments, identity, beside=self.samples.load_arguments)
        return Work(self.bundle, model, self._progress)

    @property
    def samples(self) -> Samples:
        """The inputs of the bundle."""
        if self.bundle.samples is None:
            raise InputError(f"expected a question about a model, got {self.bundle.question}, which has no inputs")
        return self.bundle.samples

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.samples.n

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The layers of the places, each once."""
        layers = (place.at.get("layer") for place in self.bundle.places)
        return tuple(dict.fromkeys(layer for layer in layers if layer is not None))

    def index(self, sample: int) -> int:
        """Return the position of a sample in the bundle."""
        return self.samples.numbers.index(sample)

    def token_ids(self, sample: int) -> Tensor | None:
        """Return the token ids of a sample, (n,); None without ids."""
        ids = self.samples.token_ids
        return None if ids is None else torch.tensor(ids[self.index(sample)])

    def special(self, sample: int) -> Tensor:
        """Return which tokens of a sample are special tokens, (n,)."""
        return torch.tensor(self.samples.special[self.index(sample)])

    def words(self, sample: int) -> list[str]:
        """Return the tokens of a sample as words; where they are no words, what they are."""
        ids = self.samples.token_ids
        if ids is None:
            leading = self.model.leading_tokens if self.samples.features is not None else []
            return [*leading, *[TOKEN_NAMES.get(self.fields["inputs"], "drawn")] * (self.n - len(leading))]
        return [word(self.model.tokenizer, token) for token in ids[self.index(sample)]]

    def chunk(self, sample: int) -> TokenChunk:
        """Return a sample as a chunk of tokens."""
        ids = self.token_ids(sample)
        if ids is None:
            return TokenChunk.placeholder(self.n, TOKEN_NAMES.get(self.fields["inputs"], "drawn"))
        described = self.samples.fields[self.index(sample)]
        return TokenChunk(
            ids,
            self.special(sample),
            tuple(self.words(sample)),
            start=described.get("start") or 0,
            document=described.get("document"),
        )

    def given(self, sample: int) -> Tensor | None:
        """Return what the model takes for a sample: token ids, an image or sounds; None for random tokens."""
        features = self.samples.features
        return self.token_ids(sample) if features is None else features[self.index(sample)]

    def sample_fields(self, at: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a record that name its place: layer, head, n, and those of its sample."""
        described = self.samples.fields[self.index(at["sample"])] if "sample" in at else {}
        return {"layer": at.get("layer"), "head": at.get("head"), "n": self.n, **described}

    def tokens(self, layer: int, sample: int) -> Tensor:
        """Return the tokens of a sample that enter the attention of a layer, (n, d), from one pass for all layers."""
        given = self.given(sample)
        if given is None:
            return NormalisedInputs(self.model, self.spec.seed).draw(self.n, sample, layer)
        if sample not in self._activations:
            self._activations[sample] = self.model.activations(given, self.layers)
        return self._activations[sample][layer]

    def batch(self, layer: int, samples: list[int]) -> Tensor:
        """Return the tokens of some samples that enter the attention of a layer, (b, n, d), from one pass for all."""
        if self._batch is None:
            self._batch = self.model.activations(torch.tensor(self.samples.token_ids), self.layers)
        return self._batch[layer][[self.index(sample) for sample in samples]]

    def attention(self, layer: int, head: int | None = None) -> Any:
        """Return the attention of a layer, or one head of it."""
        f: Any
        if self.samples.features is not None:
            f = self.model.map_at(self.samples.features[0], layer).f
        elif self.samples.token_ids is None:
            f = self.model.attention(layer, self.n, extrapolate=True)
        else:
            f = self.model.attention(layer, self.n)
        return f if head is None else f.head(head)

    def attention_and_tokens(self, at: dict[str, Any]) -> tuple[Any, Tensor]:
        """Return the attention at a place by its weights, and the tokens that enter it, (n, d)."""
        layer = int(at["layer"])
        return self.attention(layer, at.get("head")), self.tokens(layer, at["sample"])

    def map_and_tokens(self, at: dict[str, Any]) -> tuple[Any, Tensor]:
        """Return the map of the spec at a place as the network computes it, and the tokens that enter it, (n, d)."""
        layer, given = at.get("layer"), self.given(at["sample"])
        if given is not None:
            found = self.model.map_at(given, layer, self.spec.map_name, head=at.get("head"))
            return found.f, found.x
        if layer is None or not self.spec.is_attention:
            raise InputError(
                f"expected a text for the map {self.spec.map_name}, got random tokens; measure attention or its heads"
            )
        return self.attention_and_tokens(at)


def grouped(places: Iterable[Place], names: tuple[str, ...]) -> list[list[Place]]:
    """Return the places in groups with equal values of the named coordinates, in the order of their first one."""
    groups: dict[tuple[Any, ...], list[Place]] = {}
    for place in places:
        groups.setdefault(tuple(place.at.get(name) for name in names), []).append(place)
    return list(groups.values())
