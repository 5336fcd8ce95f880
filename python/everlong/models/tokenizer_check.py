"""The tokenizer beside a model: the model has a row of its embedding for each token, and no token comes later."""

from __future__ import annotations

from typing import Any

import torch

from everlong.errors import ModelMismatchError, UnsupportedModelError

# Tokens that stand for no text. Gemma 3's text model has no row for its image_token.
_OF_NO_TEXT = ("image_token", "audio_token", "video_token")


def embedding_rows(model: Any) -> int | None:
    """Return how many token ids a model knows; None where its embedding does not tell."""
    embeddings = model.get_input_embeddings()
    rows: int | None = getattr(embeddings, "num_embeddings", None)
    return rows


def require_rows(model: Any, tokenizer: Any) -> None:
    """Raise UnsupportedModelError, naming the first such token, where a tokenizer has tokens that the model lacks."""
    rows = embedding_rows(model)
    apart = {getattr(tokenizer, name, None) for name in _OF_NO_TEXT}
    ids = {index: word for word, index in tokenizer.get_vocab().items() if word not in apart}
    beyond = [index for index in ids if rows is not None and index >= rows]
    if beyond:
        first = min(beyond)
        raise UnsupportedModelError(
            f"the tokenizer's token {ids[first]!r} has the id {first}, and the model's embedding has {rows} rows "
            f"({len(beyond)} such tokens): give the tokenizer that belongs to the model, or call "
            f"model.resize_token_embeddings({max(beyond) + 1}) and train the new rows"
        )


def require_known(rows: int | None, ids: torch.Tensor) -> None:
    """Raise UnsupportedModelError where one of ids [n] has none of so many rows of the model's embedding."""
    if rows is None or len(ids) == 0:
        return
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= rows:
        raise UnsupportedModelError(
            f"the token id {least if least < 0 else most} is none of the model's: its embedding has {rows} rows"
        )


class TokenizerCheck:
    """A tokenizer as it stands when this is made."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._stood = _stands(tokenizer)

    def require_unchanged(self) -> None:
        """Raise ModelMismatchError where the tokenizer has other tokens by now. It costs microseconds."""
        count, added = _stands(self._tokenizer)
        if (count, added) == self._stood:
            return
        before = self._stood[1]
        changed = sorted(word for word in {*before, *added} if before.get(word) != added.get(word))
        raise ModelMismatchError(
            f"the tokenizer has other tokens than when this MemoryModel was made: {', '.join(map(repr, changed[:3]))}"
            f"{' and more' if len(changed) > 3 else ''}. Its memory belongs to the tokenizer as it was. Close it. Load "
            "that tokenizer again to go on with this memory, or make another memory for the one with other tokens"
        )


def _stands(tokenizer: Any) -> tuple[int, dict[str, int]]:
    added: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()  # mistral-common's tokenizers have none
    return len(tokenizer), added
