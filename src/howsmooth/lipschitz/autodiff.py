"""The Jacobian of any torch callable at one input, as a matrix-free operator."""

from __future__ import annotations

import copy
import dis
import functools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth.errors import InputError
from howsmooth.lipschitz.casts import CastDetector, evaluated_in_float64, warn_of_refusal
from howsmooth.lipschitz.forward_mode import jvp
from howsmooth.quantised import refuse_quantised
from howsmooth.spectral.operator import LinearOperator, refuse_autocast
from howsmooth.spectral.products import MAX_SQUARABLE
from howsmooth.spectral.rounding import moved

# Of what containers and objects hold: other objects are not searched, so that the search ends soon.
_FOLLOWED = (torch.nn.Module, list, tuple, dict, functools.partial, types.FunctionType, types.MethodType)


def captured_modules(f: Callable[..., Any]) -> list[torch.nn.Module]:
    """Return the modules that f is, is bound to, or refers to by its closure, defaults, globals or attributes.

    Example:
        >>> linear = torch.nn.Linear(2, 2)
        >>> captured_modules(lambda x: linear(x) + 1)
        [Linear(in_features=2, out_features=2, bias=True)]
    """
    found: list[torch.nn.Module] = []
    pending: list[Any] = [f]
    visited: set[int] = set()
    while pending:
        item = pending.pop()
        if id(item) in visited:
            continue
        visited.add(id(item))
        if isinstance(item, torch.nn.Module):
            found.append(item)
        elif isinstance(item, functools.partial):
            pending += [item.func, *item.args, *item.keywords.values()]
        elif isinstance(item, types.MethodType):
            pending += [item.__self__, item.__func__]
        elif isinstance(item, types.FunctionType):
            pending += [cell.cell_contents for cell in item.__closure__ or () if _is_set(cell)]
            pending += [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values()]
            pending += _globals_read_by(item)
        elif isinstance(item, (list, tuple, dict)):
            values = item.values() if isinstance(item, dict) else item
            pending += [value for value in values if isinstance(value, _FOLLOWED)]
        elif hasattr(item, "__dict__") and not isinstance(item, (type, types.ModuleType)):
            values = [*vars(item).values(), *([type(item).__call__] if callable(item) else [])]
            pending += [value for value in values if isinstance(value, _FOLLOWED)]
    return found


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # the variable is not assigned yet
        return False


