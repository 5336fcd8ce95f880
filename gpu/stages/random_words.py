"""A random Qwen3 of any size, made on the device, and a tokenizer of words for it: "w17" is token 17."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

_WINDOW = 40960
_THETA = 1e6


def word_tokenizer(words: int) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer with one token a word, ids 0 to words - 1."""
    vocab = {word(token): token for token in range(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token=word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def word(token: int) -> str:
    return f"w{token}"


def as_text(ids: Iterable[int]) -> str:
    return " ".join(map(word, ids))


class Words:
    """Random token ids in [first, words), with common ones often, as in a text; the lowest is the most common."""

    def __init__(self, words: int, first: int, seed: int = 0) -> None:
        self._first, self._words = first, words
        self._rng = np.random.default_rng(seed)

    def ids(self, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        ratio = self._words / self._first
        drawn = self._first * ratio ** self._rng.random(count)
        return np.minimum(drawn.astype(np.int32), self._words - 1)

    def text(self, count: int) -> str:
        return as_text(self.ids(count).tolist())


def random_qwen3(device: torch.device, **shape: int) -> Any:
    """Return a model with random bf16 weights that were made on the device; `shape` as its config names it."""
    config = transformers.AutoConfig.for_model(
        "qwen3",
        max_position_embeddings=_WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA},
        tie_word_embeddings=False,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=None,
        **shape,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _require_sound(model.eval(), device)
    return model


def _require_sound(model: Any, device: torch.device) -> None:
    """Require that weights are on the device and of one dtype, and that frequencies are RoFormer's,
    not stale memory.
    """
    for name, parameter in model.named_parameters():
        if parameter.device != device or parameter.dtype != torch.bfloat16:
            raise AssertionError(f"{name} is {parameter.dtype} on {parameter.device}, expected bfloat16 on {device}")
    found = model.model.rotary_emb.inv_freq
    pairs = torch.arange(0, model.config.head_dim, 2, dtype=torch.float64, device="cpu")
    expected = _THETA ** -(pairs / model.config.head_dim)
    if found.dtype != torch.float32:
        raise AssertionError(f"the rotary frequencies are {found.dtype}, expected float32")
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=0)
