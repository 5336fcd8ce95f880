"""What a report was made with: software, machine and weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from everlong import _native
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.hardware import processor


def provenance(model: Any) -> dict[str, Any]:
    """Return plain values, for JSON; None for what does not apply: a GPU that computes, a revision of a hub.

    `weights` is what `everlong inspect` shows of a memory: the same in every dtype.
    """
    device = model.device
    return {
        "everlong": _native.VERSION,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "revision": getattr(model.config, "_commit_hash", None),
        "weights": weights_fingerprint(model),
    }
