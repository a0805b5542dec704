"""`howsmooth attack tokens`: real tokens exchanged until a model says something else."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.options import CHUNKS, MODEL, loading_options, output_options, spec_from, spec_options
from howsmooth.cli.parameter_types import Count, Number, NumberList
from howsmooth.errors import InputError

DEFAULTS = {"lengths": "128", "samples": 4}
# The one command whose default has to say what comes next.
_MODEL = MODEL.replace("minilm (the default) or smollm2", "smollm2 (the default) or minilm")


@click.command(
    name="tokens",
    short_help="Substitute, insert or duplicate real tokens of a text.",
    help="Attack texts by exchanging a few real tokens, and compare methods at equal edits and equal model calls.\n\n"
    f"    {_MODEL}\n\n"
    "    A call is one sequence through the model, forwards or backwards. Every success is evaluated again from its\n"
    "    token numbers before it is told.",
)
@click.argument("model", default="smollm2")
@spec_options(*(name for name in CHUNKS if name != "special_tokens"), "seed", **DEFAULTS)
@click.option(
    "--method",
    "methods",
    metavar="NAME,…|all",
    default="hotflip,probe",
    show_default=True,
    help="Methods: random, hotflip, greedy, probe, singular; or all.",
)
@click.option(
    "--objective",
    type=click.Choice(["flip", "kl", "hidden", "cosine"]),
    default="flip",
    show_default=True,
    help="What is to change: the next token, its distribution, hidden states, or the mean-pooled embedding.",
)
@click.option(
    "--layer",
    type=Count(0),
    metavar="NUMBER",
    help="Layer whose attention output is to change, with --objective hidden, in place of the last hidden states.",
)
@click.option(
    "--threshold",
    type=Number(),
    metavar="NUMBER",
    help="Value from which on an attack succeeds and stops.  [flip has its own]",
)
@click.option("--edits", type=Count(), metavar="COUNT", default=2, show_default=True, help="Tokens that may be edited.")
@click.option(
    "--calls",
    type=Count(3),
    metavar="COUNT",
    default=40,
    show_default=True,
    help="Calls of the model for each method and text.",
)
@click.option(
    "--allow",
    metavar="KIND,…",
    default="substitute,insert,duplicate",
    show_default=True,
    help="Kinds of edits; random, hotflip, greedy and singular substitute alone.",
)
@click.option(
    "--protect",
    type=NumberList(integer=True, word="none", least=-(10**9), example="-1,0"),
    default="-1",
    show_default=True,
    help="Places that stay as they are, negative ones from the end. Special tokens always stay.",
)
@click.option(
    "--similarity",
    type=Number(-1, 1),
    metavar="COSINE",
    help="Least cosine of the embeddings of a token and what takes its place.",
)
@click.option(
    "--judge", type=Number(-1, 1), metavar="COSINE", help="Least cosine of MiniLM's embeddings of the two texts."
)
@loading_options
@output_options("json", json="attacks that it holds are not repeated")
def command(
    methods: str,
    objective: str,
    layer: int | None,
    threshold: float | None,
    edits: int,
    calls: int,
    allow: str,
    protect: Any,
    similarity: float | None,
    judge: float | None,
    json_path: str | None,
    **given: Any,
) -> int:
    from howsmooth.cli.options import one_model
    from howsmooth.cli.run import run_and_show, say
    from howsmooth.report.attack_tables import token_tables
    from howsmooth.report.rows import counted

    spec = spec_from(given, **DEFAULTS)
    if len(spec.lengths) > 1:
        raise InputError(f"expected one length for attacks on tokens, got {len(spec.lengths)}; ask for one at a time")

    from howsmooth.attack.tokens import Limits, SentenceSimilarity
    from howsmooth.models import load
    from howsmooth.studies import token_attacks as study

    chosen = study.methods_named([name.strip() for name in methods.split(",")])
    aim = study.objective_named(objective, layer=layer, threshold=threshold)
    limits = Limits(
        edits=edits,
        allow=tuple(kind.strip() for kind in allow.split(",")),
        protected=() if protect == "none" else protect,
        similarity=similarity,
    )

    def work(notes, kept):
        model, corpus, _ = one_model(spec.model_copy(update={"lengths": (limits.edits + 1,), "samples": 1}))
        second = None if judge is None else SentenceSimilarity(load("minilm"), judge)
        chunks = study.chunks_to_attack(model, corpus, spec.lengths[0], spec.samples, aim, limits)
        say(
            notes,
            f"{model.name}: {counted(len(chunks), 'text')} of {len(chunks[0])} tokens, "
            f"{counted(len(chosen), 'method')}, {counted(edits, 'edit')}, at most {calls} calls each",
            style="dim",
        )
        return (
            model.name,
            len(chunks) * len(chosen),
            lambda progress: study.token_attacks(
                model,
                corpus,
                chunks,
                chosen,
                objective=aim,
                limits=limits,
                calls=calls,
                seed=spec.seed,
                judge=second,
                done=kept,
                progress=progress,
            ),
        )

    return run_and_show(
        {"--json": json_path},
        inputs={"--text": given["texts"]},
        work=work,
        thing="attack",
        table=token_tables,
        read=study.read_attacks,
        describe=lambda number, method: f"text {number}, {method}",
    )
