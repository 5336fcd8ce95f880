"""Attention of one token to all slots of a frame under a mask: two products of matrices, and a softmax between them.

torch's own attention under a mask copies keys that several query heads share, and takes ten times as long on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from everlong.models.custom_attention import CHANGES_SCORES, attend_plainly


def attend_to_slots(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from query [1, Hq, 1, D] to key, value [1, Hkv, F, D] where mask [1, 1, 1, F] is true: [1, 1, Hq, D].

    What is shaped otherwise, or changes its scores, is attended to plainly.
    """
    masked = attention_mask is not None and attention_mask.dtype == torch.bool
    one = query.shape[0] == 1 and query.shape[2] == 1
    if attention_mask is None or not (masked and one) or any(more.get(name) is not None for name in CHANGES_SCORES):
        return attend_plainly(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more)
    heads, width = key.shape[1], query.shape[-1]
    shared = query.reshape(heads, -1, width)  # query heads that read the same keys
    turned = key[0].transpose(1, 2)
    # Scores are kept in fp32, as torch's own attention does.
    scores = torch.bmm(shared, turned, torch.float32) if query.dtype != torch.float32 else torch.bmm(shared, turned)
    scores *= width**-0.5 if scaling is None else scaling
    shares = scores.masked_fill_(~attention_mask[0], -torch.inf).softmax(dim=-1)
    out = torch.bmm(shares.to(value.dtype), value[0])
    return out.reshape(1, 1, query.shape[1], value.shape[-1]), None
