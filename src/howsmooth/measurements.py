"""`howsmooth.measure`, `howsmooth.ask` and `howsmooth.read`: the Python entry points from a question to records.

All return `Measurements`: records with their growth laws, tables, figure, page and files.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, overload

from howsmooth.display import Displayed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from transformers import PreTrainedModel

    from howsmooth.fits import Law
    from howsmooth.models.model import Model
    from howsmooth.studies.plan import Plan
    from howsmooth.texts.corpora import Corpus

__all__ = ["measure", "ask", "compare", "read", "Measurements"]

_LOADING = ("dtype", "device", "revision", "tokenizer", "part", "trust_remote_code", "allow_pickle", "causal")
_MAX_LENGTHS = 8  # lengths that the repr lists
# Fields that are part of the name of a scalar: those of the first line only if they differ among the records.
_NAMED_IF_VARIED = ("model", "checkpoint", "text", "map", "tokens", "cutting")
_NAMED = {"quantity": "{}", "layer": "layer_{}", "head": "head_{}", "n": "n_{}"}
_STATISTICS = ("residual", "largest_logit", "entropy", "sink_share")  # of a monitor


@dataclass(frozen=True, eq=False)
class Measurements(Displayed, Sequence[dict[str, Any]]):
    """A sequence of records, one plain dictionary per estimate, with laws, tables, figures, pages and files.

    `str()` gives the tables that the terminal shows. A notebook shows them with the growth chart, and the tokens of the
    largest constant coloured by their share of the worst direction.

    Attributes:
        records: The records, as `howsmooth.records` defines them. Those of `measure` have, among others, `value`,
            `lower`, `upper`, `confidence`, `status`, `model`, `layer`, `head`, `n` and `sample`.
        notes: What was left out when the records were read, one sentence each; empty after `measure`.

    Example:
        >>> import howsmooth
        >>> found = howsmooth.measure("minilm", layers=[0, 1], lengths=[8, 16], samples=1)
        >>> found
        Measurements(4 records of minilm at n = 8, 16)
        >>> [(record["layer"], record["n"]) for record in found]
        [(0, 8), (1, 8), (0, 16), (1, 16)]
        >>> found[:2]
        Measurements(2 records of minilm at n = 8)
    """

    records: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Measurements: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | Measurements:
        """Return one record, or the `Measurements` of a slice."""
        return Measurements(self.records[index], self.notes) if isinstance(index, slice) else self.records[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the records."""
        return iter(self.records)

    def __repr__(self) -> str:
        """Return the number of records, the models and the lengths."""
        models = (
            ", ".join(dict.fromkeys(record["model"] for record in self.records if record.get("model"))) or "nothing"
        )
        lengths = sorted({record["n"] for record in self.records if isinstance(record.get("n"), int)})
        listed = ", ".join(map(str, lengths)) or "–"
        if len(lengths) > _MAX_LENGTHS:
            listed = f"{lengths[0]} … {lengths[-1]} ({len(lengths)} lengths)"
        return f"Measurements({len(self)} record{'s' * (len(self) != 1)} of {models} at n = {listed})"

    def __str__(self) -> str:
        """Return the tables that the terminal shows: the constants, and their growth with n."""
        import io

        from rich.console import Console

        stream = io.StringIO()
        Console(file=stream, width=100).print(self._summary())
        return stream.getvalue()

    def _summary(self) -> RenderableType:
        from rich.console import Group

        from howsmooth.questions import find_question
        from howsmooth.report.web_page import by_question

        groups = by_question(self.records)
        return Group(*(part for name, records in groups.items() for part in find_question(name).tables(records)))

    @property
    def _measurement_records(self) -> list[dict[str, Any]]:
        """The records of kind "measurement": files may contain other kinds, which have no growth law."""
        return [record for record in self.records if record["kind"] == "measurement"]

    @property
    def fits(self) -> dict[tuple[Any, ...], Law]:
        """The growth law of each curve: exponent, interval and verdict.

        Keys are the values of the fields `howsmooth.records.CURVE`: one curve per model, text, map, layer, head, set of
        tokens and quantity.
        """
        from howsmooth.fits import growth_laws

        return growth_laws(self._measurement_records)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with one row per record; nested fields (source, versions, shares, …) stay objects."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records)

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, theme: str = "light", style: str = "screen"
    ) -> Figure:
        """Plot the records of the first question among them: of `measure`, the constants against n with their laws.

        Args:
            path: Also write the figure to this file (png, svg or pdf).
            theme: Colours: "light" or "dark".
            style: Sizes: "screen", "paper" or "slides".

        Returns:
            The matplotlib figure.

        Raises:
            InputError: The path has another ending, there is no such style, or there is nothing to plot.
        """
        from howsmooth.errors import InputError
        from howsmooth.questions import find_question
        from howsmooth.report.figure import draw_question, save_figure
        from howsmooth.report.style import check_plot_path, figure_style
        from howsmooth.report.web_page import by_question

        if path is not None:
            check_plot_path(os.fspath(path), "path")
        with figure_style(style):
            name, records = next(iter(by_question(self.records).items()), ("measure", []))
            question = find_question(name)
            if not question.draws:
                raise InputError(f"expected records that can be drawn, got those of {name}; see its tables: print them")
            figure = draw_question(question, records, theme=theme)
        if path is not None:
            save_figure(figure, os.fspath(path))
        return figure

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write a self-contained HTML page with tables and interactive charts, and return its path.

        Args:
            path: The file to write.
            title: The title of the page; by default it names the models.
        """
        from howsmooth.report.web_page import report_page

        file = Path(path)
        file.write_text(report_page(self.records, title=title, notes=self.notes), encoding="utf-8")
        return file

    def scalars(self, *, prefix: str = "howsmooth") -> dict[str, float]:
        """Return the numbers by name, for a logger of experiments.

        The numbers of each map and length are `value`, the median over samples, the ends `lower` and `upper` of its
        interval if it has them, and, of several samples, the `smallest` and the `largest`. Records of a monitor have
        the medians of `residual`, `largest_logit`, `entropy` and `sink_share` as well. A name consists of the prefix,
        the fields that differ among the records (model, text, …), the quantity, layer, head and length. Records of
        other questions than "measure" are left out.

        Args:
            prefix: First part of each name.

        Example:
            >>> import howsmooth
            >>> found = howsmooth.measure("minilm", layers=[0], lengths=[8], samples=1)
            >>> for name in found.scalars(prefix="smooth"):
            ...     print(name)
            smooth/lipschitz/layer_0/n_8/value
            smooth/lipschitz/layer_0/n_8/lower
            smooth/lipschitz/layer_0/n_8/upper
        """
        measured = self._measurement_records
        varying = [name for name in _NAMED_IF_VARIED if len({record.get(name) for record in measured}) > 1]
        named = dict.fromkeys(varying, "{}") | _NAMED
        groups: dict[str, list[dict[str, Any]]] = {}
        for record in measured:
            parts = [text.format(record[name]) for name, text in named.items() if record.get(name) is not None]
            groups.setdefault("/".join([prefix, *parts]), []).append(record)
        values: dict[str, float] = {}
        for name, group in groups.items():
            # The median of lower ends is a lower end of the median, and that of upper ends an upper one.
            for end in ("value", "lower", "upper"):
                if all(record.get(end) is not None for record in group):
                    values[f"{name}/{end}"] = median(record[end] for record in group)
            if len(group) > 1:
                sizes = [record["value"] for record in group]
                values |= {f"{name}/smallest": min(sizes), f"{name}/largest": max(sizes)}
            for statistic in _STATISTICS if all("training_step" in record for record in group) else ():
                if all(record.get(statistic) is not None for record in group):
                    values[f"{name}/{statistic}"] = median(record[statistic] for record in group)
        return values

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the records to a file, in the format given by the ending of its name, and return its path.

        Args:
            path: A name that ends in .jsonl (JSON lines) or .parquet, which `howsmooth.read` reads back, or in .csv.

        Raises:
            InputError: The name has another ending, or the folder does not exist.

        Example:
            >>> import tempfile, howsmooth
            >>> found = howsmooth.measure("minilm", layers=[0], lengths=[8], samples=1)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     howsmooth.read(found.save(folder + "/found.jsonl")).records == found.records
            True
        """
        from howsmooth.studies.formats import write_records

        write_records(lambda: iter(self.records), os.fspath(path))
        return Path(path)


