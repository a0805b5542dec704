"""Run an example of every command and write the pages docs/commands/*.md with the output.

    python docs/commands.py                 # all pages, some minutes
    python docs/commands.py attack flow     # these pages alone

The examples are small, seeded and use embedded models, so that a second run prints the same numbers; times are left
out. Some use Alice: $HOWSMOOTH_DATA is the folder with alice.txt.
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
COLUMNS = 80
RECORD_LINES = 10  # of a record that an example shows
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
MEASURES = {"a.csv": "x,y\n0,0\n1,0\n0,1\n", "b.csv": "x,y,weight\n2,0,0.25\n0,2,0.75\n"}


@dataclass(frozen=True)
class Example:
    """A command line with a description of its output.

    Attributes:
        line: The command line without `howsmooth`.
        description: The sentence above the output.
        max_lines: Number of lines of output to show.
        figure: A figure that the command writes, shown below the output.
        record_file: JSON lines that the command writes; the first record is shown below the output.
        listing: A file of the working folder that is shown before the output.
    """

    line: str
    description: str
    max_lines: int = 8
    figure: str | None = None
    record_file: str | None = None
    listing: str | None = None


PAGE_OF = {
    "measure": (
        "Measure",
        [
            Example(
                "measure minilm --layers 0,3 --lengths 16..128*2 --samples 2",
                "The median of the samples with its interval, and their range; *worst direction* names the tokens that "
                "the worst perturbation of the largest sample moves most, with their shares.",
                max_lines=16,
            ),
            Example("measure minilm --layers 3 --heads 0,1,2 --lengths 32 --samples 1", "Single heads."),
            Example(
                "measure minilm --map layer --layers 0,5 --lengths 32 --samples 1 --tokens no-special",
                "Whole Transformer layers, with `[CLS]` and `[SEP]` fixed.",
            ),
            Example(
                "measure minilm --layers 3 --lengths 16 --samples 1 --json found.jsonl",
                "One JSON object for each estimate, written as soon as it is computed; below it is shown with line "
                "breaks. Run again, the command computes only the records that are missing in the file.",
                record_file="found.jsonl",
            ),
            Example("report found.jsonl -o report.html", "The same records as an HTML page, which works offline."),
            Example("explore --help", "A local web page: [the explorer](../explore.md).", max_lines=4),
        ],
    ),
    "compare": (
        "Compare",
        [
            Example(
                "compare minilm random:minilm --layers 0,3 --lengths 16 --samples 1",
                "The constants of two models on one text, and what changed: [compare](../compare.md).",
                max_lines=16,
            )
        ],
    ),
    "bound": (
        "Bound",
        [
            Example(
                "bound minilm --layers 3 --lengths 16,64",
                "The measured constant with bounds at this text, then bounds on the worst case in the ball, and the "
                "ratio of each bound to the measured constant. For bounds that do not apply, the reason is given.",
            )
        ],
    ),
    "attack": (
        "Attack",
        [
            Example(
                "attack worst-case minilm --layers 3 --lengths 16 --restarts 2 --steps 15",
                "Gradient ascent on σ₁ over all outputs of the LayerNorm in front.",
            ),
            Example(
                "attack ball minilm --layers 3 --lengths 16 --eps 0.001,0.01 --restarts 2 --steps 5",
                "A certificate for all tokens within ε of the text's, and the largest constant found there by ascent.",
            ),
            Example(
                "attack configuration minilm --layers 3 --heads 0 --lengths 8,16",
                "The configuration of Theorem 1 for one head, as the paper describes it and as its scripts compute it.",
                max_lines=12,
            ),
            Example(
                "attack layer minilm --layers 3 --lengths 16 --budget 0.001,0.1",
                "Attacks on the features that enter a layer, compared with σ₁ and with the certificate.",
            ),
            Example(
                "attack model minilm --objective cosine --lengths 16 --budget 0.01 --attack noise,singular --steps 5",
                "The same for the whole model, here for its sentence embedding.",
            ),
            Example(
                "attack tokens minilm --objective cosine --samples 2 --lengths 24 --edits 1 --calls 12 "
                "--method random,probe",
                "Real tokens are replaced, and the edited text is evaluated by the model.",
            ),
        ],
    ),
    "meanfield": (
        "Mean field",
        [
            Example(
                "meanfield regimes --gamma-r2 0.5,2,8 --to 12 --points 3",
                "Growth like √n·log n up to n*, and a plateau from there on.",
            ),
            Example(
                "meanfield masked --p 2,inf --sizes 0,0.3,1 --atoms 8 --restarts 2 --steps 10",
                "Masked attention: a proved bound, the values that are attained, and whether the unmasked bound holds.",
            ),
            Example(
                "meanfield splitting minilm --layers 0 --heads 0,1,2,3 --lengths 24",
                "Whether the measure of the text splits.",
            ),
            Example(
                "meanfield splitting-line --masses 1,3 --resolution 200",
                "Where two atoms on a line split; --plot draws the plane.",
            ),
            Example("meanfield splitting-cases", "Which kinds of maps split, and by how much."),
            Example(
                "meanfield splitting-copies minilm --layers 0 --lengths 6",
                "The model runs on the text with each token in turn repeated.",
            ),
            Example(
                "meanfield distance minilm --layers 0,3 --lengths 24 --p 2",
                "Two chunks of text as measures, before and after attention.",
            ),
            Example(
                "meanfield file-distance --files a.csv b.csv --p 1,2",
                "Two measures from files: points in the plane, the second with weights.",
                listing="b.csv",
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
                "flow weights minilm --layers 4 --heads 3 --lengths 16 --until 20",
                "The tokens of a text under one head of a real model, applied again and again.",
            ),
            Example(
                "flow gaussian --A '1,0.5;-0.5,-0.3' --mean 0.5,0.2 --covariance 0.6,0.3 --until 2",
                "A Gaussian that blows up in finite time.",
            ),
            Example(
                "flow pde --V -identity --until 1 --cells 96 --particles 50,200 --repeats 2",
                "A density on a grid, and the rate at which particles converge to it.",
            ),
            Example(
                "flow model minilm --lengths 16 --depths 2,6",
                "The layers of a real model instead of an equation: directions, norms, growth of a perturbation.",
            ),
        ],
    ),
    "study": (
        "Study and plan",
        [
            Example("study validate growth.toml", "Check a study file without running it.", listing="growth.toml"),
            Example("plan growth.toml", "The number of tasks and the expected time, which depends on the machine."),
            Example("study run growth.toml", "Each record is stored as soon as it is computed.", max_lines=3),
            Example("study resume growth.sqlite", "Stored records are not computed again.", max_lines=6),
            Example(
                "study status growth.toml --with-tables",
                "The number of tasks that are done, and the tables and fits so far, also while the study is running.",
            ),
            Example("study ls", "The studies and stores of this folder."),
            Example("study export growth.toml --file growth.csv", "The suffix may also be .parquet or .jsonl."),
        ],
    ),
    "reproduce": (
        "Reproduce",
        [
            Example(
                "reproduce text --models minilm --layers 3 --lengths 16..64*2 --samples 2 --workers 0 --out figures",
                "A small version of one figure of the paper.",
                figure="figures/text-minilm.png",
            )
        ],
    ),
    "around": (
        "Demo, models, doctor, cite",
        [
            Example("demo", "Two models with a table, a plot and a page, as `make demo` runs it.", max_lines=10),
            Example("models", "The families that can be measured, and what is not supported."),
            Example("doctor", "What is installed, and which implementation runs."),
            Example("cite", "BibTeX of the paper and the methods used."),
        ],
    ),
}


def commands(group: click.Group | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name."""
    from howsmooth.cli.main import group as all_commands

    group = group or all_commands
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def command_of(line: str, names: list[str]) -> str:
    """Return the name of the command in a line: the longest name that it starts with."""
    return max((name for name in names if f"{line} ".startswith(f"{name} ")), key=len)


