"""Without a GPU kernels run under Triton's interpreter, which has to be asked for before anything imports Triton."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
