"""Linear maps that are given only by their products with vectors.

An operator represents one matrix J (rows, cols), or a batch of them of one shape. Vectors are flat: `matvec` maps
(*batch, cols) to (*batch, rows), `rmatvec` maps (*batch, rows) to (*batch, cols).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

MAX_DENSE_ENTRIES = 2**24
# Units of rounding of the factors of a float32 product, by the value of torch.backends.*.matmul.fp32_precision.
REDUCED_PRECISION_ROUNDOFF = {"tf32": 2.0**-10, "bf16": 2.0**-7}


def refuse_autocast(device: torch.device) -> None:
    """Raise InputError under autocast, which would round the solver's own vectors."""
    if torch.is_autocast_enabled(device.type):
        raise InputError(
            f"expected no autocast around a solver, got torch.autocast({device.type!r}); put it inside of "
            "the function that is measured, where its rounding is allowed for, or leave it out"
        )


def product_roundoff(dtype: torch.dtype, device: torch.device) -> float:
    """Return the unit of rounding of a matrix product under PyTorch's current settings for float32 products."""
    backend = {"cuda": torch.backends.cuda, "cpu": torch.backends.mkldnn}.get(device.type)
    unit = torch.finfo(dtype).eps
    if backend is None or dtype != torch.float32:
        return unit
    return REDUCED_PRECISION_ROUNDOFF.get(_float32_precision(backend), unit)


def _float32_precision(backend: Any) -> str:
    """Return the name of the format that a backend rounds the factors of a float32 product to."""
    try:
        return cast(str, backend.matmul.fp32_precision)
    except AttributeError:  # before PyTorch 2.9 there was one setting for all backends
        return {"highest": "ieee", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]


def is_rounded_further(operator: LinearOperator) -> bool:
    """Return whether products are rounded further than the vectors, as those in half precision are."""
    return operator.roundoff > torch.finfo(operator.dtype).eps


