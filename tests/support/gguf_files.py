"""A tiny GGUF file: a llama of random weights with a tokenizer of bytes, as llama.cpp writes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

_LAYERS, _WIDTH, _HEADS, _INNER = 2, 32, 2, 64


def write_gguf(file: Path, *, seed: int = 0) -> Path:
    """Write the file and return its path."""
    characters = sorted(bytes_to_unicode().values())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters, "th", "in"]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(characters) + 2)
    out = gguf.GGUFWriter(str(file), "llama")
    out.add_name("tiny")
    out.add_context_length(256)
    out.add_embedding_length(_WIDTH)
    out.add_block_count(_LAYERS)
    out.add_feed_forward_length(_INNER)
    out.add_head_count(_HEADS)
    out.add_head_count_kv(_HEADS)
    out.add_rope_dimension_count(_WIDTH // _HEADS)
    out.add_rope_freq_base(10_000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges([f"{a} {b}" for a, b in (("t", "h"), ("i", "n"))])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    drawn = np.random.default_rng(seed)
    shapes = {"token_embd": (len(tokens), _WIDTH), "output": (len(tokens), _WIDTH)}
    for layer in range(_LAYERS):
        shapes |= {f"blk.{layer}.attn_{name}": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{layer}.ffn_{name}": (_INNER, _WIDTH) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down"] = (_WIDTH, _INNER)
    for name, shape in shapes.items():
        weight = drawn.standard_normal(shape).astype(np.float32) * 0.1
        quantized = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
        out.add_tensor(f"{name}.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    norms = ["output_norm", *(f"blk.{layer}.{name}_norm" for layer in range(_LAYERS) for name in ("attn", "ffn"))]
    for name in norms:
        out.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file
