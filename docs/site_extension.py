"""An extension of Python-Markdown for the site (see mkdocs.yml): content of the repository, and formulas as MathML.

A line of one of these forms in a page is replaced by the content that it names:

    {{ names howsmooth.attention }}     the reference of all public names of a package, from its `__all__`
    {{ entry_points }}                  the callables of `howsmooth.__all__`, as a table that links to the reference
    {{ options }}                       the options of all commands, with their meaning and default
    {{ questions }}                     the questions of `howsmooth.questions`, as a table that links to the commands
    {{ notebook bounds }}               a notebook with its outputs
    {{ file CONTRIBUTING.md }}          a file of the repository, with its links into docs/ adjusted
    {{ references }}                    the bibliography that `howsmooth cite` prints

It depends on no generator of sites: every one that renders with Python-Markdown can use it.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import latex2mathml.converter
import nbformat
from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor
from markdown.preprocessors import Preprocessor

from docs.unicode_math import to_mathml

ROOT = Path(__file__).resolve().parents[1]
FORMULA = re.compile(r"[‖√Σ∫ᵀ⟨²½∂^]")  # in each line of a listing that is a formula
NO_FORMULA = re.compile(r"[#$%:\"']|->|howsmooth|\w\(\w+=")  # in none of them
LETTER = "[A-Za-z0-9α-ωℓ∞]"  # of an index: \w would include ² and ᵀ
INDEX = re.compile(
    r"((?<![a-zα-ω])(?:[^\W\d_](?:['′⁺⁻±]|&#x27;|&#39;)?|Lip|max|min|sup|log|mean)|[∑∏∂)\]‖|])_"
    rf"(\{{[^}}]+\}}|(?:max|min|{LETTER}{{1,2}})(?!{LETTER}|_))"
)
INTERVAL = re.compile(r"[\d.] … [−\d]|\[[−\d.]+, [−\d.]+\]")
EXPONENT = re.compile(rf"(?<=[\w)}}>‖|])\^(\{{[^}}]+\}}|[−+-]?[\d.]*[0-9]|[−+-]?{LETTER}(?!\w)|[⊥*½¼])")


class Macros(Preprocessor):
    """Replaces the lines of a page that name other content."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of the page."""
        return expanded("\n".join(lines)).split("\n")


class Formulas(Postprocessor):
    """Converts formulas to MathML, which browsers render without a script or a web font."""

    def run(self, text: str) -> str:
        """Return the HTML of the page."""
        typeset = with_scripts(with_mathml(with_typeset_listings(with_typeset_tables(text))))
        return with_whole_options(with_linked_figures(typeset))


class SiteExtension(Extension):
    """Both of them."""

    def extendMarkdown(self, md: Markdown) -> None:  # the name is that of Python-Markdown
        """Register the processors: macros before everything else, formulas after everything else."""
        md.preprocessors.register(Macros(md), "howsmooth_macros", 200)
        md.postprocessors.register(Formulas(md), "howsmooth_formulas", -100)


def makeExtension(**options: Any) -> SiteExtension:  # as above
    """Return the extension, as Python-Markdown asks for it."""
    return SiteExtension(**options)


def expanded(markdown: str) -> str:
    """Return the Markdown of a page with the named content in place of its macros."""
    return re.sub(r"^\{\{ (\w+) ?(.*?) \}\}$", lambda found: MACROS[found[1]](found[2]), markdown, flags=re.M)


