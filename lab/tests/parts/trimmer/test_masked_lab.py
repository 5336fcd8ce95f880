"""Attention whose keys count with weights: against the formula, and beside the model's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from everlong_lab.parts.trimmer.masked import MaskedAttention
from support import tiny_model


def test_attention_is_multiplied_and_renormalised() -> None:
    """Against the formula in numpy, fp64, token by token; two queries share a key head."""
    random = np.random.default_rng(0)
    q, k, v = (torch.from_numpy(random.normal(size=shape)) for shape in ((2, 4, 3, 6), (2, 2, 8, 6), (2, 2, 8, 6)))
    weights = torch.from_numpy(random.uniform(0, 1, size=(2, 5)))
    masked = MaskedAttention(None, weights)
    found = masked.attend(q, k, v, 0.4)
    lost = []
    for row in range(2):
        for head in range(4):
            for at in range(3):
                scores = k[row, head // 2].numpy() @ q[row, head, at].numpy() * 0.4
                shares = np.exp(scores - scores.max()) * (np.arange(8) <= 5 + at)
                own = shares * np.concatenate([weights[row].numpy(), np.ones(3)])
                expected = (own / own.sum()) @ v[row, head // 2].numpy()
                np.testing.assert_allclose(found[row, head, at].numpy(), expected, atol=1e-6)
                lost.append(-np.log(own.sum() / shares.sum()))
    assert float(masked.lost()) == pytest.approx(np.mean(lost), abs=1e-6)


def test_lost_attention_is_the_divergence_of_what_is_left() -> None:
    """For weights of 0 and 1: KL(student || teacher) of the two softmaxes."""
    random = np.random.default_rng(1)
    q, k, v = (torch.from_numpy(random.normal(size=shape)) for shape in ((1, 1, 1, 4), (1, 1, 7, 4), (1, 1, 7, 4)))
    weights = torch.tensor([[1.0, 0, 1, 0, 0, 1]]).double()
    masked = MaskedAttention(None, weights)
    masked.attend(q, k, v, 1.0)
    teacher = torch.softmax((k @ q.transpose(-1, -2))[0, 0, :, 0], dim=0)
    student = teacher * torch.cat([weights[0], torch.ones(1)])
    student = student / student.sum()
    expected = torch.special.xlogy(student, student / teacher).sum()
    assert float(masked.lost()) == pytest.approx(float(expected), abs=1e-6)


def test_keys_that_all_count_fully_change_nothing_and_nothing_is_written_to_the_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ids = tiny_model(), torch.arange(12)[None]
    with torch.no_grad():
        expected = model(ids).logits
        monkeypatch.setattr(type(model.config), "__setattr__", lambda *_: pytest.fail("it was written to"))
        with MaskedAttention(model, torch.ones(1, 4)):
            found = model(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
