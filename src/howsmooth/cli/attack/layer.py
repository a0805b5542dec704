"""`howsmooth attack layer` and `howsmooth attack model`: perturb features, and look at what comes out."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.options import CHUNKS, MODEL, SOLVER, loading_options, output_options, spec_from, spec_options
from howsmooth.cli.parameter_types import Count, NumberList, Words
from howsmooth.errors import InputError

ATTACKS = ("noise", "sign", "singular", "ascent", "ascent-noise", "split", "split-ascent")
DEFAULTS = {"lengths": "64", "samples": 1, "tol": 1e-2}
MODEL_DEFAULTS = {"lengths": "32", "samples": 1, "tol": 1e-1}


def _budget_options(command: Any) -> Any:
    """The options of a budget and of the attacks, in the order that help shows."""
    for option in reversed(
        (
            click.option(
                "--budget",
                "sizes",
                type=NumberList(example="0.001,0.01,0.1"),
                default="0.01",
                show_default=True,
                help="Sizes of the perturbation: shares of ‖X‖, or of the mean |x_i| with --norm token.",
            ),
            click.option(
                "--norm",
                type=click.Choice(["frobenius", "token"]),
                default="frobenius",
                show_default=True,
                help="Whether the budget is for all tokens together, or for each.",
            ),
            click.option("--touch", type=Count(), metavar="COUNT", help="Touch at most so many tokens."),
            click.option(
                "--attack",
                "attacks",
                type=Words(ATTACKS),
                default="noise,sign,singular,ascent",
                show_default=True,
                help=f"Attacks: {', '.join(ATTACKS)}; split duplicates every token first.",
            ),
            click.option(
                "--steps", type=Count(), metavar="COUNT", default=20, show_default=True, help="Steps of ascent."
            ),
            click.option(
                "--artefacts",
                "folder",
                metavar="DIR",
                help="Tensors to keep, as safetensors: each attack; what is there already is not computed again.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command(
    name="layer",
    short_help="Perturb the features that enter a layer, within a budget.",
    help="Perturb the features that enter a layer, to change what it puts out: what each attack gains, beside σ₁, "
    "random noise and what is certified.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@spec_options(*CHUNKS, "map", "layers", "heads", *SOLVER, **DEFAULTS)
@_budget_options
@loading_options
@output_options("json", "csv")
def command(**given: Any) -> int:
    return _run(spec_from(given, **DEFAULTS), "output", **given)


@click.command(
    name="model",
    short_help="Perturb a text's embeddings to change the model's output.",
    help="Perturb what enters the first layer, to change the last hidden states, the next token or the text's "
    "embedding.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@spec_options(*CHUNKS, *SOLVER, **MODEL_DEFAULTS)
@click.option(
    "--objective",
    type=click.Choice(["output", "next-token", "cosine"]),
    default="output",
    show_default=True,
    help="What is to change: last hidden states, KL of the next token's distribution, or cosine of the mean embedding.",
)
@_budget_options
@loading_options
@output_options("json", "csv")
def model_command(objective: str, **given: Any) -> int:
    return _run(spec_from(given, **MODEL_DEFAULTS, map="model"), objective, **given)


def _run(
    spec: Any,
    objective: str,
    *,
    sizes: tuple[float, ...],
    norm: str,
    touch: int | None,
    attacks: tuple[str, ...],
    steps: int,
    folder: str | None,
    json_path: str | None,
    csv_path: str | None,
    texts: str | None,
    **_: Any,
) -> int:
    from howsmooth.cli.options import one_model
    from howsmooth.cli.outputs import writable_folder
    from howsmooth.cli.run import run_and_show
    from howsmooth.report.attack_tables import feature_table

    if touch is not None and touch > min(spec.lengths):
        raise InputError(f"expected --touch up to the shortest length, {min(spec.lengths)}, got {touch}; touch fewer")
    place = None if folder is None else writable_folder(folder, "--artefacts")

    def work(notes, kept):
        from howsmooth.studies.layer_attacks import RelativeBudgets, feature_attacks, named_attack, named_objective

        model, corpus, resolved = one_model(spec)
        chosen, aim = [named_attack(name, steps, spec.tol) for name in attacks], named_objective(objective, model)
        return (
            model.name,
            resolved.estimates * len(sizes) * len(chosen),
            lambda progress: feature_attacks(
                model,
                corpus,
                resolved,
                attacks=chosen,
                budgets=RelativeBudgets(sizes, norm, touch),
                objective=aim,
                folder=place,
                progress=progress,
            ),
        )

    return run_and_show(
        {"--json": json_path, "--csv": csv_path},
        inputs={"--text": texts},
        work=work,
        thing="attack",
        table=feature_table,
    )