def measure(
    model: str | os.PathLike[str] | Model | PreTrainedModel = "minilm",
    text: str | os.PathLike[str] | Corpus | None = None,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **fields: Any,
) -> Measurements:
    """Measure the local Lipschitz constants of a model's attention on a text.

    The Python counterpart of `howsmooth measure`: the same names, defaults and numbers. All input is checked before
    anything is computed.

    Args:
        model: A name, folder or file as `howsmooth.load` takes it, a transformers model, or a loaded `Model`.
        text: The text itself, a `howsmooth.texts.Corpus`, or a source as --text takes it: a path, "alice", "ag_news" or
            "hf:NAME". By default the text that ships with the package. A string with white space that names no corpus
            and no file is the text itself; a single word is one as "string:WORD".
        progress: Called with each record as soon as it is computed.
        **fields: Fields of `howsmooth.studies.Spec`.

            What is measured: `layers` ("all" or a list), `heads` (each alone), `map` ("attention", "head", "normed",
            "block", "layer" or "model"), `tokens` that may move ("all", "no-special", "no-first"), `quantities`.

            On which input: `lengths` n in tokens, `samples` per length, `cutting` of the text ("consecutive",
            "documents", "prefixes"), `special_tokens` ("add" or "none"), `inputs` ("text", "ids" for random token ids,
            which a model without a tokenizer gets, "normalised" for random tokens), `images` or `audio` (a file or a
            folder).

            How: `tol` (relative width of the interval), `confidence`, `simultaneous` (it is that of all intervals),
            `product_dtype`, `stop`, `max_steps`,
            `max_memory`, `seed`.

            For a model that has yet to be loaded: `dtype`, `device`, `revision`, `tokenizer` (a name, or one that is in
            memory), `part`, `trust_remote_code`, `allow_pickle`, `causal`.

    Returns:
        The records, one for each layer (or head), length and sample, with their laws, figure and page.

    Raises:
        InputError: The model, the text or a field is invalid, or they do not fit together.

    Example:
        >>> import howsmooth
        >>> found = howsmooth.measure("minilm", layers=[0], lengths=[8], samples=1)
        >>> record = found[0]
        >>> record["layer"], record["n"], record["status"]
        (0, 8, 'converged')
        >>> record["lower"] <= record["value"] <= record["upper"]
        True
    """
    return ask("measure", model, text, progress=progress, **fields)


