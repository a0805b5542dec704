"""Hooks of mkdocs (see mkdocs.yml): content from elsewhere in the repository, and formulas as MathML.

A line of one of these forms in a page is replaced by the content that it names:

    {{ names howsmooth.attention }}     the reference of all public names of a package, from its `__all__`
    {{ entry_points }}                  the callables of `howsmooth.__all__`, as a table that links to the reference
    {{ file CONTRIBUTING.md }}          a file of the repository, with its links into docs/ adjusted
    {{ references }}                    the bibliography that `howsmooth cite` prints
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
from typing import TYPE_CHECKING, Any

import latex2mathml.converter

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace the lines of a page that name other content."""
    return re.sub(r"^\{\{ (\w+) ?(.*?) \}\}$", lambda found: MACROS[found[1]](found[2], page), markdown, flags=re.M)


def on_page_content(html: str, **_: Any) -> str:
    """Convert formulas to MathML, which browsers render without a script or a web font."""
    return re.sub(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', _mathml, html, flags=re.DOTALL)


def _mathml(found: re.Match[str]) -> str:
    return latex2mathml.converter.convert(unescape(found[3]), display="inline" if found[2] == "(" else "block")


def names(module: str, page: Page) -> str:
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


def entry_points(_: str, page: Page) -> str:
    """Return the table of the public callables of `howsmooth`, with the first line of their docstrings."""
    import howsmooth

    rows = ["| | |", "|---|---|"]
    for name in howsmooth.__all__:
        thing = getattr(howsmooth, name)
        if callable(thing):
            summary = (inspect.getdoc(thing) or "").partition("\n")[0].replace("|", "\\|").replace("*", "\\*")
            rows.append(f"| [`howsmooth.{name}`][{where(howsmooth, name, thing)}] | {summary} |")
    return "\n".join(rows)


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


def file(name: str, page: Page) -> str:
    """Return a file of the repository, with links made relative to the page."""
    up = "../" * page.file.src_uri.count("/")
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\]\((?:\.\./)?docs/", f"]({up}", text)


def references(_: str, page: Page) -> str:
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


MACROS = {"names": names, "entry_points": entry_points, "file": file, "references": references}
