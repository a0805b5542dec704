"""Attention as a function of something other than its own tokens: its weights, its cache, or two sequences.

    weights:q|k|v|o|all      W ↦ f_W(x): rows of a weight, (rows, width); all four as one row
    cache:keys|values|both   what attention reads at each token, (m, ·), keys after their positions ↦ f(x)
    cross:queries|memory|both
                             cross attention of a decoder: its tokens (n, d), the encoder's (m, d), or both, (n + m, d)

The tokens x that are not asked about are constant. All three are read off the modules as they run: which rows of which
matrix make the queries is seen by the derivative of the queries in the outputs of the matrices.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.calls import ModuleCall
from howsmooth.models.hook import change_attention, observe_attention
from howsmooth.models.maps import AttentionMap
from howsmooth.models.parts import Attention, MissingMap, Site

WEIGHTS = ("q", "k", "v", "o")
_MEMORY = ("key_value_states", "encoder_hidden_states")


class CacheMap(torch.nn.Module):
    """Attention as a function of its keys, its values, or both side by side, one row for each token."""

    k: Tensor
    v: Tensor

    def __init__(self, f: AttentionMap, parts: tuple[str, ...], k: Tensor, v: Tensor) -> None:
        """Take attention, "keys" and "values" or one of them, and what the cache contains, (1, h, m, ·)."""
        super().__init__()
        self.f, self.parts = f, parts
        self.register_buffer("k", k.detach(), persistent=False)
        self.register_buffer("v", v.detach(), persistent=False)

    @property
    def cache(self) -> Tensor:
        """What the cache contains, (m, ·)."""
        tensors = [t for t, part in ((self.k, "keys"), (self.v, "values")) if part in self.parts]
        return torch.cat([t.squeeze(0).transpose(0, 1).flatten(1) for t in tensors], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at a cache (m, ·)."""
        given = {"keys": self.k, "values": self.v}
        widths = [given[part].shape[1] * given[part].shape[3] for part in self.parts]
        for part, piece in zip(self.parts, x.split(widths, -1), strict=True):
            given[part] = piece.unflatten(-1, (given[part].shape[1], -1)).transpose(0, 1).unsqueeze(0)
        with change_attention(lambda _module, q, _k, _v: (q, given["keys"], given["values"])):
            y: Tensor = self.f(_tokens(self.f))
        return y


