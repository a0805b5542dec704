"""`howsmooth plan`: what a study, or a measurement, would take."""

from __future__ import annotations

import time
from typing import Any

import click

from howsmooth.cli.measure import FIELDS
from howsmooth.cli.options import (
    ENGINE,
    LOADING,
    engine_options,
    loading_options,
    output_options,
    overrides,
    set_option,
    spec_from,
    spec_options,
)
from howsmooth.errors import InputError


@click.command(name="plan", short_help="What a study or a measurement would take.")
@click.argument("what", metavar="STUDY.toml|MODEL", default="minilm")
@spec_options(*FIELDS)
@engine_options
@loading_options
@set_option
@output_options("json")
def command(
    what: str,
    settings: tuple[str, ...],
    json_path: str | None,
    trust_remote_code: bool | None,
    allow_pickle: bool | None,
    **given: Any,
) -> None:
    """Say how much time and memory a study or a measurement takes, and what that is known from.

    Give a study file, or a model with the options of `howsmooth measure`: then a short solve and a few products are
    timed on the device, and what does not fit in its memory is refused.
    """
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.run import console

    _refuse_idle_options(what, settings, given)
    trust: dict[str, Any] = {"trust_remote_code": bool(trust_remote_code), "allow_pickle": bool(allow_pickle)}
    files = record_files(json_path, None)
    if what.endswith(".toml"):
        from howsmooth.report.plan_tables import plan_table
        from howsmooth.studies.plan import prepare
        from howsmooth.studies.spec import read_study

        console().print(plan_table(prepare(read_study(what, overrides(settings, given)), **trust)))
        return
    spec = spec_from({**given, **trust, "model": what})
    from howsmooth.cli.options import one_model
    from howsmooth.report.plan_tables import forecast_line, forecast_table
    from howsmooth.studies.costs import PLAN_PAIR_SECONDS, CostModel
    from howsmooth.studies.plan import prepare_model

    began = time.perf_counter()
    model, corpus, resolved = one_model(spec)
    loading = time.perf_counter() - began
    found = CostModel(
        model, prepare_model(resolved, model, corpus).planned_models[0], max_pair_seconds=PLAN_PAIR_SECONDS
    ).forecast(loading)
    for file in files:
        file.write({"model": what, **found.as_record(), "tol": spec.tol, "confidence": spec.confidence})
        file.close()
    shown = console(stderr=json_path == "-")
    shown.print(forecast_table(found))
    shown.print(forecast_line(found), markup=False)


def _refuse_idle_options(what: str, settings: tuple[str, ...], given: dict[str, Any]) -> None:
    """Refuse what would do nothing: an engine for a model, or how to load a model for a study, whose file says that."""
    study = what.endswith(".toml")
    idle = [name for name in (LOADING if study else ENGINE) if given.get(name) is not None]
    if settings and not study:
        idle.append("set")
    if idle:
        only, got = (
            ("a model", f"the study {what}; say it in the file")
            if study
            else ("a study file", f"the model {what}; leave it out")
        )
        raise InputError(f"expected --{idle[0].replace('_', '-')} only with {only}, got {got}")
