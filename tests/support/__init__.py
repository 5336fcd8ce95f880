"""What the tests share. Each module is one concept, and the names here are all that most tests of a model need.

Test files import from here, never from each other.
"""

from support.memories import open_model
from support.models import ARCHITECTURES, OWN_STATE, TINY_KINDS, WINDOW, deep_model, tiny_model
from support.plain import TOLERANCE, next_logits, plain_logits
from support.repository import REPOSITORY, TESTS
from support.settings import ROOMY, SMALL, TINY_MEMORY, WINDOW_ONLY, changed
from support.text_alone import TEXT_ALONE, tiny_text_model
from support.texts import random_text
from support.tokenizer import byte_tokenizer

__all__ = [
    "ARCHITECTURES",
    "OWN_STATE",
    "REPOSITORY",
    "ROOMY",
    "SMALL",
    "TESTS",
    "TEXT_ALONE",
    "TINY_KINDS",
    "TINY_MEMORY",
    "TOLERANCE",
    "WINDOW",
    "WINDOW_ONLY",
    "byte_tokenizer",
    "changed",
    "deep_model",
    "next_logits",
    "open_model",
    "plain_logits",
    "random_text",
    "tiny_model",
    "tiny_text_model",
]
