"""What the site takes from elsewhere in the repository while it is built: see mkdocs.yml.

A page holds a line of one of these kinds, and the line becomes what it names:

    {{ names howsmooth.attention }}     the reference of all public names of a package, from its `__all__`
    {{ entry_points }}                  what `import howsmooth` offers, as a table that links to the packages
    {{ file CONTRIBUTING.md }}          a file of the repository's root; links into docs/ are put right
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

import latex2mathml.converter

ROOT = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, page, **_) -> str:
    return re.sub(r"^\{\{ (\w+) ?(.*?) \}\}$", lambda found: MACROS[found[1]](found[2], page), markdown, flags=re.M)


def on_page_content(html: str, **_) -> str:
    """Typeset formulas as MathML, which browsers render without a script or a font from elsewhere."""
    return re.sub(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', _mathml, html, flags=re.DOTALL)


def _mathml(found: re.Match[str]) -> str:
    return latex2mathml.converter.convert(unescape(found[3]), display="inline" if found[2] == "(" else "block")


def names(module: str, page) -> str:
    """The reference of a package: one entry for each public name, under the place where it is defined."""
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


def entry_points(_: str, page) -> str:
    import howsmooth

    rows = ["| | |", "|---|---|"]
    for name in howsmooth.__all__:
        thing = getattr(howsmooth, name)
        if callable(thing):
            says = (inspect.getdoc(thing) or "").partition("\n")[0].replace("|", "\\|").replace("*", "\\*")
            rows.append(f"| [`howsmooth.{name}`][{where(howsmooth, name, thing)}] | {says} |")
    return "\n".join(rows)


def public(module: ModuleType) -> list[str]:
    """Return `__all__`, which is in order of importance, or what a module without it defines itself."""
    return getattr(module, "__all__", None) or [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def where(package: ModuleType, name: str, thing: object) -> str:
    """The full name of the place where a thing is defined; packages that look names up lazily know their modules."""
    home = getattr(thing, "__module__", None)
    if home is None:  # a constant: the module of the package that has it
        loaded = (module for path, module in sys.modules.items() if path.startswith(f"{package.__name__}."))
        home = next((module.__name__ for module in loaded if vars(module).get(name) is thing), None)
        return f"{home or package.__name__}.{name}"
    return f"{home}.{thing.__qualname__}" if home and hasattr(thing, "__qualname__") else f"{package.__name__}.{name}"


def file(name: str, page) -> str:
    """A file of the root or of a package, as it is, but for links, which are relative to another place there."""
    up = "../" * page.file.src_uri.count("/")
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\]\((?:\.\./)?docs/", f"]({up}", text)


def references(_: str, page) -> str:
    """The bibliography as a list, sorted by year; links go to the publisher or to arXiv."""
    bib = (ROOT / "src" / "howsmooth" / "references.bib").read_text(encoding="utf-8")
    by_year = sorted(read_bib(bib), key=lambda entry: (entry["year"], entry["key"]))
    return "\n".join(map(reference, by_year))


def read_bib(text: str) -> Iterator[dict[str, str]]:
    for key, body in re.findall(r"@\w+\{(\S+),\n(.*?)\n\}", text, re.S):
        yield {"key": key} | {name: plain(value) for name, value in re.findall(r"(\w+)\s*=\s*\{(.*)\},?$", body, re.M)}


def plain(value: str) -> str:
    """Without TeX: accents as letters, no braces."""
    accents = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "~": "\u0303", "^": "\u0302"}
    value = re.sub(r"\{\\(['`\"~^])(\w)\}", lambda found: found[2] + accents[found[1]], value)
    return value.replace("{", "").replace("}", "").replace("--", "–")


def reference(entry: dict[str, str]) -> str:
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
