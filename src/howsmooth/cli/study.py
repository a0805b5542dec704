"""`howsmooth study`: grids of measurements that can be interrupted and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from howsmooth.cli.options import apply_options, engine_options, names_cluster, overrides, set_option, spec_options
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.questions.measure import MeasureSpec

_store_option = click.option(
    "--store", metavar="FILE", help="The SQLite file.  [default: STUDY.sqlite beside the study]"
)
# A study file alone may not run code: each of these has to be in the file and on the command line.
_TRUST = {
    "trust_remote_code": "Run code that comes with the model.",
    "allow_pickle": "Load weights that are not safetensors.",
}
_trust_options = apply_options(
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            is_flag=True,
            help=f"{help_text} The study has to contain {name} = true as well.",
        )
        for name, help_text in _TRUST.items()
    )
)
_override_options = apply_options(spec_options("models", *MeasureSpec.options), engine_options, set_option)


@click.group(name="study", short_help="Run studies that can be interrupted and resumed.")
def command() -> None:
    """Run studies: grids of models, layers, lengths and samples, whose records are stored as they are measured.

    A study is a TOML file. Its store is an SQLite file beside it; a run that was stopped or killed resumes from there.
    """


@command.command(name="run")
@click.argument("file", metavar="STUDY.toml")
@_store_option
@_trust_options
@_override_options
@runtime_options(engine=True)
def run(file: str, store: str | None, settings: tuple[str, ...], **options: Any) -> int:
    """Run a study; tasks whose records are in its store are not repeated. Options override the file."""
    from howsmooth.cli.progress import run_and_store
    from howsmooth.questions.spec import read_questions

    trust, chosen = _trust(options), overrides(settings, options)
    path = Path(store) if store else Path(file).with_suffix(".sqlite")
    return run_and_store(read_questions(file, chosen), path, None, connect=names_cluster(chosen), **trust)


@command.command(name="resume")
@click.argument("store_or_study", metavar="STORE|STUDY.toml")
@_trust_options
@engine_options
@set_option
@runtime_options(engine=True)
def resume(store_or_study: str, settings: tuple[str, ...], **options: Any) -> int:
    """Resume a study from its store, which contains its spec. Options change where it runs."""
    from howsmooth.cli.progress import run_and_store
    from howsmooth.questions.spec import merged, read_questions, specs_of
    from howsmooth.studies.store import Store

    trust, path, chosen = _trust(options), _store_path(store_or_study), overrides(settings, options)
    file, stored, message = path.with_suffix(".toml"), None, None
    if path.is_file():
        with Store.write(path) as store:  # opened for writing, because that repairs a damaged store
            stored, message = store.study, store.recovered
    elif not file.is_file():
        raise InputError(
            f"expected a store to resume from, got {path}, which does not exist; start with `howsmooth study run`"
        )
    if stored is not None:
        specs = specs_of(merged(stored, chosen), str(path))
    elif file.is_file():  # the run ended before it could store its study
        specs = read_questions(file, chosen)
    else:
        raise InputError(
            f"expected a store that contains its study, got {path} without one; "
            "use `howsmooth study run STUDY.toml`, which does not repeat stored tasks"
        )
    return run_and_store(specs, path, message, connect=names_cluster(chosen), **trust)


@command.command(name="status")
@click.argument("store_or_study", metavar="STORE|STUDY.toml")
@click.option(
    "--with-tables", "tables", is_flag=True, help="Also show the tables so far; this takes as long as a report."
)
def status(store_or_study: str, tables: bool) -> None:
    """Show how many tasks of a study are done, which failed, and which records were changed since."""
    from howsmooth.cli.progress import failure_lines, print_tables, progress_line
    from howsmooth.cli.run import make_console, print_line
    from howsmooth.studies.store import Store

    with Store.read(_store_path(store_or_study)) as store:
        store.check()
        counts, stdout = store.counts(), make_console()
        counts["done"] -= len(store.changed)
        print_line(stdout, f"{store.path}: {progress_line(counts)}")
        for line in failure_lines(store.failures()):
            print_line(stdout, line)
        if tables:
            print_tables(store, stdout)
        for line in store.changed:
            print_line(stdout, line, style="yellow")


@command.command(name="ls")
@click.argument("folder", default=".")
def ls(folder: str) -> None:
    """List the studies and stores of a folder."""
    from rich.table import Table

    from howsmooth.cli.progress import progress_line
    from howsmooth.cli.run import make_console
    from howsmooth.questions.spec import read_questions
    from howsmooth.studies.store import Store

    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"expected a folder, got {folder}; name one that exists")
    stems = sorted({path.with_suffix("") for suffix in ("*.toml", "*.sqlite") for path in root.glob(suffix)})
    table = Table.grid(padding=(0, 2))
    for stem in stems:
        file, store = stem.with_suffix(".toml"), stem.with_suffix(".sqlite")
        description = state = ""
        if file.is_file():
            try:
                description = read_questions(file)[0].description
            except InputError as error:
                if not store.is_file() and not any(words in str(error) for words in ("unknown key", "name in UTF-8")):
                    continue  # a TOML file that is not a study
                description = str(error)
        try:
            if store.is_file():
                with Store.read(store) as opened:
                    state = progress_line(opened.counts())
            else:
                state = "not started"
        except InputError as error:
            state = str(error)
        table.add_row(stem.name, state, description)
    make_console().print(table if table.rows else f"no studies in {folder}")


@command.command(name="validate")
@click.argument("file", metavar="STUDY.toml")
@click.option("--full", is_flag=True, help="Also load the models and divide the texts into chunks.")
@_trust_options
@_override_options
@runtime_options(engine=True)
def validate(file: str, full: bool, settings: tuple[str, ...], **options: Any) -> None:
    """Check a study file without running it."""
    from howsmooth.cli.run import make_console, print_line
    from howsmooth.questions.spec import ModelSpec, read_questions, untrusted

    trust, chosen = _trust(options), overrides(settings, options)
    specs = read_questions(file, chosen)
    engine = specs[0].engine
    if engine.address is not None and not names_cluster(chosen):
        print_line(
            make_console(),
            f"{file}: requests to connect to the Ray cluster at {engine.address[:60]}; this needs --address on "
            "the command line as well",
        )
    for option, names in (item for spec in specs for item in untrusted(spec).items()):
        print_line(
            make_console(),
            f"{file}: requests to run code that comes with {', '.join(names)} ({option} = true); this needs "
            f"--{option.replace('_', '-')} on the command line as well",
        )
    from howsmooth.cli.loading import check_models, load_torch

    for spec in specs:
        if isinstance(spec, ModelSpec):
            check_models(spec, devices=full)
    if full:
        stderr = make_console(stderr=True)
        load_torch(stderr)

        from howsmooth.studies.plan import prepare

        plans = [prepare(spec, log=lambda line: print_line(stderr, line, style="dim"), **trust) for spec in specs]
        print_line(make_console(), f"{file}: fine, {sum(plan.count for plan in plans)} tasks")
    else:
        print_line(make_console(), f"{file}: fine")


@command.command(name="export")
@click.argument("store_or_study", metavar="STORE|STUDY.toml")
@click.option(
    "--file",
    "out",
    metavar="FILE|-",
    default="-",
    show_default=True,
    help="File of records, in the format of its suffix .parquet, .csv or .jsonl; - is stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv", "jsonl"]),
    help="Format of the file, in place of that of its suffix.",
)
@click.option("--everything", is_flag=True, help="Also export records that are no longer part of the study.")
def export(store_or_study: str, out: str, form: str | None, everything: bool) -> None:
    """Write a study's records to a file; this also works while the study is running."""
    from howsmooth.cli.run import make_console, print_line, print_warning
    from howsmooth.report.rows import counted
    from howsmooth.studies.formats import export as write
    from howsmooth.studies.store import Store

    with Store.read(_store_path(store_or_study)) as store:
        count = write(store, out, form, everything)
    for line in store.changed:
        print_warning(make_console(stderr=True), line)
    if out != "-":
        print_line(make_console(stderr=True), f"wrote {counted(count, 'record')} to {out}")


def _trust(options: dict[str, Any]) -> dict[str, bool]:
    """Return what the command line allows, and remove it from the options that change a study."""
    return {name: options.pop(name) for name in _TRUST}


def _store_path(store_or_study: str) -> Path:
    """Return the path of a store, given itself or its study."""
    path = Path(store_or_study)
    return path.with_suffix(".sqlite") if path.suffix == ".toml" else path
