"""`howsmooth` and `python -m howsmooth`: the command, or one line that says what it needs."""

from __future__ import annotations

import sys

from howsmooth.extras import MissingPackage, require


def main() -> None:
    """Run the command, if the packages of the command line are installed."""
    try:
        require("click", "rich", purpose="for the command line")
    except MissingPackage as error:
        print(f"howsmooth: {error}", file=sys.stderr)
        sys.exit(2)
    from howsmooth.cli import main as run

    run()


if __name__ == "__main__":
    main()
