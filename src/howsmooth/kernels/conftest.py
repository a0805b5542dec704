"""Without Triton there is nothing in this room to collect doctests from but its door."""

import importlib.util

collect_ignore = (
    [] if importlib.util.find_spec("triton") else ["device.py", "primal.py", "tangent.py", "cotangent.py", "launch.py"]
)
