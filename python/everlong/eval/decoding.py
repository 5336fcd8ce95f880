"""How every answer of an evaluation is decoded, whoever gives it."""

from __future__ import annotations

from typing import Any

# For `generate`: greedy, and no penalty on repeating, whatever the model's own settings are. Penalties count the
# prompt, in which text retrieval and the gold text have the answer; of a memory's pages they know nothing. How many
# tokens at most, each caller says.
AS_MEASURED: dict[str, Any] = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
}
