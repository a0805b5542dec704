"""Block-sparse masks: the visible pairs of tokens, stored as the non-empty ones of 128 × 128 blocks.

Kernels visit only the blocks that are listed. A block is empty, full, or has a tile that says which of its pairs count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from howsmooth.errors import InputError
from howsmooth.kernels.tiles import SPARSE_BLOCK as BLOCK

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

FULL, EMPTY = -1, -2
WORD = 32  # bits of a word of a tile


class SparseMask:
    """Which pairs (query, key) count, for all sequences and heads or for each of them.

    `from_function`, `documents` and `from_block_mask` make one. Making it evaluates all n · m pairs once, so that it
    should be made once and used for many calls.

    Args:
        blocks: For each block of queries and of keys the index of its tile, −1 if all of its pairs count, −2 if none
            does: (b or 1, h or 1, ⌈n/128⌉, ⌈m/128⌉), int32.
        tiles: Pairs of the blocks that are neither empty nor full, a bit for each, key 32 w + c of a block in bit c of
            word w: (t, 128, 4), int32.
        n: Number of queries.
        m: Number of keys.
        lists: Lists of the blocks by queries and by keys, if they have been made before.
    """

    def __init__(self, blocks: Tensor, tiles: Tensor, n: int, m: int, lists: tuple[Tensor, ...] | None = None) -> None:
        """List the blocks by queries and by keys."""
        self.blocks, self.tiles, self.n, self.m = blocks, tiles, n, m
        if lists is None:
            needs_check = blocks != FULL
            needs_check[..., n // BLOCK :, :] = True
            needs_check[..., m // BLOCK :] = True
            lists = (*_lists(blocks, needs_check), *_lists(blocks.mT, needs_check.mT))
        self.lists = lists

    @classmethod
    def from_function(
        cls,
        visible: Callable[[Tensor, Tensor], Tensor],
        n: int,
        m: int | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> SparseMask:
        """Make the mask of a predicate.

        Args:
            visible: Takes indices of queries i (rows, 1) and of keys j (1, m) and returns booleans that broadcast to
                (rows, m), or to (h, rows, m) or (b, h, rows, m) if the mask differs between heads or sequences.
            n: Number of queries.
            m: Number of keys; n by default.
            device: Where the mask is stored: the device of q, k and v.

        Example:
            >>> mask = SparseMask.from_function(lambda i, j: (i // 128 == j // 128) & (j <= i), 1024)
            >>> mask
            SparseMask of 1024 × 1024 pairs, 12.5 % of the blocks
        """
        m = n if m is None else m
        if n < 1 or m < 1:
            raise InputError(f"sparse mask: expected at least one query and one key, got {n} and {m}")
        columns, tiles, rows, used = -(-m // BLOCK), [], [], 0
        j = torch.arange(columns * BLOCK, device=device).unsqueeze(0)
        inside = j < m
        for first in range(0, n, BLOCK):
            i = first + torch.arange(BLOCK, device=device).unsqueeze(1)
            pairs = visible(i.clamp(max=n - 1), j.clamp(max=m - 1))
            if not isinstance(pairs, Tensor) or pairs.dtype != torch.bool or pairs.dim() > 4:
                raise InputError(
                    "sparse mask: expected a function that returns booleans of shape (rows, m), (h, rows, m) or "
                    f"(b, h, rows, m), got {getattr(pairs, 'dtype', type(pairs).__name__)}"
                )
            pairs = pairs.expand(*pairs.shape[:-2], BLOCK, columns * BLOCK)
            pairs = pairs.reshape(*(1,) * (4 - pairs.dim()), *pairs.shape)
            outside = ~(inside & (i < n))
            # Pairs past the end never count, and do not keep a block from being full.
            some, every = (_by_block(t) for t in (pairs & ~outside, pairs | outside))
            is_full = every.all(-1).all(-1)
            is_partial = some.any(-1).any(-1) & ~is_full
            index = torch.full(is_full.shape, EMPTY, dtype=torch.int32, device=pairs.device)
            index[is_full] = FULL
            count = int(is_partial.sum())
            index[is_partial] = used + torch.arange(count, dtype=torch.int32, device=pairs.device)
            tiles.append(_packed(some[is_partial]))
            rows.append(index)
            used += count
        return cls(torch.stack(rows, 2), torch.cat(tiles), n, m)

    @classmethod
    def documents(
        cls, segments: Tensor | None = None, *, cu_seqlens: Tensor | None = None, causal: bool = False
    ) -> SparseMask:
        """Make the mask of documents packed into one sequence: a token sees those of its own document.

        Args:
            segments: The document of each token, (n,) or (b, n), any integers.
            cu_seqlens: Instead, where each document begins and the last one ends, as in FlashAttention: (d + 1,).
            causal: Whether a token sees only those before it, and itself.

        Example:
            >>> mask = SparseMask.documents(cu_seqlens=torch.tensor([0, 100, 300]))
            >>> mask.n, mask.dense()[0, 0, 99, 98:102].tolist()
            (300, [True, True, False, False])
        """
        if (segments is None) == (cu_seqlens is None):
            raise InputError("documents: expected segments or cu_seqlens, got both or neither")
        if cu_seqlens is not None:
            lengths = cu_seqlens.diff()
            if cu_seqlens.dim() != 1 or len(lengths) == 0 or int(cu_seqlens[0]) != 0 or bool((lengths < 0).any()):
                raise InputError(
                    "documents: expected cu_seqlens of shape (d + 1,) that begin with 0 and do not decrease, got "
                    f"{cu_seqlens.tolist() if cu_seqlens.numel() < 9 else tuple(cu_seqlens.shape)}"
                )
            segments = torch.repeat_interleave(torch.arange(len(lengths), device=cu_seqlens.device), lengths)
        assert segments is not None
        if segments.dim() not in (1, 2) or segments.is_floating_point() or segments.numel() == 0:
            raise InputError(
                f"documents: expected integers of shape (n,) or (b, n), got {segments.dtype} {tuple(segments.shape)}"
            )
        ids = segments.reshape(-1, 1, segments.shape[-1])

        def visible(i: Tensor, j: Tensor) -> Tensor:
            same = ids[..., i[:, 0]].unsqueeze(-1) == ids[..., j[0]].unsqueeze(-2)
            return same & (j <= i) if causal else same

        return cls.from_function(visible, segments.shape[-1], device=segments.device)

    @classmethod
    def from_block_mask(cls, block_mask: BlockMask) -> SparseMask:
        """Make the mask of a `BlockMask` of `torch.nn.attention.flex_attention`, of any block size.

        Example:
            >>> from torch.nn.attention.flex_attention import create_block_mask
            >>> theirs = create_block_mask(lambda b, h, i, j: j <= i, None, None, 300, 300, device="cpu")
            >>> bool((SparseMask.from_block_mask(theirs).dense() == torch.ones(300, 300).tril().bool()).all())
            True
        """
        n, m = block_mask.seq_lengths
        size_q, size_k = block_mask.BLOCK_SIZE
        partial = _flags(block_mask.kv_num_blocks, block_mask.kv_indices)
        full = torch.zeros_like(partial)
        if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
            full = _flags(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        b, h = (torch.arange(size, device=partial.device) for size in partial.shape[:2])
        holds = block_mask.mask_mod
        # Each vmap adds the axis of one argument, in the order b, h, i, j.
        for position in (3, 2, 1, 0):
            holds = torch.vmap(holds, in_dims=tuple(0 if at == position else None for at in range(4)))

        def visible(i: Tensor, j: Tensor) -> Tensor:
            at = (..., i // size_q, j // size_k)
            with _IndexByTensors():
                pairs: Tensor = holds(b, h, i[:, 0], j[0])
            return full[at] | (partial[at] & pairs)

        return cls.from_function(visible, n, m, device=partial.device)

    @property
    def device(self) -> torch.device:
        """The device of the mask."""
        return self.blocks.device

    @property
    def density(self) -> float:
        """The share of the blocks that are not empty."""
        return float((self.blocks != EMPTY).double().mean())

    def kernel_arguments(self) -> tuple[Tensor, ...]:
        """Return the tensors that `howsmooth.kernels` takes: tiles, and the lists by queries and by keys."""
        return self.tiles, *self.lists

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the mask, in the order in which the constructor takes them."""
        return [self.blocks, self.tiles, *self.lists]

    def to(self, device: torch.device | str) -> SparseMask:
        """Return the mask on another device."""
        blocks, tiles, *lists = (t.to(device) for t in self.tensors())
        return SparseMask(blocks, tiles, self.n, self.m, tuple(lists))

    def repeated(self, times: int) -> SparseMask:
        """Return the mask for `times` as many sequences."""
        starts, entries, key_starts, key_entries = self.lists
        lists = (starts.repeat(times, 1, 1, 1), entries, key_starts.repeat(times, 1, 1, 1), key_entries)
        return SparseMask(self.blocks.repeat(times, 1, 1, 1), self.tiles, self.n, self.m, lists)

    def key_range(self, first: int, last: int) -> tuple[int, int]:
        """Return a range [start, stop) that contains all keys visible to the queries [first, last)."""
        listed = (self.blocks[:, :, first // BLOCK : -(-last // BLOCK)] != EMPTY).flatten(0, 2).any(0).nonzero()
        if len(listed) == 0:
            return 0, 0
        return int(listed[0]) * BLOCK, min(self.m, (int(listed[-1]) + 1) * BLOCK)

    def visible(self, first: int, last: int, start: int, stop: int) -> Tensor:
        """Return which pairs of queries [first, last) and keys [start, stop) count, (b or 1, h or 1, rows, keys)."""
        top, left = first // BLOCK, start // BLOCK
        blocks = self.blocks[:, :, top : -(-last // BLOCK), left : -(-stop // BLOCK)]
        pairs = (blocks == FULL)[..., None, None].expand(*blocks.shape, BLOCK, BLOCK)
        if len(self.tiles):
            pairs = torch.where((blocks >= 0)[..., None, None], _unpacked(self.tiles[blocks.clamp(min=0)]), pairs)
        pairs = pairs.transpose(3, 4).flatten(4, 5).flatten(2, 3)
        return pairs[..., first - top * BLOCK : last - top * BLOCK, start - left * BLOCK : stop - left * BLOCK]

    def dense(self) -> Tensor:
        """Return the mask as a boolean table (b or 1, h or 1, n, m)."""
        return self.visible(0, self.n, 0, self.m)

    def __repr__(self) -> str:
        """Describe size and density."""
        return f"SparseMask of {self.n} × {self.m} pairs, {self.density:.1%} of the blocks".replace("%", " %")


class _IndexByTensors(TorchFunctionMode):
    """Indexes by tensors under `vmap`: in torch 2.7, `t[i]` with an index of no axes asks for its number."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(index, Tensor) for index in indices):
                return torch.ops.aten.index(args[0], list(indices))
        return func(*args, **(kwargs or {}))


def _by_block(pairs: Tensor) -> Tensor:
    """Reshape (b, h, 128, c·128) to (b, h, c, 128, 128)."""
    b, h, rows, columns = pairs.shape
    return pairs.view(b, h, rows, columns // BLOCK, BLOCK).transpose(2, 3)


def _packed(pairs: Tensor) -> Tensor:
    """Return booleans (…, 128) as bits of words (…, 4)."""
    positions = torch.arange(WORD, dtype=torch.int32, device=pairs.device)
    bits = pairs.view(*pairs.shape[:-1], BLOCK // WORD, WORD).int() << positions
    return bits.sum(-1, dtype=torch.int32)


def _unpacked(words: Tensor) -> Tensor:
    """Return the bits of words (…, 4) as booleans (…, 128)."""
    bits = words.unsqueeze(-1) >> torch.arange(WORD, dtype=torch.int32, device=words.device)
    return (bits & 1).bool().flatten(-2)


def _flags(count: Tensor, indices: Tensor) -> Tensor:
    """Return which blocks are among the first `count` indices of each row, (b, h, rows, columns)."""
    is_listed = torch.arange(indices.shape[-1], device=indices.device) < count.unsqueeze(-1)
    flags = torch.zeros(indices.shape, dtype=torch.int32, device=indices.device)
    return flags.scatter_add_(-1, indices.long(), is_listed.int()) > 0


def _lists(blocks: Tensor, needs_check: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each row of blocks where its list begins, where checks begin, and where it ends; and all lists.

    An entry is a column and its tile. Blocks that need no check come first.
    """
    is_listed = blocks != EMPTY
    ends = is_listed.sum(-1).flatten().cumsum(0).view(blocks.shape[:-1])
    starts = ends - is_listed.sum(-1)
    middles = starts + (is_listed & ~needs_check).sum(-1)
    order = torch.argsort(needs_check.to(torch.int8), dim=-1, stable=True)
    sorted_blocks = blocks.gather(-1, order)
    listed = sorted_blocks != EMPTY
    entries = torch.stack([order[listed].int(), sorted_blocks[listed].int()], -1)
    # The kernels read one entry ahead, past the last one too.
    return torch.stack([starts, middles, ends], -1).int(), torch.cat([entries, entries.new_zeros(1, 2)])
