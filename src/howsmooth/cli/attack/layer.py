"""`howsmooth attack layer` and `howsmooth attack model`: perturb features to change the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    CHUNK_FIELDS,
    MODEL_HELP,
    SOLVER_FIELDS,
    apply_options,
    loading_options,
    model_argument,
    output_options,
    spec_from_options,
    spec_options,
)
from howsmooth.cli.parameter_types import Count, NameList, NumberList
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record
    from howsmooth.questions.spec import ModelSpec

ATTACKS = ("noise", "sign", "singular", "ascent", "ascent-noise", "split", "split-ascent")
DEFAULTS = {"lengths": "64", "samples": 1, "tol": 1e-2}
MODEL_DEFAULTS = {"lengths": "32", "samples": 1, "tol": 1e-1}


_budget_options = apply_options(
    click.option(
        "--budget",
        "sizes",
        type=NumberList(example="0.001,0.01,0.1"),
        default="0.01",
        show_default=True,
        help="Sizes of the perturbation: fractions of ‖X‖, or of the mean |x_i| with --norm token.",
    ),
    click.option(
        "--norm",
        type=click.Choice(["frobenius", "token"]),
        default="frobenius",
        show_default=True,
        help="Whether the budget is for all tokens together, or for each token.",
    ),
    click.option("--touch", type=Count(), metavar="COUNT", help="Perturb at most this many tokens."),
    click.option(
        "--attack",
        "attacks",
        type=NameList(ATTACKS),
        default="noise,sign,singular,ascent",
        show_default=True,
        help=f"Attacks: {', '.join(ATTACKS)}; split duplicates every token first.",
    ),
    click.option(
        "--steps", type=Count(), metavar="COUNT", default=20, show_default=True, help="Steps of gradient ascent."
    ),
    click.option(
        "--artefacts",
        "folder_name",
        metavar="DIR",
        help="Tensors to save, as safetensors: each attack; attacks that are saved there are not computed again.",
    ),
)


@click.command(
    name="layer",
    short_help="Perturb the features that enter a layer, within a budget.",
    help="Perturb the features that enter a layer, to change its output; compare the gain of each attack with σ₁, with "
    "random noise and with the certificate.\n\n"
    f"    {MODEL_HELP}",
)
@model_argument()
@spec_options(*CHUNK_FIELDS, "map", "layers", "heads", *SOLVER_FIELDS, **DEFAULTS)
@_budget_options
@loading_options
@output_options("json", "csv")
@runtime_options()
def command(**options: Any) -> int:
    """Run `howsmooth attack layer` and return its exit code."""
    return _run(spec_from_options(options, **DEFAULTS), "output", **options)


@click.command(
    name="model",
    short_help="Perturb a text's embeddings to change the model's output.",
    help="Perturb the input of the first layer, to change the last hidden states, the next token or the embedding of "
    "the text.\n\n"
    f"    {MODEL_HELP}",
)
@model_argument()
@spec_options(*CHUNK_FIELDS, *SOLVER_FIELDS, **MODEL_DEFAULTS)
@click.option(
    "--objective",
    type=click.Choice(["output", "next-token", "cosine"]),
    default="output",
    show_default=True,
    help="What to change: the last hidden states, the next token's distribution (KL), or the mean embedding (cosine).",
)
@_budget_options
@loading_options
@output_options("json", "csv")
@runtime_options()
def model_command(objective: str, **options: Any) -> int:
    """Run `howsmooth attack model` and return its exit code."""
    return _run(spec_from_options(options, **MODEL_DEFAULTS, map="model"), objective, **options)


def _run(
    spec: ModelSpec,
    objective: str,
    *,
    sizes: tuple[float, ...],
    norm: str,
    touch: int | None,
    attacks: tuple[str, ...],
    steps: int,
    folder_name: str | None,
    json_path: str | None,
    csv_path: str | None,
    texts: str | None,
    **_: Any,
) -> int:
    """Run the attacks on a layer or on the whole model, and return the exit code."""
    from howsmooth.cli.outputs import make_folder
    from howsmooth.cli.run import Computation, run_command

    feature_table = deferred("howsmooth.report.attack_tables:feature_table")

    if touch is not None and touch > min(spec.lengths):
        raise InputError(
            f"expected --touch up to the shortest length, {min(spec.lengths)}, got {touch}; use a smaller number"
        )
    folder = None if folder_name is None else make_folder(folder_name, "--artefacts")

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_model_with_text

        model, corpus, resolved = load_model_with_text(spec)

        from howsmooth.studies.layer_attacks import RelativeBudgets, feature_attacks, named_attack, named_objective

        chosen_attacks = [named_attack(name, steps, spec.tol) for name in attacks]
        return Computation(
            model.name,
            resolved.estimates * len(sizes) * len(chosen_attacks),
            lambda progress: feature_attacks(
                model,
                corpus,
                resolved,
                attacks=chosen_attacks,
                budgets=RelativeBudgets(sizes, norm, touch),
                objective=named_objective(objective, model),
                folder=folder,
                progress=progress,
            ),
        )

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path},
        inputs={"--text": texts},
        prepare=prepare,
        record_noun="attack",
        table=feature_table,
    )
