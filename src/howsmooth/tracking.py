"""Log measurements to TensorBoard, Weights & Biases, or a function of your own.

`Measurements.log` passes its `scalars` to a callback `f(values, step)`. `TensorBoard` and `WeightsAndBiases` are such
callbacks; their packages are imported when one is created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.extras import require

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["scalars", "TensorBoard", "WeightsAndBiases"]

Callback = Callable[[Mapping[str, float], int | None], object]
"""A function of the values by name and the training step."""

_FIELDS = {"model": "{}", "checkpoint": "{}", "text": "{}", "map": "{}", "tokens": "{}", "cutting": "{}"}
_ALWAYS = {"quantity": "{}", "layer": "layer_{}", "head": "head_{}", "n": "n_{}"}


def scalars(records: Iterable[Mapping[str, Any]], prefix: str = "howsmooth") -> dict[str, float]:
    """Return the numbers of measurements by name, for a tracker of experiments.

    There are four numbers for each map and length: `value` (the largest sample), the ends `lower` and `upper` of its
    interval if it has them, and `mean` over samples if there are several. A name consists of the prefix, the fields
    that differ among the records (model, text, …), the quantity, layer, head and length.

    Args:
        records: Records of kind "measurement"; others are left out.
        prefix: First part of each name.

    Example:
        >>> record = {"kind": "measurement", "quantity": "lipschitz", "layer": 3, "head": None, "n": 64}
        >>> scalars([{**record, "value": 2.0, "lower": 1.9, "upper": 2.1}])
        ... # doctest: +NORMALIZE_WHITESPACE
        {'howsmooth/lipschitz/layer_3/n_64/value': 2.0, 'howsmooth/lipschitz/layer_3/n_64/lower': 1.9,
         'howsmooth/lipschitz/layer_3/n_64/upper': 2.1}
    """
    measured = [record for record in records if record["kind"] == "measurement"]
    varying = [name for name in _FIELDS if len({record.get(name) for record in measured}) > 1]
    named = {name: _FIELDS[name] for name in varying} | _ALWAYS
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in measured:
        parts = [text.format(record[name]) for name, text in named.items() if record.get(name) is not None]
        groups.setdefault("/".join([prefix, *parts]), []).append(record)
    values: dict[str, float] = {}
    for name, group in groups.items():
        largest = max(group, key=lambda record: record["value"])
        for key in ("value", "lower", "upper"):
            if largest.get(key) is not None:
                values[f"{name}/{key}"] = largest[key]
        if len(group) > 1:
            values[f"{name}/mean"] = sum(record["value"] for record in group) / len(group)
    return values


class TensorBoard:
    """A callback that writes scalars for TensorBoard. Needs `howsmooth[tensorboard]`.

    Args:
        writer: A `torch.utils.tensorboard.SummaryWriter`, or the folder of a new one.

    Attributes:
        writer: The writer; `close` it at the end if it is a new one.

    Raises:
        InputError: If TensorBoard is not installed.

    Example:
        Log the constants of a network at step 100 of its training:

            from howsmooth.tracking import TensorBoard

            tracker = TensorBoard("runs/lipschitz")
            howsmooth.measure(network, text, tokenizer=tokenizer, layers=[0, 5], lengths=[64]).log(tracker, step=100)
    """

    def __init__(self, writer: str | os.PathLike[str] | SummaryWriter) -> None:
        """Create the writer if a folder is given."""
        if isinstance(writer, (str, os.PathLike)):
            require("tensorboard", purpose="to write its files")
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(os.fspath(writer))
        self.writer = writer

    def __call__(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Write the values and flush, so that a killed run loses nothing."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()


class WeightsAndBiases:
    """A callback that logs to a run of Weights & Biases. Needs `howsmooth[wandb]`.

    Args:
        run: The run; by default the active one, which `wandb.init` starts.

    Raises:
        InputError: If wandb is not installed, or there is no active run.

    Example:
        Log the constants of a network at step 100 of its training:

            import wandb
            from howsmooth.tracking import WeightsAndBiases

            wandb.init(project="smoothness")
            found = howsmooth.measure(network, text, tokenizer=tokenizer, layers=[0, 5], lengths=[64])
            found.log(WeightsAndBiases(), step=100)
    """

    def __init__(self, run: Any = None) -> None:
        """Take the active run unless one is given."""
        if run is None:
            require("wandb", purpose="to find the active run", otherwise="or pass a run")
            import wandb

            run = wandb.run
        if run is None:
            raise InputError("expected an active run of Weights & Biases, got none; call wandb.init(project=…) first")
        self.run = run

    def __call__(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Log the values in one call."""
        self.run.log(dict(values), step=step)
