"""Whether this machine has a device, and how much memory is free and used there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from howsmooth.errors import InputError

GPU_RESERVE = 0.05  # share of a GPU's free memory that is left for allocator rounding and kernel modules


def check_device(device: torch.device | str) -> torch.device:
    """Return a device as a torch object; raise InputError if this machine has none such."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"expected a device such as cpu or cuda:1, got {device!r}; choose one") from error
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # a device type without its package may raise anything
        raise InputError(
            f"expected a device of this machine, got {str(device)!r}, which is not available here; use cpu"
        ) from error
    return device


def free_memory(device: torch.device | str = "cpu") -> int | None:
    """Return the free memory of a device in bytes; None where the system does not report it."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _read_kib("/proc/meminfo", "MemAvailable:")


def solver_memory_limit(device: torch.device | str, max_memory: int | None) -> int | None:
    """Return how many bytes a solve may use: `max_memory`, and on a GPU at most what is free there."""
    if torch.device(device).type != "cuda":
        return max_memory
    free = int((1 - GPU_RESERVE) * (free_memory(device) or 0))
    return free if max_memory is None else min(free, max_memory)


def reset_peak_memory(device: torch.device | str) -> None:
    """Reset the peak that `peak_memory` reports; where that is not possible, it stays that of the whole process."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory(device: torch.device | str) -> int | None:
    """Return the peak in bytes since `reset_peak_memory`: of tensors on a GPU, of the whole process on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return _read_kib("/proc/self/status", "VmHWM:")


def used_memory(device: torch.device | str) -> int | None:
    """Return the bytes in use now, counted as in `peak_memory`."""
    if torch.device(device).type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _read_kib("/proc/self/status", "VmRSS:")


def _read_kib(path: str, name: str) -> int | None:
    """Return a value that Linux reports in KiB, in bytes."""
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
    except OSError:
        return None
