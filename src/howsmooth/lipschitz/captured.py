"""The modules that a callable uses, and whether an evaluation changes their state.

A map that changes its own state is another map at the next evaluation: batch normalisation in training mode updates its
running mean, spectral normalisation its singular vectors.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from howsmooth.errors import InputError

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
