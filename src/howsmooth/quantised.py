"""Quantised modules and operations: what they compute is piecewise constant, so that automatic differentiation gives 0.

Most of the packages that quantise are not installed with this one: their modules are recognised by name.
"""

from __future__ import annotations

import re

import torch

from howsmooth.errors import InputError

_PACKAGES = (
    "torch.ao.nn.quantized.",
    "torch.ao.nn.intrinsic.quantized.",
    "torch.ao.nn.sparse.quantized.",
    "torch.ao.quantization.fake_quantize",
    "torchao.",
    "bitsandbytes.",
    "optimum.quanto.",
    "gptqmodel.",
    "auto_gptq.",
    "awq.",
)
# Of packages under other names, of transformers' integrations, and of peft around such layers.
_CLASSES = re.compile(
    r"Linear(8bit|4bit)|Q(uant)?Linear|WQLinear|Quantized(Linear|Embedding)|(Auto)?BitLinear|HQQLinear|EetqLinear|"
    r"HiggsLinear|MetalLinear|AqlmLinear|VPTQ|SpQR|FP8|Fp8|Mxfp4|NVFP4"
)
_NAMESPACES = ("quantized", "quantized_decomposed", "bitsandbytes", "torchao")


def refuse_quantised(module: torch.nn.Module, what: str = "a map") -> None:
    """Raise InputError if a module contains a quantised one, naming it.

    Args:
        module: The module.
        what: What it is, for the error message.
    """
    for path, part in module.named_modules():
        kind = type(part)
        # Fake quantisation of weights is part of the weights; that of activations is not differentiable.
        by_name = kind.__module__.startswith(_PACKAGES) and not path.endswith("weight_fake_quant")
        if by_name or _CLASSES.match(kind.__name__) or any(map(_is_quantised, part.parameters(recurse=False))):
            raise quantised_error(f"{kind.__module__}.{kind.__name__}" + (f" in {path}" if path else ""), what)


def is_quantised_operation(operation: str) -> bool:
    """Return whether an operation of PyTorch, by its full name, computes with quantised numbers.

    Example:
        >>> is_quantised_operation("quantized::linear_dynamic"), is_quantised_operation("aten::addmm")
        (True, False)
    """
    namespace, _, name = operation.partition("::")
    return namespace in _NAMESPACES or name.startswith("quantize_per_")


def quantised_error(found: str, what: str = "a map") -> InputError:
    """Return the error for something quantised."""
    return InputError(
        f"expected {what} with floating point weights and activations, got a quantised one ({found}), whose derivative "
        "is zero; give the model before quantisation, or dequantise it (a GGUF file is dequantised as it is loaded)"
    )


def _is_quantised(t: torch.Tensor) -> bool:
    """Return whether a weight is stored in eight bits or fewer."""
    narrow = t.dtype.itemsize == 1 and t.dtype != torch.bool
    return t.is_quantized or type(t).__module__.startswith("torchao.") or narrow
