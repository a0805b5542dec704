"""Settings that have to be in the environment before torch and Triton are imported."""

import os

# Tests run side by side, one process for each core: threads of their own would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

# Without a GPU kernels run under Triton's interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
