"""The site builds in strict mode and offline; links, anchors and images exist; every page is in the navigation."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

import howsmooth
from tests import reasons
from tests.browser import Page as Visit
from tests.browser import browser
from tests.docs.comparison import ROOT, script

pytest.importorskip("zensical", reason=reasons.extra("zensical", "docs"))
pytest.importorskip("mkdocstrings", reason=reasons.extra("mkdocstrings", "docs"))

BUILD_OFFLINE = """
import socket
def refuse(*_): raise OSError("the site is built offline")
socket.socket.connect = refuse
from zensical.main import cli
cli()
"""
SOURCES = ("mkdocs.yml", "docs", "notebooks", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/README.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for source in SOURCES:  # the site is written beside its sources, so that they are copied
        (folder / source).parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, folder / source)
    (folder / "src").symlink_to(ROOT / "src")
    command = [sys.executable, "-c", BUILD_OFFLINE, "build", "--strict"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    built = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return folder / "site"


class Page(HTMLParser):
    """The links of a page, the resources it loads, its anchors, and signs of text misread as markup."""

    def __init__(self, source: str):
        super().__init__()
        self.links, self.loads, self.anchors, self.headings, self.misread = [], [], set(), 0, []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        self.headings += tag == "h1"
        if tag == "blockquote" or (tag in ("p", "li", "em", "strong") and None in found.values()):
            self.misread.append(self.get_starttag_text())  # a doctest as a quotation, braces as a list of attributes
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag in ("img", "script", "iframe") and found.get("src"):
            self.loads.append(found["src"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loads.append(found["href"])


PACKAGES = [name for name in howsmooth.__all__ if inspect.ismodule(getattr(howsmooth, name))]


def broken(folder: Path) -> list[str]:
    """Return links of the site without a target, and resources that a browser would load from the network."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    problems = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links start at the server's root
        for target in (*page.links, *page.loads):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                problems += [f"{path.name} loads {target}"] * (target in page.loads)
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            to = to / "index.html" if to.is_dir() else to
            if not to.exists():
                problems.append(f"{path.name}: {target}")
            elif parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].anchors | {"__top"}:
                problems.append(f"{path.name}: {target}, no such anchor")
    return problems


def test_links_have_targets_and_nothing_is_loaded_from_the_network(site):
    assert len(list(site.rglob("*.html"))) > 40
    assert broken(site) == []


