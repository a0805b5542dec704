"""Runs an example of every command and writes what it prints: the pages docs/commands/*.md.

    python docs/commands.py                 # all pages, some minutes
    python docs/commands.py attack flow     # these pages alone

Examples are small, seeded and on embedded models, so that a second run prints the same numbers; times are not kept.
Some read Alice: $HOWSMOOTH_DATA names the folder with alice.txt.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

PAGES = Path(__file__).parent / "commands"
COLUMNS = 100
STUDY = """\
models = ["minilm"]
texts = ["alice"]
cutting = "prefixes"
lengths = "16..128*2"
samples = 2
layers = [0, 3]

[engine]
workers = 0
"""


@dataclass(frozen=True)
class Example:
    """A line as a user would type it, what it shows, and what else belongs to it."""

    line: str
    shows: str
    lines: int | None = None  # of output to show; all unless told
    picture: str | None = None  # a figure that the command writes, to be shown below
    record: str | None = None  # JSON lines that the command writes, of which the first is shown below
    listing: str | None = None  # a file of the working folder to be shown before


PAGE_OF = {
    "measure": (
        "Measure",
        [
            Example(
                "measure minilm --layers 0,3 --lengths 16,32,64 --samples 2",
                "The largest of the samples has its interval; *worst direction* names the tokens that a perturbation "
                "moves most, with their share of it.",
            ),
            Example("measure minilm --layers 3 --heads 0,1,2 --lengths 32 --samples 1", "Each head alone."),
            Example(
                "measure minilm --map layer --layers 0,5 --lengths 32 --samples 1 --tokens no-special",
                "Whole Transformer layers; `[CLS]` and `[SEP]` are held fixed.",
            ),
            Example(
                "measure minilm --layers 3 --lengths 16 --samples 1 --json found.jsonl",
                "One JSON object for each estimate, the moment it is known; here it is, with line breaks. Called "
                "again, the command computes only what the file does not hold.",
                record="found.jsonl",
            ),
            Example("report found.jsonl -o report.html", "The same as a page to look at; it opens offline."),
            Example("explore --help", "A page that computes while one looks at it: [the explorer](../explore.md)."),
        ],
    ),
    "bound": (
        "Bound",
        [
            Example(
                "bound minilm --layers 3 --lengths 16,64",
                "Lower bounds, the constant as measured, upper bounds, and how far each is from it. A bound that does "
                "not apply says why.",
            )
        ],
    ),
    "attack": (
        "Attack",
        [
            Example(
                "attack worst-case minilm --layers 3 --lengths 16 --restarts 2 --steps 15",
                "Ascent on σ₁ over all that the LayerNorm in front can put out.",
            ),
            Example(
                "attack ball minilm --layers 3 --lengths 16 --eps 0.001,0.01 --restarts 2 --steps 5",
                "What is certified for all tokens within ε of the text's, and what ascent finds there.",
            ),
            Example(
                "attack layer minilm --layers 3 --lengths 16 --budget 0.001,0.1",
                "Attacks on the features that enter a layer, beside σ₁ and what is certified.",
            ),
            Example(
                "attack model minilm --objective cosine --lengths 16 --budget 0.01 --attack noise,singular --steps 5",
                "The same for the whole model, here on its sentence embedding.",
            ),
            Example(
                "attack tokens minilm --objective cosine --samples 2 --lengths 24 --edits 1 --calls 12 "
                "--method random,probe",
                "Real tokens are exchanged, and the edited text goes through the model.",
            ),
        ],
    ),
    "meanfield": (
        "Mean field",
        [
            Example(
                "meanfield regimes --gamma-r2 0.5,2,8 --to 12 --points 3", "√n·log n up to n*, nothing from there on."
            ),
            Example(
                "meanfield masked --p 2,inf --sizes 0,0.3,1 --atoms 8 --restarts 2 --steps 10",
                "Masked attention: what is proved, what is attained, and whether the unmasked bound holds.",
            ),
            Example(
                "meanfield splitting minilm --layers 0 --heads 0,1,2,3 --lengths 24", "Does the text's measure split?"
            ),
            Example(
                "meanfield distance minilm --layers 0,3 --lengths 24 --p 2",
                "Two chunks of text as measures, before and after attention.",
            ),
        ],
    ),
    "flow": (
        "Flow",
        [
            Example(
                "flow particles polytope --particles 24 --until 10", "Tokens gather at the vertices of a polytope."
            ),
            Example(
                "flow gaussian --A '1,0.5;-0.5,-0.3' --mean 0.5,0.2 --covariance 0.6,0.3 --until 2",
                "A Gaussian that blows up, and when.",
            ),
            Example(
                "flow pde --V -identity --until 1 --cells 96 --particles 50,200 --repeats 2",
                "A density on a grid, and how fast particles come to it.",
            ),
            Example(
                "flow model minilm --lengths 16 --depths 2,6",
                "Real layers in place of an equation: what becomes of directions, norms and a perturbation.",
            ),
        ],
    ),
    "study": (
        "Study and plan",
        [
            Example("study validate growth.toml", "The file is read and checked; nothing runs.", listing="growth.toml"),
            Example("plan growth.toml", "How many tasks, about how long. Times depend on the machine."),
            Example("study run growth.toml", "Each record is stored the moment it is known."),
            Example("study resume growth.sqlite", "What is stored is not computed again."),
            Example("study status growth.toml", "Tables and fits so far, also while it runs."),
            Example("study ls", "Studies and stores of this folder."),
            Example("study export growth.toml --file growth.csv", "Also .parquet and .jsonl."),
        ],
    ),
    "reproduce": (
        "Reproduce",
        [
            Example(
                "reproduce text --models minilm --layers 3 --lengths 16..64*2 --samples 2 --workers 0 --out figures",
                "One figure of the paper, in small.",
                picture="figures/text-minilm.png",
            )
        ],
    ),
    "around": (
        "Demo, models, doctor, cite",
        [
            Example("demo", "Two models, a table, a plot and a page: what `make demo` runs."),
            Example("models", "Families that can be measured, and what is refused.", lines=24),
            Example("doctor", "What is installed and what will run."),
            Example("cite", "BibTeX of the paper and the methods used.", lines=12),
        ],
    ),
}


def commands(group: click.Group | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command there is, by its full name."""
    from howsmooth.cli.main import main

    group = group or main.__globals__["group"]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def command_of(line: str, names: list[str]) -> str:
    """The command that a line calls: the longest name that it starts with."""
    return max((name for name in names if f"{line} ".startswith(f"{name} ")), key=len)


