"""Tiny models that everlong can serve by text alone, because their keys and values cannot be spliced."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from everlong import MemoryModel
from support.models import SHAPE, WINDOW
from support.settings import TINY_MEMORY, changed
from support.tokenizer import byte_tokenizer

TEXT_ALONE_MEMORY = TINY_MEMORY.changed(search={"index": ("heads", "lexical")}, answer={"recall_mode": "text"})

# Model type, and its config. They have learned positions, ALiBi, compressed keys and values, rotation by other modules,
# or a recurrence. The last one takes only one token at a time.
TEXT_ALONE: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": WINDOW},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4},
    "gpt_neox": {**SHAPE, "num_key_value_heads": None},
    "deepseek_v3": {
        **SHAPE,
        "num_key_value_heads": 4,
        "head_dim": 8,  # of the rotated part
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "rwkv": {"hidden_size": 64, "num_hidden_layers": 3, "context_length": WINDOW},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8},
}


def tiny_text_model(kind: str = "gpt2", **changes: Any) -> Any:
    """Make a model of TEXT_ALONE: fp32, in evaluation mode, always the same weights."""
    torch.manual_seed(0)
    ids = {"vocab_size": 257, "eos_token_id": 256, "bos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(kind, **{**TEXT_ALONE[kind], **ids, **changes})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def remembering(model: Any, memory: Any = None, **changes: Any) -> MemoryModel:
    """Give `model` a memory with TEXT_ALONE_MEMORY. `changes` are settings, as `changed` takes them."""
    return MemoryModel(model, byte_tokenizer(), memory, changed(TEXT_ALONE_MEMORY, **changes))
