"""Tiny random models and a byte tokenizer: every architecture that is served, without a file."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from everlong import AnswerConfig, ArchiveConfig, FrameConfig, MemoryConfig, SearchConfig
from everlong.settings import where_is

WINDOW = 2048
# A frame that a tiny model's window holds twice, for texts of some thousand tokens.
TINY_MEMORY = MemoryConfig(
    frame=FrameConfig(
        tokens=768, sink_tokens=4, recalled_tokens=256, rolling_tokens=256, evict_tokens=64, chunk_tokens=128
    ),
    archive=ArchiveConfig(block_tokens=128, codec="fp32"),
    search=SearchConfig(index=("lexical",)),
    answer=AnswerConfig(quotes=0),
)


def changed(config: MemoryConfig, **settings: Any) -> MemoryConfig:
    """With settings by their own names: each goes to the group that has it, `parts` to the top."""
    parts = settings.pop("parts", config.parts)
    groups: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, _, own = where_is(name).partition(".")
        assert group, name
        groups.setdefault(group, {})[own] = value
    return config.changed(**groups, parts=parts)


def byte_tokenizer(*, begins: bool = False) -> transformers.PreTrainedTokenizerFast:
    """One token a byte, ids 0..255, and <end> as 256; with `begins`, <begin> as 257 before every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if not begins:
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    tokenizer.add_special_tokens(["<end>", "<begin>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 257)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", bos_token="<begin>")


_SHAPE = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": WINDOW,
    "eos_token_id": 256,
    "pad_token_id": None,
    "bos_token_id": None,
}

_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
_ROPE: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": _YARN,
    "proportional": {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "partial": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    # 1.3 to 2 times slower for short texts, 2 to 9 times for long ones; WINDOW / 512 gives m = 1.105.
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.3 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 512,
    },
    # A table for each type of layers.
    "nested": {
        "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
_ROPE["nested proportional"] = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 100000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_MIXED = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 48}
_LINEAR = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}

# Model type, and what its config has beside _SHAPE.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),  # a window as long as any frame
    "gemma3": ("gemma3_text", _MIXED),
    # Full attention with a head_dim of its own; its last two layers use the keys of those before.
    "gemma4": (
        "gemma4_text",
        {
            **_MIXED,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 257,
        },
    ),
    "gpt_oss": ("gpt_oss", {**_MIXED, **_EXPERTS}),  # attention sinks
    "phi3": ("phi3", {"original_max_position_embeddings": 512}),
    "qwen3_next": ("qwen3_next", {**_LINEAR, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}),
    "qwen3_5": ("qwen3_5_text", _LINEAR),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "glm": ("glm", {}),  # interleaved
    "cohere": ("cohere", {}),  # interleaved, and so are its cos and sin
    "cohere2": ("cohere2", _MIXED),  # its full-attention layers are NoPE
}


def tiny_model(kind: str = "llama", rope: str = "default", seed: int = 0, **changes: Any) -> Any:
    """A model of KINDS with a RoPE of _ROPE: fp32, evaluation mode, the same weights for the same seed."""
    model_type, own = KINDS[kind]
    torch.manual_seed(seed)
    shape = {**_SHAPE, **own, "rope_parameters": copy.deepcopy(_ROPE[rope]), **changes}
    config = transformers.AutoConfig.for_model(model_type, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Freshly initialised weights give almost flat attention; larger ones make positions and keys matter.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
            elif kind == "gemma4" and name.endswith("q_norm.weight"):
                parameter.mul_(0.25)  # it has no 1/sqrt(D): scores would be those of a model that ran away
    return model.eval()


# Every architecture once. Those of OWN_STATE have layers that are not archived.
OWN_STATE = [
    ("gemma3", "nested"),
    ("gemma4", "nested proportional"),
    ("gpt_oss", "yarn"),
    ("qwen3_next", "partial"),
    ("qwen3_5", "partial"),
    ("cohere2", "default"),
]
ARCHITECTURES = [
    ("llama", "default"),
    ("qwen3", "yarn"),
    ("mistral", "default"),
    ("phi3", "longrope"),
    ("smollm3", "default"),
    ("glm", "partial"),
    ("cohere", "default"),
    *OWN_STATE,
]
TINY_KINDS = [
    *ARCHITECTURES,
    ("llama", "llama3"),
    ("llama", "linear"),
    ("llama", "dynamic"),
    ("llama", "yarn"),
    ("llama", "proportional"),
]

# Models whose keys and values cannot be spliced: type, and its config. Learned positions, ALiBi, keys and values that
# are compressed or rotated by modules of another kind, and recurrences; the last one takes one token at a time only.
TEXT_ALONE: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": WINDOW},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4},
    "gpt_neox": {**_SHAPE, "num_key_value_heads": None},
    "deepseek_v3": {
        **_SHAPE,
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
    """A model of TEXT_ALONE: fp32, evaluation mode, always the same weights."""
    torch.manual_seed(0)
    ids = {"vocab_size": 257, "eos_token_id": 256, "bos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(kind, **{**TEXT_ALONE[kind], **ids, **changes})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