def ask(
    question: str,
    model: str | os.PathLike[str] | Model | PreTrainedModel | None = None,
    text: str | os.PathLike[str] | Corpus | None = None,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **fields: Any,
) -> Measurements:
    """Ask any question: the Python counterpart of its command, with the same names, defaults and numbers.

    Args:
        question: The name of the question, a key of `howsmooth.questions.QUESTIONS`: "measure", "bound", …
        model: The model, as `howsmooth.measure` takes it; by default the question's. Only for questions about models.
        text: The text, as `howsmooth.measure` takes it. Only for questions about models.
        progress: Called with each record as soon as it is computed.
        **fields: Fields of the question's spec; those of its command's options.

    Returns:
        The records, with their tables, figure, page and files.

    Raises:
        InputError: There is no such question, or the model, the text or a field is invalid.

    Example:
        >>> import howsmooth
        >>> found = howsmooth.ask("bound", layers=[0], lengths=[8])
        >>> {record["side"] for record in found if record["refused"] is None} == {"lower", "upper"}
        True
    """
    from howsmooth.errors import InputError
    from howsmooth.extras import require
    from howsmooth.questions import find_question

    require("transformers", purpose="for howsmooth.ask")  # the extra of it has what specs need, too

    from howsmooth.questions.spec import spec_of
    from howsmooth.studies.plan import prepare
    from howsmooth.studies.run import records_of
    from howsmooth.threads import few_threads_if_short

    asked = find_question(question)
    several = next((name for name in ("models", "texts", "engine", "base") if name in fields), None)
    if several is not None:
        raise InputError(
            f"expected one model and one text, measured in this process, got {several!r}; for several, or "
            "for other processes, run a study (howsmooth.studies.run_study)"
        )
    if asked.asks_models:
        plan = _plan_with_model(question, asked.spec, model, text, fields)
    else:
        declared = {name: _to_plain(value) for name, value in fields.items()}
        if isinstance(model, (str, os.PathLike)) and asked.spec.argument == "model":
            loading = {name: declared.pop(name) for name in _LOADING if name in declared}
            declared["model"], model = {"name": os.fspath(model), **loading}, None
        if model is not None or text is not None:
            raise InputError(f"expected no model and no text for the question {question}, got one; leave it out")
        # What the model may do is in this call, not in a file.
        plan = prepare(spec_of(declared, question, question=question), trust_remote_code=True, allow_pickle=True)
    records = []
    with few_threads_if_short(max(plan.spec.lengths) if asked.asks_models else None):
        for record in records_of(plan):
            records.append(record)
            if progress is not None:
                progress(record)
    return Measurements(records)


