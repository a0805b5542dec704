"""Execute the notebooks of this folder and store their outputs in them.

    python notebooks                        # all of them
    python notebooks bounds                 # only these
    python notebooks --out FOLDER           # write the executed notebooks to another folder

Metadata that differ from run to run and from editor to editor are left out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with its outputs, and with nothing in its metadata but the language.

    Warnings of other packages on stderr are dropped: they name folders of this machine.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=None, kernel_name="python3", record_timing=False, coalesce_streams=True
    ).execute()
    notebook["metadata"] = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook["cells"], 1):
        cell["id"], cell["metadata"] = f"cell-{number}", nbformat.from_dict({})
        if cell["cell_type"] == "code":
            cell["outputs"] = [output for output in cell["outputs"] if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Execute the notebooks named on the command line, or all of them."""
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    parser = argparse.ArgumentParser(description="Execute the notebooks of this folder.")
    parser.add_argument("names", nargs="*", help="names without ending; all by default")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the executed notebooks")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in paths]
    if unknown:
        sys.exit(f"expected names among {', '.join(paths)}, got {unknown[0]}; leave them out for all")
    for name in given.names or paths:
        out = given.out / f"{name}.ipynb"
        nbformat.write(execute(paths[name]), out)
        print(f"{out}: {out.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