class WeightsMap(torch.nn.Module):
    """Attention as a function of rows of its weights.

    A matrix with other rows adds its change times what enters it to what it returns: nothing is written to the model.
    """

    start: Tensor

    def __init__(self, f: AttentionMap, rows: list[tuple[str, Tensor]]) -> None:
        """Take attention, and for each matrix the name of its module and the output channels that vary."""
        super().__init__()
        self.f, self.rows = f, rows
        matrices = [_channels(f.get_submodule(name))[index] for name, index in rows]
        self.shapes = [matrix.shape for matrix in matrices]
        start = matrices[0] if len(rows) == 1 else torch.cat([matrix.flatten() for matrix in matrices])[None]
        self.register_buffer("start", start.clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute attention at its tokens with these rows, (rows, width), or all of them in one row."""
        pieces = (x - self.start).flatten().split([shape.numel() for shape in self.shapes])
        changes: dict[str, Tensor] = {}
        for (name, index), shape, piece in zip(self.rows, self.shapes, pieces, strict=True):
            whole = changes.get(name)
            if whole is None:
                whole = x.new_zeros(_channels(self.f.get_submodule(name)).shape)
            changes[name] = whole.index_add(0, index.to(x.device), piece.view(shape))
        handles = [
            self.f.get_submodule(name).register_forward_hook(
                lambda _module, args, output, change=change: output + F.linear(args[0], change)
            )
            for name, change in changes.items()
        ]
        try:
            y: Tensor = self.f(_tokens(self.f))
        finally:
            for handle in handles:
                handle.remove()
        return y


class CrossMap(torch.nn.Module):
    """Cross attention with its output projection, as a function of its queries' tokens, of the memory, or of both."""

    memory: Tensor

    def __init__(self, f: AttentionMap, argument: str, places: tuple[Any, ...], memory: Tensor) -> None:
        """Take the captured call, "queries", "memory" or "both", where the memory is among its arguments, and it."""
        super().__init__()
        self.f, self.argument, self.places = f, argument, places
        self.register_buffer("memory", memory.detach(), persistent=False)

    @property
    def tokens(self) -> Tensor:
        """The tokens that vary."""
        queries, memory = self.f.call.x[0], self.memory[0]
        return {"queries": queries, "memory": memory}.get(self.argument, torch.cat([queries, memory]))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at tokens of the queries, of the memory, or of both, one after the other."""
        queries, memory = self.f.call.x[0], self.memory[0]
        if self.argument == "both":
            queries, memory = x.split([len(queries), len(memory)])
        else:
            queries, memory = (x, memory) if self.argument == "queries" else (queries, x)
        call = self.f.call
        args, kwargs = call.args, call.kwargs
        call.args = tuple(memory[None] if i in self.places else arg for i, arg in enumerate(args))
        call.kwargs = {key: memory[None] if key in self.places else value for key, value in kwargs.items()}
        try:
            y: Tensor = self.f(queries)
        finally:
            call.args, call.kwargs = args, kwargs
        return y


def cache_map(site: Site, heads: int, head: int | None, where: str, argument: str) -> tuple[torch.nn.Module, Tensor]:
    """Return attention as a function of its cache, and what the cache contains."""
    f = AttentionMap(site.require_softmax(), heads)
    seen = _inputs_of_attention(f, where, "cache")
    parts = ("keys", "values") if argument == "both" else (argument,)
    made = CacheMap(f, parts, *seen[1:])
    return made, made.cache[None]


def weights_map(site: Site, heads: int, head: int | None, where: str, argument: str) -> tuple[torch.nn.Module, Tensor]:
    """Return attention as a function of its weights, and the weights."""
    f = AttentionMap(site.require_softmax(), heads)
    wanted = WEIGHTS if argument == "all" else (argument,)
    rows = _rows_of_weights(f, where)
    if missing := [name for name in wanted if not rows[name]]:
        raise MissingMap(
            f"weights: expected a matrix W_{missing[0]} that makes what attention takes, got none in {where}"
        )
    made = WeightsMap(f, [row for name in wanted for row in rows[name]])
    return made, made.start[None]


def cross_map(site: Site, heads: int, head: int | None, where: str, argument: str) -> tuple[torch.nn.Module, Tensor]:
    """Return the cross attention of a layer, and the tokens that vary."""
    f = _cross_attention(site, heads)
    if f is None:
        raise MissingMap(
            f"cross: expected a layer that attends to the tokens of an encoder, got none in {where}; it is in decoders "
            "(--part decoder)"
        )
    places, memory = _memory_of(f.call)
    if memory is None:
        raise MissingMap(f"cross: expected the encoder's tokens among the arguments of attention, got none in {where}")
    if argument == "both" and memory.shape[-1] != f.call.x.shape[-1]:
        raise InputError(
            f"cross: expected one width for both sequences, got {f.call.x.shape[-1]} and {memory.shape[-1]} in "
            f"{where}; measure cross:queries or cross:memory"
        )
    made = CrossMap(f, argument, places, memory)
    return made, made.tokens[None]


@torch.no_grad()
def _inputs_of_attention(f: AttentionMap, where: str, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v, (1, h, ·, ·), of attention at its tokens."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(_module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append((q, k, v))
        return q, k, v

    with change_attention(keep):
        f(_tokens(f))
    if len(seen) != 1 or len(seen[0][0]) != 1:
        raise MissingMap(
            f"{name}: expected one attention of transformers' attention registry, of one sequence, got another in "
            f"{where}"
        )
    return seen[0]


def _rows_of_weights(f: AttentionMap, where: str) -> dict[str, list[tuple[str, Tensor]]]:
    """Return for each of q, k, v and o the matrices that make it: names of modules, and their output channels."""
    names = {id(module): name for name, module in f.named_modules()}
    outputs: list[tuple[str, Tensor]] = []

    def cut(module: torch.nn.Module, _args: object, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        outputs.append((names[id(module)], leaf))
        return leaf

    matrices = [m for m in f.call.module.modules() if _has_matrix(m) and m is not f.projection]
    handles = [module.register_forward_hook(cut) for module in matrices]
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(_module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append((q, k, v))
        return q, k, v

    try:
        with torch.enable_grad(), change_attention(keep):
            f(_tokens(f))
    finally:
        for handle in handles:
            handle.remove()
    if len(seen) != 1:
        raise MissingMap(
            f"weights: expected one attention of transformers' attention registry, got {len(seen)} in {where}"
        )
    found: dict[str, list[tuple[str, Tensor]]] = {name: [] for name in WEIGHTS}
    generator = torch.Generator().manual_seed(0)
    for name, made in zip(WEIGHTS, seen[0], strict=False):
        if not made.requires_grad or not outputs:
            continue
        direction = torch.randn(made.shape, generator=generator).to(made)
        leaves = [leaf for _, leaf in outputs]
        slopes = torch.autograd.grad(made, leaves, direction, retain_graph=True, allow_unused=True)
        for (module, leaf), slope in zip(outputs, slopes, strict=True):
            if slope is not None:
                channels = slope.reshape(-1, leaf.shape[-1]).abs().amax(0).nonzero().flatten()
                found[name].append((module, channels))
    if _has_matrix(f.projection):
        found["o"].append((names[id(f.projection)], torch.arange(len(_channels(f.projection)))))
    return found


def _tokens(f: AttentionMap) -> Tensor:
    """Return the captured tokens of attention, (n, d)."""
    return f.call.x.flatten(0, -2)


def _has_matrix(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.nn.Parameter) and weight.ndim == 2 and not list(module.children())


def _channels(module: torch.nn.Module) -> Tensor:
    """Return the weight with a row for each output channel; that of a Conv1D of transformers is transposed."""
    weight = module.get_parameter("weight").detach()
    return weight.T if type(module).__name__ == "Conv1D" else weight


@torch.no_grad()
def _cross_attention(site: Site, heads: int) -> AttentionMap | None:
    """Run a layer and return its attention that is not the self-attention, with its output projection."""
    stack: list[tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    found: list[tuple[ModuleCall, Tensor]] = []
    projections: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stack.append((module, args, kwargs))

    def leave(module: torch.nn.Module, args: tuple[Any, ...], _output: object) -> None:
        stack.pop()
        if found and not projections and _has_matrix(module) and args and args[0].data_ptr() == found[0][1].data_ptr():
            projections.append(module)

    def attend(module: torch.nn.Module, output: Tensor) -> None:
        if module is not own and not found:
            call = next((call for call in reversed(stack) if call[0] is module), None)
            if call is not None:
                found.append((ModuleCall(*call), output))

    own = None if site.softmax is None else site.softmax.call.module
    modules = list(site.layer.module.modules())
    handles = [
        handle
        for module in modules
        for handle in (
            module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
            module.register_forward_hook(leave),
        )
    ]
    try:
        with observe_attention(attend):
            site.layer(site.layer.x)
    finally:
        for handle in handles:
            handle.remove()
    if not found or not projections:
        return None
    call, output = found[0]
    return AttentionMap(
        Attention(call, projections[0], 0, output, (), None, False, "", attends=True, direct=True, heads=None), heads
    )


def _memory_of(call: ModuleCall) -> tuple[tuple[Any, ...], Tensor | None]:
    """Return where the encoder's tokens are among the arguments of a call (positions or keywords), and the tokens."""
    names = list(inspect.signature(call.module.forward).parameters)
    places: list[Any] = [key for key in call.kwargs if key in _MEMORY and isinstance(call.kwargs[key], Tensor)]
    places += [
        i for i, arg in enumerate(call.args) if isinstance(arg, Tensor) and names[i : i + 1] and names[i] in _MEMORY
    ]
    if not places:
        return (), None
    first = places[0]
    return tuple(places), call.args[first] if isinstance(first, int) else call.kwargs[first]
