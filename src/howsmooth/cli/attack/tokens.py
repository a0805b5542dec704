"""`howsmooth attack tokens`: edit a few real tokens of a text to change the model's output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    CHUNK_FIELDS,
    MODEL_HELP,
    loading_options,
    model_argument,
    output_options,
    spec_from_options,
    spec_options,
)
from howsmooth.cli.parameter_types import Count, NameList, Number, NumberList
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record

DEFAULTS = {"lengths": "128", "samples": 4}
METHODS = ("random", "hotflip", "greedy", "probe", "singular")  # as howsmooth.studies.token_attacks.ALL_METHODS
ONLY_SUBSTITUTE = ("random", "hotflip", "greedy", "singular")
KINDS = ("substitute", "insert", "duplicate")  # of edits, as howsmooth.attack.tokens.edits.KINDS
# The default model predicts the next token, which --objective flip requires.
_MODEL_HELP = MODEL_HELP.replace("minilm (the default) or smollm2", "smollm2 (the default) or minilm")


@click.command(
    name="tokens",
    short_help="Substitute, insert or duplicate real tokens of a text.",
    help="Attack texts by editing a few real tokens, and compare methods at equal numbers of edits and model calls.\n\n"
    f"    {_MODEL_HELP}\n\n"
    "    A call is one forward or backward pass of one sequence. Every success is evaluated again from its token ids\n"
    "    before it is reported.",
)
@model_argument("smollm2")
@spec_options(*(name for name in CHUNK_FIELDS if name != "special_tokens"), "seed", **DEFAULTS)
@click.option(
    "--method",
    "methods",
    type=NameList(METHODS, everything="all"),
    default="hotflip,probe",
    show_default=True,
    help=f"Methods: {', '.join(METHODS)}; or all.",
)
@click.option(
    "--objective",
    type=click.Choice(["flip", "kl", "hidden", "cosine"]),
    default="flip",
    show_default=True,
    help="What to change: the next token, its distribution, hidden states, or the mean-pooled embedding.",
)
@click.option(
    "--layer",
    type=Count(0),
    metavar="NUMBER",
    help="Layer whose attention output is to change, instead of the last hidden states; with --objective hidden.",
)
@click.option(
    "--threshold",
    type=Number(),
    metavar="NUMBER",
    help="Value at which an attack counts as successful and stops.  [flip has its own]",
)
@click.option("--edits", type=Count(), metavar="COUNT", default=2, show_default=True, help="Tokens that may be edited.")
@click.option(
    "--calls",
    type=Count(3),
    metavar="COUNT",
    default=40,
    show_default=True,
    help="Model calls for each method and text.",
)
@click.option(
    "--allow",
    type=NameList(KINDS),
    default=",".join(KINDS),
    show_default=True,
    help=f"Kinds of edits; {', '.join(ONLY_SUBSTITUTE[:-1])} and {ONLY_SUBSTITUTE[-1]} only substitute.",
)
@click.option(
    "--protect",
    type=NumberList(integer=True, keyword="none", minimum=-(10**9), example="-1,0"),
    default="-1",
    show_default=True,
    help="Positions that are not edited, negative ones counted from the end. Special tokens are never edited.",
)
@click.option(
    "--similarity",
    type=Number(-1, 1),
    metavar="COSINE",
    help="Smallest allowed cosine between the embeddings of a token and its replacement.",
)
@click.option(
    "--judge",
    type=Number(-1, 1),
    metavar="COSINE",
    help="Smallest allowed cosine between MiniLM's embeddings of the original and the edited text.",
)
@loading_options
@output_options("json", json="attacks already in the file are not repeated")
@runtime_options()
def command(
    methods: tuple[str, ...],
    objective: str,
    layer: int | None,
    threshold: float | None,
    edits: int,
    calls: int,
    allow: tuple[str, ...],
    protect: tuple[int, ...] | str,
    similarity: float | None,
    judge: float | None,
    json_path: str | None,
    **options: Any,
) -> int:
    """Run `howsmooth attack tokens` and return its exit code."""
    from howsmooth.cli.run import Computation, print_line, run_command

    token_tables = deferred("howsmooth.report.attack_tables:token_tables")
    from howsmooth.report.rows import counted
    from howsmooth.studies.formats import read_attacks

    spec = spec_from_options(options, **DEFAULTS)
    if len(spec.lengths) > 1:
        raise InputError(f"expected one length for attacks on tokens, got {len(spec.lengths)}; run one at a time")
    if layer is not None and objective != "hidden":
        raise InputError(f"expected --layer only with --objective hidden, got it with {objective}; leave it out")
    if "substitute" not in allow and (only := [name for name in methods if name in ONLY_SUBSTITUTE]):
        raise InputError(
            f"expected --allow with substitute for the method {only[0]}, got {','.join(allow)}; allow it, or leave the "
            "method out"
        )
    # A text may be shorter than the length, but has to have more tokens than are edited, without special tokens.
    shortest = spec.model_copy(update={"lengths": (edits + 1,), "samples": 1, "special_tokens": "none"})

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_model_with_text

        model, text, _ = load_model_with_text(shortest)

        from howsmooth.attack.tokens import Limits, SentenceSimilarity
        from howsmooth.models import load
        from howsmooth.studies import token_attacks as study

        chosen_methods = study.methods_named(methods)
        target = study.objective_named(objective, layer=layer, threshold=threshold)
        protected = () if isinstance(protect, str) else protect
        limits = Limits(edits=edits, allow=allow, protected=protected, similarity=similarity)
        sentence_judge = None if judge is None else SentenceSimilarity(load("minilm"), judge)
        chunks = study.chunks_to_attack(model, text, spec.lengths[0], spec.samples, target, limits)
        print_line(
            stderr,
            f"{model.name}: {counted(len(chunks), 'text')} of {len(chunks[0])} tokens, "
            f"{counted(len(chosen_methods), 'method')}, {counted(edits, 'edit')}, at most {calls} calls each",
            style="dim",
        )
        return Computation(
            model.name,
            len(chunks) * len(chosen_methods),
            lambda progress: study.token_attacks(
                model,
                text,
                chunks,
                chosen_methods,
                objective=target,
                limits=limits,
                calls=calls,
                seed=spec.seed,
                judge=sentence_judge,
                done=existing_records,
                progress=progress,
            ),
        )

    return run_command(
        outputs={"--json": json_path},
        inputs={"--text": options["texts"]},
        prepare=prepare,
        record_noun="attack",
        table=token_tables,
        read_existing=read_attacks,
        describe=lambda number, method: f"text {number}, {method}",
    )
