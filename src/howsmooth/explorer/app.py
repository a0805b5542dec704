"""State of the explorer: the models shared by all visitors, the session of each, running and cancelling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError, NotConverged
from howsmooth.explorer.catalog import Choice, ModelCatalog, prepare
from howsmooth.explorer.html import message
from howsmooth.spectral.products import before_each_product

if TYPE_CHECKING:
    from howsmooth.explorer.tabs import Form


QUEUE = "compute"  # one queue for all computations; one runs at a time


class Cancelled(BaseException):
    """Raised in a worker whose computation was cancelled.

    Not an Exception: what runs between the solver and the page turns any Exception into the failure of one task.
    """


class Cancellation:
    """A request to stop a computation: set by the button, checked before every step and every product of a solver.

    Example:
        >>> cancellation = Cancellation()
        >>> cancellation.check("layer 0")
        >>> cancellation.stop()
        >>> cancellation.check("layer 1")
        Traceback (most recent call last):
        howsmooth.explorer.app.Cancelled
    """

    _requested = False

    def stop(self) -> None:
        """Request the computation to stop."""
        self._requested = True

    def check(self, *_step: Any) -> None:
        """Raise `Cancelled` if a stop was requested; a callback for any loop, so it ignores its arguments."""
        if self._requested:
            raise Cancelled


class Cancellations:
    """The cancellation of the current computation of each visitor."""

    def __init__(self) -> None:
        """Start without computations."""
        self._current: dict[str | None, Cancellation] = {}

    def start(self, visitor: str | None) -> Cancellation:
        """Return the cancellation of a new computation, and stop the previous one of this visitor."""
        self.stop(visitor)
        self._current[visitor] = Cancellation()
        return self._current[visitor]

    def stop(self, visitor: str | None) -> None:
        """Stop the computation of a visitor, if there is one."""
        if visitor in self._current:
            self._current[visitor].stop()

    def stop_all(self) -> None:
        """Stop the computations of all visitors."""
        for cancellation in list(self._current.values()):
            cancellation.stop()

    def forget(self, visitor: str | None) -> None:
        """Stop the computation of a visitor who leaves, and remove it."""
        self.stop(visitor)
        self._current.pop(visitor, None)


@dataclass
class Session:
    """The results of one visitor.

    Attributes:
        values: The values of the form at the last measurement; None before the first.
        records: Measurements of layers, as `measure` yields them.
        heads: Measurements of the heads of each layer.
        gains: The gain of each token, of the layers for which it is computed, as `move_each_token` returns it.
        one_pass: Whether one pass computes the gains of all tokens; if not, they are not computed.
        layer: The selected layer; None before the first measurement.
    """

    values: dict[str, str] | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    heads: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    gains: dict[int, dict[str, Any]] = field(default_factory=dict)
    one_pass: bool = True
    layer: int | None = None

    def record(self, layer: int | None) -> dict[str, Any] | None:
        """Return the measurement of a layer, or None if it has not been measured."""
        return next((record for record in self.records if record["layer"] == layer), None)

    @property
    def largest_layer(self) -> int | None:
        """The layer with the largest constant."""
        return max(self.records, key=lambda record: record["value"])["layer"] if self.records else None

    @property
    def words(self) -> list[str]:
        """The tokens of the text, which only the first record of a chunk contains."""
        return list(self.records[0]["words"] or ()) if self.records else []

    @property
    def all_records(self) -> list[dict[str, Any]]:
        """The measurements of layers and heads."""
        return [*self.records, *(record for of_layer in self.heads.values() for record in of_layer)]


@dataclass
class App:
    """What all tabs share.

    Attributes:
        catalog: The models on offer.
        cancellations: The current computations.
        model: Gradio component for the name of the model.
        text: Gradio component for the text.
        components: The gradio components of the parameters of each form.
        session: Gradio state with the `Session` of the visitor.
        download: Gradio component with the link that saves the report.
    """

    catalog: ModelCatalog
    cancellations: Cancellations = field(default_factory=Cancellations)
    model: Any = None
    text: Any = None
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    session: Any = None
    download: Any = None

    def run(
        self, visitor: str | None, status: Any, compute: Callable[[Cancellation], Iterator[dict[Any, Any]]]
    ) -> Iterator[dict[Any, Any]]:
        """Yield the updates of `compute`; bad input and cancelling end it with a message in `status`."""
        cancellation = self.cancellations.start(visitor)
        try:
            updates = compute(cancellation)
            while True:
                # Around each step, not around the loop: gradio continues a generator in another context.
                with before_each_product(cancellation.check):
                    update = next(updates, None)
                if update is None:
                    return
                yield update
        except Cancelled:
            yield {status: message("Cancelled. What was computed stays.")}
        except (InputError, NotConverged) as error:
            yield {status: message(str(error), "warn")}
        except Exception as error:  # replaces the progress bar; the traceback goes to the log of the server
            yield {status: message(f"This failed ({type(error).__name__}); see the log of the server.", "warn")}
            raise

    def register(self, form: Form, components: Mapping[str, Any]) -> list[Any]:
        """Add the components of a form's inputs, and return them after the model and the text, if it asks for them."""
        on_page = {"model": self.model, "text": self.text} if form.asks_models else {}
        self.components[form.question] = {**on_page, **components}
        return list(self.components[form.question].values())

    def work(self, form: Form, values: Mapping[str, str]) -> Choice:
        """Return what values of a form about models ask for, loaded and checked."""
        name = values.get("model", "").strip()
        self.catalog.location(name)
        spec = form.spec({**values, "model": name})
        return prepare(spec, values.get("text", ""), self.catalog, form.lengths)
