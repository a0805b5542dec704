"""A loaded model: the maps of its layers and the tokens that enter them."""

from __future__ import annotations

import copy
import inspect
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.errors import InputError
from howsmooth.models import inputs
from howsmooth.models.embedding import LanguageHead, language_head
from howsmooth.models.files import missing_tokenizer
from howsmooth.models.map_types import MAPS, MapChoice
from howsmooth.models.maps import AttentionMap, MapAt, check_map, map_at, read_norm, site_numbers
from howsmooth.models.network import choose_part, instrumented_copy, use_4d_masks
from howsmooth.models.parts import MissingMap, Site
from howsmooth.models.sites import ForwardFailed, find_sites
from howsmooth.texts.corpora import Corpus
from howsmooth.texts.cutting import Cutter, TokenChunk, tokenize

if TYPE_CHECKING:
    from jaxtyping import Float


class Model:
    """A transformer in evaluation mode, with the maps of its layers. `howsmooth.load` returns one.

    Attributes:
        name: The name it was loaded by.
        family: The model type of its config, for example "bert".
        modality: "text", "vision" or "audio".
        layers: The number of layers.
        width: The width d of the tokens.
        heads: The number of attention heads that every layer has; 0 if there are none.
        positions: The largest number of tokens; None if the size of an image or a sound determines it.
        dtype: The dtype of its weights.
        device: The device of its weights.
        network: The transformers module, or the part of it that was chosen.
        tokenizer: Its tokenizer; None if there is none.
        source: The provenance of weights and tokenizer, for records.

    Example:
        >>> import howsmooth
        >>> model = howsmooth.load("minilm")
        >>> model.layers, model.width, model.heads
        (6, 384, 12)
        >>> x = model.inputs("It was late, and the lamp had gone out.", layer=2)
        >>> howsmooth.local_lipschitz(model.attention(2), x).status
        'converged'
    """

    def __init__(
        self,
        network: PreTrainedModel,
        adapter: ModuleType,
        *,
        name: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        no_tokenizer: str = "",
        source: dict[str, Any] | None = None,
        part: str | None = None,
        processor: inputs.Processor | None = None,
        read_head: Callable[[], dict[str, torch.Tensor]] = dict,
    ) -> None:
        """Take a network and its adapter; use `howsmooth.load` to get them.

        Args:
            network: A transformers network in evaluation mode.
            adapter: The adapter of its family, a module of `howsmooth.models.families`.
            name: The name of the model, for records and messages.
            tokenizer: Its tokenizer.
            no_tokenizer: Why there is no tokenizer, for error messages.
            source: The provenance of the weights, for records.
            part: The stack of layers to use, if the network has two.
            processor: The location of its image processor or feature extractor.
            read_head: Returns the weights of its language head.
        """
        chosen = choose_part(network, part, name)
        self.network = chosen.network
        self.name, self.family, self.modality = name, network.config.model_type, chosen.modality
        self.layers, self.positions = chosen.layers, chosen.positions
        self.width, self.heads = chosen.width, chosen.heads
        self.dtype, self.device = network.dtype, network.device
        self.tokenizer = tokenizer
        self.source = dict(source or {})
        self._adapter, self._scope, self._vocabulary = adapter, chosen.scope, chosen.vocabulary
        self._tokenizer_missing = no_tokenizer or "it was loaded without one"
        self._processor = processor or inputs.Processor()
        self._read_head = read_head
        self._unchecked_layers: frozenset[int] = frozenset()
        self._last_cutter: tuple[tuple[Any, ...], Cutter] | None = None

    def __repr__(self) -> str:
        """Return name, family, sizes, dtype and device."""
        length = "" if self.positions is None else f"{self.positions} positions, "
        return (
            f"Model({self.name!r}, {self.family}, {self.layers} layers, d = {self.width}, "
            f"{self.heads} heads, {length}{self.dtype}, {self.device})"
        )

    reads_text = True  # False for a file that contains attention layers only

    @property
    def vocabulary(self) -> int:
        """The number of tokens of the vocabulary; InputError if the model takes no text."""
        return self._text_limits()[1]

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers of the layers that can be measured."""
        return tuple(range(self.layers))

    def parameters(self) -> Iterator[torch.Tensor]:
        """Iterate over all weights, also those that no map uses."""
        return iter(self.network.parameters())

    @cached_property
    def instrumented(self) -> PreTrainedModel:
        """A copy of the network that shares its weights and computes attention by `howsmooth.attend`."""
        return instrumented_copy(self.network, self._adapter)

    @cached_property
    def language_head(self) -> LanguageHead:
        """The language head, last hidden states (…, d) ↦ logits (…, vocabulary); InputError if the model has none."""
        return language_head(self)

    def attention(self, layer: int, n: int | None = None, extrapolate: bool = False) -> SelfAttention | AttentionMap:
        """Return the attention map of a layer: projections with biases, heads and output projection.

        Args:
            layer: The number of the layer.
            n: The number of tokens of its input. Families without an adapter need it, and so do rotary models whose
                frequencies depend on the length; otherwise it defaults to the model's positions.
            extrapolate: Allow n to exceed the model's positions, if the family has an adapter: rotary angles and
                biases by distance are continued by the model's own rule.

        Returns:
            A `SelfAttention` if the family has an adapter, else a module: x (n, d) ↦ (n, d_out).

        Raises:
            InputError: There is no such layer, or n is missing or too large.
        """
        layer = self.check_layer(layer)
        if not (extrapolate and n is not None and n >= 1 and hasattr(self._adapter, "self_attention")):
            self._check_length(n)
        if not self._uses_adapter(layer):
            # The map "attention" of a layer without an adapter is an AttentionMap.
            return cast(AttentionMap, self.map_at(self._placeholder_input(n), layer).f)
        with torch.no_grad():
            # A copy of its own: converting it in place must not change the network.
            return self._adapter.self_attention(self.network, layer, n).converted()

    def map(
        self,
        layer: int | None = None,
        map: str = "attention",
        *,
        head: int | None = None,
        n: int | None = None,
        input: Any = None,
    ) -> SelfAttention | torch.nn.Module:
        """Return a map of one layer, or of the whole model: x (n, d) ↦ (n, d_out).

        Args:
            layer: The number of the layer; None for a map of the whole model, such as "model".
            map: A key of `howsmooth.models.MAPS`, such as "attention" (with output projection, no residual), "head"
                (one of its heads), "block" (attention with its residual), "layer" or "mlp". `howsmooth.models.maps`
                defines each for pre-norm and post-norm families.
            head: The head, for the map "head".
            n: The number of tokens that masks and positions are for, if there is no `input`.
            input: An input that masks and positions are for, as `map_at` takes it.

        Returns:
            The map. `map_at` also returns its input tokens.

        Raises:
            InputError: Map, layer and head are not consistent, or the layer has no such map.
        """
        choice = check_map(map, layer, head)
        if choice.type.by_weights and input is None and layer is not None and self._uses_adapter(layer):
            f = self.attention(layer, n)
            return f if head is None else f.head(head)
        return self.map_at(self._placeholder_input(n) if input is None else input, layer, map, head=head).f

    def map_at(self, input: Any, layer: int | None = None, map: str = "attention", *, head: int | None = None) -> MapAt:
        """Return a map and its input tokens, captured from one forward pass.

        Args:
            input: A `TokenChunk` or n token numbers; an image (c, h, w); features of a sound (mel, frames); or a
                dictionary of the network's keyword arguments, which the decoder of a speech model needs. One sequence
                at a time.
            layer: The number of the layer; None for a map of the whole model.
            map: A key of `howsmooth.models.MAPS`.
            head: The head, for the map "head".

        Returns:
            The map and its input. If the network is in half precision, both are in float32.

        Raises:
            InputError: The input is invalid or a batch, or the layer has no such map.

        Example:
            >>> import howsmooth
            >>> model = howsmooth.load("minilm")
            >>> (chunk,) = model.chunks("It was late, and the lamp had gone out.", 8, 1)
            >>> at = model.map_at(chunk, 1, "layer")
            >>> at.x.shape, at.f(at.x).shape
            (torch.Size([8, 384]), torch.Size([8, 384]))
        """
        (found,) = self.maps_at(input, [(layer, map, head)])
        return found

    def maps_at(self, input: Any, wanted: Iterable[tuple[int | None, str, int | None]]) -> list[MapAt]:
        """Return several maps and their input tokens, from one forward pass.

        Args:
            input: An input as `map_at` takes it.
            wanted: The layer, the map and the head of each, as `map_at` takes them.

        Returns:
            The maps, in the order of `wanted`.

        Raises:
            InputError: The input is invalid or a batch, or a layer has no such map.

        Example:
            >>> import howsmooth
            >>> model = howsmooth.load("minilm")
            >>> (chunk,) = model.chunks("It was late, and the lamp had gone out.", 8, 1)
            >>> [at.layer for at in model.maps_at(chunk, [(0, "attention", None), (3, "layer", None)])]
            [0, 3]
        """
        places = []
        for layer, name, head in wanted:
            choice = check_map(name, layer, head)
            places.append((choice, None if layer is None else self.check_layer(layer), head))
        given = self._inputs(input)
        if inputs.is_batch(given):
            raise InputError("expected one input, got a batch; pass its members one by one")
        sites = self._sites(given, {n for choice, layer, _ in places for n in site_numbers(self, choice, layer)})
        return [self._map_of(sites, given, *place) for place in places]

    def _map_of(
        self, sites: dict[int, Site], given: dict[str, Any], choice: MapChoice, layer: int | None, head: int | None
    ) -> MapAt:
        """Return a map of the sites of one forward pass."""
        f: SelfAttention | torch.nn.Module
        try:
            f, x = map_at(self, given, sites, choice, layer, head)
        except MissingMap as error:
            available = ", ".join(self._available_maps(given, layer))
            raise InputError(
                f"{error}; it has {'the maps ' + available if available else 'none of the maps'}"
            ) from None
        attention = None
        if layer is not None and choice.type.by_weights and self._uses_adapter(layer):
            attention = self._checked_map(layer, sites[layer], given)
        if attention is not None:
            f = attention if head is None else attention.head(head)
        elif self.dtype.itemsize < 4:
            f, x = copy.deepcopy(f).float(), x.float()
        mixer = sites[layer].mixer if layer in sites else None
        module = None if mixer is None else mixer.module
        return MapAt(f, x.flatten(0, -2).clone(), str(choice), layer, head, module)

    def _available_maps(self, given: dict[str, Any], layer: int | None) -> list[str]:
        """Return the names of the maps that a layer has (None: layer 0), and those of the whole model."""
        found, number = [], layer or 0
        for name, map_type in MAPS.items():
            choice = MapChoice(name, *map_type.arguments[:1])
            at = number if map_type.per_layer else None
            with suppress(InputError):
                sites = self._sites(given, site_numbers(self, choice, at))
                map_at(self, given, sites, choice, at, 0 if name == "head" else None)
                found.append(name)
        return found

    def normalisation(self, layer: int) -> Normalisation:
        """Return the normalisation whose output is the input of attention at a layer; its image contains all tokens."""
        layer = self.check_layer(layer)
        with torch.no_grad():
            if hasattr(self._adapter, "normalisation"):
                norm = self._adapter.normalisation(self.network, layer)
            else:
                site = self._sites(self._inputs(self._placeholder_input(8)), [layer])[layer]
                norm = read_norm(site.norm, site.norm_input, f"layer {layer} of {self.family}")
            return norm.converted()

    def images(
        self, path: str | os.PathLike[str] | None = None, count: int | None = None, seed: int = 0
    ) -> torch.Tensor:
        """Return images (count, c, h, w) for a vision model, from files or generated.

        Args:
            path: An image file, or a folder of them; None to generate smooth random images.
            count: How many images; by default all of the folder, or one.
            seed: The seed of generated images.
        """
        self._require_modality("vision")
        made = inputs.images(self.network.config, self._processor, path, count, seed)
        return made.to(self.device, self.dtype)

    @cached_property
    def leading_tokens(self) -> list[str]:
        """Names of the tokens before the patches of an image or the frames of a sound, such as [CLS]; often none."""
        return inputs.leading_tokens(self.network)

    def sounds(self, audio: Any = None, count: int | None = None, seed: int = 0) -> torch.Tensor:
        """Return the inputs of a speech model, of given sounds or generated.

        Args:
            audio: One mono sound at the model's sampling rate (t,), or a list of them; a WAV file, or a folder of
                them; None to generate sounds.
            count: How many sounds; by default all that are given, or one.
            seed: The seed of generated sounds.

        Returns:
            Log-mel features (count, mel, frames) for Whisper and its like; for models that read waveforms these
            themselves, (count, t), cut to the shortest.
        """
        made = inputs.sounds(self.network, self._processor, audio, count, seed)
        return made.to(self.device, self.dtype)

    def tokenize(self, text: str) -> list[int]:
        """Return the token numbers of a text, without special tokens."""
        return tokenize(self.require_tokenizer(), text)

    def chunks(
        self, text: str | Corpus, n: int, samples: int | None = None, special_tokens: bool = True
    ) -> list[TokenChunk]:
        """Cut a text into consecutive chunks of n tokens.

        Args:
            text: The text, or a corpus.
            n: The number of tokens of each chunk, special tokens included.
            samples: How many chunks; by default all.
            special_tokens: Whether each chunk includes the special tokens of the model's tokenizer.

        Returns:
            The chunks.

        Raises:
            InputError: The text is too short, or n exceeds the model's positions.
        """
        cutter = self.cutter(text, special_tokens=special_tokens)  # raises for a model that takes no text
        self._check_chunk_length(n)
        return cutter.chunks(n, samples)

    def cutter(
        self, text: str | Corpus, rule: str = "consecutive", *, longest: int = 0, special_tokens: bool = True
    ) -> Cutter:
        """Return a `Cutter` for a text or a corpus, with the arguments of `Cutter`; the last one is cached."""
        tokenizer = self.require_tokenizer()
        corpus = text if isinstance(text, Corpus) else Corpus("the text", (text,))
        key = (id(tokenizer), corpus, rule, longest, special_tokens)
        if self._last_cutter is None or self._last_cutter[0] != key:  # checks and run use the same one
            self._last_cutter = key, Cutter(tokenizer, corpus, rule, longest=longest, special_tokens=special_tokens)
        return self._last_cutter[1]

    def inputs(
        self,
        text: str | TokenChunk | Sequence[int] | torch.Tensor,
        layer: int,
        n: int | None = None,
        special_tokens: bool = True,
    ) -> Float[torch.Tensor, "n d"]:
        """Return the input of attention at a layer, for a text (GPT-2, Llama: after the first norm).

        Args:
            text: The text, or its token numbers (n,): a tensor, a list or a chunk, which need no tokenizer.
            layer: The number of the layer.
            n: How many tokens; by default the whole text, truncated to the model's positions with a warning.
            special_tokens: Whether to include the special tokens of the model's tokenizer; token numbers are taken as
                they are.

        Returns:
            The tokens, (n, d).

        Raises:
            InputError: There is no such layer, the text is too short, or the numbers are not those of tokens.

        Example:
            >>> import howsmooth
            >>> model = howsmooth.load("minilm")
            >>> model.inputs([101, 2009, 2001, 2397, 102], layer=2).shape
            torch.Size([5, 384])
        """
        layer = self.check_layer(layer)
        if not isinstance(text, str):
            ids = self.token_ids(text)
            if ids.ndim != 1 or (n is not None and not 1 <= n <= len(ids)):
                raise InputError(
                    f"expected token numbers (n,), at least {n or 1} of them, got shape {tuple(ids.shape)}; give one "
                    "sequence, and n up to its length"
                )
            return self.activations(ids[:n], [layer])[layer]
        if n is None:
            cutter = self.cutter(text, special_tokens=special_tokens)
            n = cutter.tokens + cutter.special_count
            if self.positions is not None and n > self.positions:
                warnings.warn(
                    f"the text has {n} tokens and {self.name} has {self.positions} positions: the rest is cut off",
                    stacklevel=2,
                )
                n = self.positions
        (chunk,) = self.chunks(text, n, 1, special_tokens)
        return self.activations(chunk, [layer])[layer]

    def activations(
        self, tokens: TokenChunk | Sequence[Any] | torch.Tensor | dict[str, Any], layers: Iterable[int]
    ) -> dict[int, torch.Tensor]:
        """Return the input of attention at several layers, from one forward pass.

        Args:
            tokens: A chunk or n token numbers; a list of chunks of one length, or (b, n) token numbers; or another
                input as `map_at` takes it, or a batch of them.
            layers: Numbers of layers.

        Returns:
            For each layer the tokens (n, d), or (b, n, d) for a batch.
        """
        layers = sorted({self.check_layer(layer) for layer in layers})
        given = self._inputs(tokens)
        if not layers:
            return {}
        single = inputs.input_ndim(tokens) == inputs.input_ndim(given[next(iter(given))]) - 1
        found = self._sites(given, layers)
        for layer, site in found.items():
            if self._uses_adapter(layer) and layer not in self._unchecked_layers:
                self._checked_map(layer, site, given)
        activations = {}
        for layer, site in found.items():
            x = site.attention.x
            batch = len(site.layer.x) if site.layer.x.ndim > 2 else 1
            x = x.reshape(batch, -1, x.shape[-1])  # Swin's windows are a part of the batch
            activations[layer] = x[0] if single else x
        return activations

    def _sites(self, given: dict[str, Any], layers: Iterable[int]) -> dict[int, Site]:
        """Return the sites of layers on keyword inputs; retry with 4D masks if the network needs them.

        Raises:
            InputError: The tokens depend on random numbers that the network draws, as in ViT-MAE.
        """
        run = partial(find_sites, self.instrumented, given, list(layers), self._scope, self.layers)
        before = self._generator_states()
        try:
            found = run()
        except ForwardFailed:
            if not use_4d_masks(self.instrumented):
                raise
            found = run()
        self._check_lengths(given, found)
        # Speech models draw numbers that they use in training alone: only a second pass shows whether they matter.
        if not all(map(torch.equal, before, self._generator_states())):
            again = run()
            if any(not _agree(site, again[layer]) for layer, site in found.items()):
                drawn = "noise" in inspect.signature(self.network.forward).parameters
                raise InputError(
                    f"expected a network that computes the same twice, got {type(self.network).__name__}, which draws "
                    "random numbers in each forward pass; "
                    + (
                        f"give a dict with {self.network.main_input_name} and noise"
                        if drawn
                        else "choose another model"
                    )
                )
        return found

    def _check_lengths(self, given: dict[str, Any], found: dict[int, Site]) -> None:
        """Raise InputError if more tokens enter a layer of a text model than it was given: padding of its own."""
        ids = given.get("decoder_input_ids" if self._scope else "input_ids")
        n = None if ids is None or self.modality != "text" else ids.shape[-1]
        for layer, site in found.items():
            if n is not None and site.layer.x.ndim == 3 and (longer := site.layer.x.shape[1]) > n:
                raise InputError(
                    f"expected {n} tokens to enter layer {layer} of {self.name}, got {longer}: the network adds "
                    f"tokens of its own (padding to whole blocks, say), which would be measured too; try n = {longer}"
                )

    def _generator_states(self) -> list[torch.Tensor]:
        """Return the states of the generators that the network draws from by default."""
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def _uses_adapter(self, layer: int) -> bool:
        """Return whether the adapter gives the map of a layer: the family has one, and the module is not modified."""
        return hasattr(self._adapter, "self_attention") and layer not in self._modified_layers

    @cached_property
    def _modified_layers(self) -> frozenset[int]:
        """Layers whose attention module returns something else than the map that the adapter builds from its weights.

        LoRA and forward hooks change the module's output, while an adapter reads only the weights. Such layers are
        measured as the module itself computes them. If neither is present, the adapter may be wrong: a warning names
        these layers.
        """
        positions, vocabulary = self._text_limits()
        n = min(8, positions)
        ids = torch.arange(n) * max(1, vocabulary // n) % vocabulary
        found = self._sites(self._inputs(ids), range(self.layers))
        altered, unexplained = set(), []
        for layer, site in found.items():
            explained = _is_modified(site)
            try:
                with torch.no_grad():
                    same = (
                        _relative_mismatch(self._adapter.self_attention(self.network, layer, n), site, self.dtype)
                        is None
                    )
            except InputError:  # the adapter itself declines this network
                same, explained = False, True
            except (AttributeError, TypeError, ValueError, RuntimeError):  # modules of other classes than the family's
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
    def skip_adapter_check(self, layers: Iterable[int]) -> Iterator[None]:
        """Inside the context, do not compare these layers with the adapter's maps: their attention is replaced."""
        self._uses_adapter(0)  # compares all layers, before anything is replaced
        before, self._unchecked_layers = self._unchecked_layers, self._unchecked_layers | frozenset(layers)
        try:
            yield
        finally:
            self._unchecked_layers = before

    def _checked_map(self, layer: int, site: Site, given: dict[str, Any]) -> SelfAttention | None:
        """Return the adapter's map of a layer; raise InputError if its value is not what the module returned.

        An adapter knows the tokens alone. Where the network was given more (a mask with zeros, positions) and the
        values differ, the map is that of the module, with what it was given: None is returned. Layers whose attention
        is replaced (`skip_adapter_check`) are not compared.
        """
        with torch.no_grad():
            f = self._adapter.self_attention(self.network, layer, site.attention.x.shape[-2]).converted()
            gap = None if layer in self._unchecked_layers else _relative_mismatch(f, site, self.dtype)
        if gap is not None and given.keys() != {self.network.main_input_name}:
            return None
        if gap is not None:
            raise InputError(
                f"expected the attention map of layer {layer} of {self.name} to return what the module returned, got "
                f'outputs that differ by {gap:.2g} of their size; measure map "layer" instead, and report this model'
            )
        return f

    def _inputs(self, input: Any) -> dict[str, Any]:
        """Return the keyword arguments that run the network on an input, as batches."""
        if isinstance(input, dict):
            return inputs.move_inputs(input, self.device, self.dtype)
        if self.modality != "text" and self.network.main_input_name == "input_ids":  # not declared: Qwen-VL's images
            names = [name for name in inspect.signature(self.network.forward).parameters if name != "kwargs"]
            raise InputError(
                f"expected a dict with the arguments of {type(self.network).__name__} ({', '.join(names)}), got "
                f"{type(input).__name__}; the processor of the model makes them"
            )
        if self.modality != "text":
            return {
                self.network.main_input_name: inputs.as_batch(input, self.network.main_input_name).to(
                    self.device, self.dtype
                )
            }
        ids = self.token_ids(input)
        ids = ids if ids.ndim == 2 else ids[None]
        if not self._scope:
            return {"input_ids": ids}
        if self.network.main_input_name != "input_ids":
            raise InputError(
                f"expected a dict with {self.network.main_input_name} and decoder_input_ids for the decoder of "
                f"{self.name}, got token numbers alone; the decoder depends on the encoder's input (model.sounds())"
            )
        return {"input_ids": ids, "decoder_input_ids": ids}

    def _placeholder_input(self, n: int | None) -> Any:
        """Return an arbitrary input of n tokens: masks and positions depend only on n."""
        if self.modality == "vision":
            return self.images()[0]
        if self.modality == "audio":
            return self.sounds()[0]
        if n is None:
            raise InputError(
                f"expected the number of tokens: the maps of a {self.family} are read off a forward pass; call "
                "model.map(layer, map, n=...) or model.map_at(input, layer, map)"
            )
        self._check_length(n)
        ids = torch.full((n,), self._text_limits()[1] // 2)
        if self._scope and self.network.main_input_name != "input_ids":
            return {self.network.main_input_name: self.sounds(), "decoder_input_ids": ids[None]}
        return ids

    def token_ids(self, tokens: Any) -> torch.Tensor:
        """Return the token numbers of a chunk, of a list of chunks or of a tensor, checked, on the model's device.

        Raises:
            InputError: They are not integers (n,) or (b, n) within the vocabulary and the positions.
        """
        positions, vocabulary = self._text_limits()
        return inputs.token_numbers(tokens, vocabulary, positions).to(self.device)

    def _text_limits(self) -> tuple[int, int]:
        """Return positions and size of the vocabulary; raise InputError if the model takes no text."""
        if self.modality == "text" and self._vocabulary is None:
            names = [name for name in inspect.signature(self.network.forward).parameters if name != "kwargs"]
            raise InputError(
                f"expected a config with a vocabulary, got {self.name!r} without; in Python, give a dict with the "
                f"arguments of {type(self.network).__name__} ({', '.join(names)})"
            )
        if self.positions is None or self._vocabulary is None:
            raise InputError(f"expected a text model, got {self.name!r}, which takes {self.modality}")
        return self.positions, self._vocabulary

    def _check_chunk_length(self, n: Any) -> None:
        if isinstance(n, int) and self.positions is not None and n > self.positions:
            raise InputError(
                f"expected a length within the model's {self.positions} positions, got n = {n}; ask for "
                f"at most {self.positions}"
            )

    def _check_length(self, n: int | None) -> None:
        if n is not None and self.positions is not None and not 1 <= n <= self.positions:
            raise InputError(f"expected a length from 1 to {self.positions}, got n = {n!r}; choose another")

    def _require_modality(self, modality: str) -> None:
        if self.modality != modality:
            raise InputError(f"expected a {modality} model, got {self.name!r}, which takes {self.modality}")

    def check_layer(self, layer: Any) -> int:
        """Return the number of a layer as an int, also of NumPy's, and of one that is counted from the end.

        Raises:
            InputError: There is no such layer.
        """
        try:
            number = None if isinstance(layer, bool) else operator.index(layer)
        except TypeError:
            number = None
        if number is not None and -self.layers <= number < 0:
            number += self.layers
        if number is None or not 0 <= number < self.layers:
            raise InputError(
                f"expected a layer from 0 to {self.layers - 1} of {self.name}, got {layer!r}; choose one of them"
            )
        return number

    def require_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer; raise InputError if the model has none."""
        self._require_modality("text")
        if self.tokenizer is None:
            # Random weights go with any vocabulary: suggest the tokenizer that is always available.
            suggested = "minilm" if self.source.get("origin") == "random" else "NAME"
            raise missing_tokenizer(self.name, self._tokenizer_missing, suggested)
        return self.tokenizer


def _relative_mismatch(f: SelfAttention, site: Site, dtype: torch.dtype) -> float | None:
    """Return the relative difference of f and the module's output at a site, None if it is within rounding."""
    y = site.output[0].to(f.dtype)
    gap = float((f(site.attention.x[0].to(f.dtype)) - y.reshape(y.shape[-2], -1)).abs().max())
    size = float(y.abs().max())
    return None if gap <= torch.finfo(dtype).eps ** 0.5 * size else gap / max(size, torch.finfo(dtype).tiny)


def _agree(a: Site, b: Site) -> bool:
    """Return whether two sites of a layer have the same tokens and values, up to the order of parallel sums."""
    pairs = [(a.layer.x, b.layer.x)]
    if a.softmax is not None and b.softmax is not None:
        pairs += [(a.attention.x, b.attention.x), (a.output, b.output)]
    return all(
        x.shape == y.shape and (x - y).abs().max() <= torch.finfo(x.dtype).eps ** 0.5 * x.abs().max() for x, y in pairs
    )


def _is_modified(site: Site) -> bool:
    """Return whether a layer's attention has hooks, or code that is neither torch's nor transformers'."""
    for module in (*site.attention.module.modules(), *site.projection.modules()):
        forward = vars(module).get("forward")  # set on this instance, by an adapter (`use_registry`) or by the user
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or not type(module).__module__.startswith(("torch.nn.", "transformers."))
            or not (forward is None or forward.__module__.startswith("howsmooth."))
        ):
            return True
    return False