def printed(line: str) -> str:
    """Return the output of a command on both streams, 80 columns wide, without colours, times and progress."""
    from howsmooth.cli import main, run

    run.WIDTH_WITHOUT_TERMINAL = COLUMNS
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(shlex.split(line))
    return timeless(out.getvalue())


_TIMES = (
    (re.compile(r"(\"(?:cpu_)?seconds\": )[0-9.e+-]+"), r"\1…"),
    (re.compile(r"(?<![\w.^])[0-9]+(?:\.[0-9]+)? (ms|s|min|h|seconds?|minutes?|hours?)(?![\w/])"), r"… \1"),
    (re.compile(r"^\d+ of \d+ \w+, .*\n", re.M), ""),  # lines of progress, every half minute
    (re.compile(r"^(loading \S+|\S+: \d+ estimates? \(.*|n = \d+: \d+ (estimate|bound)s?, .*)\n", re.M), ""),
    (re.compile(r"(\"(?:commit|checksum)\": )\"[0-9a-f]+\+?\""), r"\1…"),  # the checksum is of the times, too
    (re.compile(r"[0-9.]+ (.iB are free)"), r"… \1"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "…"),
)


def timeless(text: str) -> str:
    """Return the text without progress, trailing blanks and what differs from run to run: times, commits, memory."""
    for pattern, replacement in _TIMES:
        text = pattern.sub(replacement, text)
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
    """Run the block in an empty folder with the files that examples read, and yield its path."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "growth.toml").write_text(STUDY, encoding="utf-8")
        for name, rows in MEASURES.items():
            Path(folder, name).write_text(rows, encoding="utf-8")
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def typed(line: str) -> str:
    """Return the line after a prompt; a long line is continued before an option, as in a shell."""
    rows = ["$ howsmooth"]
    for word in re.split(r" (?=--)", line):
        fits = len(f"{rows[-1]} {word}") <= COLUMNS - 2
        rows = [*rows[:-1], f"{rows[-1]} {word}"] if fits else [*rows, f"      {word}"]
    return " \\\n".join(rows)


def section(example: Example, name: str, has_heading: bool, folder: Path) -> str:
    """Run an example and return its part of the page; `has_heading` is whether an earlier example has the heading."""
    rows = printed(example.line).splitlines()
    if len(rows) > example.max_lines:
        rows = [*rows[: example.max_lines], "…"]
    parts = [] if has_heading else [f"## howsmooth {name}"]
    parts.append(example.description)
    if example.listing:
        listing = (folder / example.listing).read_text(encoding="utf-8")
        parts.append(f'```{Path(example.listing).suffix[1:]} title="{example.listing}"\n{listing}```')
    parts.append("```console\n" + "\n".join([typed(example.line), *rows]) + "\n```")
    if example.record_file:
        first = json.loads((folder / example.record_file).read_text(encoding="utf-8").splitlines()[0])
        fields = timeless(json.dumps(first, indent=2, ensure_ascii=False)).splitlines()
        parts.append("\n".join(["```json", *fields[:RECORD_LINES], "…", "```"]))
    if example.figure:
        copy = PAGES.parent / "images" / f"command-{Path(example.figure).name}"
        shutil.copy(folder / example.figure, copy)
        parts.append(f"![What it draws](../images/{copy.name})")
    return "\n\n".join(parts)


def page(key: str) -> str:
    """Run the examples of a page and return its Markdown."""
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

What does each command print? These pages have an example of each, without times and progress. `howsmooth --help` says
what each is for, `howsmooth COMMAND --help` lists its options, [Notation](../notation.md#options) those of all.

| page | commands |
|---|---|
{rows}

## Output

Tables are printed to stdout, messages to stderr. `--quiet` leaves warnings and errors, `--verbose` prints a line for
each record, `--json FILE|-` writes one JSON object for each record as soon as it is computed. The exit code is 0 on
success, 2 for bad input (with one line that explains it), 1 if a task of a study failed, and 130 after Ctrl-C.

## Threads

`--threads` is the number of threads of each process: one up to n = 256 and the number of cores for longer inputs,
unless `OMP_NUM_THREADS` is set; a study runs one process per core with one thread each. In Python,
`howsmooth.measure`, `ask` and `local_lipschitz` compute up to 256 tokens with one thread and then restore the number,
unless it was chosen by `OMP_NUM_THREADS` or `torch.set_num_threads`, or several threads call them at once.

## Completion

Tab completes commands, options, names, values and paths, with one of these lines in the shell's configuration:

| shell | file | line |
|---|---|---|
| bash | `~/.bashrc` | `eval "$(_HOWSMOOTH_COMPLETE=bash_source howsmooth)"` |
| zsh | `~/.zshrc` | `eval "$(_HOWSMOOTH_COMPLETE=zsh_source howsmooth)"` |
| fish | `~/.config/fish/completions/howsmooth.fish` | \
<code>_HOWSMOOTH_COMPLETE=fish_source howsmooth &#124; source</code> |
"""


def overview() -> str:
    """Return the page with all commands, each with a link to its example."""
    found = dict(commands())
    page_of = {
        command_of(example.line, list(found)): key for key, (_, examples) in PAGE_OF.items() for example in examples
    }
    links = {name: f"{page_of[name]}.md#howsmooth-{name.replace(' ', '-')}" for name in found}
    pages = {key: [name for name in found if page_of[name] == key] for key in dict.fromkeys(map(page_of.get, found))}
    return OVERVIEW.format(
        rows="\n".join(
            f"| {PAGE_OF[key][0]} | {', '.join(f'[`{name}`]({links[name]})' for name in names)} |"
            for key, names in pages.items()
        )
    )


def main() -> None:
    """Write the pages named on the command line, or all of them, and the overview."""
    PAGES.mkdir(exist_ok=True)
    for key in sys.argv[1:] or PAGE_OF:
        (PAGES / f"{key}.md").write_text(page(key), encoding="utf-8")
    (PAGES / "index.md").write_text(overview(), encoding="utf-8")


if __name__ == "__main__":
    main()
