"""Tile shapes of the kernels: one small table, which `benchmarks/gpu_tiles.py` computes on a GPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass

# Rows and columns of the blocks that a sparse mask lists. Tiles divide them.
SPARSE_BLOCK = 128


@dataclass(frozen=True)
class Tiles:
    """Tile shape and launch options of a kernel.

    Attributes:
        rows: Queries of one program (keys in the dk/dv kernel).
        keys: Keys (queries in the dk/dv kernel) in one step of its loop.
        warps: Warps of one program.
        stages: Stages of the software pipeline.
        tangents: Tangents in one pass.
        registers: Limit of registers per thread, where it lets a second program run on the multiprocessor.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    tangents: int = 1
    registers: int | None = None


# (kernel, bytes of an operand, width of the wider of key and value) → tiles: the fastest on an H200 at n = 16,384, for
# float32 at n = 8,192 (width 256, and width 128 in float32, were not swept). "short" is for few programs: fewer rows
# each, so that all multiprocessors have some. "causal" and "sparse" are listed where other tiles are faster under a
# causal or a sparse mask (ten documents), or where these need too much shared memory; "biased" where they do so with a
# table of scores. float32 has a warp for 16 rows everywhere: with 8 warps on 64 rows for dk and dv, the transpose took
# 27 ms instead of 17. It has no tiles 256 wide: see `kernels.MAX_WIDTH`.
TABLE: dict[tuple[str, int, int], Tiles] = {
    ("forward", 2, 64): Tiles(64, 64, 4, 3),
    ("forward", 2, 128): Tiles(64, 64, 4, 3),
    ("forward causal", 2, 128): Tiles(128, 64, 8, 2, registers=128),
    ("forward", 2, 256): Tiles(64, 32, 4, 2),
    ("forward", 4, 64): Tiles(128, 64, 8, 3),
    ("forward", 4, 128): Tiles(64, 32, 4, 2),
    ("jvp", 2, 64): Tiles(128, 64, 8, 2, registers=128),
    ("jvp", 2, 128): Tiles(128, 64, 8, 2),
    ("jvp", 2, 256): Tiles(64, 16, 4, 2),
    ("jvp", 4, 64): Tiles(128, 64, 8, 2),
    ("jvp", 4, 128): Tiles(64, 16, 4, 2),
    ("jvp short", 2, 64): Tiles(64, 32, 4, 3),
    ("jvp short", 2, 128): Tiles(64, 32, 4, 2),
    ("jvps", 2, 64): Tiles(128, 64, 8, 2, registers=128),
    ("jvps causal", 2, 64): Tiles(128, 64, 8, 3, tangents=2),
    ("jvps", 2, 128): Tiles(128, 64, 8, 2),
    ("jvps", 2, 256): Tiles(64, 16, 4, 2),
    ("jvps", 4, 64): Tiles(128, 64, 8, 2),
    ("jvps", 4, 128): Tiles(64, 16, 4, 2),
    ("dq", 2, 64): Tiles(128, 64, 8, 3, registers=128),
    ("dq", 2, 128): Tiles(128, 32, 8, 3, registers=128),
    ("dq", 2, 256): Tiles(64, 32, 8, 2),
    ("dq", 4, 64): Tiles(128, 64, 8, 3),
    ("dq", 4, 128): Tiles(64, 16, 4, 2),
    ("dkdv", 2, 64): Tiles(128, 64, 8, 3, registers=128),
    ("dkdv", 2, 128): Tiles(64, 64, 4, 2),
    ("dkdv", 2, 256): Tiles(64, 16, 8, 2),
    ("dkdv", 4, 64): Tiles(128, 64, 8, 3),
    ("dkdv", 4, 128): Tiles(64, 16, 4, 2),
    ("hvp queries", 2, 64): Tiles(64, 64, 4, 2),
    ("hvp queries causal", 2, 64): Tiles(128, 64, 8, 3),
    ("hvp queries", 2, 128): Tiles(128, 64, 8, 2),
    ("hvp queries", 2, 256): Tiles(64, 16, 8, 1),
    ("hvp queries", 4, 64): Tiles(64, 32, 4, 2),
    ("hvp queries", 4, 128): Tiles(32, 16, 4, 1),
    ("hvp keys", 2, 64): Tiles(64, 64, 4, 3),
    ("hvp keys causal", 2, 64): Tiles(64, 64, 4, 2),
    ("hvp keys", 2, 128): Tiles(128, 32, 8, 3),
    ("hvp keys causal", 2, 128): Tiles(128, 32, 8, 2),
    ("hvp keys", 2, 256): Tiles(64, 16, 8, 1),
    ("hvp keys", 4, 64): Tiles(64, 32, 4, 2),
    ("hvp keys", 4, 128): Tiles(32, 16, 4, 1),
    ("forward sparse", 2, 64): Tiles(128, 64, 8, 3, registers=128),
    ("jvp sparse", 2, 64): Tiles(64, 64, 4, 3),
    ("dkdv sparse", 2, 64): Tiles(64, 64, 4, 3),
    ("dkdv sparse", 2, 128): Tiles(64, 32, 4, 3),
    ("dq sparse", 2, 128): Tiles(64, 64, 4, 2),
    ("jvp sparse", 4, 64): Tiles(128, 32, 8, 2),
    ("jvps sparse", 4, 64): Tiles(128, 32, 8, 2),
    ("dkdv sparse", 4, 64): Tiles(128, 64, 8, 2),
    ("hvp queries sparse", 2, 128): Tiles(128, 32, 8, 2),
    ("jvps biased", 2, 64): Tiles(64, 32, 4, 3),
    ("jvp biased", 4, 64): Tiles(64, 32, 4, 2),
    ("jvps biased", 4, 64): Tiles(64, 32, 4, 2),
    ("dq biased", 4, 64): Tiles(64, 32, 4, 2),
    ("dkdv biased", 2, 64): Tiles(64, 32, 4, 2),
    ("dkdv biased", 2, 128): Tiles(64, 32, 4, 2),
    ("dkdv biased", 4, 64): Tiles(64, 16, 4, 2),
    ("hvp queries biased", 2, 128): Tiles(64, 32, 4, 2),
    ("hvp keys biased", 2, 64): Tiles(64, 32, 4, 2),
    ("hvp keys biased", 2, 128): Tiles(64, 32, 4, 1),
    ("split jvp", 4, 64): Tiles(128, 64, 8, 2),
    ("split jvp", 4, 128): Tiles(64, 32, 4, 2),
    ("split dq", 4, 64): Tiles(128, 64, 8, 3),
    ("split dq", 4, 128): Tiles(128, 32, 8, 3),
    ("split dkdv", 4, 64): Tiles(64, 64, 4, 2),
    ("split dkdv", 4, 128): Tiles(128, 32, 8, 2),
    ("table", 2, 64): Tiles(64, 64, 4, 2),
    ("table", 2, 128): Tiles(64, 32, 4, 2),
    ("table", 2, 256): Tiles(64, 32, 4, 1),
    ("table", 4, 64): Tiles(64, 32, 4, 2),
    ("table", 4, 128): Tiles(32, 32, 4, 1),
}

