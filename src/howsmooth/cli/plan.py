"""`howsmooth plan`: time and memory of a study or a measurement."""

from __future__ import annotations

import time
from typing import Any

import click

from howsmooth.cli.options import (
    ENGINE_FIELDS,
    LOADING_FIELDS,
    QuestionCommand,
    complete_model,
    engine_options,
    loading_options,
    output_options,
    overrides,
    set_option,
    spec_from_options,
    spec_options,
)
from howsmooth.cli.runtime import runtime_options, use_default_threads
from howsmooth.errors import InputError
from howsmooth.questions.measure import MeasureSpec


@click.command(name="plan", cls=QuestionCommand, short_help="Estimate the time and memory of a study or a measurement.")
@click.argument(
    "study_or_model", metavar="[STUDY.toml|MODEL]", default="minilm", required=False, shell_complete=complete_model
)
@spec_options(*MeasureSpec.options)
@engine_options
@loading_options
@set_option
@output_options("json")
@runtime_options(engine=True)
def command(
    study_or_model: str,
    settings: tuple[str, ...],
    json_path: str | None,
    trust_remote_code: bool | None,
    allow_pickle: bool | None,
    **options: Any,
) -> None:
    """Estimate the time and memory of a study or a measurement, and show what the estimate is based on.

    Takes a study file, or a model with the options of `howsmooth measure`. For a model, a short solve and a few
    products are timed on the device, on random token ids where the default text is too short; lengths that do not fit
    in its memory are an error.
    """
    from howsmooth.cli.loading import check_models, load_model_and_text, load_torch
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.run import make_console, print_line

    _check_applicable_options(study_or_model, settings, options)
    trust: dict[str, Any] = {"trust_remote_code": bool(trust_remote_code), "allow_pickle": bool(allow_pickle)}
    files = click.get_current_context().with_resource(record_files(json_path, None))
    if study_or_model.endswith(".toml"):
        from howsmooth.questions.spec import ModelSpec, read_questions

        specs = read_questions(study_or_model, overrides(settings, options))
        for spec in specs:
            if isinstance(spec, ModelSpec):
                check_models(spec)
        longest = max((max(spec.lengths) for spec in specs if isinstance(spec, ModelSpec)), default=None)
        use_default_threads(longest, workers=specs[0].engine.workers)

        stderr = make_console(stderr=True)
        load_torch(stderr)

        from howsmooth.report.plan_tables import plan_table
        from howsmooth.studies.plan import prepare

        for spec in specs:
            plan = prepare(spec, log=lambda line: print_line(stderr, line, style="dim"), **trust)
            make_console().print(plan_table(plan))
        return
    spec = spec_from_options({**options, **trust, "model": study_or_model})
    start = time.perf_counter()
    model, corpus, resolved = load_model_and_text(spec, allow_short_text=True)
    loading = time.perf_counter() - start

    from howsmooth.report.plan_tables import forecast_line, forecast_table
    from howsmooth.studies.costs import PLAN_PAIR_SECONDS, CostModel
    from howsmooth.studies.plan import prepare_model

    forecast = CostModel(
        model, prepare_model(resolved, model, corpus).planned_models[0], max_pair_seconds=PLAN_PAIR_SECONDS
    ).forecast(loading)
    for file in files:
        file.write({"model": study_or_model, **forecast.as_record(), "tol": spec.tol, "confidence": spec.confidence})
        file.close()
    console = make_console(stderr=json_path == "-")
    console.print(forecast_table(forecast))
    console.print(forecast_line(forecast), markup=False)


def _check_applicable_options(study_or_model: str, settings: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise InputError for an option that has no effect: of the engine with a model, of loading with a study file."""
    is_study = study_or_model.endswith(".toml")
    unused = [name for name in (LOADING_FIELDS if is_study else ENGINE_FIELDS) if options.get(name) is not None]
    if settings and not is_study:
        unused.append("set")
    if unused:
        allowed, got = (
            ("a model", f"the study {study_or_model}; write it in the file")
            if is_study
            else ("a study file", f"the model {study_or_model}; leave it out")
        )
        raise InputError(f"expected --{unused[0].replace('_', '-')} only with {allowed}, got {got}")
