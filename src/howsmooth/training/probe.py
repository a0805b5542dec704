"""The network that is trained, without its wrappers, and the tokens at which its constants are taken."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.loading import load
from howsmooth.models.model import Model

_WRAPPERS = ("_orig_mod", "module")  # torch.compile, DistributedDataParallel and DataParallel


def unwrapped(network: Any) -> Any:
    """Return the transformers model inside of wrappers that keep its weights whole.

    Raises:
        InputError: The weights are sharded over processes.
    """
    while True:
        if "FullyShardedDataParallel" in type(network).__name__ or "FSDPModule" in map(
            "{0.__name__}".format, type(network).__mro__
        ):
            raise InputError(
                "Monitor: expected a model whose weights are whole on each process, got one that FSDP shards; "
                "measure its checkpoints instead (howsmooth measure)"
            )
        if hasattr(network, "get_base_model"):  # peft: low-rank updates are modules of the model inside
            network = network.get_base_model()
            continue
        inner = next((name for name in _WRAPPERS if isinstance(getattr(network, name, None), torch.nn.Module)), None)
        if inner is None:
            return network
        network = getattr(network, inner)


def load_as_trained(network: Any) -> Model:
    """Return the maps of a network in any mode; its mode is as before, and it shares its weights with them."""
    if not isinstance(network, torch.nn.Module):
        raise InputError(f"Monitor: expected a transformers model, got {type(network).__name__}; give the model")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError(
            "Monitor: expected a model that is trained, got one without a weight that requires gradients; its "
            "constants do not change: howsmooth.measure gives them once"
        )
    training = [module for module in network.modules() if module.training]
    try:
        return load(network.eval())
    finally:
        for module in training:
            module.training = True


class Probe:
    """The sequences at which constants are taken: fixed ones, or the first one of the batch that is trained on.

    Args:
        network: The network; a hook on it keeps the inputs of its last forward pass in training mode.
        model: Its maps.
        given: Token numbers (n,) or (b, n), or another input as `Model.map_at` takes it; None for the current batch.
    """

    def __init__(self, network: torch.nn.Module, model: Model, given: Any = None) -> None:
        """Check what is given, or register the hook."""
        self._latest: dict[str, Any] = {}
        self._name = model.network.main_input_name
        self._handle: Any = None
        self.name = "current batch" if given is None else "probe"
        self.fixed: list[Any] | None = None if given is None else _as_sequences(model, given)
        if given is None:
            latest, name = self._latest, self._name

            def keep(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                if module.training:
                    latest["input"] = kwargs.get(name, args[0] if args else None)
                    latest["mask"] = kwargs.get("attention_mask")

            self._handle = network.register_forward_pre_hook(keep, with_kwargs=True)

    def close(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()

    def sequences(self) -> list[Any]:
        """Return the sequences, each as `Model.map_at` takes it.

        Raises:
            InputError: The model has not seen a batch, or was not given token numbers by their name.
        """
        if self.fixed is not None:
            return self.fixed
        batch, mask = self._latest.get("input"), self._latest.get("mask")
        if not isinstance(batch, Tensor) or not len(batch):
            raise InputError(
                f"expected a forward pass in training mode that is given {self._name} before the first measurement, "
                "got none; call step() after it, or give the monitor a probe"
            )
        first = batch[0].detach()
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == batch.shape:
            first = first[mask[0].bool()]
        return [first]


def _as_sequences(model: Model, given: Any) -> list[Any]:
    """Return fixed sequences, checked."""
    if isinstance(given, dict):
        return [given]
    if model.modality != "text":
        tensor = torch.as_tensor(given)
        axes = 4 if model.network.main_input_name == "pixel_values" else 3
        return list(tensor) if tensor.ndim == axes else [tensor]
    ids = model.token_ids(given)
    return list(ids.cpu() if ids.ndim == 2 else ids.cpu()[None])


def digest(sequence: Any) -> str | None:
    """Return the hash of the token numbers of a sequence; None of another input."""
    if not isinstance(sequence, Tensor) or sequence.is_floating_point():
        return None
    return hashlib.sha256(sequence.cpu().long().numpy().tobytes()).hexdigest()
