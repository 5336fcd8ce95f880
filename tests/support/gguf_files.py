"""A tiny GGUF file: a llama of random weights with a tokenizer of bytes, as llama.cpp writes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

_LAYERS, _HEADS, _KV_HEADS = 2, 4, 2
Q = gguf.GGMLQuantizationType
# Where a block has scales that are binary16, by format.
HALVES = {
    Q.Q4_0: (0,),
    Q.Q4_1: (0, 2),
    Q.Q5_0: (0,),
    Q.Q5_1: (0, 2),
    Q.Q8_0: (0,),
    Q.Q4_K: (0, 2),
    Q.Q5_K: (0, 2),
    Q.Q6_K: (208,),
}
# How large the scales are, for numbers of about a twentieth.
_SIZES = {
    Q.Q4_0: 0.01,
    Q.Q4_1: 0.01,
    Q.Q5_0: 0.005,
    Q.Q5_1: 0.005,
    Q.Q8_0: 0.0007,
    Q.Q4_K: 0.0002,
    Q.Q5_K: 0.0001,
    Q.Q6_K: 0.00004,
}


def random_blocks(drawn: np.random.Generator, rows: int, columns: int, format: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return blocks uint8 [rows, bytes of a row] of any codes, whose scales are numbers of either sign."""
    elements, size = gguf.GGML_QUANT_SIZES[format]
    blocks = drawn.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for at in HALVES[format]:
        scales = drawn.standard_normal((*blocks.shape[:2], 1)) * _SIZES[format]
        blocks[..., at : at + 2] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def write_gguf(
    file: Path,
    *,
    seed: int = 0,
    format: gguf.GGMLQuantizationType = Q.Q8_0,
    width: int = 32,
    context: int = 256,
    tied: bool = False,
) -> Path:
    """Write the file and return its path. Matrices have a format whose blocks divide the width."""
    characters = sorted(bytes_to_unicode().values())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters, "th", "in"]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(characters) + 2)
    out = gguf.GGUFWriter(str(file), "llama")
    out.add_name("tiny")
    out.add_context_length(context)
    out.add_embedding_length(width)
    out.add_block_count(_LAYERS)
    out.add_feed_forward_length(2 * width)
    out.add_head_count(_HEADS)
    out.add_head_count_kv(_KV_HEADS)
    out.add_rope_dimension_count(width // _HEADS)
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
    shapes = {name: (len(tokens), width) for name in (("token_embd",) if tied else ("token_embd", "output"))}
    kv_width = width // _HEADS * _KV_HEADS
    for layer in range(_LAYERS):
        shapes |= {f"blk.{layer}.attn_{name}": (width, width) for name in ("q", "output")}
        shapes |= {f"blk.{layer}.attn_{name}": (kv_width, width) for name in ("k", "v")}
        shapes |= {f"blk.{layer}.ffn_{name}": (2 * width, width) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down"] = (width, 2 * width)
    for name, shape in shapes.items():
        out.add_tensor(f"{name}.weight", random_blocks(drawn, *shape, format), raw_dtype=format)
    norms = ["output_norm", *(f"blk.{layer}.{name}_norm" for layer in range(_LAYERS) for name in ("attn", "ffn"))]
    for name in norms:
        out.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file
