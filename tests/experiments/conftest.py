"""The tiny checkpoint of the tests of commands."""

from tests.cli.conftest import text_file, tiny

__all__ = ["text_file", "tiny"]
