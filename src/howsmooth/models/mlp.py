"""The MLP of a layer, found by the data flow of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.models.calls import CompletedCall, RunningCall, applied_to, is_close, is_norm, is_same


@dataclass(frozen=True, eq=False)
class Mlp:
    """The MLP of a layer: modules that are applied one after the other, and what the first was given, (b, n, d)."""

    modules: tuple[torch.nn.Module, ...]
    x: Tensor


def find_mlp(running: RunningCall, x: Tensor, attended: Tensor, output: Tensor) -> Mlp | None:
    """Return the MLP of a layer: the last modules with matrices whose output is added to the stream.

    The sum is checked: what the layer returned, or what its last norm was applied to, is the stream plus a multiple of
    the MLP's output, after the modules that are applied to it alone.

    Args:
        running: The call of the layer, with those inside it.
        x: The input of the layer.
        attended: What attention adds to the stream.
        output: What the layer returned.
    """
    calls = running.completed
    norms = [call for call in calls if is_norm(call.module)]
    sums = [output, *(call.x for call in norms if is_same(call.y, output))]
    for steps in reversed(_sequences(calls)):
        entered = steps[0].x
        _, added = applied_to(steps[-1], calls)
        streams = [entered, *(call.x for call in norms if is_same(call.y, entered))]
        if attended.numel() == x.numel():
            streams.append(x + attended.view_as(x))  # attention and MLP in parallel
        if any(_is_sum(total, stream, added) for total in sums for stream in streams):
            return Mlp(tuple(step.module for step in steps), entered.reshape(*x.shape[:-1], -1))
    return None


def _sequences(calls: list[CompletedCall]) -> list[list[CompletedCall]]:
    """Return the sequences of modules in a layer that are applied one after the other, from matrix to matrix.

    A module with a norm in it, or with several arguments, is taken apart.
    """
    steps: list[CompletedCall] = []
    for call in reversed(calls):  # a module before those inside it
        inside = any(module is call.module for step in steps for module in step.module.modules())
        has_norm = any(is_norm(module) for module in call.module.modules() if module is not call.module)
        if call.unary and not inside and not has_norm:
            steps.insert(0, call)
    sequences: list[list[CompletedCall]] = []
    previous: CompletedCall | None = None
    for step in steps:
        follows = previous is not None and not is_norm(previous.module) and is_same(step.x, previous.y)
        if not is_norm(step.module) and follows and sequences:
            sequences[-1].append(step)
        elif not is_norm(step.module):
            sequences.append([step])
        previous = step
    found = []
    for sequence in sequences:
        matrices = [i for i, step in enumerate(sequence) if any(p.ndim >= 2 for p in step.module.parameters())]
        if matrices:
            found.append(sequence[matrices[0] : matrices[-1] + 1])
    return found


def _is_sum(total: Tensor, stream: Tensor, added: Tensor) -> bool:
    """Return whether total = stream + c · added for a number c ≠ 0."""
    if not total.numel() == stream.numel() == added.numel():
        return False
    flat = [t.reshape(-1).double() for t in (total, stream, added)]
    c = torch.dot(flat[0] - flat[1], flat[2]) / torch.dot(flat[2], flat[2])
    return bool(c.abs() > 0) and is_close((flat[1] + c * flat[2]).to(total.dtype), total)
