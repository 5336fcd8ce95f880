"""Control tokens: a model signals the Memory OS by them, and marks tell it where Detail Tokens stand.

The first kind is added on request. Without them the same signals go through `MemoryModel.signal`.
"""

from __future__ import annotations

from typing import Any

from everlong.text.encoding import encode

SUMMARIZE = "<SUMMARIZE>"  # the block ends here
RETRIEVE = "<RETRIEVE>"  # bring back what the newest tokens ask for
MEM_START, MEM_END = "<MEM_START>", "<MEM_END>"  # stand around Detail Tokens, in a tokenizer that has them
_MARKS = ("\n\n[", "]\n\n")  # stand there in any other tokenizer


def add_control_tokens(model: Any, tokenizer: Any) -> dict[str, int]:
    """Make SUMMARIZE and RETRIEVE special tokens of tokenizer and embeddings. Return their ids.

    Their embeddings start at the mean of the others, as transformers resizes them. Where embeddings are larger than the
    vocabulary, they start at what stands in the spare rows. Do it before a memory is made: a memory belongs to a
    tokenizer, and this makes another one of it. Doing it twice does nothing.
    """
    tokenizer.add_special_tokens({"extra_special_tokens": [SUMMARIZE, RETRIEVE]}, replace_extra_special_tokens=False)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=True)
    return control_ids(tokenizer)


def control_ids(tokenizer: Any) -> dict[str, int]:
    """Return ids of the control tokens that a tokenizer has."""
    vocabulary: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()  # mistral-common's tokenizers have none
    return {token: vocabulary[token] for token in (SUMMARIZE, RETRIEVE) if token in vocabulary}


def memory_marks(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return ids of what Detail Tokens stand between.

    They are MEM_START and MEM_END where the tokenizer has them, else brackets in plain text, which every model knows.
    """
    vocabulary: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    if MEM_START in vocabulary and MEM_END in vocabulary:
        return (vocabulary[MEM_START],), (vocabulary[MEM_END],)
    opening, closing = (tuple(encode(tokenizer, mark).tolist()) for mark in _MARKS)
    return opening, closing
