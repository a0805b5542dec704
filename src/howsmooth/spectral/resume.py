"""Products saved to a folder, so that a solve that was stopped goes on where it was.

A solve with a given seed computes the same sequence of products every time. Read from files instead of computed, they
bring it back to where it stopped, whatever else it had in memory. Its first vector depends on the seed alone, and all
others follow from the products: so the first product of each operator, and of its reference, is computed again and
compared with its file. Otherwise the products of another operator would pass for those of this one.
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
# How far vectors and the first product may differ from those saved, in units of rounding of their largest entry. The
# same arithmetic gives the same bits; a larger difference is not covered by what a certificate allows for rounding.
MAX_DIFFERENCE = 16

_saved: ContextVar[SavedProducts | None] = ContextVar("saved", default=None)


@contextmanager
def saved_products(folder: str | os.PathLike[str]) -> Iterator[SavedProducts]:
    """Save each product of the solvers in this context; products that the folder already has are not computed again.

    If the program is killed, run it again with the same folder, operator, seed and options, on the same kind of
    machine. Only the first product of each operator is computed once more, to compare. A product takes as much space as
    a vector, n · d numbers. Other threads are not affected.

    Args:
        folder: Folder of one solve; it is created if it does not exist, and can be deleted afterwards.

    Returns:
        The products, with their numbers `computed` and `read`.

    Raises:
        InputError: If the folder has products of another solve, or cannot be created.

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
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"expected a folder for products, got {path} ({error.strerror}); choose another") from None
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

    Attributes:
        computed: Number of products that were computed and saved.
        read: Number of products that were read.
    """

    def __init__(self, folder: Path) -> None:
        """Start at the first product."""
        self.folder, self.computed, self.read = folder, 0, 0

    def get(
        self, vector: Tensor, compute: Callable[[], tuple[Tensor, ...]], count: int, is_first: bool
    ) -> tuple[Tensor, ...]:
        """Return the next product with the vector, from its file if there is one.

        Args:
            vector: The vector that is multiplied.
            compute: Computes the product, as one tensor or several.
            count: How many products of the operator this is.
            is_first: Whether it is the operator's first one, which is computed in any case, and compared.
        """
        path = self.folder / f"{self.computed + self.read:06d}.npz"
        sample = _sample(vector)
        if path.exists():
            images = self._load(path, sample)
            if is_first:
                for saved, image in zip(images, compute(), strict=True):
                    self._refuse_another(path, saved, image)  # whole: a token may act on few entries
            self.read += count
            return images
        images = compute()
        self.computed += count
        unfinished = path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            np.savez(file, *(image.detach().cpu().numpy() for image in (sample, *images)))
        os.replace(unfinished, path)
        return images

    def _load(self, path: Path, sample: Tensor) -> tuple[Tensor, ...]:
        with np.load(path) as arrays:
            expected, *images = (torch.from_numpy(arrays[name]).to(sample.device) for name in arrays.files)
        self._refuse_another(path, expected, sample)
        return tuple(images)

    def _refuse_another(self, path: Path, saved: Tensor, found: Tensor) -> None:
        """Raise InputError if two tensors differ by more than rounding."""
        is_same = saved.shape == found.shape and saved.dtype == found.dtype
        if is_same and saved.numel():
            allowed = MAX_DIFFERENCE * torch.finfo(saved.dtype).eps * float(saved.abs().max())
            is_same = float((saved - found).abs().max()) <= allowed
        if not is_same:
            raise InputError(
                f"expected products of the same solve in {self.folder}, got those of another at product {path.stem}; "
                "use the same layer, tokens, seed and options, or another folder"
            )


def current_products() -> SavedProducts | None:
    """Return the products of this context, if there are any."""
    return _saved.get()


def _sample(vector: Tensor) -> Tensor:
    flat = vector.detach().reshape(-1)
    return flat[:: max(1, len(flat) // COMPARED_ENTRIES)]