def test_every_page_is_in_the_navigation(site):
    """Each page is linked from the index and has one first-level heading."""
    pages = {path.relative_to(site / "") for path in site.rglob("*.html") if path.name != "404.html"}
    first = Page((site / "index.html").read_text())
    linked = {Path(urlsplit(link).path) for link in first.links if not urlsplit(link).scheme}
    assert {page for page in pages if page not in linked} <= {Path("index.html")}
    assert [page for page in pages if Page((site / page).read_text()).headings != 1] == []
    assert {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")} == pages


@pytest.mark.parametrize("package", [*PACKAGES, "measurements"])
def test_the_reference_has_every_public_name(site, package):
    extension, module = script("site_extension.py"), importlib.import_module(f"howsmooth.{package}")
    anchors = Page((site / "reference" / f"{package}.html").read_text()).anchors
    names = [name for name in extension.public(module) if not inspect.ismodule(getattr(module, name))]
    documented = [name for name in names if package != "kernels" or callable(getattr(module, name))]
    assert documented
    assert [name for name in documented if extension.where(module, name, getattr(module, name)) not in anchors] == []


def test_search_works_from_a_folder(site):
    """A page opened as file:// finds other pages, without a request to the network."""
    with browser() as opened, Visit(opened) as visited:
        visited.page.goto((site / "howto" / "my_model.html").as_uri())
        visited.page.get_by_role("button", name="Search").first.click()
        visited.page.get_by_placeholder("Search").fill("mass splitting")
        visited.page.locator('a:has(mark)[href*="splitting.html"]').first.wait_for()
        assert visited.errors == [] and all(url.startswith("file:") for url in visited.requests)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_a_phone(site, theme):
    """No page is wider than the window; wide tables and listings scroll on their own."""
    with browser() as opened, Visit(opened, width=390, height=844, theme=theme) as visited:
        for name in ("index", "bounds", "gallery", "comparison", "notation", "reference/lipschitz", "commands/bound"):
            visited.page.goto((site / f"{name}.html").as_uri())
            wide = visited.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, name


def test_the_reference_is_in_order_of_importance(site):
    """The pages and the table of entry points follow `howsmooth.__all__`, which begins with what users need first."""
    index = Page((site / "reference" / "index.html").read_text(encoding="utf-8"))
    pages = [link for link in index.links if re.fullmatch(r"[a-z]+\.html", link) and link != "index.html"]
    assert list(dict.fromkeys(pages))[: len(PACKAGES) + 1] == [f"{name}.html" for name in ("measurements", *PACKAGES)]
    assert howsmooth.__all__[:6] == ["measure", "ask", "compare", "read", "Measurements", "local_lipschitz"]


@pytest.mark.parametrize(
    "html",
    [
        '<a href="gone.html">',
        '<a href="#nowhere">',
        '<a href="other.html#nowhere">',
        '<img src="images/gone.png">',
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
    ],
)
def test_the_check_can_fail(tmp_path, html):
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    (tmp_path / "index.html").write_text(html + '<a href="other.html#here"><a href="https://arxiv.org">')
    assert len(broken(tmp_path)) == 1


def test_formulas_become_mathml():
    """The input is that of `pymdownx.arithmatex`: escaped characters are restored, and the display style is kept."""
    content = script("site_extension.py").with_mathml
    inline = content(r'<p>so <span class="arithmatex">\(a &lt; b_1\)</span></p>')
    assert inline.startswith("<p>so <math") and 'display="inline"' in inline and "&#x0003C;" in inline
    block = content('<div class="arithmatex">\\[\n\\sqrt{n}\n\\]</div>')
    assert block.startswith('<div class="formula"><math') and 'display="block"' in block and "<msqrt>" in block


@pytest.mark.parametrize(
    "formula, mathml",
    [
        ("w_ij", "<msub><mi>w</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub>"),
        ("√3 ‖V‖", '<msqrt><mn>3</mn></msqrt><mspace width="0.12em"/><mo stretchy="false">‖</mo><mi>V</mi>'),
        ("(a + n)^½", '<msup><mo stretchy="false">)</mo><mfrac><mn>1</mn><mn>2</mn></mfrac></msup>'),
        ("e^{−2s}", "<msup><mi>e</mi><mrow><mo>−</mo><mn>2</mn><mi>s</mi></mrow></msup>"),
        ("max_i x < 1", '<msub><mi>max</mi><mi>i</mi></msub><mspace width="0.12em"/><mi>x</mi>'),
        ("with a causal mask", "<mtext>with</mtext>"),
        ("p₍₁₎", "<msub><mi>p</mi><mrow><mi>(</mi><mn>1</mn><mi>)</mi></mrow></msub>"),
    ],
)
def test_unicode_formulas_become_mathml(formula, mathml):
    found = script("unicode_math.py").to_mathml(formula)
    assert mathml in found and ElementTree.fromstring(found).tag == "math"


def test_formulas_of_docstrings_and_tables_are_typeset(site):
    """Source text stays in Unicode; listings of code and of commands stay listings."""
    reference = (site / "reference" / "bounds.html").read_text(encoding="utf-8")
    assert reference.count('<div class="formula"><math') >= 15 and "√3 ‖V‖ (m" not in reference
    table = (
        (site / "bounds.html").read_text(encoding="utf-8").partition("<th>statement</th>")[2].partition("</table>")[0]
    )
    assert table.count("<math") >= 17
    for page in ("contributing", "howto/my_model", "gallery", "measuring"):
        assert '<div class="formula">' not in (site / f"{page}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "prose, html",
    [
        ("max_i ‖D_ii‖", "max<sub>i</sub> ‖D<sub>ii</sub>‖"),
        ("B_R^n, e^{−2s}", "B<sub>R</sub><sup>n</sup>, e<sup>−2s</sup>"),
        ("n^0.50, n^¼", "n<sup>0.50</sup>, n<sup>¼</sup>"),
        ("AG_NEWS, token_gains, <code>x_1</code>", "AG_NEWS, token_gains, <code>x_1</code>"),
        ('<a href="a_1">c^2</a>', '<a href="a_1">c<sup>2</sup></a>'),
    ],
)
def test_indices_and_exponents_of_prose_are_set_below_and_above(prose, html):
    assert script("site_extension.py").with_scripts(f"<p>{prose}</p>") == f"<p>{html}</p>"


def test_a_short_option_is_not_broken():
    whole = script("site_extension.py").with_whole_options
    assert whole("<code>--tol 0.01</code>") == '<code class="option">--tol 0.01</code>'
    assert whole("<code>x</code>") == "<code>x</code>"


def test_a_figure_is_a_link_to_its_file():
    link = script("site_extension.py").with_linked_figures
    assert link('<img alt="a" src="images/a.png">') == '<a href="images/a.png"><img alt="a" src="images/a.png"></a>'
    for left_alone in ('<a href="x.html"><img src="a.png"></a>', '<img src="https://badge.example/a.png">'):
        assert link(left_alone) == left_alone


@pytest.mark.parametrize("name", ["first_measurement", "own_model", "bounds"])
def test_a_notebook_is_a_page_with_its_outputs(site, name):
    html = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    notebook = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert html.count('<div class="howsmooth">') == notebook.count('"<div class=\\"howsmooth\\">') >= 3
    assert ".ipynb" not in html.replace(f"notebooks/{name}.ipynb", "")  # but for the link to Colab


def test_every_formula_is_converted(site):
    assert [path.name for path in site.rglob("*.html") if "arithmatex" in path.read_text(encoding="utf-8")] == []


def test_no_text_is_misread_as_markup(site):
    pages = {path.name: Page(path.read_text(encoding="utf-8")).misread for path in site.rglob("*.html")}
    # The page of claims quotes other pages.
    pages["claims.html"] = [tag for tag in pages["claims.html"] if tag != "<blockquote>"]
    assert {name: misread for name, misread in pages.items() if misread} == {}
    assert len(Page("<blockquote><p 2_ _ball_><em l_j>").misread) == 3


def test_references_are_read_without_tex():
    extension = script("site_extension.py")
    bib = (ROOT / "src" / "howsmooth" / "references.bib").read_text()
    entries = list(extension.read_bib(bib))
    assert len(entries) == bib.count("\n@") + 1
    shown = "\n".join(map(extension.reference, entries))
    assert "Peyre\u0301" in shown and "\\" not in shown and "{" not in shown
