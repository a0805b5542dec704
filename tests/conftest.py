"""Settings that must be made before torch and Triton are imported, and those of hypothesis."""

import os

# One process per core runs tests in parallel: further threads would compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Without a GPU, kernels run in Triton's interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the kernel tests do not need it
    pass
else:
    # Reproducible examples, and no time limits.
    settings.register_profile("anywhere", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("anywhere")
