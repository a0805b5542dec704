"""How much memory there is, and how much was taken: on this machine, on its GPU."""

from __future__ import annotations

from pathlib import Path

import torch

SPARED = 0.05  # of a GPU's free memory, for what allocators round up and kernels load


def free_memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes that can still be had there; None where the system does not say."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _field("/proc/meminfo", "MemAvailable:")


def solver_limit(device: torch.device | str, asked: int | None) -> int | None:
    """The memory that a solve may take: what was asked for; on a GPU, which cannot swap, at most what is free."""
    if torch.device(device).type != "cuda":
        return asked
    free = int((1 - SPARED) * (free_memory(device) or 0))
    return free if asked is None else min(free, asked)


def start_peak(device: torch.device | str) -> None:
    """From now on `peak` speaks of what comes."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass  # then it speaks of the process's whole life


def peak(device: torch.device | str) -> int | None:
    """Bytes at the peak since `start_peak`: of tensors on a GPU, of the whole process on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return _field("/proc/self/status", "VmHWM:")


def taken(device: torch.device | str) -> int | None:
    """Bytes that are taken now, in the sense of `peak`."""
    if torch.device(device).type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _field("/proc/self/status", "VmRSS:")


def _field(path: str, name: str) -> int | None:
    """A number of KiB in one of Linux's tables, as bytes."""
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
    except OSError:
        return None