# Shared memory of one program, in bytes, by compute capability.
SHARED_MEMORY = {
    80: 163 << 10,
    86: 99 << 10,
    87: 163 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    103: 227 << 10,
    120: 99 << 10,
    121: 99 << 10,
}
# Other tiles for GPUs with less shared memory, without a table or a sparse mask. `benchmarks/gpu_compile.py` compiles
# them for these GPUs and compares with the limits; none of them has run there.
LESS_MEMORY: dict[int, dict[tuple[str, int, int], Tiles]] = {
    163 << 10: {
        ("jvp", 2, 256): Tiles(32, 32, 4, 2),
        ("jvp", 4, 64): Tiles(64, 32, 4, 2),
        ("jvp", 4, 128): Tiles(16, 16, 4, 2),
        ("jvps", 2, 256): Tiles(32, 32, 4, 2),
        ("jvps", 4, 64): Tiles(64, 32, 4, 2),
        ("jvps", 4, 128): Tiles(16, 16, 4, 2),
        ("dq", 4, 64): Tiles(64, 32, 4, 3),
        ("dq", 4, 128): Tiles(32, 32, 4, 2),
        ("dkdv", 4, 64): Tiles(64, 32, 4, 3),
        ("dkdv", 4, 128): Tiles(32, 32, 4, 2),
        ("hvp queries", 4, 64): Tiles(32, 32, 4, 2),
        ("hvp queries", 4, 128): Tiles(16, 16, 4, 1),
        ("hvp keys", 2, 128): Tiles(64, 64, 4, 2),
        ("hvp keys", 4, 64): Tiles(32, 32, 4, 2),
        ("hvp keys", 4, 128): Tiles(16, 16, 4, 1),
    },
    99 << 10: {
        ("forward", 4, 64): Tiles(64, 64, 4, 3),
        ("forward", 4, 128): Tiles(64, 32, 4, 1),
        ("jvp", 2, 128): Tiles(64, 32, 4, 2),
        ("jvp", 2, 256): Tiles(32, 32, 4, 1),
        ("jvp", 4, 64): Tiles(64, 32, 4, 2),
        ("jvp", 4, 128): Tiles(16, 16, 4, 2),
        ("jvps", 2, 64): Tiles(128, 64, 8, 2, registers=128),
        ("jvps", 2, 128): Tiles(64, 32, 4, 2),
        ("jvps", 2, 256): Tiles(32, 32, 4, 1),
        ("jvps", 4, 64): Tiles(64, 32, 4, 2),
        ("jvps", 4, 128): Tiles(16, 16, 4, 2),
        ("dq", 2, 256): Tiles(32, 32, 4, 1),
        ("dq", 4, 64): Tiles(64, 32, 4, 3),
        ("dq", 4, 128): Tiles(32, 32, 4, 2),
        ("dkdv", 4, 64): Tiles(64, 32, 4, 3),
        ("dkdv", 4, 128): Tiles(32, 32, 4, 2),
        ("hvp queries", 2, 64): Tiles(64, 64, 4, 2),
        ("hvp queries", 2, 128): Tiles(32, 32, 4, 1),
        ("hvp queries", 2, 256): Tiles(16, 16, 4, 1),
        ("hvp queries", 4, 64): Tiles(32, 32, 4, 2),
        ("hvp queries", 4, 128): Tiles(16, 16, 4, 1),
        ("hvp keys", 2, 128): Tiles(32, 32, 4, 1),
        ("hvp keys", 2, 256): Tiles(16, 16, 4, 1),
        ("hvp keys", 4, 64): Tiles(32, 32, 4, 2),
        ("hvp keys", 4, 128): Tiles(16, 16, 4, 1),
    },
}

