"""What text becomes: token ids, prompts, boundaries of blocks, sentences, control tokens, an encoder's vectors."""

from typing import Final

MAY_IMPORT: Final = ("errors",)
