"""What visitors of the explorer may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from howsmooth.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Folders whose models are offered, whether names on the Hub are taken, and how much one computation may be.

    >>> Limits(max_tokens=128).max_tokens
    128
    """

    folders: tuple[Path, ...] = ()
    hub: bool = False
    max_tokens: int = 512
    max_memory: int = 2 * 2**30  # bytes, of one solve
    max_characters: int = 1_000_000  # of a text: tokens are counted before it is cut
    waiting: int = 16  # computations in the queue, of all visitors together

    def __post_init__(self):
        for folder in self.folders:
            if not Path(folder).is_dir():
                raise InputError(f"expected a folder of models, got {folder}; name one that exists")
        if self.max_tokens < 16:
            raise InputError(f"expected at least 16 tokens to be allowed, got {self.max_tokens}; allow more")
