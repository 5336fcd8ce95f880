"""Towers over Detail Tokens: what they are trained on, what a block's vectors are made of, and their search."""

from __future__ import annotations

import pytest
import torch

from everlong.parts.towers.model import groups_of, means


@pytest.mark.parametrize("tokens", [1, 8, 9, 64, 65, 130])
def test_a_block_has_as_many_vectors_as_its_pages_have_groups(tokens: int) -> None:
    assert groups_of(tokens, 64, 12) == len(means(torch.zeros(tokens, 2), 64, 12))
