"""The tiny checkpoint of the tests of commands."""

from tests.cli.conftest import tiny

__all__ = ["tiny"]
