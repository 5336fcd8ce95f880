"""How every answer of an evaluation is decoded, for every method."""

from __future__ import annotations

from typing import Any

# For `generate`: greedy, with no penalty on repetition, whatever the model's own settings are. A penalty counts the
# prompt, where text retrieval and the gold text have the answer, but not a memory's pages. Each caller sets its own
# limit of tokens.
AS_MEASURED: dict[str, Any] = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
}
