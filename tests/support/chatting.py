"""A tiny model that chats, and memories that frameworks are tested with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import everlong
from support.models import tiny_model
from support.settings import TINY_MEMORY
from support.texts import random_text
from support.tokenizer import byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
# Each has letters that no other text here has: the tiny tokenizer's words are bytes.
FACTS = {
    "garden": "The pass key of the garden shed is 48213, and it hangs behind the door.",
    "harbour": "The lighthouse of the harbour was painted RED in spring, as number XK of the coast.",
    "kitchen": "The recipe for plum cake (QZ/+) wants four eggs & a lemon.",
}


def chat_tokenizer() -> Any:
    """The byte tokenizer, with a chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def chat_memory(folder: Path | None = None) -> everlong.MemoryModel:
    """A memory with FACTS, each in a source of its own among other text: three times what its frame holds."""
    mm = everlong.MemoryModel(tiny_model(), chat_tokenizer(), folder, TINY_MEMORY)
    for number, (source, fact) in enumerate(FACTS.items()):
        mm.read(f"{random_text(300, seed=number)}\n{fact}\n{random_text(300, seed=9 + number)}", source=source)
    return mm
