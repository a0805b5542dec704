"""Products saved to a folder, so that a solve that was stopped goes on where it was.

A solve with a given seed computes the same sequence of products every time. Read from files instead of computed, they
bring it back to where it stopped, whatever else it had in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

COMPARED_ENTRIES = 1000  # of the vector that is multiplied, spread over it
# How far they may differ, relative to the largest: another GPU or library may round differently, and the difference
# grows from step to step. Vectors of another solve differ by their own size.
MAX_DIFFERENCE = 1e-3

_saved: ContextVar[SavedProducts | None] = ContextVar("saved", default=None)


@contextmanager
def saved_products(folder: str | os.PathLike[str]) -> Iterator[SavedProducts]:
    """Save each product of the solvers in this context; products that the folder already has are not computed again.

    If the program is killed, run it again with the same folder, operator, seed and options. A product takes as much
    space as a vector, n · d numbers. Other threads are not affected.

    Args:
        folder: Folder of one solve; it is created if it does not exist, and can be deleted afterwards.

    Returns:
        The products, with their numbers `computed` and `read`.

    Raises:
        InputError: If the folder has products of another solve.

    Example:
        >>> import tempfile
        >>> from howsmooth.spectral import MatrixOperator, singular_values
        >>> folder = tempfile.mkdtemp()
        >>> for _ in range(2):
        ...     with saved_products(folder) as saved:
        ...         found = singular_values(MatrixOperator(torch.diag(torch.arange(1.0, 9))))
        ...     found.products == saved.computed + saved.read, saved.computed > 0
        (True, True)
        (True, False)
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InputError(f"expected a folder for products, got the file {path}; choose another name")
    path.mkdir(parents=True, exist_ok=True)
    saved = SavedProducts(path)
    token = _saved.set(saved)
    try:
        yield saved
    finally:
        _saved.reset(token)


class SavedProducts:
    """The products of one solve in the order in which it computes them, a file each.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        """Start at the first product."""
        self.folder, self.computed, self.read = folder, 0, 0

    def get(self, vector: Tensor, compute: Callable[[], tuple[Tensor, ...]], count: int) -> tuple[Tensor, ...]:
        """Return the next product with the vector, from its file if there is one.

        Args:
            vector: The vector that is multiplied.
            compute: Computes the product, as one tensor or several.
            count: How many products of the operator this is.
        """
        path = self.folder / f"{self.computed + self.read:06d}.npz"
        sample = _sample(vector)
        if path.exists():
            self.read += count
            return self._load(path, sample, vector.device)
        images = compute()
        self.computed += count
        unfinished = path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            np.savez(file, sample, *(image.detach().cpu().numpy() for image in images))
        os.replace(unfinished, path)
        return images

    def _load(self, path: Path, sample: np.ndarray, device: torch.device) -> tuple[Tensor, ...]:
        with np.load(path) as arrays:
            expected, *images = (arrays[name] for name in arrays.files)
        if expected.shape != sample.shape or np.abs(expected - sample).max() > MAX_DIFFERENCE * np.abs(expected).max():
            raise InputError(
                f"expected products of the same solve in {self.folder}, got another vector at product {path.stem}; "
                "use the same tokens, seed and options, or another folder"
            )
        return tuple(torch.from_numpy(image).to(device) for image in images)


def current_products() -> SavedProducts | None:
    """Return the products of this context, if there are any."""
    return _saved.get()


def _sample(vector: Tensor) -> np.ndarray:
    flat = vector.detach().reshape(-1)
    return flat[:: max(1, len(flat) // COMPARED_ENTRIES)].double().cpu().numpy()