class LinearOperator:
    """A matrix-free linear map J with its adjoint.

    Subclasses implement `matvec` and `rmatvec`, and `gram`, `precise` or `perturbed` where they can. The sizes in bytes
    are estimates for `plan`.

    Args:
        shape: (rows, cols) of J.
        dtype: Dtype of the vectors.
        device: Device of the vectors.
        batch: Shape of the batch of matrices; empty for one matrix.
        workspace: Bytes that one product needs beyond its input and output.
        held: Bytes that the operator keeps between products.

    Attributes:
        shape: (rows, cols) of J.
        dtype: Dtype of the vectors.
        device: Device of the vectors.
        batch: Shape of the batch of matrices.
        workspace: Bytes that one product needs beyond its input and output.
        held: Bytes that the operator keeps between products.
        reference_itemsize: Bytes per number in the operator that `precise` returns; 0 if there is none.
        reference_bytes: Bytes that the operator returned by `precise` keeps between products.
        roundoff: Unit of rounding of the products; larger than that of the vectors if products are rounded further.
        own_error: A relative error of the operator itself, however it is applied.
        casts: Whether J is computed with casts to a coarser dtype, whose effect `perturbed` shows.
        is_same_in_float64: Whether `precise` is this operator up to rounding. A function that is run in float64 may
            compute other constants than in its own dtype; the interval then contains both norms.
        whole: The operator of which this one is a part; without a reference, rounding is relative to its norm.
        has_gram: Whether `gram` is implemented.

    Raises:
        InputError: If a size is not positive.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        batch: tuple[int, ...] = (),
        workspace: int = 0,
        held: int = 0,
    ) -> None:
        """Set shape, dtype, device, batch and the sizes in bytes."""
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype = dtype
        self.device = torch.device(device)
        self.batch = tuple(int(size) for size in batch)
        self.workspace, self.held = int(workspace), int(held)
        self.reference_itemsize = 0 if dtype == torch.float64 else 8
        self.reference_bytes = 0 if dtype == torch.float64 else 8 * self.held // torch.finfo(dtype).bits * 8
        self.roundoff, self.own_error, self.casts = product_roundoff(self.dtype, self.device), 0.0, False
        self.whole: LinearOperator | None = None
        self.is_same_in_float64 = True
        self.has_gram = False
        if min(self.shape) < 1 or min(self.batch, default=1) < 1:
            raise InputError(
                f"expected a shape and a batch of positive sizes, got shape {self.shape} and "
                f"batch {self.batch}; an operator without entries has no singular values"
            )

    def matvec(self, v: Float[Tensor, "*batch cols"]) -> Float[Tensor, "*batch rows"]:
        """Return the product J v."""
        raise NotImplementedError

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        """Return the product Jᵀ u."""
        raise NotImplementedError

    def gram(self, v: Float[Tensor, "*batch cols"]) -> tuple[Float[Tensor, "*batch cols"], Float[Tensor, "*batch"]]:
        """Return JᵀJ v as a vector and a positive factor of it, in float64, where this costs less than two products.

        The factor is of the size of ‖J v‖, so that the vector overflows no earlier than J v does.
        """
        raise NotImplementedError

    def precise(self) -> LinearOperator | None:
        """Return the same operator in float64, or in a far more precise dtype; None if there is none."""
        return self if self.dtype == torch.float64 else None

    def perturbed(self) -> LinearOperator | None:
        """Return the operator at an input changed by one unit of rounding, or with its casts; None if unavailable."""
        return None

    def copy_rounding(self, other: LinearOperator) -> None:
        """Copy what describes its rounding from the operator that this one is made of."""
        self.roundoff, self.own_error, self.casts = other.roundoff, other.own_error, other.casts
        self.is_same_in_float64 = other.is_same_in_float64

    def dense(self) -> Float[Tensor, "*batch rows cols"]:
        """Return the matrix itself, computed by one product per column.

        Raises:
            InputError: If the batch has more than 2^24 entries in total.
        """
        rows, cols = self.shape
        entries = rows * cols * max(1, torch.Size(self.batch).numel())
        if entries > MAX_DENSE_ENTRIES:
            raise InputError(
                f"expected at most {MAX_DENSE_ENTRIES} entries for a dense matrix, got {entries} "
                f"(shape {self.shape}, batch {self.batch}); use matvec and rmatvec"
            )
        columns = []
        for j in range(cols):
            unit = torch.zeros(*self.batch, cols, dtype=self.dtype, device=self.device)
            unit[..., j] = 1
            columns.append(self.matvec(unit))
        return torch.stack(columns, dim=-1)

    def __repr__(self) -> str:
        """Show class, shape, batch, dtype and device."""
        batch = f", batch={self.batch}" if self.batch else ""
        return f"{type(self).__name__}(shape={self.shape}{batch}, {self.dtype}, {self.device})"


class FunctionOperator(LinearOperator):
    """An operator made of two functions.

    Args:
        matvec: Function `(*batch, cols)` → `(*batch, rows)` that computes J v.
        rmatvec: Function `(*batch, rows)` → `(*batch, cols)` that computes Jᵀ u.
        shape: (rows, cols) of J.
        dtype: Dtype of the vectors.
        device: Device of the vectors.
        batch: Shape of the batch of matrices; empty for one matrix.
        workspace: Bytes that one product needs beyond its input and output.
        held: Bytes that the functions keep between products.
        precise: Function that returns the same operator in float64, or None.
        perturbed: Function that returns the perturbed operator, or None (see `LinearOperator.perturbed`).

    Example:
        >>> double = FunctionOperator(lambda v: 2 * v, lambda u: 2 * u, (3, 3), dtype=torch.float32)
        >>> double.matvec(torch.ones(3))
        tensor([2., 2., 2.])
    """

    def __init__(
        self,
        matvec: Callable[[Tensor], Tensor],
        rmatvec: Callable[[Tensor], Tensor],
        shape: tuple[int, int],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        batch: tuple[int, ...] = (),
        workspace: int = 0,
        held: int = 0,
        precise: Callable[[], LinearOperator | None] | None = None,
        perturbed: Callable[[], LinearOperator | None] | None = None,
    ) -> None:
        """Store the functions."""
        super().__init__(shape, dtype=dtype, device=device, batch=batch, workspace=workspace, held=held)
        self._matvec, self._rmatvec, self._precise, self._perturbed = matvec, rmatvec, precise, perturbed

    def matvec(self, v: Float[Tensor, "*batch cols"]) -> Float[Tensor, "*batch rows"]:
        """Return the product J v."""
        return self._matvec(v)

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        """Return the product Jᵀ u."""
        return self._rmatvec(u)

    def precise(self) -> LinearOperator | None:
        """Return what the function `precise` returns; without one, the operator itself if it is in float64."""
        return self._precise() if self._precise is not None else super().precise()

    def perturbed(self) -> LinearOperator | None:
        """Return what the function `perturbed` returns, or None without one."""
        return self._perturbed() if self._perturbed is not None else super().perturbed()


class MatrixOperator(LinearOperator):
    """A stored matrix, or a batch of them, as an operator.

    Args:
        matrix: Tensor (*batch, rows, cols) of a floating dtype.

    Raises:
        InputError: If the argument is not such a tensor.

    Example:
        >>> MatrixOperator(torch.tensor([[3.0, 0.0], [4.0, 0.0]])).matvec(torch.tensor([1.0, 0.0]))
        tensor([3., 4.])
    """

    def __init__(self, matrix: Float[Tensor, "*batch rows cols"]) -> None:
        """Check and store the matrix."""
        if not isinstance(matrix, torch.Tensor) or not (matrix.is_floating_point() or matrix.is_complex()):
            got = f"{matrix.dtype}" if isinstance(matrix, torch.Tensor) else type(matrix).__name__
            raise InputError(
                f"expected a matrix as a tensor of a floating dtype, got {got}; convert it (torch.as_tensor, .double())"
            )
        if matrix.ndim < 2:
            raise InputError(
                f"expected a matrix (*batch, rows, cols), got shape {tuple(matrix.shape)}; "
                "reshape a vector to one row or one column"
            )
        *batch, rows, cols = matrix.shape
        super().__init__((rows, cols), dtype=matrix.dtype, device=matrix.device, batch=tuple(batch))
        self.matrix = matrix

    def matvec(self, v: Float[Tensor, "*batch cols"]) -> Float[Tensor, "*batch rows"]:
        """Return the product J v."""
        return (self.matrix @ v.unsqueeze(-1)).squeeze(-1)

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        """Return the product Jᵀ u."""
        return (self.matrix.mT @ u.unsqueeze(-1)).squeeze(-1)

    def precise(self) -> LinearOperator:
        """Return the matrix in float64."""
        return MatrixOperator(self.matrix.to(torch.float64))

    def dense(self) -> Float[Tensor, "*batch rows cols"]:
        """Return the stored matrix."""
        return self.matrix


class _RestrictedOperator(LinearOperator):
    """The submatrix of J at chosen rows and columns; see `restrict`."""

    def __init__(self, full: LinearOperator, rows: Tensor | None, cols: Tensor | None) -> None:
        shape = (full.shape[0] if rows is None else len(rows), full.shape[1] if cols is None else len(cols))
        full_vectors = torch.Size(full.batch).numel() * sum(full.shape) * torch.finfo(full.dtype).bits // 8
        super().__init__(
            shape,
            dtype=full.dtype,
            device=full.device,
            batch=full.batch,
            workspace=full.workspace + full_vectors,
            held=full.held,
        )
        self.full, self.rows, self.cols = full, rows, cols
        self.whole = full
        self.copy_rounding(full)
        self.reference_itemsize, self.reference_bytes = full.reference_itemsize, full.reference_bytes
        self.has_gram = full.has_gram and rows is None

    def _scatter(self, part: Tensor, index: Tensor | None, size: int) -> Tensor:
        if index is None:
            return part
        full = part.new_zeros(*self.batch, size)
        full[..., index] = part
        return full

    def matvec(self, v: Float[Tensor, "*batch cols"]) -> Float[Tensor, "*batch rows"]:
        image = self.full.matvec(self._scatter(v, self.cols, self.full.shape[1]))
        return image if self.rows is None else image[..., self.rows]

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        image = self.full.rmatvec(self._scatter(u, self.rows, self.full.shape[0]))
        return image if self.cols is None else image[..., self.cols]

    def gram(self, v: Float[Tensor, "*batch cols"]) -> tuple[Float[Tensor, "*batch cols"], Float[Tensor, "*batch"]]:
        image, factor = self.full.gram(self._scatter(v, self.cols, self.full.shape[1]))
        return image if self.cols is None else image[..., self.cols], factor

    def precise(self) -> LinearOperator | None:
        full = self.full.precise()
        return None if full is None else _RestrictedOperator(full, self.rows, self.cols)

    def perturbed(self) -> LinearOperator | None:
        full = self.full.perturbed()
        return None if full is None else _RestrictedOperator(full, self.rows, self.cols)


def restrict(
    operator: LinearOperator, *, rows: Int[Tensor, " r"] | None = None, cols: Int[Tensor, " c"] | None = None
) -> LinearOperator:
    """Return the submatrix J[rows, cols] as an operator.

    Args:
        operator: The operator J.
        rows: Distinct indices of the rows to keep; None keeps all.
        cols: Distinct indices of the columns to keep; None keeps all.

    Returns:
        An operator of shape (len(rows), len(cols)), or `operator` itself if both are None.

    Raises:
        InputError: If indices are not integers, out of range or repeated.

    Example:
        >>> square = MatrixOperator(torch.arange(9.0).reshape(3, 3))
        >>> restrict(square, rows=torch.tensor([0, 2]), cols=torch.tensor([1])).dense()
        tensor([[1.],
                [7.]])
    """
    if rows is None and cols is None:
        return operator
    return _RestrictedOperator(
        operator,
        _checked_index(operator, "rows", rows, operator.shape[0]),
        _checked_index(operator, "cols", cols, operator.shape[1]),
    )


def _checked_index(operator: LinearOperator, side: str, index: Tensor | None, size: int) -> Tensor | None:
    if index is None:
        return None
    index = torch.as_tensor(index, device=operator.device)
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool or len(index) == 0:
        raise InputError(
            f"expected {side} as a non-empty 1-d tensor of integers, got {index.dtype} "
            f"of shape {tuple(index.shape)}; a mask gives mask.nonzero()[:, 0]"
        )
    distinct = len(torch.unique(index))
    if int(index.min()) < 0 or int(index.max()) >= size or distinct < len(index):
        raise InputError(
            f"expected distinct {side} from 0 to {size - 1}, got values from "
            f"{int(index.min())} to {int(index.max())}, {distinct} of "
            f"{len(index)} distinct; leave out the others"
        )
    return index
