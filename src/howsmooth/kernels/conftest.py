"""Keeps pytest from collecting doctests in modules that import Triton, where it is not installed."""

import importlib.util

collect_ignore = (
    [] if importlib.util.find_spec("triton") else ["device.py", "primal.py", "tangent.py", "cotangent.py", "launch.py"]
)