def _globals_read_by(function: types.FunctionType) -> list[Any]:
    """Return the globals that a function reads, except functions of other files: those of libraries are many."""
    names = {i.argval for i in dis.get_instructions(function) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    own = function.__globals__
    return [v for v in values if not isinstance(v, types.FunctionType) or v.__globals__ is own]


@contextmanager
def refuse_state_changes(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Raise InputError if a buffer of a module has another value after the context, and restore its value."""
    before = [
        (f"{key} of {type(owner).__name__}", owner.training, buffer, buffer.clone())
        for module in modules
        for owner in module.modules()
        for key, buffer in owner.named_buffers(recurse=False)
        if buffer.layout == torch.strided and buffer.device.type != "meta"
    ]
    changed: list[tuple[str, bool]] = []
    try:
        yield
    finally:
        with torch.no_grad():
            for name, training, buffer, value in before:
                # By value: batch normalisation does not raise the version counter of its running mean.
                if not ((buffer == value) | ((buffer != buffer) & (value != value))).all():
                    buffer.copy_(value)
                    changed.append((name, training))
    if changed:
        name, training = changed[0]
        raise InputError(
            f"expected a map that is the same at every evaluation, got one that changes the buffer {name} at each"
            + (" (it is in training mode); call .eval() on the module" if training else "; give one without state")
        )


class AutodiffJacobian(LinearOperator):
    """The Jacobian J = D_x f of a map from one tensor to one tensor, by automatic differentiation.

    Jᵀu is a backward pass through a graph that is recorded once. J v uses forward mode. If an operation of f has no
    forward mode, J v is the derivative of `g ↦ Jᵀg`, through a second graph that is also recorded once.

    If f casts to a coarser dtype than that of x, J is the Jacobian without these casts: f is evaluated in float64, and
    `perturbed` is the Jacobian with the casts. If f does not run in float64, J is the Jacobian with the casts, and a
    warning names the error.

    The memory of the graphs is unknown, so a memory plan counts only the vectors of the solver.

    Args:
        f: The map. It must be deterministic.
        x: The input, of any shape.
        batched: Whether the first axis of x is a batch of b independent samples. Then the operator is a batch of the b
            diagonal blocks of J.
        check: Whether to check that f is deterministic, changes no buffer and is not quantised, that its forward and
            reverse derivatives agree, and that the samples of a batch are independent.
        forward_mode: Whether J v uses forward mode where it can. The other way takes memory for a second graph and, for
            small maps, a third of the time.

    Raises:
        InputError: If a check fails, or if f does not return a finite tensor that depends on x.

    Example:
        >>> J = AutodiffJacobian(lambda x: x**2, torch.tensor([1.0, 3.0]))
        >>> J.matvec(torch.ones(2))
        tensor([2., 6.])
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
        x: Tensor,
        *,
        batched: bool = False,
        check: bool = True,
        forward_mode: bool = True,
    ) -> None:
        """Evaluate f at x, record the graph of Jᵀ, and run the checks."""
        if check:
            refuse_autocast(x.device)
        self.f, self.x = f, x.detach()
        self._forward_mode = forward_mode
        if check:
            first, unit = self._inspect()
        y = self._record()
        b = _batch_size(x, y) if batched else 1
        batch = (b,) if batched else ()
        super().__init__((y.numel() // b, x.numel() // b), dtype=x.dtype, device=x.device, batch=batch)
        self.is_same_in_float64 = False
        self._f_with_casts: Callable[[Tensor], Tensor] | None = None  # the original f if its casts are removed
        if check:
            self._check_deterministic(first)
            if unit > self.roundoff:
                self._remove_casts(unit)
            self._check_adjoint()
            if batched:
                self._check_independent_samples()

    def _inspect(self) -> tuple[Tensor, float]:
        """Evaluate f once; return its output and the rounding unit of its casts. Raise if it is not a fixed map."""
        if isinstance(self.f, torch.nn.Module):
            refuse_quantised(self.f)
        fixed = refuse_state_changes(captured_modules(self.f))
        with torch.no_grad(), differentiable_attention(), fixed, CastDetector() as detector:
            y = self.f(self.x)
        return y, detector.unit

    def _record(self) -> Tensor:
        """Evaluate f once, and record the graph of Jᵀ."""
        self._input = self.x.clone().requires_grad_()
        with torch.enable_grad(), differentiable_attention():
            y = self.f(self._input)
        if not isinstance(y, Tensor) or y.numel() == 0 or not y.dtype.is_floating_point:
            raise InputError(
                "expected f to return one non-empty tensor of a floating dtype, got "
                f"{type(y).__name__}; wrap it in a function that picks the tensor"
            )
        if not y.requires_grad:
            raise InputError(
                "expected an output that depends on x, got one without a gradient; look for detach, "
                "no_grad or integer steps inside f"
            )
        if not torch.isfinite(y).all():
            raise InputError("expected a finite f(x), got NaN or ∞")
        self._output = y
        self._cotangent = torch.zeros_like(y, requires_grad=True)
        self._vjp_graph: Tensor | None = None
        self._has_forward_mode = self._forward_mode
        return y

    def _remove_casts(self, unit: float) -> None:
        """Replace f by f without its casts; if that does not run, allow for the rounding unit of the casts instead."""
        f, f_float64 = self.f, in_float64(self.f)
        self.casts = True
        try:
            self.f = lambda x: f_float64(x.double()).to(x.dtype)
            self._record()
            self._f_with_casts = f
        except Exception as error:
            warn_of_refusal(error, "its casts are measured as part of it, and the interval allows for their rounding")
            self.f, self.roundoff = f, unit
            self._record()

    @property
    def image(self) -> Tensor:
        """The output f(x)."""
        return self._output.detach()

    def rmatvec(self, u: Tensor) -> Tensor:
        """Return Jᵀu by a backward pass, `(*batch, rows)` → `(*batch, cols)`."""
        with differentiable_attention():
            (g,) = torch.autograd.grad(
                self._output,
                self._input,
                u.view_as(self._output).to(self._output.dtype),
                retain_graph=True,
                materialize_grads=True,
            )
        return g.reshape(*self.batch, -1)

    def matvec(self, v: Tensor) -> Tensor:
        """Return J v by forward mode or, without one, by double backward, `(*batch, cols)` → `(*batch, rows)`."""
        v = v.view_as(self._input)
        with differentiable_attention():
            if self._has_forward_mode:
                try:
                    return jvp(self.f, self._input.detach(), v).reshape(*self.batch, -1).to(self.dtype)
                except (RuntimeError, NotImplementedError):
                    self._has_forward_mode = False
            try:
                return self._jvp_by_double_backward(v)
            except (RuntimeError, NotImplementedError) as error:
                raise InputError(
                    "expected a map with forward mode or double backward, got one with neither "
                    f"({str(error).splitlines()[0]}); for a transformers model, "
                    'attn_implementation="howsmooth" has both'
                ) from error

    def _jvp_by_double_backward(self, v: Tensor) -> Tensor:
        if self._vjp_graph is None:
            with torch.enable_grad():
                (self._vjp_graph,) = torch.autograd.grad(
                    self._output, self._input, self._cotangent, create_graph=True, materialize_grads=True
                )
        (jv,) = torch.autograd.grad(self._vjp_graph, self._cotangent, v, retain_graph=True)
        return jv.reshape(*self.batch, -1).to(self.dtype)

    def gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """Compute ∇_x ⟨u, J(x) v⟩ by double backward. At a simple σ₁ with its singular vectors this is ∇_x σ₁.

        Args:
            u: Output vectors `(*batch, rows)`.
            v: Input vectors `(*batch, cols)`.

        Returns:
            The gradient, of the shape of x.
        """
        x = self.x.clone().requires_grad_()
        with torch.enable_grad(), differentiable_attention():
            y = self.f(x)
            (g,) = torch.autograd.grad(y, x, u.view_as(y).to(y.dtype), create_graph=True, materialize_grads=True)
            if not g.requires_grad:  # the map is linear
                return torch.zeros_like(self.x)
            (h,) = torch.autograd.grad(g, x, v.view_as(x), materialize_grads=True)
        return h

    def precise(self) -> LinearOperator | None:
        """Return the Jacobian in float64; None if f does not run in float64 or casts to a coarser dtype than x has."""
        if self.dtype == torch.float64:
            return self
        if self.casts:
            return None
        try:
            reference = self._unchecked(in_float64(self.f), self.x.double())
        except Exception as error:
            warn_of_refusal(error, "the interval allows for rounding without a reference")
            return None
        return reference if reference._output.dtype == torch.float64 else None

    def perturbed(self) -> LinearOperator:
        """Return the Jacobian with the casts inside f; without casts, the one at x perturbed by a unit of rounding."""
        if self._f_with_casts is not None:
            return self._unchecked(self._f_with_casts, self.x)
        return self._unchecked(self.f, moved(self.x, self.roundoff))

    def _unchecked(self, f: Callable[[Tensor], Tensor], x: Tensor) -> AutodiffJacobian:
        return AutodiffJacobian(f, x, batched=bool(self.batch), check=False)

    def _check_deterministic(self, first: Tensor) -> None:
        """Raise if the first evaluation of f differs by more than the order of a parallel sum can explain."""
        if frobenius_norm(first - self._output) > 1e-3 * frobenius_norm(self._output):
            raise InputError(
                "expected a map that gives the same output twice, got one that is random; "
                "call .eval() on the module, or fix what it draws"
            )

    def _check_adjoint(self) -> None:
        """Raise unless ⟨u, Jv⟩ = ⟨Jᵀu, v⟩ for random u and v, which no_grad or detach inside f violate."""
        generator = torch.Generator().manual_seed(0)
        v, u = (torch.randn(*self.batch, size, generator=generator).to(self.x) for size in self.shape[::-1])
        jv, ju = self.matvec(v), self.rmatvec(u)
        if not jv.any() and not ju.any():
            self._check_zero_derivative()
        gap = abs(float((u.double() * jv.double()).sum()) - float((ju.double() * v.double()).sum()))
        scale = max(frobenius_norm(u) * frobenius_norm(jv), frobenius_norm(ju) * frobenius_norm(v))
        if gap > torch.finfo(self.dtype).eps ** 0.2 * scale:
            raise InputError(
                "expected a map whose forward and reverse derivatives agree, got two different ones; "
                "look for no_grad, detach or a custom function with a wrong derivative inside f"
            )

    def _check_zero_derivative(self) -> None:
        """Raise if the derivative is zero, and yet f changes at least in proportion to a small step.

        A step that is 16 times smaller changes f 16 times less if a derivative was lost (detach, rounding of scaled
        values), 256 times less if f has a stationary point there, and not at all if f is constant around x.
        """
        signs = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(0)).sign().to(self.x)
        step = torch.finfo(self.dtype).eps ** (1 / 3) * (frobenius_norm(self.x) / self.x.numel() ** 0.5 or 1.0)
        with torch.no_grad(), differentiable_attention():
            large, small = (frobenius_norm(self.f(self.x + h * signs) - self._output) for h in (step, step / 16))
        rounding = 100 * torch.finfo(self.dtype).eps * frobenius_norm(self._output)
        if small > max(large / 64, rounding):
            raise InputError(
                "expected a map with a derivative, got one whose derivative is zero although its output changes with "
                "x; look for detach, rounding or quantised steps inside f"
            )

    def _check_independent_samples(self) -> None:
        """Raise if the output of a sample depends on another sample.

        If the samples are independent and sample i is perturbed `t_i` times as much, then its output changes `t_i`
        times as much, for all i. Powers of two make this exact in floating-point arithmetic.
        """
        v = torch.randn(*self.batch, self.shape[1], generator=torch.Generator().manual_seed(0)).to(self.x)
        t = torch.exp2(-(torch.arange(len(v)) % 16).to(v)).unsqueeze(-1)
        jv = self.matvec(v)
        difference = self.matvec(t * v) / t - jv
        if float(difference.abs().max()) > torch.finfo(self.dtype).eps ** 0.5 * float(jv.abs().max()):
            raise _not_a_batch(self.x, "outputs that depend on other samples")


def in_float64(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return f with all of its arithmetic in float64; a module is copied and converted once, if possible."""
    if isinstance(f, torch.nn.Module):
        with suppress(RuntimeError):
            f = copy.deepcopy(f).double()
    return evaluated_in_float64(f)


def frobenius_norm(t: Tensor) -> float:
    """Return the Euclidean norm of all entries, summed in float64; in units of the largest where squares underflow."""
    if not t.numel():
        return math.nan
    norm = float(torch.linalg.vector_norm(t.detach(), dtype=torch.float64))
    if 1 / MAX_SQUARABLE <= norm <= MAX_SQUARABLE:
        return norm
    peak = float(torch.linalg.vector_norm(t.detach(), ord=math.inf, dtype=torch.float64))
    if not 0 < peak < math.inf:
        return peak
    return peak * float(torch.linalg.vector_norm(t.detach().double() / peak))


@contextmanager
def differentiable_attention() -> Iterator[None]:
    """Use the unfused `scaled_dot_product_attention`; the fused kernels lack double backward and forward mode."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def _batch_size(x: Tensor, y: Tensor) -> int:
    if x.dim() < 1 or y.dim() < 1 or len(x) != len(y):
        raise _not_a_batch(x, f"an output of shape {tuple(y.shape)}")
    return len(x)


def _not_a_batch(x: Tensor, got: str) -> InputError:
    return InputError(
        f"expected independent samples along the first axis of x, of shape {tuple(x.shape)}, got {got}; pass "
        "batched=False if x is one input"
    )
