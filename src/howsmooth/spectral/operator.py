"""Linear maps known only by their products with vectors.

An operator stands for one matrix J (rows, cols), or for a batch of them of one shape. Vectors are flat:
`matvec` takes (*batch, cols) to (*batch, rows), `rmatvec` takes (*batch, rows) to (*batch, cols).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

DENSE_ENTRIES = 2**24
FURTHER = {"tf32": 2.0**-10, "bf16": 2.0**-7}  # what PyTorch may be told to round the factors of float32 products to


def refuse_autocast(device: torch.device) -> None:
    """Refuse to work under autocast, which would round the solver's own vectors."""
    if torch.is_autocast_enabled(device.type):
        raise InputError(
            f"expected no autocast around a solver, got torch.autocast({device.type!r}); put it inside of "
            "the function that is measured, where its rounding is allowed for, or leave it out"
        )


def product_roundoff(dtype: torch.dtype, device: torch.device) -> float:
    """The unit of rounding of a matrix product, as torch.set_float32_matmul_precision and the like allow it."""
    backend = {"cuda": torch.backends.cuda, "cpu": torch.backends.mkldnn}.get(device.type)
    unit = torch.finfo(dtype).eps
    return unit if backend is None or dtype != torch.float32 else FURTHER.get(backend.matmul.fp32_precision, unit)


class LinearOperator:
    """A matrix-free map J with its adjoint; subclasses give `matvec`, `rmatvec` and what they can of the rest.

    `workspace` is the number of bytes that one product takes beyond its input and its output, `held` those that the
    operator keeps for all of them, `reference_bytes` those that its more precise twin keeps. `reference_itemsize` is the bytes of a
    number in that twin, 0 where there is none. All are estimates that a memory plan counts with.
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
    ):
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype = dtype
        self.device = torch.device(device)
        self.batch = tuple(int(size) for size in batch)
        self.workspace, self.held = int(workspace), int(held)
        self.reference_itemsize = 0 if dtype == torch.float64 else 8
        self.reference_bytes = 0 if dtype == torch.float64 else 8 * self.held // torch.finfo(dtype).bits * 8
        # What a solver must allow for. `roundoff`: the unit of rounding of the products, more than that of the vectors
        # where they are rounded further. `hidden`: a relative error that is in the operator itself, however applied.
        # `casts`: what the operator is made of is cast to a coarser dtype, and `perturbed` shows what that does.
        self.roundoff, self.hidden, self.casts = product_roundoff(self.dtype, self.device), 0.0, False
        if min(self.shape) < 1 or min(self.batch, default=1) < 1:
            raise InputError(
                f"expected a shape and a batch of positive sizes, got shape {self.shape} and "
                f"batch {self.batch}; an operator without entries has no singular values"
            )

    def matvec(self, v: Float[Tensor, "*batch cols"]) -> Float[Tensor, "*batch rows"]:
        """The product J v."""
        raise NotImplementedError

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        """The product Jᵀ u."""
        raise NotImplementedError

    def precise(self) -> LinearOperator | None:
        """The same operator in float64, or at least far more precisely, or None when it cannot be had."""
        return self if self.dtype == torch.float64 else None

    def perturbed(self) -> LinearOperator | None:
        """The same operator at an input moved by one unit of rounding, or with its casts; None when not to be had."""
        return None

    def allow_as(self, other: LinearOperator) -> None:
        """Ask a solver to allow for the rounding of another operator that this one is made of."""
        self.roundoff, self.hidden, self.casts = other.roundoff, other.hidden, other.casts

    def dense(self) -> Float[Tensor, "*batch rows cols"]:
        """The matrix itself, one product per column; refused above 2^24 entries."""
        rows, cols = self.shape
        entries = rows * cols * max(1, torch.Size(self.batch).numel())
        if entries > DENSE_ENTRIES:
            raise InputError(
                f"expected at most {DENSE_ENTRIES} entries for a dense matrix, got {entries} "
                f"(shape {self.shape}, batch {self.batch}); use matvec and rmatvec"
            )
        columns = []
        for j in range(cols):
            unit = torch.zeros(*self.batch, cols, dtype=self.dtype, device=self.device)
            unit[..., j] = 1
            columns.append(self.matvec(unit))
        return torch.stack(columns, dim=-1)

    def __repr__(self) -> str:
        batch = f", batch={self.batch}" if self.batch else ""
        return f"{type(self).__name__}(shape={self.shape}{batch}, {self.dtype}, {self.device})"


class FunctionOperator(LinearOperator):
    """An operator made of two functions; `precise` and `perturbed` are called, if given, for what they are named after.

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
    ):
        super().__init__(shape, dtype=dtype, device=device, batch=batch, workspace=workspace, held=held)
        self._matvec, self._rmatvec, self._precise, self._perturbed = matvec, rmatvec, precise, perturbed

    def matvec(self, v: Float[Tensor, "*batch cols"]) -> Float[Tensor, "*batch rows"]:
        return self._matvec(v)

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        return self._rmatvec(u)

    def precise(self) -> LinearOperator | None:
        return self._precise() if self._precise is not None else super().precise()

    def perturbed(self) -> LinearOperator | None:
        return self._perturbed() if self._perturbed is not None else super().perturbed()


