"""The figures of the documentation: each script writes into docs/images."""
