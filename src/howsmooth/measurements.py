"""`howsmooth.measure` and `howsmooth.read`: the one Python entry point from a question to records, laws and a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from howsmooth.fits import Law
    from howsmooth.models import Model
    from howsmooth.texts.corpora import Corpus

__all__ = ["Measurements", "measure", "read"]

_LOADING = ("dtype", "device", "revision", "tokenizer", "trust_remote_code", "allow_pickle", "causal")
_LONGEST_NAME = 200  # of a text; a longer string is the text itself


@dataclass(frozen=True, eq=False)
class Measurements(Sequence[dict[str, Any]]):
    """Records of measurements, with what is made of them: laws, tables, figures, pages, files.

    A sequence of plain dictionaries, one per estimate. `notes` say what was left out when they were read.
    """

    records: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, at: Any) -> Any:
        return Measurements(self.records[at], self.notes) if isinstance(at, slice) else self.records[at]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __repr__(self) -> str:
        models = ", ".join(dict.fromkeys(record["model"] for record in self.records)) or "nothing"
        lengths = sorted({record["n"] for record in self.records})
        return f"Measurements({len(self)} records of {models} at n = {', '.join(map(str, lengths)) or '–'})"

    def __str__(self) -> str:
        """Return the table that the terminal shows."""
        import io

        from rich.console import Console

        from howsmooth.report.measurement_tables import summary

        stream = io.StringIO()
        Console(file=stream, width=100).print(summary(self._measured, self.fits))
        return stream.getvalue()

    @property
    def _measured(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == "measurement"]

    @property
    def fits(self) -> dict[tuple, Law]:
        """The growth law of each curve: exponent, interval and verdict, by the fields of `howsmooth.records.CURVE`."""
        from howsmooth.fits import growth_laws

        return growth_laws(self._measured)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per record; nested fields (source, versions, shares, …) stay as they are."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records)

    def plot(self, path: str | os.PathLike | None = None, *, theme: str = "light") -> Figure:
        """Draw Lip against n with its laws; with a `path` (png, svg, pdf) also write it."""
        from howsmooth.report.figure import check_plot_path, growth_figure, save_figure

        if path is not None:
            check_plot_path(os.fspath(path), "path")
        figure = growth_figure(self._measured, self.fits, theme=theme)
        if path is not None:
            save_figure(figure, os.fspath(path))
        return figure

    def report(self, path: str | os.PathLike, *, title: str | None = None) -> Path:
        """Write one HTML page that needs nothing else, and return its path."""
        from howsmooth.report.web_page import report_page

        place = Path(path)
        place.write_text(report_page(self.records, title=title, notes=self.notes), encoding="utf-8")
        return place

    def save(self, path: str | os.PathLike) -> Path:
        """Write the records by the ending of the name: JSON lines or Parquet for `howsmooth.read`, CSV for others."""
        from howsmooth.studies.formats import write_records

        write_records(lambda: iter(self.records), os.fspath(path))
        return Path(path)


def measure(
    model: str | os.PathLike | Model | Any = "minilm",
    text: str | os.PathLike | Corpus | None = None,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **fields: Any,
) -> Measurements:
    """Measure the local Lipschitz constants of a model's attention on a text, as `howsmooth measure` does.

    Args:
        model: what `howsmooth.load` takes, a transformers model included, or a loaded `Model`.
        text: the text itself, or a source as --text takes it (a path, "alice", "ag_news", "hf:NAME"); the embedded text
            by default. A string with a line break or of more than 200 characters is the text itself; so is a
            `howsmooth.texts.corpora.Corpus`.
        progress: called with each record as soon as it is computed.
        fields: the fields of `howsmooth.studies.Spec`, with the names and defaults of the command line: layers, heads,
            lengths, samples, map, tokens, special_tokens, cutting, inputs, quantities, tol, confidence, max_memory,
            product_dtype, stop, max_steps, seed; and, for a model that is named, dtype, device, revision, tokenizer,
            trust_remote_code, allow_pickle, causal.

    Returns:
        The records, with their laws, figure and page.

    Raises:
        InputError: for anything that cannot be measured, before anything is computed.

    >>> found = measure("minilm", layers=[0], lengths=[8], samples=1)
    >>> len(found), found[0]["layer"], found[0]["status"]
    (1, 0, 'converged')
    """
    from howsmooth.errors import InputError
    from howsmooth.models import Model, load
    from howsmooth.studies.plan import load_arguments, prepare_model, read_texts
    from howsmooth.studies.run import records_of
    from howsmooth.studies.spec import spec_of
    from howsmooth.studies.worker import cached_model

    several = next((name for name in ("models", "texts", "engine", "base") if name in fields), None)
    if several is not None:
        raise InputError(
            f"expected one model and one text, measured in this process, got {several!r}; for several, or "
            "for other processes, run a study (howsmooth.studies.run_study)"
        )
    loading = {name: _plain(fields.pop(name)) for name in _LOADING if name in fields}
    if isinstance(model, Model) and loading:
        raise InputError(
            f"expected {next(iter(loading))} only with a model that is yet to be loaded, got it with "
            f"{model!r}; give it to howsmooth.load"
        )
    named = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
    label = named or getattr(model, "name", None) or type(model).__name__
    corpus = _given(text)
    declared = {
        "name": "measure",
        **{name: _plain(value) for name, value in fields.items()},
        "models": [{"name": label, **loading}],
    }
    if isinstance(text, (str, os.PathLike)) and corpus is None:
        declared["texts"] = [os.fspath(text)]
    spec = spec_of(declared, "measure")
    corpora = (corpus,) if corpus is not None else read_texts(spec)
    if named is not None:
        loaded = cached_model(load_arguments(spec, spec.models[0]))
    else:
        loaded = model if isinstance(model, Model) else load(model, **loading)
    records = []
    for record in records_of(prepare_model(spec, loaded, next(iter(corpora), None))):
        records.append(record)
        if progress is not None:
            progress(record)
    return Measurements(records)


def read(*paths: str | os.PathLike) -> Measurements:
    """Read records back from JSON lines, stores of studies (SQLite) and Parquet files, several of them joined.

    Raises:
        InputError: where there is no record of this version; what was left out is in `notes` otherwise.
    """
    from howsmooth.studies.formats import read_records

    found = read_records([os.fspath(path) for path in paths])
    return Measurements(found.records, found.notes)


def _given(text: str | os.PathLike | Corpus | None) -> Corpus | None:
    """The corpus where a text is given itself, None where it is named."""
    from howsmooth.texts.corpora import Corpus

    if isinstance(text, str) and ("\n" in text or len(text) > _LONGEST_NAME) and not os.path.exists(text[:4096]):
        return Corpus("text", (text,))
    return text if isinstance(text, Corpus) else None


def _plain(value: Any) -> Any:
    """Values as a study file has them: torch's dtypes and devices by name, ranges and NumPy arrays as lists."""
    import torch

    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple, range)) else value
