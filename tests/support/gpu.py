"""What tests of a GPU need."""

from __future__ import annotations

import pytest
import torch

from everlong import ops

GPU = torch.device("cuda", 0)
# The `pytestmark` of a file whose tests all need a GPU.
NEEDS_GPU = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch.cuda.is_available() is false"),
    pytest.mark.skipif(
        torch.cuda.is_available() and not ops.runs_on(GPU), reason="needs a build with EVERLONG_CUDA or EVERLONG_HIP"
    ),
]
