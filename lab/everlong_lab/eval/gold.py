"""The model's own rate: the same question with the passage that answers it, in its own window, without everlong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from everlong.generation.eval_decoding import AS_MEASURED
from everlong.models.packing import packed
from everlong.models.releases import cache_argument
from everlong.text.prompt import passage_ids

_CHUNK_TOKENS = 512


def answer_from_passage(
    model: Any, tokenizer: Any, passage: str, question: str, max_new_tokens: int, **generation: Any
) -> str:
    """Return the greedy answer of plain transformers to passage and question.

    Both are one user turn where there is a chat template. Further arguments are those of `generate`.
    """
    ids = passage_ids(tokenizer, passage, question)
    return continue_prompt(model, tokenizer, ids, max_new_tokens=max_new_tokens, **generation)


@torch.inference_mode()
def continue_prompt(model: Any, tokenizer: Any, ids: Sequence[int], cache: Any = None, **generation: Any) -> str:
    """Return an answer to `ids`, decoded AS_MEASURED; a `cache` holds the first of them.

    Further arguments are those of `generate`.
    """
    rows = torch.tensor([list(ids)], device=model.device)
    with packed(model):
        output = model.generate(
            input_ids=rows,
            attention_mask=torch.ones_like(rows),
            **{cache_argument(model): cache},
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            **{**AS_MEASURED, **generation},
        )
    answer: str = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
    return answer


@torch.inference_mode()
def prefilled(model: Any, ids: Sequence[int], keep: int = 1) -> tuple[Any, torch.Tensor]:
    """Return the cache after `ids`, and logits fp32 [keep, V] of the last of them, by plain transformers.

    They are read in chunks, as attention over all of them at once takes quadratic memory.
    """
    name = cache_argument(model)
    cache: Any = None
    rows: list[torch.Tensor] = []
    left = len(ids)
    for chunk in torch.split(torch.tensor([list(ids)], device=model.device), _CHUNK_TOKENS, dim=1):
        left -= chunk.shape[1]
        wanted = min(max(keep - left, 0), chunk.shape[1])
        out = model(input_ids=chunk, **{name: cache}, use_cache=True, logits_to_keep=max(wanted, 1))
        cache = getattr(out, name)
        rows.append(out.logits[0, out.logits.shape[1] - wanted :].float())
    return cache, torch.cat(rows)
