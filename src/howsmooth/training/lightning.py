"""The monitor as a callback of Lightning."""

from __future__ import annotations

import warnings
from typing import Any

from transformers import PreTrainedModel

from howsmooth.errors import InputError, first_line
from howsmooth.extras import require
from howsmooth.training.monitor import Monitor, check_options

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:  # the constructor says what to install
    Callback = object


class LightningMonitor(Callback):
    """A `Monitor` of the transformers model that a LightningModule has; all loggers of the trainer get its scalars.

    Args:
        every: As `Monitor`.
        maps: As `Monitor`.
        **options: The other arguments of `Monitor`.

    Attributes:
        monitor: The monitor; None before the training begins.
    """

    def __init__(self, every: int = 50, maps: Any = ("attention",), **options: Any) -> None:
        """Check what can be checked without the model."""
        require("lightning", purpose="for howsmooth.training.LightningMonitor")
        self.every, self.maps = check_options(every, maps)
        self.options = options
        self.monitor: Monitor | None = None
        self._state: dict[str, Any] | None = None
        self._last = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the monitor; one that cannot be made is a warning, and the training goes on."""
        if self.monitor is not None or not trainer.is_global_zero:
            return
        try:
            self.monitor = Monitor(_network_of(pl_module), every=self.every, maps=self.maps, **self.options)
            if self._state is not None:
                self.monitor.load_state_dict(self._state)
        except InputError as error:
            warnings.warn(f"there is no monitor, and the training goes on: {first_line(error)}", stacklevel=2)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure after a step of the optimiser; several batches may make one step."""
        step = trainer.global_step
        if self.monitor is None or step == self._last:
            return
        self._last = step
        if self.monitor.step(step) is not None:
            for logger in trainer.loggers:
                logger.log_metrics(self.monitor.scalars(), step=step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the monitor, for the trainer's checkpoints."""
        return {} if self.monitor is None else self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._state = state_dict or None


def _network_of(module: Any) -> Any:
    """Return the transformers model of a LightningModule: the first one that is inside of no other."""
    found = next((inner for inner in module.modules() if isinstance(inner, PreTrainedModel)), None)
    if found is None:
        raise InputError(f"expected a transformers model in {type(module).__name__}, got none; use Monitor itself")
    return found
