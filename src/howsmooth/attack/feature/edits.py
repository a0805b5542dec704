"""Edits of the tokens before they are perturbed: duplicated, or inserted. Copies can then be moved apart.

Duplicating every token leaves attention without positions as it was: the same outputs, each as often as its token. What
is new is that copies may part, which an unsplit token cannot do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attack.refusals import check_count
from howsmooth.errors import InputError


class Edit:
    """x (n, d) ↦ more tokens; `edit >> attack` attacks what the edit has made, `edit >> edit` does both."""

    name: str

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def __rshift__(self, then):
        from howsmooth.attack.feature.attacks import Attack, Edited

        if isinstance(then, Edit):
            return Both(self, then)
        if isinstance(then, Attack):
            return Edited(self, then)
        raise InputError(f"{self.name} >>: expected another edit or an attack, got {type(then).__name__}")


@dataclass(frozen=True)
class Both(Edit):
    """One edit, then another."""

    first: Edit
    second: Edit

    @property
    def name(self) -> str:
        return f"{self.first.name} >> {self.second.name}"

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@dataclass(frozen=True)
class Duplicate(Edit):
    """`times` copies, side by side, of each of these tokens (all of them unless given).

    >>> Duplicate((1,))(torch.tensor([[1.0], [2.0], [3.0]])).flatten().tolist()
    [1.0, 2.0, 2.0, 3.0]
    """

    tokens: tuple[int, ...] | None = None
    times: int = 2

    def __post_init__(self):
        check_count("Duplicate", "times", self.times, least=1)

    @property
    def name(self) -> str:
        which = "all" if self.tokens is None else ",".join(map(str, self.tokens))
        return f"duplicate {which} ×{self.times}"

    def __call__(self, x: Tensor) -> Tensor:
        counts = torch.full((len(x),), self.times, device=x.device)
        if self.tokens is not None:
            counts = torch.ones_like(counts).index_fill(0, places(self.name, self.tokens, len(x), x), self.times)
        return x.repeat_interleave(counts, dim=0)


@dataclass(frozen=True, eq=False)
class Insert(Edit):
    """One more token in front of place `at` (n: at the end): a copy of token `what`, or a row `what` of features (d,).

    >>> Insert(0, 2)(torch.tensor([[1.0], [2.0], [3.0]])).flatten().tolist()
    [3.0, 1.0, 2.0, 3.0]
    """

    at: int
    what: int | Tensor

    @property
    def name(self) -> str:
        what = "a row" if isinstance(self.what, Tensor) else f"token {self.what}"
        return f"insert {what} at {self.at}"

    def __call__(self, x: Tensor) -> Tensor:
        n, d = x.shape
        if not 0 <= self.at <= n:
            raise InputError(f"insert: expected a place from 0 to {n}, got {self.at}")
        if isinstance(self.what, Tensor):
            if self.what.shape != (d,):
                raise InputError(f"insert: expected a row of shape ({d},), got {tuple(self.what.shape)}")
            row = self.what.detach().to(x)
        else:
            row = x[places("insert", (self.what,), n, x)[0]]
        return torch.cat([x[: self.at], row.unsqueeze(0), x[self.at :]])


def places(of: str, tokens: tuple[int, ...], n: int, like: Tensor) -> Tensor:
    """Token places as a tensor, refused where there is no such token."""
    wrong = [token for token in tokens if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < n]
    if wrong or not tokens:
        raise InputError(f"{of}: expected tokens from 0 to {n - 1}, got {wrong[0] if wrong else 'none'}")
    return torch.tensor(tokens, device=like.device)
