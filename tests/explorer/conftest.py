"""The records of the report's tests."""

from tests.report.conftest import make, records  # noqa: F401