def _plan_with_model(question: str, spec_type: Any, model: Any, text: Any, fields: dict[str, Any]) -> Plan:
    """Return the plan of a question about a model that is named or in memory."""
    from howsmooth.errors import InputError
    from howsmooth.models.loading import cached_model, load
    from howsmooth.models.model import Model
    from howsmooth.questions.inputs import adapt_to_model
    from howsmooth.questions.spec import load_arguments, read_texts, spec_of
    from howsmooth.studies.plan import prepare_model

    model = spec_type.model_fields["models"].default[0].name if model is None else model
    second = None  # the model to compare with, if it is in memory
    if fields.get("against") is not None and not isinstance(fields["against"], (str, os.PathLike, dict)):
        against = fields.pop("against")
        second = against if isinstance(against, Model) else load(against)
        fields["against"] = _name_in_memory(against)
    tokenizer = fields.pop("tokenizer", None)
    loading = {name: _to_plain(fields.pop(name)) for name in _LOADING if name in fields}
    objects = {}  # a tokenizer that is in memory is not part of the spec
    if isinstance(tokenizer, (str, os.PathLike)):
        loading["tokenizer"] = os.fspath(tokenizer)
    elif tokenizer is not None:
        objects["tokenizer"] = tokenizer
    if isinstance(model, Model) and (loading or objects):
        raise InputError(
            f"expected {next(iter(loading | objects))} only with a model that is yet to be loaded, got it with "
            f"{model!r}; give it to howsmooth.load"
        )
    named = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
    label = named or _name_in_memory(model)
    corpus = _as_corpus(text)
    declared = {
        "name": question,
        **{name: _to_plain(value) for name, value in fields.items()},
        "models": [{"name": label, **loading}],
    }
    if isinstance(text, (str, os.PathLike)) and corpus is None:
        declared["texts"] = [os.fspath(text)]
    spec = spec_of(declared, question, question=question)
    corpora = (corpus,) if corpus is not None else read_texts(spec)
    from_files = named is not None and not objects
    if from_files:
        loaded = cached_model(load_arguments(spec, spec.models[0]))
    else:
        loaded = model if isinstance(model, Model) else load(model, **loading, **objects)
    spec, notes = adapt_to_model(loaded, corpora, spec)
    for note in notes:
        warnings.warn(note, stacklevel=_stack_level())
    return prepare_model(spec, loaded, next(iter(corpora), None), from_files=from_files, second=second)


def compare(
    model: str | os.PathLike[str] | Model | PreTrainedModel,
    against: str | os.PathLike[str] | Model | PreTrainedModel,
    text: str | os.PathLike[str] | Corpus | None = None,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **fields: Any,
) -> Measurements:
    """Compare the constants of two models on a text: the Python counterpart of `howsmooth compare`.

    Args:
        model: The first model, as `howsmooth.measure` takes it.
        against: The second one. Both need the same tokenizer, and layers of the same width.
        text: The text, as `howsmooth.measure` takes it.
        progress: Called with each record as soon as it is computed.
        **fields: Fields of the question's spec, and how the first model is loaded, as `howsmooth.measure` takes them.

    Returns:
        The records. Each has the constants of both, `first` and `second`, their `ratio` with its interval, whether it
        `changed` beyond the intervals, the `angle` in degrees between the worst directions, and what the second model
        gains `along` that of the first.

    Raises:
        InputError: The models have different tokenizers, widths or layers, or an argument is invalid.

    Example:
        >>> import howsmooth
        >>> found = howsmooth.compare("minilm", "random:minilm", layers=[0], lengths=[8], samples=1)
        >>> found[0]["changed"], 0 <= found[0]["angle"] <= 90
        (True, True)
    """
    return ask("compare", model, text, progress=progress, against=against, **fields)


def read(*paths: str | os.PathLike[str]) -> Measurements:
    """Read records from files: JSON lines, Parquet, and the SQLite stores of studies.

    Args:
        *paths: One or more files; their records are joined, and duplicates count once.

    Returns:
        The records. Its `notes` say what was left out: records of other versions, duplicates, unfinished tasks.

    Raises:
        InputError: A file cannot be read, or none of them has a record of this version.

    Example:
        >>> import tempfile, howsmooth
        >>> found = howsmooth.measure("minilm", layers=[0], lengths=[8], samples=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = found.save(folder + "/found.jsonl")
        ...     howsmooth.read(path)
        Measurements(1 record of minilm at n = 8)
    """
    from howsmooth.studies.formats import read_records

    found = read_records([os.fspath(path) for path in paths])
    return Measurements(list(found.records), found.notes)


def _name_in_memory(model: Any) -> str:
    """Return what records call a model that is in memory: its name if it has one, else its class."""
    return getattr(model, "name", None) or type(model).__name__


def _as_corpus(text: str | os.PathLike[str] | Corpus | None) -> Corpus | None:
    """Return a corpus if the text itself was given, None if the argument is the name of a source."""
    from howsmooth.texts.corpora import STRING, Corpus, is_text_itself, read_corpus

    if isinstance(text, str) and is_text_itself(text):
        return read_corpus(STRING + text)
    return text if isinstance(text, Corpus) else None


def _stack_level() -> int:
    """Return the `stacklevel` with which a warning of the function that calls this one names the line of the user."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame, level = frame.f_back, level + 1
    return level


def _to_plain(value: Any) -> Any:
    """Return a value as a study file has it: torch's dtypes and devices by name, ranges and NumPy arrays as lists."""
    import torch

    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_to_plain(item) for item in value] if isinstance(value, (list, tuple, range)) else value
