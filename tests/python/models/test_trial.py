"""What all trials of a model have in common."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong.models.trial import spread, trial_ids


class _Embedded:
    """A model of which no more than its embeddings is there."""

    def __init__(self, vocabulary: int) -> None:
        self._embeddings = torch.nn.Embedding(vocabulary, 1)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self._embeddings


@given(st.integers(2, 64), st.integers(0, 1_000))
def test_ids_are_of_the_whole_vocabulary_and_differ(tokens: int, further: int) -> None:
    vocabulary = 1 + tokens + further
    ids = trial_ids(_Embedded(vocabulary), tokens)
    assert (ids.dtype, ids.shape) == (torch.int64, (tokens,))
    assert (int(ids[0]), int(ids[-1])) == (1, vocabulary - 1)
    assert (ids.diff() > 0).all()


def test_what_is_added_to_a_row_is_no_spread() -> None:
    logits = torch.tensor([[3.0, -1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(spread(logits)) == pytest.approx(8**0.5)
    assert float(spread(logits + torch.tensor([[7.0], [-5.0]], dtype=torch.float64))) == pytest.approx(8**0.5)