def printed(line: str) -> str:
    """What the command prints on both streams, 100 columns wide, without colours and times."""
    from howsmooth.cli import main, run

    run._PLAIN_WIDTH = COLUMNS
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(shlex.split(line))
    return timeless(out.getvalue())


_TIMES = (
    (re.compile(r"(\"(?:cpu_)?seconds\": )[0-9.e+-]+"), r"\1…"),
    (re.compile(r"(?<![\w.^])[0-9]+(?:\.[0-9]+)? (ms|s|min|h|seconds?|minutes?|hours?)(?![\w/])"), r"… \1"),
    (re.compile(r"^\d+ of \d+ tasks, .*\n", re.M), ""),  # said now and then while it takes long
    (re.compile(r"(\"commit\": )\"[0-9a-f]+\+?\""), r"\1…"),
    (re.compile(r"[0-9.]+ (.iB are free)"), r"… \1"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "…"),
)


def timeless(text: str) -> str:
    """The text without what differs from run to run (times, commits, free memory) and blanks at the ends of lines."""
    for pattern, instead in _TIMES:
        text = pattern.sub(instead, text)
    timed = False  # below a header whose last column is a time
    rows = []
    for row in text.splitlines():
        timed = row.rstrip().endswith(" s per text") or (timed and bool(row.strip()))
        rows.append(re.sub(r" +[0-9.]+\s*$", "  …", row) if timed else row)
    text = "\n".join(rows)
    text = text.replace(str(Path.home()), "~")
    return "\n".join(row.rstrip() for row in text.strip("\n").splitlines()) + "\n"


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    """An empty folder with the study's file, and Alice where $HOWSMOOTH_DATA has it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "growth.toml").write_text(STUDY, encoding="utf-8")
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def typed(line: str) -> str:
    """The line behind a prompt; where it is too long, broken before an option as a shell takes it."""
    rows = ["$ howsmooth"]
    for word in re.split(r" (?=--)", line):
        fits = len(f"{rows[-1]} {word}") <= COLUMNS - 2
        rows = [*rows[:-1], f"{rows[-1]} {word}"] if fits else [*rows, f"      {word}"]
    return " \\\n".join(rows)


def section(example: Example, name: str, again: bool, folder: Path) -> str:
    text = printed(example.line)
    rows = text.splitlines()
    if example.lines and len(rows) > example.lines:
        rows = [*rows[: example.lines], "…"]
    parts = [] if again else [f"## howsmooth {name}"]
    parts.append(example.shows)
    if example.listing:
        listing = (folder / example.listing).read_text(encoding="utf-8")
        parts.append(f'```toml title="{example.listing}"\n{listing}```')
    parts.append("```console\n" + "\n".join([typed(example.line), *rows]) + "\n```")
    if example.record:
        first = json.loads((folder / example.record).read_text(encoding="utf-8").splitlines()[0])
        parts.append("```json\n" + timeless(json.dumps(first, indent=2, ensure_ascii=False)) + "```")
    if example.picture:
        kept = PAGES.parent / "images" / f"command-{Path(example.picture).name}"
        shutil.copy(folder / example.picture, kept)
        parts.append(f"![What it draws](../images/{kept.name})")
    return "\n\n".join(parts)


def page(key: str) -> str:
    title, examples = PAGE_OF[key]
    names = [name for name, _ in commands()]
    seen: set[str] = set()
    parts = [f"# {title}"]
    with working_folder() as folder:
        for example in examples:
            print(f"howsmooth {example.line}", file=sys.stderr, flush=True)
            name = command_of(example.line, names)
            parts.append(section(example, name, name in seen, folder))
            seen.add(name)
    return "\n\n".join(parts) + "\n"


OVERVIEW = """\
# Commands

