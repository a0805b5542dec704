"""Flows declared in TOML files, the shapes that clusters take; `howsmooth.dynamics.read_example` reads them."""
