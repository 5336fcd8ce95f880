"""Streams that begin with what the tokenizer puts before every text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import everlong
from support import SMALL, byte_tokenizer, changed, random_text, tiny_model

TEXT = random_text(600)

BEGIN = 257

# Its template writes BOS itself, as those of Llama 3 and Gemma do.
TEMPLATE = "<begin>{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


def model_and_tokenizer(*, chat: bool = False) -> tuple[Any, Any]:
    tokenizer = byte_tokenizer(begins=True)
    if chat:
        tokenizer.chat_template = TEMPLATE
    return tiny_model(vocab_size=258), tokenizer


def open_model(folder: Path | None = None, **config: Any) -> everlong.MemoryModel:
    return everlong.MemoryModel(*model_and_tokenizer(), folder, config=changed(SMALL, **config))