`howsmooth COMMAND --help` lists all options. Each command here stands with an example and what it prints; times are
left out. `python docs/commands.py` runs them all again. Every option of every command is in the table of
[the notation](../notation.md#options): one name means one thing.

| command | |
|---|---|
{rows}

Tables go to stdout and notes to stderr. `--json FILE|-` writes one JSON object for each record the moment it is known.
The exit code is 0, or 2 with one line on bad input, 1 if a task of a study failed, 130 after Ctrl-C.
"""


def overview() -> str:
    """The table of all commands, each with a link to its example."""
    found = dict(commands())
    page_of = {
        command_of(example.line, list(found)): key for key, (_, examples) in PAGE_OF.items() for example in examples
    }
    links = {name: f"{page_of[name]}.md#howsmooth-{name.replace(' ', '-')}" for name in found}
    return OVERVIEW.format(
        rows="\n".join(
            f"| [`howsmooth {name}`]({links[name]}) | {command.get_short_help_str(120)} |"
            for name, command in found.items()
        )
    )


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    for key in sys.argv[1:] or PAGE_OF:
        (PAGES / f"{key}.md").write_text(page(key), encoding="utf-8")
    (PAGES / "index.md").write_text(overview(), encoding="utf-8")


if __name__ == "__main__":
    main()
