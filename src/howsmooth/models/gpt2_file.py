"""GPT-2's attention layers from a file that contains nothing else: for random tokens, bounds and attacks, not text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.errors import InputError
from howsmooth.models.embedded import sha256_of
from howsmooth.models.memory import free_memory
from howsmooth.models.model import Model
from howsmooth.models.weights import check_fits, safetensors_elements

HEADS, POSITIONS = 12, 1024  # of GPT-2 small; the file does not contain them


class AttentionFile(Model):
    """Attention layers of GPT-2 small, named as in the checkpoint: h.L.ln_1, h.L.attn.c_attn, h.L.attn.c_proj, wpe.

    A `Model` with attention maps and normalisations only: it has no network and no tokenizer, and takes no text.
    """

    family, heads, modality, tokenizer, reads_text = "gpt2", HEADS, "text", None, False

    def __init__(
        self,
        path: str | Path,
        name: str = "gpt2",
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Read a safetensors file.

        Args:
            path: The file.
            name: The name of the model in records.
            dtype: The dtype of the maps.
            device: The device of the maps.

        Raises:
            InputError: The file cannot be read, or has no attention layer.
        """
        self.name, self.path = name, Path(path)
        self.dtype, self.device, self.positions = dtype, torch.device(device), POSITIONS
        try:
            safetensors_elements(self.path)  # the header, before anything else is read
            check_fits(self.path.stat().st_size, free_memory(), name, "its weights")
            tensors, sha256 = load_file(self.path), sha256_of(self.path)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"expected a safetensors file of GPT-2's attention, got {path} ({reason.lower()}); check the path"
            ) from None
        self._tensors = {key.removeprefix("transformer."): value for key, value in tensors.items()}
        self._numbers = tuple(
            sorted(
                int(match[1])
                for key in self._tensors
                if (match := re.fullmatch(r"h\.(\d+)\.attn\.c_attn\.weight", key))
            )
        )
        if not self._numbers:
            raise InputError(
                f"expected h.L.attn.c_attn.weight in {path}, got {', '.join(sorted(tensors)[:3])} …; give "
                "a file with GPT-2's names"
            )
        self.layers, self.width = len(self._numbers), len(self._tensors[f"h.{self._numbers[0]}.attn.c_attn.weight"])
        self.source = {
            "origin": "file",
            "path": str(path),
            "sha256": sha256,
            "weights": f"attention layers {', '.join(map(str, self._numbers))} alone",
        }

    def __repr__(self) -> str:
        """Return path, layers and width."""
        return f"AttentionFile({str(self.path)!r}, layers {', '.join(map(str, self._numbers))}, d = {self.width})"

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers of the layers in the file."""
        return self._numbers

    def attention(self, layer: int, n: int | None = None, extrapolate: bool = False) -> SelfAttention:
        """Return the attention map of a layer, which is causal; it does not depend on positions, so n is ignored."""
        get = self._tensor_reader(layer)
        # Conv1D's weight is (in, out), the transpose of torch.nn.Linear's.
        wq, wk, wv = (part.T.contiguous() for part in get("attn.c_attn.weight").chunk(3, dim=1))
        bq, bk, bv = get("attn.c_attn.bias").chunk(3)
        return SelfAttention(
            wq,
            wk,
            wv,
            get("attn.c_proj.weight").T.contiguous(),
            bq=bq,
            bk=bk,
            bv=bv,
            bo=get("attn.c_proj.bias"),
            heads=HEADS,
            causal=True,
        )

    def normalisation(self, layer: int) -> Normalisation:
        """Return the LayerNorm before attention at a layer."""
        get = self._tensor_reader(layer)
        return Normalisation(get("ln_1.weight"), get("ln_1.bias"), 1e-5)

    def parameters(self) -> Iterator[torch.Tensor]:
        """Iterate over all tensors of the file."""
        return iter(self._tensors.values())

    def learnt_positions(self, n: int) -> torch.Tensor:
        """Return the learnt position embeddings of n tokens, (n, d)."""
        if "wpe.weight" not in self._tensors:
            raise InputError(f"expected wpe.weight in {self.path}, got none; give a file with GPT-2's positions")
        return self._tensors["wpe.weight"][:n]

    def _tensor_reader(self, layer: int) -> Callable[[str], torch.Tensor]:
        """Return a function that reads a tensor of one layer by the rest of its name."""
        if layer not in self._numbers:
            raise InputError(
                f"expected a layer among {', '.join(map(str, self._numbers))}, in {self.path.name}, got "
                f"{layer}; choose one of them"
            )

        def get(key: str) -> torch.Tensor:
            try:
                return self._tensors[f"h.{layer}.{key}"].to(self.device, self.dtype)
            except KeyError:
                raise InputError(f"expected h.{layer}.{key} in {self.path}, got none; give a whole file") from None

        return get
