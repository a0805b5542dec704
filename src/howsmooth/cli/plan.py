"""`howsmooth plan`: what a study, or a measurement, would take."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import loading_options
from howsmooth.cli.overriding import override_options

_MEASURE = ("layers", "heads", "lengths", "samples", "map", "tokens", "tol", "confidence", "max_memory", "engine",
            "workers", "threads")


@click.command(name="plan", short_help="What a study or a measurement would take.")
@click.argument("what", metavar="STUDY.toml|MODEL", default="minilm")
@click.option("--text", "text_path", metavar="FILE|-", help="As for measure.")
@click.option("--special-tokens", type=click.Choice(["add", "none"]), help="As for measure.")
@override_options(*_MEASURE)
@loading_options
def command(what, text_path, special_tokens, settings, dtype, device, seed, revision, tokenizer, trust_remote_code,
            allow_pickle, **flags) -> None:
    """Say how many tasks there are, and about how much time and memory they take; compute nothing.

    Give a study file, or a model with the options of `howsmooth measure`.
    """
    from howsmooth.cli.overriding import overrides_of, show_plan
    from howsmooth.cli.running import console
    from howsmooth.studies.config import read_study, study_of

    overrides = overrides_of(settings, **flags)
    if text_path is not None:
        overrides["corpora"] = [text_path]
    if special_tokens is not None:
        overrides["special_tokens"] = special_tokens == "add"
    if what.endswith(".toml"):
        study = read_study(what, overrides)
    else:
        model = {"name": what.removeprefix("random:"), "dtype": dtype, "device": device, "revision": revision,
                 "tokenizer": tokenizer, "trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
        if what.startswith("random:"):
            model["weights"] = "random"
        defaults = {"name": "measure", "models": [model], "lengths": [64, 128, 256], "samples": 4,
                    "special_tokens": True, "seed": seed}
        study = study_of({**defaults, **overrides}, "plan")

    from howsmooth.studies.planning import prepare

    show_plan(prepare(study), console())
