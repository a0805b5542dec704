"""Settings that have to be made before torch and Triton are imported, and those of hypothesis."""

import os

# Tests run side by side, one process for each core: threads of their own would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Without a GPU kernels run under Triton's interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the kernels' tests need none
    pass
else:
    # The same examples every time, however slow the machine is.
    settings.register_profile("anywhere", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("anywhere")
