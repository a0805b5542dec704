"""`howsmooth study`: whole grids of measurements that survive interruption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from howsmooth.cli.measure import FIELDS
from howsmooth.cli.options import engine_options, overrides, set_option, spec_options
from howsmooth.errors import InputError

_TRUST = {
    "trust_remote_code": "Run code that comes with the model. The study has to say trust_remote_code = true as well.",
    "allow_pickle": "Load weights that are not safetensors. The study has to say allow_pickle = true as well.",
}
_store_option = click.option(
    "--store", metavar="FILE", help="The SQLite file.  [default: STUDY.sqlite beside the study]"
)


def _trust_options(command: Callable) -> Callable:
    """What a study file cannot allow by itself."""
    for name, text in reversed(_TRUST.items()):
        command = click.option(f"--{name.replace('_', '-')}", is_flag=True, help=text)(command)
    return command


def _override_options(command: Callable) -> Callable:
    """Options that stand in place of what the file says."""
    return spec_options("models", *FIELDS, "simultaneous")(engine_options(set_option(command)))


@click.group(name="study", short_help="Run whole studies that survive interruption.")
def command() -> None:
    """Run studies: grids of models, layers, lengths and samples, kept in a store as they are measured.

    A study is a TOML file. Its store lies beside it, and a run that was stopped, or killed, goes on from there.
    """


@command.command(name="run")
@click.argument("file", metavar="STUDY.toml")
@_store_option
@_trust_options
@_override_options
def run(
    file: str, store: str | None, trust_remote_code: bool, allow_pickle: bool, settings: tuple[str, ...], **flags: Any
) -> int:
    """Run a study; tasks that its store holds already are not repeated. Options override the file."""
    from howsmooth.cli.progress import run_and_keep
    from howsmooth.studies.spec import read_study

    study = read_study(file, overrides(settings, flags))
    return run_and_keep(
        study,
        Path(store) if store else Path(file).with_suffix(".sqlite"),
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )


@command.command(name="resume")
@click.argument("place", metavar="STORE|STUDY.toml")
@_trust_options
@engine_options
@set_option
def resume(place: str, trust_remote_code: bool, allow_pickle: bool, settings: tuple[str, ...], **flags: Any) -> int:
    """Go on with a study as its store remembers it. Options change where it runs."""
    from howsmooth.cli.progress import run_and_keep
    from howsmooth.studies.spec import merged, spec_of
    from howsmooth.studies.store import Store

    path = _store_of(place)
    if not path.is_file():
        raise InputError(
            f"expected a store to go on with, got {path}, which does not exist; begin with `howsmooth study run`"
        )
    with Store.write(path) as store:  # as its writer: a damaged one is repaired here
        declared, said = store.study, store.recovered
    if declared is None:
        raise InputError(
            f"expected a store that knows its study, got {path} without one; "
            "use `howsmooth study run STUDY.toml`, which repeats nothing that is stored"
        )
    return run_and_keep(
        spec_of(merged(declared, overrides(settings, flags)), str(path)),
        path,
        said,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )


@command.command(name="status")
@click.argument("place", metavar="STORE|STUDY.toml")
def status(place: str) -> None:
    """Say how far a study is, what failed, and what it shows so far."""
    from howsmooth.cli.progress import failure_lines, progress_line, show_tables
    from howsmooth.cli.run import console, say
    from howsmooth.studies.store import Store

    with Store.read(_store_of(place)) as store:
        counts, shown = store.counts(), console()
        say(shown, f"{store.path}: {progress_line(counts)}")
        for line in failure_lines(store.failures()):
            say(shown, line)
        show_tables(store, shown)


@command.command(name="ls")
@click.argument("folder", default=".")
def ls(folder: str) -> None:
    """List the studies and stores of a folder."""
    from rich.table import Table

    from howsmooth.cli.progress import progress_line
    from howsmooth.cli.run import console
    from howsmooth.studies.spec import read_study
    from howsmooth.studies.store import Store

    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"expected a folder, got {folder}; name one that exists")
    stems = sorted({path.with_suffix("") for suffix in ("*.toml", "*.sqlite") for path in root.glob(suffix)})
    table = Table.grid(padding=(0, 2))
    for stem in stems:
        file, store = stem.with_suffix(".toml"), stem.with_suffix(".sqlite")
        about = state = ""
        if file.is_file():
            try:
                about = read_study(file).description
            except InputError as error:
                if not store.is_file() and "unknown key" not in str(error):
                    continue  # a TOML file that is no study at all
                about = str(error)
        try:
            if store.is_file():
                with Store.read(store) as opened:
                    state = progress_line(opened.counts())
            else:
                state = "not begun"
        except InputError as error:
            state = str(error)
        table.add_row(stem.name, state, about)
    console().print(table if table.rows else f"no studies in {folder}")


@command.command(name="validate")
@click.argument("file", metavar="STUDY.toml")
@click.option("--full", is_flag=True, help="Load the models and cut the texts, too.")
@_trust_options
@_override_options
def validate(
    file: str, full: bool, trust_remote_code: bool, allow_pickle: bool, settings: tuple[str, ...], **flags: Any
) -> None:
    """Check a study file without running it."""
    from howsmooth.cli.run import console, say
    from howsmooth.studies.spec import read_study, untrusted

    study = read_study(file, overrides(settings, flags))
    for option, names in untrusted(study).items():
        say(
            console(),
            f"{file}: asks to run code that comes with {', '.join(names)} ({option} = true); that takes "
            f"--{option.replace('_', '-')} on the command line as well",
        )
    if full:
        from howsmooth.studies.plan import prepare

        prepared = prepare(study, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
        say(console(), f"{file}: fine, {prepared.count} tasks")
    else:
        say(console(), f"{file}: fine")


@command.command(name="export")
@click.argument("place", metavar="STORE|STUDY.toml")
@click.option(
    "--file",
    "out",
    metavar="FILE|-",
    default="-",
    show_default=True,
    help="File of records, by its ending .parquet, .csv or .jsonl; - is stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv", "jsonl"]),
    help="Format of the file, instead of what its name says.",
)
@click.option("--everything", is_flag=True, help="Also records that the study no longer asks for.")
def export(place: str, out: str, form: str | None, everything: bool) -> None:
    """Write a study's records to a file; a study that is running can be exported, too."""
    from howsmooth.cli.run import console, say
    from howsmooth.studies.formats import export as write
    from howsmooth.studies.store import Store

    with Store.read(_store_of(place)) as store:
        count = write(store, out, form, everything)
    if out != "-":
        say(console(stderr=True), f"wrote {count} records to {out}")


def _store_of(place: str) -> Path:
    return Path(place).with_suffix(".sqlite") if place.endswith(".toml") else Path(place)