class MatrixOperator(LinearOperator):
    """A stored matrix, or a batch of them, as an operator.

    >>> MatrixOperator(torch.tensor([[3.0, 0.0], [4.0, 0.0]])).matvec(torch.tensor([1.0, 0.0]))
    tensor([3., 4.])
    """

    def __init__(self, matrix: Float[Tensor, "*batch rows cols"]):
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
        return (self.matrix @ v.unsqueeze(-1)).squeeze(-1)

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        return (self.matrix.mT @ u.unsqueeze(-1)).squeeze(-1)

    def precise(self) -> LinearOperator:
        return MatrixOperator(self.matrix.to(torch.float64))

    def dense(self) -> Float[Tensor, "*batch rows cols"]:
        return self.matrix


class _Restricted(LinearOperator):
    """J seen only at chosen rows and columns; see `restrict`."""

    def __init__(self, whole: LinearOperator, rows: Tensor | None, cols: Tensor | None):
        shape = (whole.shape[0] if rows is None else len(rows), whole.shape[1] if cols is None else len(cols))
        longer = torch.Size(whole.batch).numel() * sum(whole.shape) * torch.finfo(whole.dtype).bits // 8
        super().__init__(
            shape,
            dtype=whole.dtype,
            device=whole.device,
            batch=whole.batch,
            workspace=whole.workspace + longer,
            held=whole.held,
        )
        self.whole, self.rows, self.cols = whole, rows, cols
        self.allow_as(whole)
        self.reference_itemsize, self.reference_bytes = whole.reference_itemsize, whole.reference_bytes

    def _spread(self, part: Tensor, index: Tensor | None, size: int) -> Tensor:
        if index is None:
            return part
        full = part.new_zeros(*self.batch, size)
        full[..., index] = part
        return full

    def matvec(self, v: Float[Tensor, "*batch cols"]) -> Float[Tensor, "*batch rows"]:
        image = self.whole.matvec(self._spread(v, self.cols, self.whole.shape[1]))
        return image if self.rows is None else image[..., self.rows]

    def rmatvec(self, u: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch cols"]:
        image = self.whole.rmatvec(self._spread(u, self.rows, self.whole.shape[0]))
        return image if self.cols is None else image[..., self.cols]

    def precise(self) -> LinearOperator | None:
        whole = self.whole.precise()
        return None if whole is None else _Restricted(whole, self.rows, self.cols)

    def perturbed(self) -> LinearOperator | None:
        whole = self.whole.perturbed()
        return None if whole is None else _Restricted(whole, self.rows, self.cols)


def restrict(
    operator: LinearOperator, *, rows: Int[Tensor, " r"] | None = None, cols: Int[Tensor, " c"] | None = None
) -> LinearOperator:
    """The submatrix J[rows, cols]; None keeps all of that side.

    >>> square = MatrixOperator(torch.arange(9.0).reshape(3, 3))
    >>> restrict(square, rows=torch.tensor([0, 2]), cols=torch.tensor([1])).dense()
    tensor([[1.],
            [7.]])
    """
    chosen = []
    for side, index, size in (("rows", rows, operator.shape[0]), ("cols", cols, operator.shape[1])):
        if index is not None:
            index = torch.as_tensor(index, device=operator.device)
            if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool or len(index) == 0:
                raise InputError(
                    f"expected {side} as a non-empty 1-d tensor of integers, got {index.dtype} "
                    f"of shape {tuple(index.shape)}; a mask gives mask.nonzero()[:, 0]"
                )
            if int(index.min()) < 0 or int(index.max()) >= size or len(index.unique()) < len(index):
                raise InputError(
                    f"expected distinct {side} from 0 to {size - 1}, got values from "
                    f"{int(index.min())} to {int(index.max())}, {len(index.unique())} of "
                    f"{len(index)} distinct; leave out the others"
                )
        chosen.append(index)
    return operator if chosen == [None, None] else _Restricted(operator, *chosen)