def with_mathml(html: str) -> str:
    """Return HTML with the formulas of `pymdownx.arithmatex` as MathML."""
    return re.sub(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', _mathml, html, flags=re.DOTALL)


def with_typeset_listings(html: str) -> str:
    """Return HTML in which listings that are formulas in Unicode, as in docstrings, are MathML."""
    return re.sub(
        r'<div class="(?:language-text )?highlight">\s*<pre>(?:<span></span>)?<code>(.*?)</code></pre>\s*</div>',
        _typeset_listing,
        html,
        flags=re.DOTALL,
    )


def _typeset_listing(found: re.Match[str]) -> str:
    lines = unescape(re.sub(r"<[^>]*>", "", found[1])).strip("\n").split("\n")
    if not all(FORMULA.search(line) and not NO_FORMULA.search(line) for line in lines):
        return found[0]
    formulas = "".join(to_mathml(line, display="block") for line in lines)
    return f'<div class="formula">{formulas}</div>'


def with_typeset_tables(html: str) -> str:
    """Return HTML in which the cells below the heading "statement" are MathML."""
    return re.sub(r"<table>.*?</table>", _typeset_table, html, flags=re.DOTALL)


def _typeset_table(found: re.Match[str]) -> str:
    headings = re.findall(r"<th[^>]*>(.*?)</th>", found[0])
    if "statement" not in headings:
        return found[0]
    column = headings.index("statement")

    def typeset_row(row: re.Match[str]) -> str:
        cells = re.findall(r"<td[^>]*>.*?</td>", row[0], flags=re.DOTALL)
        if not cells:
            return row[0]
        inside = unescape(re.sub(r"<[^>]*>", "", cells[column]))
        parts = re.split(r"(?<=;) |(?<=,) (?=\S+ = )", inside)  # browsers do not break the lines of a formula
        return row[0].replace(cells[column], f"<td>{'<br>'.join(map(to_mathml, parts))}</td>", 1)

    return re.sub(r"<tr>.*?</tr>", typeset_row, found[0], flags=re.DOTALL)


def with_whole_options(html: str) -> str:
    """Return HTML in which an option like --tol 0.01 has a class; browsers would break it after the hyphens."""
    return re.sub(r"<code>(-[^<]{1,23})</code>", r'<code class="option">\1</code>', html)


def with_linked_figures(html: str) -> str:
    """Return HTML in which a figure is a link to its file, so that it can be seen at full size."""
    return re.sub(r'(<a\b[^>]*>\s*)?(<img\b[^>]*\bsrc="([^":]+\.(?:png|gif))"[^>]*>)', _linked_figure, html)


def _linked_figure(found: re.Match[str]) -> str:
    return found[0] if found[1] else f'<a href="{found[3]}">{found[2]}</a>'


def with_scripts(html: str) -> str:
    """Return HTML in which the indices and exponents of prose, as in σ_1 and n^{1/2}, are below and above the line.

    Intervals are not broken. Listings, code and formulas are left as they are. The base of an index is a
    letter, a sum or an operator, so that names with underscores stay names.
    """
    return re.sub(r"<(code|pre|math|script|style|svg)\b.*?</\1>|<[^>]*>|([^<]+)", _scripts, html, flags=re.DOTALL)


def _scripts(found: re.Match[str]) -> str:
    if found[2] is None:
        return found[0]
    whole = INTERVAL.sub(lambda interval: interval[0].replace(" ", "\N{NO-BREAK SPACE}"), found[2])
    return EXPONENT.sub(_above, INDEX.sub(_below, whole))


def _below(found: re.Match[str]) -> str:
    return f"{found[1]}<sub>{INDEX.sub(_below, found[2].strip('{}'))}</sub>"


def _above(found: re.Match[str]) -> str:
    return f"<sup>{found[1].strip('{}')}</sup>"


def _mathml(found: re.Match[str]) -> str:
    if found[2] == "(":
        return latex2mathml.converter.convert(unescape(found[3]), display="inline")
    formula = latex2mathml.converter.convert(unescape(found[3]), display="block")
    return f'<div class="formula">{formula}</div>'  # scrolls if it is wider than the page


def names(module: str) -> str:
    """Return the reference of a package: one entry for each public name, under the module that defines it."""
    return "\n\n".join(entries(importlib.import_module(module)))


def entries(package: ModuleType, level: int = 2) -> Iterator[str]:
    """Yield the entries of a package in the order of its `__all__`, then those of its modules."""
    things = {name: getattr(package, name) for name in public(package) if name != "__version__"}
    for name, thing in sorted(things.items(), key=lambda item: inspect.ismodule(item[1])):
        if inspect.ismodule(thing):
            yield f"{'#' * level} `{thing.__name__.removeprefix('howsmooth.')}`\n\n{inspect.getdoc(thing) or ''}"
            yield from entries(thing, level + 1)
        else:
            yield f"::: {where(package, name, thing)}\n    options:\n      heading_level: {level}"


def entry_points(_: str) -> str:
    """Return the table of the public callables of `howsmooth`, with the first line of their docstrings."""
    import howsmooth

    rows = ["| | |", "|---|---|"]
    for name in howsmooth.__all__:
        thing = getattr(howsmooth, name)
        if callable(thing):
            summary = (inspect.getdoc(thing) or "").partition("\n")[0].replace("|", "\\|").replace("*", "\\*")
            rows.append(f"| [`howsmooth.{name}`][{where(howsmooth, name, thing)}] | {summary} |")
    return "\n".join(rows)


def questions(_: str) -> str:
    """Return the table of all questions: their names, commands, what they answer, and the kinds of their records."""
    from howsmooth.questions import QUESTIONS

    rows = ["| question | command | what it answers | kinds of records |", "|---|---|---|---|"]
    for name, entry in QUESTIONS.items():
        command = f"howsmooth {entry.group} {entry.command or name}".replace("  ", " ")
        page = f"commands/{entry.group or name}.md#{command.replace(' ', '-')}"
        kinds = ", ".join(entry.kinds) or "those of particles"
        rows.append(f"| `{name}` | [`{command}`]({page}) | {entry.help} | {kinds} |")
    return "\n".join(rows)


def options(_: str) -> str:
    """Return the table of the options of all commands."""
    from docs.options import table

    return table()


def public(module: ModuleType) -> list[str]:
    """Return `__all__`, which is in order of importance, or the public names that a module defines."""
    return getattr(module, "__all__", None) or [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def where(package: ModuleType, name: str, thing: object) -> str:
    """Return the full name under which a public object is defined, also for packages with lazy names."""
    defining_module = getattr(thing, "__module__", None)
    if defining_module is None:  # a constant: search the modules of the package
        loaded = (module for path, module in sys.modules.items() if path.startswith(f"{package.__name__}."))
        defining_module = next((module.__name__ for module in loaded if vars(module).get(name) is thing), None)
        return f"{defining_module or package.__name__}.{name}"
    if defining_module and hasattr(thing, "__qualname__"):
        return f"{defining_module}.{thing.__qualname__}"
    return f"{package.__name__}.{name}"


def file(arguments: str) -> str:
    """Return a file of the repository, with its links into docs/ made relative to the page.

    Args:
        arguments: The path of the file; for a page in a folder of docs/, then a space and the way up, `../`.
    """
    name, _, up = arguments.partition(" ")
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\]\((?:\.\./)*docs/", f"]({up}", text)


def notebook(name: str) -> str:
    """Return a notebook of the repository with its outputs; badges, which browsers would fetch, become plain links."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def _cell(cell: nbformat.NotebookNode) -> Iterator[str]:
    if cell["cell_type"] == "markdown":
        text = re.sub(r"\[!\[(.*?)\]\(.*?\)\]", r"[\1]", cell["source"])
        yield re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text)
        return
    yield f"```python\n{cell['source']}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        yield data.get("text/html") or f"```text\n{data['text/plain'].rstrip()}\n```"


def references(_: str) -> str:
    """Return the bibliography as a list, sorted by year, with links to the publisher or to arXiv."""
    bib = (ROOT / "src" / "howsmooth" / "references.bib").read_text(encoding="utf-8")
    by_year = sorted(read_bib(bib), key=lambda entry: (entry["year"], entry["key"]))
    return "\n".join(map(reference, by_year))


def read_bib(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each BibTeX entry, without TeX."""
    for key, body in re.findall(r"@\w+\{(\S+),\n(.*?)\n\}", text, re.S):
        yield {"key": key} | {name: plain(value) for name, value in re.findall(r"(\w+)\s*=\s*\{(.*)\},?$", body, re.M)}


def plain(value: str) -> str:
    """Return a BibTeX value without TeX: accented letters, no braces."""
    accents = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "~": "\u0303", "^": "\u0302"}
    value = re.sub(r"\{\\(['`\"~^])(\w)\}", lambda found: found[2] + accents[found[1]], value)
    return value.replace("{", "").replace("}", "").replace("--", "–")


def reference(entry: dict[str, str]) -> str:
    """Return a BibTeX entry as an item of a Markdown list."""
    people = [" ".join(reversed(person.split(", "))) for person in entry["author"].split(" and ")]
    arxiv = re.search(r"arXiv:(\S+)", entry.get("note", ""))
    if "doi" in entry:
        link = f"[doi:{entry['doi']}](https://doi.org/{entry['doi']})"
    else:
        link = f"[{arxiv[0]}](https://arxiv.org/abs/{arxiv[1]})" if arxiv else ""
    venue = entry.get("journal") or entry.get("booktitle")
    number = f" {entry['volume']}" if "volume" in entry and "journal" in entry else ""
    parts = [", ".join(people), f"*{entry['title']}*", f"{venue}{number}" if venue else "", entry["year"], link]
    return f'- <span id="{entry["key"]}"></span>' + ". ".join(part for part in parts if part) + f". `{entry['key']}`"


MACROS = {
    "names": names,
    "entry_points": entry_points,
    "questions": questions,
    "options": options,
    "notebook": notebook,
    "file": file,
    "references": references,
}
