"""Launches of the kernels: tensors, strides and compile-time options in the order in which the kernels take them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor
from triton.runtime import JITFunction

from howsmooth.errors import InputError
from howsmooth.kernels import empty_like, fused
from howsmooth.kernels.cotangent import dkdv_kernel, dq_kernel
from howsmooth.kernels.curvature import keys_kernel, queries_kernel
from howsmooth.kernels.primal import forward_kernel
from howsmooth.kernels.table import table_kernel
from howsmooth.kernels.tangent import jvp_kernel
from howsmooth.kernels.tiles import SHARED_MEMORY, SPARSE_BLOCK, Tiles, choose

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import KernelInterface

# Under TRITON_INTERPRET=1 kernels run on the CPU, one program after another.
INTERPRETED = not isinstance(forward_kernel, JITFunction)
# How a float32 product can be composed of products that the tensor cores have, and how "precise" composes it.
FLOAT32_PRODUCTS = ("tf32x3", "bf16x3", "bf16x6", "ieee")
PRECISE_PRODUCT = "tf32x3"
# Tiles less than 64 wide are only for rows that are loaded whole, from addresses that Triton knows to be aligned. Where
# rows have to be cut, or have other strides, Triton 3.6 compiles products of narrow tiles on Hopper into reads past
# their end: wrong results (widths 20 and 3, 24 and 8), or an illegal access (widths 32 and 16 in rows of 40 and 24).
# Padded to 64, the same launches are right.
ALIGNMENT, MIN_UNALIGNED_BLOCK = 16, 64
# Compiled kernels by everything that Triton specialises on. Its own look-up takes longer than a small kernel.
COMPILED: dict[tuple[Any, ...], CompiledKernel] = {}
MAX_COMPILED = 4096
# Versions of Triton whose compiled kernels were launched in this way on a GPU.
LAUNCHES_DIRECTLY = triton.__version__.startswith(("3.6.", "3.7."))
RUNTIME: Any = triton.knobs.runtime if LAUNCHES_DIRECTLY else None


@dataclass(slots=True, eq=False)
class Options:
    """The arguments that all kernels share; see `howsmooth.kernels.forward`."""

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    offset: int = 0
    padding: Tensor | None = None
    bias: Tensor | None = None
    sparse: tuple[Tensor, ...] | None = None
    precision: str | None = None
    out_dtype: torch.dtype | None = None

    @property
    def kind(self) -> str | None:
        """What else is loaded for each pair, which needs more shared memory: a table, or tiles of a sparse mask."""
        return "biased" if self.bias is not None else "sparse" if self.sparse is not None else None

    @property
    def is_plain(self) -> bool:
        """Whether there is no mask but a causal one, and no change of the scores."""
        return (
            self.window is None
            and self.softcap is None
            and self.padding is None
            and self.bias is None
            and self.sparse is None
        )


def forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, tiles: Tiles | None = None, implementation: str | None = None
) -> tuple[Tensor, Tensor]:
    """Launch the forward kernel, or PyTorch's fused forward pass; see `howsmooth.kernels.forward`."""
    if implementation is None and tiles is None:
        implementation = _forward_implementation(q, k, v, options)
    if implementation == "cudnn":
        return fused.forward(q, k, v, options.scale, options.causal)
    b, h, n, width = q.shape
    w = v.shape[3]
    o = empty_like(q, h, n, w, options.out_dtype or q.dtype)
    normaliser = torch.empty(b, h, n, 2, dtype=torch.float32, device=q.device)
    tiles = tiles or tiles_for("forward", q, v, b * h, n, options)
    _over_queries(forward_kernel, tiles, (q, k, v, o, normaliser), (q, k, v, o), options, _are_aligned(q, k, v))
    return o, normaliser


def jvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    options: Options,
    tiles: Tiles | None = None,
    with_means: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Launch the JVP kernel, as often as the tiles' number of tangents requires; see `howsmooth.kernels.jvp`."""
    b, h, n, _ = q.shape
    w, dtype = v.shape[3], options.out_dtype or q.dtype
    normaliser = normaliser.contiguous()
    aligned = _are_aligned(q, k, v, dq, dk, dv)
    if dq.dim() == 4:
        do = empty_like(q, h, n, w, dtype)
        mu = torch.empty(b, h, n, dtype=torch.float32, device=q.device) if with_means else None
        tiles = tiles or tiles_for("jvp", q, v, b * h, n, options)
        strides = (0, *dq.stride()[:3], 0, *dk.stride()[:3], 0, *dv.stride()[:3], 0, *do.stride()[:3], 0)
        tensors = (q, k, v, o, normaliser, dq, dk, dv, do, do if mu is None else mu)
        _over_queries(jvp_kernel, tiles, tensors, (q, k, v, o), options, aligned, (1, with_means), strides)
        return do, mu
    tangents = dq.shape[0]
    if dk.shape[0] != tangents or dv.shape[0] != tangents:
        raise InputError(f"jvp: expected as many dk and dv as dq, got {tangents}, {dk.shape[0]} and {dv.shape[0]}")
    do = _empty_tangents(tangents, q, h, n, w, dtype)
    mu = torch.empty(tangents, b, h, n, dtype=torch.float32, device=q.device) if with_means else None
    done = 0
    while done < tangents:
        left = tangents - done
        chosen = tiles or tiles_for("jvp" if left == 1 else "jvps", q, v, b * h, n, options)
        now = min(left, chosen.tangents)
        now = 1 << (now.bit_length() - 1)  # a power of two
        xq, xk, xv, xo = dq[done:], dk[done:], dv[done:], do[done:]
        strides = (*xq.stride()[:4], *xk.stride()[:4], *xv.stride()[:4], *xo.stride()[:4], b * h * n)
        tensors = (q, k, v, o, normaliser, xq, xk, xv, xo, xo if mu is None else mu[done:])
        _over_queries(jvp_kernel, chosen, tensors, (q, k, v, o), options, aligned, (now, with_means), strides)
        done += now
    return do, mu


def vjp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    options: Options,
    implementation: str | None = None,
    tiles: tuple[Tiles, Tiles] | None = None,
    g_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the two VJP kernels, or PyTorch's fused backward pass; see `howsmooth.kernels.vjp`."""
    if implementation is None:
        implementation = "triton" if g_lse is not None else _backward_implementation(q, k, v, g, options)
    if implementation != "triton":
        return fused.vjp(implementation, q, k, v, o, normaliser, g, options.scale, options.causal)
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    dtype = options.out_dtype or q.dtype
    dq, dk, dv = empty_like(q, h, n, width, dtype), empty_like(k, hkv, m, width, dtype), empty_like(v, hkv, m, w, dtype)
    rows = torch.empty(3, b, h, n, dtype=torch.float32, device=q.device)
    lse = rows if g_lse is None else g_lse.float().contiguous()
    aligned = _are_aligned(q, k, v, g)
    by_query, by_key = tiles or (tiles_for("dq", q, v, b * h, n, options), tiles_for("dkdv", q, v, b * hkv, m, options))
    _over_queries(
        dq_kernel,
        by_query,
        (q, k, v, o, normaliser.contiguous(), g, lse, rows, dq),
        (q, k, v, o, g, dq),
        options,
        aligned,
        (g_lse is not None,),
    )
    _over_keys(dkdv_kernel, by_key, (q, k, v, g, rows, dk, dv), (q, k, v, g, dk, dv), options, aligned)
    return dq, dk, dv


def hvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    do: Tensor,
    mu: Tensor,
    h: Tensor,
    options: Options,
    tiles: tuple[Tiles, Tiles] | None = None,
    h_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the two kernels of the second derivative; see `howsmooth.kernels.hvp`."""
    b, heads, n, width = q.shape
    hkv, m = k.shape[1:3]
    w = v.shape[3]
    dtype = options.out_dtype or q.dtype
    gq, gk, gv = (
        empty_like(q, heads, n, width, dtype),
        empty_like(k, hkv, m, width, dtype),
        empty_like(v, hkv, m, w, dtype),
    )
    rows = torch.empty(4, b, heads, n, dtype=torch.float32, device=q.device)
    lse = rows if h_lse is None else h_lse.float().contiguous()
    mu = mu.contiguous()
    aligned = _are_aligned(q, k, v, dq, dk, dv, h)
    by_query, by_key = tiles or (
        tiles_for("hvp queries", q, v, b * heads, n, options),
        tiles_for("hvp keys", q, v, b * hkv, m, options),
    )
    _over_queries(
        queries_kernel,
        by_query,
        (q, k, v, o, normaliser.contiguous(), dq, dk, dv, do, mu, h, lse, rows, gq),
        (q, k, v, o, dq, dk, dv, do, h, gq),
        options,
        aligned,
        (h_lse is not None,),
    )
    _over_keys(
        keys_kernel,
        by_key,
        (q, k, v, dq, dk, dv, h, rows, mu, gk, gv),
        (q, k, v, dq, dk, dv, h, gk, gv),
        options,
        aligned,
    )
    return gq, gk, gv


def table_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    normaliser: Tensor,
    g: Tensor,
    options: Options,
    g_lse: Tensor | None = None,
    along: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """Launch the kernel of the table's gradient; see `howsmooth.kernels.table_gradient`."""
    assert options.bias is not None
    b, h, n, width = q.shape
    m, w = k.shape[2], v.shape[3]
    table_b, table_h = options.bias.shape[:2]
    out = torch.empty(table_b, table_h, n, m, dtype=options.bias.dtype, device=q.device)
    r = (g.float() * o.float()).sum(-1)
    if g_lse is not None:
        r = r - g_lse
    dq, dk, dv, do, mu = along if along is not None else (q, k, v, o, r)
    c = r if along is None else (g.float() * do.float()).sum(-1)
    tiles = tiles or tiles_for("table", q, v, b * h, n, options)
    constants = _constants(q.dtype, width, w, _are_aligned(q, k, v, g, dq, dk, dv), options)
    pointers, numbers = _mask_arguments(q, k, options, over_keys=False)
    run(
        table_kernel,
        table_b * table_h * -(-n // tiles.rows) * -(-m // tiles.keys),
        tiles,
        (q, k, v, normaliser.contiguous(), g, r.contiguous(), dq, dk, dv, mu.contiguous(), c, out, *pointers),
        (*_strides(q, k, v, g, dq, dk, dv, out), *numbers, h)
        + (table_h, b // table_b, h // table_h, h // k.shape[1], n, m, *_score_numbers(options)),
        (*constants, tiles.rows, tiles.keys, 0, along is not None),
    )
    return out


def _forward_implementation(q: Tensor, k: Tensor, v: Tensor, options: Options) -> str:
    if (
        q.shape[2] < fused.MIN_FORWARD_LENGTH
        or not options.is_plain
        or options.out_dtype not in (None, q.dtype)
        or fused.fastest(q, k, v, options.causal, options.offset) != "cudnn"
    ):
        return "triton"
    return "cudnn"


def _backward_implementation(q: Tensor, k: Tensor, v: Tensor, g: Tensor, options: Options) -> str:
    if not options.is_plain or g.dtype != q.dtype or options.out_dtype not in (None, q.dtype):
        return "triton"
    return fused.fastest(q, k, v, options.causal, options.offset) or "triton"


def _over_queries(
    kernel: KernelInterface[Any],
    tiles: Tiles,
    tensors: tuple[Tensor, ...],
    strided: tuple[Tensor, ...],
    options: Options,
    aligned: bool,
    extra: tuple[Any, ...] = (),
    more_strides: tuple[int, ...] = (),
) -> None:
    """Launch a kernel whose programs have a block of queries each and iterate over the keys."""
    q, k, v = tensors[:3]
    b, h, n, width = q.shape
    m = k.shape[2]
    pointers, numbers = _mask_arguments(q, k, options, over_keys=False)
    parts = query_parts(options, m, tiles)
    run(
        kernel,
        b * h * -(-n // tiles.rows),
        tiles,
        (*tensors, *pointers),
        (*_strides(*strided), *more_strides, *numbers, h, h // k.shape[1], n, m, *_score_numbers(options)),
        (*_constants(q.dtype, width, v.shape[3], aligned, options), tiles.rows, tiles.keys, parts, *extra),
    )


def _over_keys(
    kernel: KernelInterface[Any],
    tiles: Tiles,
    tensors: tuple[Tensor, ...],
    strided: tuple[Tensor, ...],
    options: Options,
    aligned: bool,
) -> None:
    """Launch a kernel whose programs have a block of keys each and iterate over the queries."""
    q, k, v = tensors[:3]
    b, h, n, width = q.shape
    hkv, m = k.shape[1:3]
    pointers, numbers = _mask_arguments(q, k, options, over_keys=True)
    parts = key_parts(options, n, tiles)
    run(
        kernel,
        b * hkv * -(-m // tiles.rows),
        tiles,
        (*tensors, *pointers),
        (*_strides(*strided), *numbers, hkv, h // hkv, n, m, *_score_numbers(options)),
        (*_constants(q.dtype, width, v.shape[3], aligned, options), tiles.rows, tiles.keys, parts),
    )


def query_parts(options: Options, m: int, tiles: Tiles) -> int:
    """Return which loops over keys are compiled, a bit each: blocks that some rows see, that all see, that some see."""
    padded, sparse = options.padding is not None, options.sparse is not None
    by_position = options.causal or options.window is not None
    tail = by_position or padded or sparse or m % tiles.keys != 0
    head = options.window is not None and not padded and not sparse
    inner = not padded and not (sparse and by_position)
    return head | inner << 1 | tail << 2


def key_parts(options: Options, n: int, tiles: Tiles) -> int:
    """Return which loops over queries are compiled, as `query_parts` does."""
    sparse, by_position = options.sparse is not None, options.causal or options.window is not None
    tail = options.window is not None or sparse or n % tiles.keys != 0
    return (by_position and not sparse) | (not (sparse and by_position)) << 1 | tail << 2


def run(
    kernel: KernelInterface[Any],
    programs: int,
    tiles: Tiles,
    tensors: tuple[Tensor, ...],
    numbers: tuple[int | float, ...],
    constants: tuple[Any, ...],
) -> None:
    """Launch so many programs of a kernel on the device of its first argument."""
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            run(kernel, programs, tiles, tensors, numbers, constants)
        return
    if INTERPRETED or not LAUNCHES_DIRECTLY:
        _compile_and_launch(kernel, programs, tiles, tensors, numbers, constants)
        return
    key = (kernel, tiles, device, numbers, constants, *[(t.dtype, t.data_ptr() % ALIGNMENT == 0) for t in tensors])
    compiled = COMPILED.get(key)
    if compiled is None:
        if len(COMPILED) >= MAX_COMPILED:
            COMPILED.clear()
        COMPILED[key] = _compile_and_launch(kernel, programs, tiles, tensors, numbers, constants)
    elif RUNTIME.launch_enter_hook is not None:  # a profiler
        compiled[programs, 1, 1](*tensors, *numbers, *constants)
    else:
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        settings = (programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None)
        compiled.run(*settings, *tensors, *numbers, *constants)


def _compile_and_launch(
    kernel: KernelInterface[Any],
    programs: int,
    tiles: Tiles,
    tensors: tuple[Tensor, ...],
    numbers: tuple[int | float, ...],
    constants: tuple[Any, ...],
) -> CompiledKernel:
    options = dict(num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers)
    return kernel[programs, 1, 1](*tensors, *numbers, *constants, **options)


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    found: list[int] = []
    for t in tensors:
        found += t.stride()[:3]
    return tuple(found)


def _are_aligned(*tensors: Tensor) -> bool:
    return all(t.stride(-2) % ALIGNMENT == 0 and t.data_ptr() % ALIGNMENT == 0 for t in tensors)


def tiles_for(kernel: str, q: Tensor, v: Tensor, heads: int, length: int, options: Options) -> Tiles:
    """Return the tiles of a kernel on the GPU of q."""
    width = max(q.shape[3], v.shape[3])
    masks = options.causal, _capability(q), options.kind
    return choose(kernel, q.element_size(), width, heads, length, *masks)


def _capability(t: Tensor) -> tuple[int, int] | None:
    return _device_capability(t.device) if t.device.type == "cuda" else None


def shared_memory(t: Tensor) -> int:
    """Return the shared memory of a program on t's GPU in bytes, that of a large one on a CPU (interpreted)."""
    major, minor = _capability(t) or (9, 0)
    return SHARED_MEMORY.get(10 * major + minor, 0)


@functools.cache
def _device_capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _score_numbers(options: Options) -> tuple[int | float, ...]:
    return float(options.scale), options.softcap or 0.0, options.offset, options.window or 0


def _constants(dtype: torch.dtype, width: int, w: int, aligned: bool, options: Options) -> tuple[Any, ...]:
    """Return the compile-time arguments that all kernels share, in their order."""
    return (
        *_score_constants(dtype, width, w, aligned, options.scale, options.softcap is not None, options.precision),
        bool(options.causal),
        options.window is not None,
        options.padding is not None,
        0 if options.bias is None else 2 if options.bias.dtype == torch.bool else 1,
        0 if options.sparse is None else SPARSE_BLOCK,
    )


@functools.lru_cache(maxsize=512)
def _score_constants(
    dtype: torch.dtype, width: int, w: int, aligned: bool, scale: float, capped: bool, precision: str | None
) -> tuple[Any, ...]:
    """Return K, W, BLOCK_K, BLOCK_W, CAPPED, PRESCALED (q is scaled beforehand, which rounds nothing) and PRECISION."""
    if dtype != torch.float32 or precision == "native":
        precision = "tf32"
    elif precision not in FLOAT32_PRODUCTS:
        precision = PRECISE_PRODUCT
    power_of_two = scale != 0 and math.frexp(abs(scale))[0] == 0.5
    loads_whole_rows = aligned and all(x >= 16 and x & (x - 1) == 0 for x in (width, w))
    block_k, block_w = (
        max(16 if loads_whole_rows else MIN_UNALIGNED_BLOCK, 1 << (x - 1).bit_length()) for x in (width, w)
    )
    prescaled = power_of_two and dtype != torch.float16  # in float16 small numbers could underflow
    return width, w, block_k, block_w, capped, prescaled, precision


def _empty_tangents(tangents: int, like: Tensor, h: int, n: int, w: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor (t, b, h, n, w), each tangent laid out as `kernels.empty_like` does."""
    stacked = like.as_strided((tangents * like.shape[0], *like.shape[1:]), (0, *like.stride()[1:]))
    return empty_like(stacked, h, n, w, dtype).unflatten(0, (tangents, like.shape[0]))


def _mask_arguments(
    q: Tensor, k: Tensor, options: Options, over_keys: bool
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return padding, table and sparse mask as the kernels take them, and their strides; q where there is none."""
    padding, padding_b = q, 0
    if options.padding is not None:
        padding = options.padding.contiguous().view(torch.uint8)
        padding_b = padding.stride(0)
    table, table_strides = q, [0, 0, 0]
    if options.bias is not None:
        table = options.bias.view(torch.uint8) if options.bias.dtype == torch.bool else options.bias
        table = table if table.stride(-1) == 1 or table.shape[-1] == 1 else table.contiguous()
        table = table.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        table_strides = list(table.stride()[:3])
    tiles, starts, entries, starts_strides = q, q, q, [0, 0]
    if options.sparse is not None:
        tiles, *lists = options.sparse
        starts, entries = lists[2:] if over_keys else lists[:2]
        starts = starts.expand(q.shape[0], q.shape[1], *starts.shape[2:])
        starts_strides = list(starts.stride()[:2])
    return (padding, table, tiles, starts, entries), (padding_b, *table_strides, *starts_strides)