# Fewer programs than this do not fill the multiprocessors of a large GPU.
FEW_PROGRAMS = 264


def choose(
    kernel: str,
    itemsize: int,
    width: int,
    heads: int,
    length: int,
    causal: bool = False,
    capability: tuple[int, int] | None = None,
    kind: str | None = None,
) -> Tiles:
    """Return the tiles of a kernel.

    Args:
        kernel: A name in `TABLE`: forward, jvp (one tangent), jvps (several), dq or dkdv.
        itemsize: Bytes of an operand.
        width: The larger of key and value width.
        heads: Number of heads over all sequences.
        length: Number of rows of a head.
        causal: Whether the mask is causal.
        capability: Compute capability of the GPU; None for one with the most shared memory.
        kind: "biased" with a table of scores, "sparse" with a sparse mask.

    Example:
        >>> choose("jvp", 2, 64, heads=12, length=65536)
        Tiles(rows=128, keys=64, warps=8, stages=2, tangents=1, registers=128)
        >>> choose("jvp", 2, 64, heads=12, length=1024).rows
        64
        >>> choose("jvps", 2, 64, heads=12, length=65536, causal=True).tangents
        2
    """
    table = table_of(capability)
    column = 64 if width <= 64 else 128 if width <= 128 else 256
    tiles = table[kernel, itemsize, column]
    if causal:
        tiles = table.get((f"{kernel} causal", itemsize, column), tiles)
    if kind is not None:
        tiles = table.get((f"{kernel} {kind}", itemsize, column), tiles)
    if heads * -(-length // tiles.rows) < FEW_PROGRAMS:
        tiles = table.get((f"{kernel} short", itemsize, column), tiles)
    return tiles


@functools.cache
def table_of(capability: tuple[int, int] | None) -> dict[tuple[str, int, int], Tiles]:
    """Return the tiles for GPUs of a compute capability."""
    smaller = None if capability is None else LESS_MEMORY.get(SHARED_MEMORY.get(10 * capability[0] + capability[1], 0))
    if smaller is None:
        return TABLE

    # Where a line is replaced, its variants are left out: they have larger tiles.
    def is_variant(kernel: str, itemsize: int, width: int) -> bool:
        base = " ".join(word for word in kernel.split() if word not in ("causal", "short", "sparse", "biased"))
        return base != kernel and (base, itemsize, width) in smaller

    return {key: tiles for key, tiles in TABLE.items() if not is_variant(*key)} | smaller
