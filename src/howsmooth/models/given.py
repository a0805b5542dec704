"""A network that the user has in memory already: read as it is, refused where reading would change it."""

from __future__ import annotations

from types import ModuleType

from transformers import MODEL_MAPPING, PreTrainedModel

from howsmooth.errors import InputError
from howsmooth.models.families import family_of
from howsmooth.models.place import Place


def read_network(
    network: PreTrainedModel, *, dtype=None, device=None, revision: str | None = None
) -> tuple[PreTrainedModel, ModuleType, str, Place]:
    """Return (base model, adapter, name, place) of a transformers model; a head on top of it is left out."""
    kind = type(network).__name__
    name = getattr(network.config, "_name_or_path", "") or kind
    if any(module.training for module in network.modules()):
        raise InputError(
            f"expected a {kind} in evaluation mode, got one in training mode; call its .eval() first"
        )
    if (dtype, device, revision) != (None, None, None):
        raise InputError(
            f"expected no dtype, device or revision beside a {kind}, which has its own, got "
            f"{', '.join(str(given) for given in (dtype, device, revision) if given is not None)}; "
            "leave it out, and move or convert the model yourself (its .to)"
        )
    adapter = family_of(network.config, name)
    base = _without_head(network)
    check_class(base, adapter, name)
    _refuse_scattered(base, name)
    source = {"kind": "object", "class": kind, "weights": "as given"}
    return base, adapter, name, Place(None, source, local_only=True)


def _without_head(network: PreTrainedModel) -> PreTrainedModel:
    """The network itself if it is what `AutoModel` makes: DINOv3's `base_model` is its encoder, without embeddings."""
    bare = MODEL_MAPPING.get(type(network.config), ())
    return network if type(network) in (bare if isinstance(bare, tuple) else (bare,)) else network.base_model


def check_class(network, adapter: ModuleType, name: str) -> None:
    if not isinstance(network, adapter.NETWORK):
        raise InputError(
            f"model {name!r}: expected a {adapter.NETWORK.__name__}, got a {type(network).__name__}; "
            "its code is not the family's own, so its attention cannot be read"
        )


def _refuse_scattered(network: PreTrainedModel, name: str) -> None:
    devices = sorted({str(parameter.device) for parameter in network.parameters()})
    if len(devices) > 1 or devices == ["meta"]:
        raise InputError(
            f"model {name!r}: expected all weights on one device, got them on {', '.join(devices)}; load it "
            "without a device_map"
        )

