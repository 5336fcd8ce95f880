"""Head A: blocks with questions that words alone do not decide, what is learned of them, and the controls."""

from __future__ import annotations

import numpy as np
import torch

from everlong.parts.writer.decider import Decider, DeciderSettings, odds


def small_decider(size: int = 12, seed: int = 0) -> Decider:
    torch.manual_seed(seed)
    decider = Decider(DeciderSettings(size, width=16, heads=4, inner=24))
    torch.nn.init.normal_(decider.kinds.weight)
    return decider


def test_padding_and_other_questions_change_no_decision() -> None:
    decider = small_decider()
    torch.manual_seed(1)
    question, details = torch.randn(1, 5, 12), torch.randn(1, 7, 12)
    alone = decider(question, torch.ones(1, 5, dtype=torch.bool), details)
    padded = torch.cat([torch.nn.functional.pad(question, (0, 0, 0, 4), value=9.0), torch.randn(1, 9, 12)])
    asked = torch.tensor([[True] * 5 + [False] * 4, [True] * 9])
    together = decider(padded, asked, details.expand(2, -1, -1))
    assert (together[0] - alone[0]).abs().max() < 1e-5
    assert (together[1] - alone[0]).abs().max() > 1e-3
    # Of D it is what stands there that counts, and without any only the question.
    assert (decider(question, asked[:1, :5], details.flip(-1)) - alone).abs().max() > 1e-3
    assert torch.equal(
        decider(question, asked[:1, :5], details[:, :0]), decider(question, asked[:1, :5], details[:, :0])
    )


def test_the_decision_is_the_log_odds_of_its_kinds() -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0], [4.0, 0.0, 0.5]], dtype=torch.float64)
    share = np.exp(logits.numpy())
    share /= share.sum(axis=1, keepdims=True)
    assert np.abs(odds(logits).numpy() - np.log(share[:, 0] / (1 - share[:, 0]))).max() < 1e-12
