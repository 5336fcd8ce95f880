"""Tiny random models and a byte tokenizer: every architecture that is served, without a file."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

WINDOW = 2048


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a byte, ids 0..255, and <end> as 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


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

_ROPE = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    },
}


def tiny_model(kind: str = "llama", rope: str = "default", seed: int = 0) -> transformers.PreTrainedModel:
    """`kind` llama or qwen3; fp32, evaluation mode, the same weights for the same seed."""
    configs = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}
    torch.manual_seed(seed)
    config = configs[kind](**_SHAPE, rope_parameters=dict(_ROPE[rope]))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Freshly initialised weights give almost flat attention; larger ones make positions and keys matter.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    return model.eval()


TINY_KINDS = [("llama", "default"), ("llama", "llama3"), ("llama", "yarn"), ("qwen3", "default")]
