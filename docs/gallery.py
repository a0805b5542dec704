"""Run the commands of the gallery and write docs/gallery.md with their pictures.

    python docs/gallery.py                    # all pictures, about two minutes on two cores
    python docs/gallery.py growth regimes     # these pictures alone
    python docs/gallery.py --page             # the page alone

Each picture is written by the command that is shown with it, into docs/images/gallery.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PICTURES = FOLDER / "images" / "gallery"


@dataclass(frozen=True)
class Picture:
    """A picture, and the command that draws it.

    Attributes:
        name: Name of its file.
        title: Heading of its section.
        line: The command without `howsmooth`; the option of the figure comes last.
        description: What the picture shows.
        page: The page about it.
    """

    name: str
    title: str
    line: str
    description: str
    page: str


GALLERY = (
    Picture(
        "growth.png",
        "Growth with length",
        "measure minilm --layers 0,2,5 --lengths 32..512*2 --samples 2 --plot growth.png",
        "The local Lipschitz constant of three layers of MiniLM. Markers are samples, lines their medians, coloured "
        "dashed lines fitted laws; a law that the data reject is not drawn.",
        "measuring.md",
    ),
    Picture(
        "growth-paper.png",
        "The same for a paper",
        "measure minilm --layers 0,2,5 --lengths 32..512*2 --samples 2 --style paper --plot growth-paper.png",
        "One column, the samples as a band; with `.pdf` for LaTeX.",
        "report.md",
    ),
    Picture(
        "growth-slides.png",
        "The same for slides",
        "measure minilm --layers 0,2,5 --lengths 32..512*2 --samples 2 --style slides --plot growth-slides.png",
        "16:9, with large text and thick lines.",
        "report.md",
    ),
    Picture(
        "bounds.png",
        "Bounds at this text, and on the worst case",
        "bound minilm --layers 3 --lengths 32,128,512 --plot bounds.png",
        "On the left the measured constant and a bound on it, on the right bounds on the largest constant over all "
        "inputs in the ball that the layer's normalisation allows.",
        "bounds.md",
    ),
    Picture(
        "regimes.png",
        "From √n to the plateau",
        "meanfield regimes --plot regimes.png",
        "The largest constant over inputs at two points, exact up to n = 10⁴⁰.",
        "mean_field.md",
    ),
    Picture(
        "masked.png",
        "Masked attention",
        "meanfield masked --p 1.5,2,inf --sizes 0,0.1,0.3,1,2 --atoms 8 --restarts 2 --steps 20 --plot masked.png",
        "Proved bounds for causal attention on measures (lines), values that are attained (markers), and the bound as "
        "stated in the paper (dashed), which does not hold for small a.",
        "mean_field.md",
    ),
    Picture(
        "splitting-heads.png",
        "Heads that would split mass",
        "meanfield splitting minilm --heads all --lengths 32 --plot splitting-heads.png",
        "For each head, whether repeating a token and separating its copies increases the constant: above 1 it does.",
        "splitting.md",
    ),
    Picture(
        "splitting-line.png",
        "Two atoms on a line",
        "meanfield splitting-line --masses 1,3 --resolution 200 --plot splitting-line.png",
        "The same question for two atoms with masses 1 : 3; the line is at ratio 1.",
        "splitting.md",
    ),
    Picture(
        "distance.png",
        "Distances between texts",
        "meanfield distance smollm2 --layers 0,5,10,15,20,25,29 --lengths 48 --plot distance.png",
        "How much further apart two chunks of text are after the attention of a layer than before.",
        "transport.md",
    ),
    Picture(
        "polytope.png",
        "Clusters at the vertices of a polytope",
        "flow particles polytope --plot polytope.png",
        "Tokens as particles under attention: their paths, the number of clusters, and their size.",
        "flows.md",
    ),
    Picture(
        "sphere.gif",
        "Tokens on a sphere, in motion",
        "flow particles sphere --animate sphere.gif",
        "With layer normalisation, tokens stay on the sphere and gather in clusters.",
        "flows.md",
    ),
    Picture(
        "gaussian.png",
        "A Gaussian that blows up",
        "flow gaussian --A '1,0.5;-0.5,-0.3' --mean 0.5,0.2 --covariance 0.6,0.3 --until 2 --plot gaussian.png",
        "Attention keeps Gaussians Gaussian; here the covariance becomes infinite in finite time.",
        "flows.md",
    ),
    Picture(
        "density.png",
        "A density and its particles",
        "flow pde --V -identity --until 2 --particles 50,200 --plot density.png",
        "The mean-field limit on a grid, and 200 particles that follow it.",
        "flows.md",
    ),
    Picture(
        "depth.png",
        "The layers of a real model",
        "flow model smollm2 --lengths 32 --plot depth.png",
        "Tokens of SmolLM2 through its thirty layers: norms, directions, clusters, and the growth of a perturbation.",
        "depth.md",
    ),
    Picture(
        "polytope-dark.png",
        "Dark figures",
        "flow particles polytope --theme dark --plot polytope-dark.png",
        "The same colours on a dark background.",
        "flows.md",
    ),
)
INTRODUCTION = """\
# Gallery

Which pictures are there, and which command draws each? Every command with `--plot` writes png, svg or pdf, by the
ending of the file name, in the style `--style screen`, `paper` or `slides`. Pages instead of pictures:
[the report](report.md) and [the explorer](explore.md).
"""


def draw(picture: Picture) -> None:
    """Run the command of a picture in an empty folder, and copy what it drew."""
    from howsmooth.cli import main

    print(f"howsmooth {picture.line}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        *words, drawn = shlex.split(picture.line)
        try:
            main([*words, str(Path(folder, drawn))])
        except SystemExit as end:
            if end.code:
                raise
        PICTURES.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder, drawn), PICTURES / picture.name)


def typed(line: str) -> str:
    """Return a command line for a shell; a long one is continued before an option."""
    rows = ["    howsmooth"]
    for word in re.split(r" (?=--)", line):
        fits = len(f"{rows[-1]} {word}") <= 98
        rows = [*rows[:-1], f"{rows[-1]} {word}"] if fits else [*rows, f"        {word}"]
    return " \\\n".join(rows)


def page() -> str:
    """Return the Markdown of the page."""
    parts = [INTRODUCTION]
    for picture in GALLERY:
        parts.append(
            f"## {picture.title}\n\n{typed(picture.line)}\n\n{picture.description} ([more]({picture.page}))\n\n"
            f"![{picture.title}](images/gallery/{picture.name})\n"
        )
    return "\n".join(parts)


def main() -> None:
    """Draw the pictures named on the command line, or all of them, and write the page."""
    names = sys.argv[1:]
    for picture in GALLERY:
        if not names or Path(picture.name).stem in names:
            draw(picture)
    (FOLDER / "gallery.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
