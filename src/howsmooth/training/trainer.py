"""The monitor as a callback of transformers' Trainer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from howsmooth.errors import InputError, first_line
from howsmooth.training.monitor import Monitor, check_options


class TrainerMonitor(TrainerCallback):
    """A `Monitor` of the model that a Trainer trains.

    Its numbers are in `state.log_history`. Set `log = trainer.log` to send them to whatever `report_to` names.

    Args:
        every: As `Monitor`.
        maps: As `Monitor`.
        **options: The other arguments of `Monitor`. By default tokens are named by the Trainer's `processing_class`.

    Attributes:
        monitor: The monitor; None before the training begins.
        log: Called with the scalars of each measurement; None for `state.log_history` alone.

    Example:
        >>> callback = TrainerMonitor(every=100, maps=("attention", "layer"))
        >>> callback.monitor is None  # Trainer(model, callbacks=[callback]); callback.log = trainer.log
        True
    """

    def __init__(self, every: int = 50, maps: Any = ("attention",), **options: Any) -> None:
        """Check what can be checked without the model."""
        self.every, self.maps = check_options(every, maps)
        self.options = options
        self.monitor: Monitor | None = None
        self.log: Callable[[dict[str, float]], Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Make the monitor; one that cannot be made is a warning, and the training goes on."""
        if self.monitor is not None or not state.is_world_process_zero:
            return
        options = {"tokenizer": kwargs.get("processing_class"), **self.options}
        try:
            self.monitor = Monitor(model, every=self.every, maps=self.maps, **options)
        except InputError as error:
            warnings.warn(f"there is no monitor, and the training goes on: {first_line(error)}", stacklevel=2)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure after a step of the optimiser."""
        if self.monitor is None or self.monitor.step(state.global_step) is None:
            return
        scalars = self.monitor.scalars()
        if self.log is None:
            state.log_history.append({**scalars, "step": state.global_step})
        else:
            self.log(scalars)
