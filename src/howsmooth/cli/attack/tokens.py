"""`howsmooth attack tokens`: real tokens exchanged until a model says something else."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import MODEL, json_option, load_chosen, loading_options, read_text, text_option
from howsmooth.cli.parsing import Count, IntegerList, Number
from howsmooth.errors import InputError

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
@text_option
@click.option("--texts", type=Count(), metavar="COUNT", default=4, show_default=True,
              help="Consecutive pieces of the text to attack.")
@click.option("--length", type=Count(2), metavar="TOKENS", default=128, show_default=True,
              help="Of a piece, special tokens included; a shorter text is one piece.")
@click.option("--method", "methods", metavar="NAME,…|all", default="hotflip,probe", show_default=True,
              help="random, hotflip, greedy, probe, singular; or all.")
@click.option("--objective", type=click.Choice(["flip", "kl", "hidden", "cosine"]), default="flip", show_default=True,
              help="Another next token, its distribution, hidden states, or the mean-pooled embedding.")
@click.option("--layer", type=Count(0), metavar="NUMBER",
              help="With --objective hidden: the attention output of this layer in place of the last hidden states.")
@click.option("--threshold", type=Number(), metavar="NUMBER",
              help="Value from which on an attack succeeds and stops.  [flip has its own]")
@click.option("--edits", type=Count(), metavar="COUNT", default=2, show_default=True,
              help="Tokens that may be edited.")
@click.option("--calls", type=Count(3), metavar="COUNT", default=40, show_default=True,
              help="Calls of the model for each method and text.")
@click.option("--allow", metavar="KIND,…", default="substitute,insert,duplicate", show_default=True,
              help="Kinds of edits; random, hotflip, greedy and singular substitute alone.")
@click.option("--protect", type=IntegerList(word="none", least=-10**9, example="-1,0"), default="-1", show_default=True,
              help="Places that stay as they are, negative ones from the end. Special tokens always stay.")
@click.option("--similarity", type=Number(-1, 1), metavar="COSINE",
              help="Least cosine of the embeddings of a token and what takes its place.")
@click.option("--judge", type=Number(-1, 1), metavar="COSINE",
              help="Least cosine of MiniLM's embeddings of the two texts.")
@loading_options
@json_option
@click.option("--save", "save_path", metavar="FILE",
              help="Keep each attack with its token numbers; attacks that are in there already are not repeated.")
def command(model, text_path, texts, length, methods, objective, layer, threshold, edits, calls, allow, protect,
            similarity, judge, seed, json_path, save_path, **loading) -> int:
    from howsmooth.cli.attack.saved import SavedFile
    from howsmooth.cli.outputs import record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, console, say
    from howsmooth.report.rows import counted

    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, "--json": json_path, "--save": save_path})
    if save_path == "-":
        raise InputError("expected a file for --save, got stdout; use --json - for that")
    files = record_files(json_path, None)
    text = read_text(text_path)

    from howsmooth.attack.tokens import Limits, SentenceJudge
    from howsmooth.report.token_table import token_tables
    from howsmooth.studies.token_attacks import check, methods_named, objective_named, pieces, token_attacks

    chosen = methods_named([name.strip() for name in methods.split(",")])
    aim = objective_named(objective, layer=layer, threshold=threshold)
    limits = Limits(edits=edits, allow=tuple(kind.strip() for kind in allow.split(",")),
                    protected=() if protect == "none" else protect, similarity=similarity)
    saved = None if save_path is None else SavedFile(save_path)
    notes = console(stderr=True)
    loaded = load_chosen(model, seed=seed, **loading)
    second = None if judge is None else SentenceJudge(load_chosen("minilm", dtype="float32"), judge)
    chunks = pieces(loaded, text, length, texts)
    check(loaded, chunks, aim, limits)
    run = Run(files, notes, thing="attack")

    def produce(step):
        done = [] if saved is None else saved.records
        for record, new in token_attacks(loaded, text, chunks, chosen, objective=aim, limits=limits, calls=calls,
                                         seed=seed, judge=second, done=done, step=step):
            if new and saved is not None:
                with run.writing(save_path, "--save"):
                    saved.append(record)
            yield record

    total = len(chunks) * len(chosen)
    say(notes, f"{loaded.name}: {counted(len(chunks), 'text')} of {len(chunks[0])} tokens, "
        f"{counted(len(chosen), 'method')}, {counted(edits, 'edit')}, at most {calls} calls each", style="dim")
    try:
        run.collect(loaded.name, total, produce, describe=lambda number, method: f"text {number}, {method}")
    finally:
        if run.records:
            with run.writing("-", "the table"):
                (notes if json_path == "-" else console()).print(token_tables(run.records))
            if saved is not None and saved.reused(run.records):
                say(notes, f"{saved.reused(run.records)} of them were in {save_path} already", style="dim")
        code = run.finish()
    return code
