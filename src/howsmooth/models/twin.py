"""A second body for a network's weights: the same tensors, its own config, and `attend` as its attention."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from howsmooth.errors import InputError
from howsmooth.models.hook import NAME, NAME_WITH_TABLES, register
from howsmooth.models.quiet import quiet_transformers


def fast_twin(network: PreTrainedModel, adapter=None) -> PreTrainedModel:
    """Return the network with the fast op inside, sharing its weights, in evaluation mode and without gradients.

    The network that was given keeps its config, its attention and its gradients. An adapter of a family that does not
    ask the attention registry has `through_registry(network)`, which makes the twin's modules do so.
    """
    register()
    # What deepcopy finds in the memo it takes as it is: tensors are shared, everything around them is new.
    memo: dict = {id(p): torch.nn.Parameter(p.detach(), requires_grad=False) for p in network.parameters()}
    memo |= {id(b): b.detach() for b in network.buffers()}
    twin = copy.deepcopy(network, memo).eval()
    with quiet_transformers():
        _use_plain_experts(twin)
        if hasattr(adapter, "through_registry"):
            twin.config._attn_implementation = NAME  # the family's own check would refuse what the adapter adds
            adapter.through_registry(twin)
        else:
            _choose_attention(twin, NAME)
    for module in twin.modules():  # sub-networks may have configs of their own
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", None):
            config.use_cache = False
    return twin


def spell_out_masks(twin: PreTrainedModel) -> bool:
    """Give a twin's attention its masks as tables; False where it has them already, or asks for no masks."""
    if twin.config._attn_implementation != NAME:
        return False
    with quiet_transformers():
        _choose_attention(twin, NAME_WITH_TABLES)
    return True


def _choose_attention(twin: PreTrainedModel, name: str) -> None:
    try:
        twin.set_attn_implementation(name)
    except (ValueError, NotImplementedError, ImportError) as error:
        raise InputError(
            f"expected a network whose attention can be chosen, got {type(twin).__name__} "
            f"({str(error).splitlines()[0]}); choose another family (howsmooth models)"
        ) from error


def _use_plain_experts(twin: PreTrainedModel) -> None:
    """Mixtures of experts as a loop: the grouped product knows no float64 and no forward mode."""
    if not hasattr(twin, "set_experts_implementation"):
        return
    try:
        twin.set_experts_implementation("eager")
    except RuntimeError as error:
        raise InputError(
            f"expected a network whose experts can be computed one by one, got {type(twin).__name__} "
            f'({str(error).splitlines()[0]}); load it with experts_implementation="eager"'
        ) from error
