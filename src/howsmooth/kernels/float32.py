"""The derivative of attention in float32 by products of float16 pairs, for many products at one (q, k, v).

`split.py` has the kernels and says why nothing leaves float16's range. Here q, k and v are split once, tangents and
cotangents at each product. Exponents of these stay on the GPU, so that no product waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.kernels.launch import Options, key_parts, query_parts, run, shared_memory, tiles_for
from howsmooth.kernels.split import dkdv_kernel, dq_kernel, jvp_kernel
from howsmooth.kernels.tiles import SHARED_MEMORY, Tiles

if TYPE_CHECKING:
    from triton.runtime.jit import KernelInterface

# The largest entry of a split tensor is less than 2 to this power; the kernels' bounds have it as 8192 and 16384.
LARGEST = 13
MAX_EXPONENT = 120  # of a factor: 2^±126 are the last normal float32


class SplitDerivative:
    """Attention linearised at one (q, k, v) in float32.

    Args:
        q: Queries (b, h, n, k).
        k: Keys (b, hkv, m, k).
        v: Values (b, hkv, m, w); k and w are 64 or 128.
        o: Output of `howsmooth.kernels.forward`.
        normaliser: Normaliser of `howsmooth.kernels.forward`.
        options: Scale, causal mask, window and padding.
        tiles: Tiles of the kernels for the derivative, dq, and dk and dv, if not those of the table.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        normaliser: Tensor,
        options: Options,
        tiles: tuple[Tiles, Tiles, Tiles] | None = None,
    ) -> None:
        """Split q, k and v."""
        self.options, self.normaliser = options, normaliser.contiguous()
        powers = [_power(t) for t in (q, k, v)]
        self.powers = [int(power) for power in torch.stack(powers).tolist()]
        self.q, self.k, self.v = (_halves(t, power) for t, power in zip((q, k, v), powers, strict=True))
        self.o = o.float().transpose(1, 2).ldexp(powers[2]).contiguous()
        self.scale = options.scale * 2.0 ** -(self.powers[0] + self.powers[1])
        (b, h, n, _), (hkv, m) = q.shape, k.shape[1:3]
        self.b, self.h, self.hkv, self.n, self.m = b, h, hkv, n, m
        self.tiles = tiles or (
            tiles_for("split jvp", q, v, b * h, n, options),
            tiles_for("split dq", q, v, b * h, n, options),
            tiles_for("split dkdv", q, v, b * hkv, m, options),
        )
        self.padding = self.q if options.padding is None else options.padding.contiguous().view(torch.uint8)

    def jvp(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """Compute the derivative (b, h, n, w) along dq, dk and dv."""
        tangents = (dq, dk, dv)
        # One power for dq/q, dk/k and dv/v, whose terms are added.
        power = torch.stack([_power(t) - own for t, own in zip(tangents, self.powers, strict=True)]).amin()
        parts = [_halves(t, power + own) for t, own in zip(tangents, self.powers, strict=True)]
        do = self._empty(self.b, self.n, self.h, self.o.shape[-1])
        self._run_over_queries(jvp_kernel, self.tiles[0], (*parts, do))
        return do.ldexp_(-power - self.powers[2]).transpose(1, 2)

    def vjp(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the cotangents (dq, dk, dv) for the cotangent g of the output."""
        power = _power(g)
        halves = _halves(g, power)
        at_q, at_k, at_v = self.powers
        width, w = self.q.shape[-1], self.v.shape[-1]
        rows, dq = self._empty(4, self.b, self.h, self.n), self._empty(self.b, self.n, self.h, width)
        self._run_over_queries(dq_kernel, self.tiles[1], (halves, rows, dq))
        # The largest entry of dS becomes at most 2¹⁵.
        lift = _power(rows[3]) + (15 - LARGEST)
        factor = torch.ones((), dtype=torch.float32, device=g.device).ldexp(lift)
        dk, dv = (self._empty(self.b, self.m, self.hkv, x) for x in (width, w))
        tiles = self.tiles[2]
        run(
            dkdv_kernel,
            self.b * self.hkv * -(-self.m // tiles.rows),
            tiles,
            (self.q, self.k, self.v, halves, rows, factor, dk, dv, self.padding),
            self._numbers(self.hkv),
            self._constants(tiles, key_parts(self.options, self.n, tiles)),
        )
        scale = self.options.scale
        dq = (dq * scale).ldexp_(-power - (at_v + at_k))
        dk = (dk * scale).ldexp_(-power - (at_v + at_q) - lift)
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.ldexp_(-power - 15).transpose(1, 2)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.o.device)

    def _run_over_queries(self, kernel: KernelInterface[Any], tiles: Tiles, tensors: tuple[Tensor, ...]) -> None:
        run(
            kernel,
            self.b * self.h * -(-self.n // tiles.rows),
            tiles,
            (self.q, self.k, self.v, self.o, self.normaliser, *tensors, self.padding),
            self._numbers(self.h),
            self._constants(tiles, query_parts(self.options, self.m, tiles)),
        )

    def _numbers(self, heads: int) -> tuple[int | float, ...]:
        padded = self.options.padding is not None
        sizes = (heads, self.h // self.hkv, self.n, self.m)
        return self.m if padded else 0, *sizes, self.scale, self.options.offset, self.options.window or 0

    def _constants(self, tiles: Tiles, parts: int) -> tuple[int | bool, ...]:
        options = self.options
        masks = bool(options.causal), options.window is not None, options.padding is not None
        return self.q.shape[-1], self.v.shape[-1], *masks, tiles.rows, tiles.keys, parts


def is_supported(q: Tensor, v: Tensor, options: Options) -> bool:
    """Return whether the kernels of pairs have this case; all others have three tf32 products."""
    return (
        q.dtype == torch.float32
        and {q.shape[3], v.shape[3]} <= {64, 128}
        and options.softcap is None
        and options.bias is None
        and options.sparse is None
        and options.precision in (None, "precise")
        and shared_memory(q) >= SHARED_MEMORY[90]
    )


def _power(t: Tensor) -> Tensor:
    """Return the exponent by which the largest entry of t gets just below 2^LARGEST, as a number on t's device."""
    power = LARGEST - torch.frexp(t.abs().amax()).exponent
    return power.clamp(-MAX_EXPONENT, MAX_EXPONENT)


def _halves(t: Tensor, power: Tensor) -> Tensor:
    """Return t (b, h, n, w) times 2^power as two float16 whose sum it is, (b, n, h, 2, w)."""
    exact = t.float().transpose(1, 2).ldexp(power)
    halves = torch.empty(*exact.shape[:3], 2, exact.shape[3], dtype=torch.float16, device=t.device)
    halves[..., 0, :] = exact
    halves[..., 1, :] = exact.sub_(halves[..., 0, :])
    return halves
