"""`python -m howsmooth` is the `howsmooth` command."""

from howsmooth.cli import main

if __name__ == "__main__":
    main()
