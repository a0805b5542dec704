"""A loaded model: the maps of its layers, and the tokens that enter them."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention import Normalisation, SelfAttention
from howsmooth.errors import InputError
from howsmooth.models import anatomy, inputs
from howsmooth.models.embedding import LanguageHead, language_head
from howsmooth.models.maps import AttentionMap, MapAt, NetworkMap, check_kind, check_tokens, map_at, read_norm
from howsmooth.models.network import choose_part, fast_twin, spell_out_masks
from howsmooth.texts.corpora import Corpus
from howsmooth.texts.cutting import Cutter, TokenChunk, tokenize

if TYPE_CHECKING:
    from jaxtyping import Float


class Model:
    """A transformer in evaluation mode, read layer by layer.

    name, family; modality ("text", "vision" or "audio"); layers, width, heads, and positions (the greatest length;
    None where an image or a sound decides it); dtype, device; network (the transformers module, or the part of it
    that was chosen); tokenizer (None if there is none); source: where all of it came from, for records.
    """

    def __init__(
        self,
        network,
        adapter: ModuleType,
        *,
        name: str,
        tokenizer=None,
        no_tokenizer: str = "",
        source: dict | None = None,
        part: str | None = None,
        processor: inputs.Processor | None = None,
        read_head: Callable[[], dict] = dict,
    ):
        chosen = choose_part(network, part, name)
        self.network = chosen.network
        self.name, self.family, self.modality = name, network.config.model_type, chosen.modality
        self.layers, self.positions = chosen.layers, chosen.positions
        self.width, self.heads = chosen.width, chosen.heads
        self.dtype, self.device = network.dtype, network.device
        self.tokenizer = tokenizer
        self.source = dict(source or {})
        self._adapter, self._scope, self._vocabulary = adapter, chosen.scope, chosen.vocabulary
        self._no_tokenizer = no_tokenizer or "it was loaded without one"
        self._processor = processor or inputs.Processor(None)
        self._read_head = read_head
        self._unchecked: frozenset[int] = frozenset()
        self._last_cutter: tuple[tuple, Cutter] | None = None

    def __repr__(self) -> str:
        length = "" if self.positions is None else f"{self.positions} positions, "
        return (
            f"Model({self.name!r}, {self.family}, {self.layers} layers, d = {self.width}, "
            f"{self.heads} heads, {length}{self.dtype}, {self.device})"
        )

    reads_text = True  # a file of attention layers alone does not

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers of the layers that can be measured."""
        return tuple(range(self.layers))

    def parameters(self) -> Iterator[torch.Tensor]:
        """Iterate over all weights, whether a map uses them or not."""
        return iter(self.network.parameters())

    @cached_property
    def twin(self):
        """The network once more, with the same weights and the fast op inside."""
        return fast_twin(self.network, self._adapter)

    @cached_property
    def language_head(self) -> LanguageHead:
        """Last hidden states (…, d) ↦ logits (…, vocabulary); refused where the model has no language head."""
        return language_head(self)

    def attention(self, layer: int, n: int | None = None, beyond: bool = False) -> SelfAttention | AttentionMap:
        """Return the attention map of a layer: projections with biases, heads and output projection.

        `n` is the number of tokens it will be given. Rotary models whose frequencies depend on the length need it, and
        so does every family without an adapter; it is otherwise the model's positions. `beyond` lets n exceed those,
        where the family has an adapter: rotary angles and distances then go on by the model's own rule.
        """
        layer = self._layer(layer)
        if not (beyond and n is not None and n >= 1 and hasattr(self._adapter, "self_attention")):
            self._check_length(n)
        if not self._adapted(layer):
            return self.map(layer, n=n)
        with torch.no_grad():
            # A copy of its own: converting it in place must not change the network.
            return self._adapter.self_attention(self.network, layer, n).converted()

    def map(
        self,
        layer: int | None = None,
        kind: str = "attention",
        *,
        head: int | None = None,
        n: int | None = None,
        input=None,
    ) -> SelfAttention | torch.nn.Module:
        """Return a map of one layer, or of the whole model: X (n, d) ↦ (n, d_out).

        kind: attention (with output projection, no residual), head (one of its heads), normed (normalisation, then
        attention), block (attention with its residual), layer (all of the layer) or model (what enters layer 0 to the
        last hidden state; no layer needed). `howsmooth.models.maps` defines each for pre-norm and post-norm families.

        Masks and positions are those of `n` tokens, or of a given `input`. `map_at` returns the tokens too.
        """
        check_kind(kind, layer, head)
        if kind in ("attention", "head") and input is None and self._adapted(layer):
            f = self.attention(layer, n)
            return f if head is None else f.head(head)
        return self.map_at(self._any_input(n) if input is None else input, layer, kind, head=head).f

    def map_at(self, input, layer: int | None = None, kind: str = "attention", *, head: int | None = None) -> MapAt:
        """Return a map and the tokens that enter it, captured from one forward pass on an input.

        input: a TokenChunk or n token numbers; an image (c, h, w); features of a sound (mel, frames); or the keyword
        arguments of the network as a dict, which the decoder of a speech model needs. One sequence at a time.

        A network in half precision is measured with its weights and tokens in float32.
        """
        check_kind(kind, layer, head)
        layer = None if layer is None else self._layer(layer)
        given = self._inputs(input)
        if any(len(value) != 1 for value in given.values() if isinstance(value, torch.Tensor)):
            raise InputError("expected one input, got a batch; pass its members one by one")
        site = self._sites(given, [layer or 0])[layer or 0]
        if kind == "model":
            check_tokens(site, kind, f"layer 0 of {self.name}")
            f, x = NetworkMap(self.twin, given, site), site.layer.x
        else:
            f, x = map_at(site, kind, self.heads, head, f"layer {layer} of {self.name}")
        if layer is not None and kind in ("attention", "head") and self._adapted(layer):
            f = self._checked_map(layer, site)
            f = f if head is None else f.head(head)
        elif self.dtype.itemsize < 4:
            f, x = copy.deepcopy(f).float(), x.float()
        return MapAt(f, x.squeeze(0).clone(), kind, layer, head)

    def normalisation(self, layer: int) -> Normalisation:
        """Return the normalisation whose output enters attention at a layer: it decides where tokens can be."""
        layer = self._layer(layer)
        with torch.no_grad():
            if hasattr(self._adapter, "normalisation"):
                norm = self._adapter.normalisation(self.network, layer)
            else:
                site = self._sites(self._inputs(self._any_input(8)), [layer])[layer]
                norm = read_norm(site.norm, site.before_norm, f"layer {layer} of {self.family}")
            return norm.converted()

    def images(self, folder=None, count: int | None = None, seed: int = 0) -> torch.Tensor:
        """Return images (count, c, h, w) as a vision model takes them: a folder's, or generated ones (1 by default)."""
        self._need("vision")
        made = inputs.images(self.network.config, self._processor, folder, count, seed)
        return made.to(self.device, self.dtype)

    def sounds(self, audio=None, count: int | None = None, seed: int = 0) -> torch.Tensor:
        """Return log-mel features (count, mel, frames) of mono sounds at the model's rate, or generated ones."""
        made = inputs.sounds(self.network.config, self._processor, audio, count, seed)
        return made.to(self.device, self.dtype)

    def tokenize(self, text: str) -> list[int]:
        """Return the token numbers of a text, without special tokens."""
        return tokenize(self._need_tokenizer(), text)

    def chunks(
        self, text: str | Corpus, n: int, samples: int | None = None, special_tokens: bool = True
    ) -> list[TokenChunk]:
        """Cut a text into consecutive chunks of `n` tokens, the model's special tokens counted."""
        cutter = self.cutter(text, special_tokens=special_tokens)  # refused for a model that reads no text
        self._check_chunk_length(n)
        return cutter.chunks(n, samples)

    def cutter(
        self, text: str | Corpus, rule: str = "consecutive", *, longest: int = 0, special_tokens: bool = True
    ) -> Cutter:
        """Return a cutter of a text, or of a corpus, by this model's tokenizer."""
        tokenizer = self._need_tokenizer()
        corpus = text if isinstance(text, Corpus) else Corpus("the text", (text,))
        key = (id(tokenizer), corpus, rule, longest, special_tokens)
        if self._last_cutter is None or self._last_cutter[0] != key:  # the checks and the run ask for the same one
            self._last_cutter = key, Cutter(tokenizer, corpus, rule, longest=longest, special_tokens=special_tokens)
        return self._last_cutter[1]

    def inputs(
        self, text: str, layer: int, n: int | None = None, special_tokens: bool = True
    ) -> Float[torch.Tensor, "n d"]:
        """Return the tokens entering attention at a layer (GPT-2, Llama: after the first norm).

        Without `n` the whole text is taken, cut at the model's positions with a warning.
        """
        layer = self._layer(layer)
        if n is None:
            cutter = self.cutter(text, special_tokens=special_tokens)
            n = cutter.tokens + cutter.framed
            if n > self.positions:
                warnings.warn(
                    f"the text has {n} tokens and {self.name} has {self.positions} positions: the rest is cut off",
                    stacklevel=2,
                )
                n = self.positions
        (chunk,) = self.chunks(text, n, 1, special_tokens)
        return self.activations(chunk, [layer])[layer]

    def activations(
        self, tokens: TokenChunk | Sequence | torch.Tensor, layers: Iterable[int]
    ) -> dict[int, torch.Tensor]:
        """Return what enters attention at each layer, from one forward pass.

        A chunk or n token numbers give (n, d) per layer; a list of chunks of one length, or (b, n)
        token numbers, give (b, n, d).
        """
        layers = sorted({self._layer(layer) for layer in layers})
        given = self._inputs(tokens)
        if not layers:
            return {}
        single = inputs.axes(tokens) == inputs.axes(given[next(iter(given))]) - 1
        found = self._sites(given, layers)
        for layer, site in found.items():
            if self._adapted(layer) and layer not in self._unchecked:
                self._checked_map(layer, site)
        return {layer: site.attention.x[0] if single else site.attention.x for layer, site in found.items()}

    def _sites(self, given: dict, layers: Iterable[int]) -> dict[int, anatomy.Site]:
        layers = list(layers)
        try:
            return anatomy.sites(self.twin, given, layers, self._scope, self.layers)
        except anatomy.ForwardFailed:
            if not spell_out_masks(self.twin):
                raise
            return anatomy.sites(self.twin, given, layers, self._scope, self.layers)

    def _adapted(self, layer: int) -> bool:
        """Whether the family has an adapter, and nothing has been put around the weights that it reads."""
        return hasattr(self._adapter, "self_attention") and layer not in self._altered

    @cached_property
    def _altered(self) -> frozenset[int]:
        """Layers whose attention module returns something else than the map that the adapter makes of its weights.

        LoRA, forward hooks and the like act on the module's output, and an adapter knows the weights alone. Such layers
        are measured as the module itself computes them. Where nothing of that kind is there, the adapter may be at
        fault: a warning names these layers.
        """
        n = min(8, self.positions)
        ids = torch.arange(n) * max(1, self._vocabulary // n) % self._vocabulary
        found = self._sites(self._inputs(ids), range(self.layers))
        altered, unexplained = set(), []
        for layer, site in found.items():
            explained = _is_customised(site)
            try:
                with torch.no_grad():
                    same = _apart(self._adapter.self_attention(self.network, layer, n), site, self.dtype) is None
            except InputError:  # the adapter itself declines this network
                same, explained = False, True
            except (AttributeError, TypeError, ValueError, RuntimeError):  # modules that are not the family's own
                same = False
            if not same:
                altered.add(layer)
                if not explained:
                    unexplained.append(layer)
        if unexplained:
            warnings.warn(
                f"attention in layers {', '.join(map(str, unexplained))} of {self.name} returns something else than "
                f"the map that the adapter of {self.family} makes of its weights, and no hook or wrapped module "
                "explains it: the module itself is measured there; report this model",
                UserWarning,
                stacklevel=2,
            )
        return frozenset(altered)

    @contextmanager
    def unchecked(self, layers: Iterable[int]) -> Iterator[None]:
        """Inside the block these layers may return something else than their maps: attention is being replaced."""
        self._adapted(0)  # compared before anything is replaced
        before, self._unchecked = self._unchecked, self._unchecked | frozenset(layers)
        try:
            yield
        finally:
            self._unchecked = before

    def _checked_map(self, layer: int, site: anatomy.Site) -> SelfAttention:
        """Return the adapter's map of a layer; refuse one whose value is not what the module returned at the site.

        Layers whose attention is being replaced (`unchecked`) are meant to differ.
        """
        with torch.no_grad():
            f = self._adapter.self_attention(self.network, layer, site.attention.x.shape[-2]).converted()
            gap = None if layer in self._unchecked else _apart(f, site, self.dtype)
        if gap is not None:
            raise InputError(
                f"expected the attention map of layer {layer} of {self.name} to return what the module returned, got "
                f'outputs that differ by {gap:.2g} of their size; measure kind "layer" instead, and report this model'
            )
        return f

    def _inputs(self, input) -> dict:
        """Return the keyword arguments that run the network on an input, as batches."""
        if isinstance(input, dict):
            return inputs.placed(input, self.device, self.dtype)
        if self.modality != "text":
            return {self.network.main_input_name: inputs.batch(input, self.modality).to(self.device, self.dtype)}
        ids = self._ids(input)
        ids = ids if ids.ndim == 2 else ids[None]
        if not self._scope:
            return {"input_ids": ids}
        if self.network.main_input_name != "input_ids":
            raise InputError(
                f"expected a dict with {self.network.main_input_name} and decoder_input_ids for the decoder of "
                f"{self.name}, got token numbers alone; the decoder listens to what the encoder heard (model.sounds())"
            )
        return {"input_ids": ids, "decoder_input_ids": ids}

    def _any_input(self, n: int | None):
        """Some input of n tokens: masks and positions depend on nothing else."""
        if self.modality == "vision":
            return self.images()[0]
        if self.modality == "audio":
            return self.sounds()[0]
        if n is None:
            raise InputError(
                f"expected the number of tokens: the maps of a {self.family} are read off a forward pass; call "
                "model.map(layer, kind, n=...) or model.map_at(input, layer, kind)"
            )
        self._check_length(n)
        ids = torch.full((n,), self._vocabulary // 2)
        if self._scope and self.network.main_input_name != "input_ids":
            return {self.network.main_input_name: self.sounds(), "decoder_input_ids": ids[None]}
        return ids

    def _ids(self, tokens) -> torch.Tensor:
        """Return token numbers as (n,) or (b, n) on the model's device, checked."""
        return inputs.token_numbers(tokens, self._vocabulary, self.positions).to(self.device)

    def _check_chunk_length(self, n: Any) -> None:
        if isinstance(n, int) and self.positions is not None and n > self.positions:
            raise InputError(
                f"expected a length within the model's {self.positions} positions, got n = {n}; ask for "
                f"at most {self.positions}"
            )

    def _check_length(self, n) -> None:
        if n is not None and self.positions is not None and not 1 <= n <= self.positions:
            raise InputError(f"expected a length from 1 to {self.positions}, got n = {n!r}; choose another")

    def _need(self, modality: str) -> None:
        if self.modality != modality:
            raise InputError(f"expected a {modality} model, got {self.name!r}, which takes {self.modality}")

    def _layer(self, layer) -> int:
        """Return a layer's number, checked; NumPy's integers are integers too."""
        try:
            number = -1 if isinstance(layer, bool) else operator.index(layer)
        except TypeError:
            number = -1
        if not 0 <= number < self.layers:
            raise InputError(
                f"expected a layer from 0 to {self.layers - 1} of {self.name}, got {layer!r}; choose one of them"
            )
        return number

    def _need_tokenizer(self):
        self._need("text")
        if self.tokenizer is None:
            # Weights drawn at random know no vocabulary: the tokenizer that is always there will do.
            fitting = "minilm" if self.source.get("kind") == "random" else "NAME"
            raise InputError(
                f"expected a tokenizer for {self.name!r}, got none ({self._no_tokenizer}); name a folder or "
                f"a hub model that has one: --tokenizer {fitting} on the command line, "
                f"tokenizer={fitting!r} in load()"
            )
        return self.tokenizer


def _apart(f: SelfAttention, site: anatomy.Site, dtype: torch.dtype) -> float | None:
    """By how much f at a site's tokens differs from what was attended there, if by more than rounding."""
    y = site.attended[0].to(f.dtype)
    gap = float((f(site.attention.x[0].to(f.dtype)) - y.reshape(y.shape[-2], -1)).abs().max())
    size = float(y.abs().max())
    return None if gap <= torch.finfo(dtype).eps ** 0.5 * size else gap / max(size, torch.finfo(dtype).tiny)


def _is_customised(site: anatomy.Site) -> bool:
    """Whether hooks, or code that is neither torch's nor transformers', take part in a layer's attention."""
    for module in (*site.attention.module.modules(), *site.projection.modules()):
        forward = vars(module).get("forward")  # set on the one module; by an adapter (`through_registry`), or the user
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or not type(module).__module__.startswith(("torch.nn.", "transformers."))
            or not (forward is None or forward.__module__.startswith("howsmooth."))
        ):
            return True
    return False
