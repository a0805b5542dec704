"""The synthetic records of the tests of the report."""

from tests.report.conftest import make, records  # noqa: F401
