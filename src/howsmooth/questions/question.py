"""What a question is: a spec, the records that answer it, and the tables and charts that show them.

A question has places: each is one record to be, with its coordinates and a key, the hash of everything that determines
its number. The engine (`howsmooth.studies`) makes the places, skips those that have a record, and calls `answer` with
those that share a forward pass. Tables and charts see records and nothing else, so that a file of records can be drawn
again at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from howsmooth.questions.spec import ModelSpec, Spec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from howsmooth.models.model import Model
    from howsmooth.questions.inputs import Inputs
    from howsmooth.questions.work import Work
    from howsmooth.records.schema import Record
    from howsmooth.texts.corpora import Corpus
    from howsmooth.texts.cutting import TokenChunk

Fields = dict[str, Any]  # of a record


class Place(NamedTuple):
    """One record to be.

    Attributes:
        at: Its coordinates: layer, head, n, sample, and whatever else the question varies.
        key: Hash of everything that determines its number.
    """

    at: dict[str, Any]
    key: str


@dataclass(frozen=True)
class Scope:
    """The coordinates at which a question is asked of one model, for one length.

    Attributes:
        layers: The layers; (None,) for the model as a whole.
        heads: The heads; (None,) for whole layers.
        n: Number of tokens.
        samples: Numbers of the samples.
        depth: The largest depth: the number of layers of the model, unless the question says otherwise.
    """

    layers: tuple[int | None, ...]
    heads: tuple[int | None, ...]
    n: int
    samples: Sequence[int]
    depth: int


def every_map_and_sample(spec: Spec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each layer and head at each sample."""
    for layer in scope.layers:
        for head in scope.heads:
            for sample in scope.samples:
                yield {"layer": layer, "head": head, "sample": sample}


def describe_place(at: dict[str, Any]) -> str:
    """Return a place in words, such as "layer 3 head 1, n = 64".

    Example:
        >>> describe_place({"layer": 3, "head": None, "sample": 0, "n": 64})
        'layer 3, n = 64'
    """
    layer, head = at.get("layer"), at.get("head")
    where = [] if layer is None else [f"layer {layer}" if head is None else f"layer {layer} head {head}"]
    return ", ".join([*where, *([f"n = {at['n']}"] if "n" in at else [])])


@dataclass(frozen=True)
class Output:
    """A picture or an animation that a command draws besides its plot, from the records alone.

    Attributes:
        help: The help text of its option.
        charts: "module:name" of a function of records that returns the picture, None if there is none, or the panel of
            each frame of an animation.
        check: Raises InputError for a spec whose records do not have what it shows.
        metavar: What the help shows for the file.
    """

    help: str
    charts: str
    metavar: str = "FILE"
    check: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Question:
    """A question that a user can ask.

    Attributes:
        spec: Its spec.
        records: The types of its records; the first is that of most of them.
        answer: Yields the place and the fields of each record, for some places of a `Work`.
        tables: Returns what the terminal and the page show of its records.
        charts: Returns the picture of its records (`howsmooth.report.chart.Picture`), or panels in the default
            arrangement; None if nothing is drawn.
        plots: What --plot shows, in words.
        noun: What a record is called when records are counted.
        about: Help text of the command: what it computes.
        places: Yields the coordinates of a question about models.
        grid: Yields the coordinates of any other question.
        together: The coordinates that the places of one call of `answer` share.
        batches: Splits the places of a work for calls of `answer`, instead of `together`, where the records of one call
            are computed together.
        inputs: Returns the inputs of a model; by default those that the spec names.
        deepest: Returns the largest depth of a model at a chunk of text; by default its number of layers.
        check: Raises InputError for a spec that is not to be answered, before anything slow is imported.
        check_panels: Raises InputError for a number of maps that are too many for one figure.
        samples_together: Whether all samples of a length are in one bundle.
        needs_text: Whether the model has to read a text.
        needs_weights: Whether attention has to be available as weights.
        caveats: Returns warnings about records; by default about tolerances that were not reached.
        live_tables: Tables while records arrive; by default `tables`. None shows a progress bar alone.
        describe: Returns a place in words.
        outputs: Further files, by option: "--animate".
        page: "module:name" of a function of records that returns an HTML page of its own.
    """

    spec: type[Spec]
    records: tuple[type[Record], ...]
    answer: Callable[[Work, Sequence[Place]], Iterator[tuple[Place, Fields]]]
    tables: Callable[[Sequence[Fields]], Sequence[RenderableType]]
    about: str
    charts: Callable[[Sequence[Fields]], Any] | None = None
    plots: str = ""
    noun: str = "record"
    places: Callable[[Any, Scope], Iterable[dict[str, Any]]] = every_map_and_sample
    grid: Callable[[Any], Iterable[dict[str, Any]]] | None = None
    together: tuple[str, ...] = ("layer", "head", "sample")
    batches: Callable[[Work], Iterable[list[Place]]] | None = None
    inputs: Callable[[Model, Corpus | None, Any], Inputs] | None = None
    deepest: Callable[[Model, TokenChunk], int] | None = None
    check: Callable[[Any], object] | None = None
    check_panels: Callable[[int], None] | None = None
    samples_together: bool = False
    needs_text: bool = False
    needs_weights: bool = False
    caveats: Callable[[Sequence[Fields]], Iterable[str]] | None = None
    live_tables: Callable[[Sequence[Fields]], Sequence[RenderableType]] | None = None
    describe: Callable[[dict[str, Any]], str] = describe_place
    outputs: dict[str, Output] = field(default_factory=dict)
    page: str | None = None

    @property
    def asks_models(self) -> bool:
        """Whether the question is about maps of models."""
        return issubclass(self.spec, ModelSpec)

    @property
    def draws(self) -> bool:
        """Whether its records can be drawn."""
        return self.charts is not None
