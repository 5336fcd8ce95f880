"""Payloads on their way between memory and device."""

from __future__ import annotations

import pytest
import torch

from everlong.frame.transfer import Archived, PayloadTransfer


def archive(transfer: PayloadTransfer, values: torch.Tensor) -> Archived:
    """Archive a payload of these bytes, uint8 [n] on the device, and wait for it."""
    return transfer.archive(len(values), lambda out, _: out.copy_(values), lambda _: None)()


def store_beside(monkeypatch: pytest.MonkeyPatch, copies: bool = True) -> list[PayloadTransfer]:
    """Make frames copy payloads in a worker thread and store blocks beside forwards, as on a GPU.

    Returns a list that gets the transfer of every frame made from now on.
    """
    made: list[PayloadTransfer] = []

    def make(device: torch.device, largest_page: int, largest_block: int) -> PayloadTransfer:
        made.append(PayloadTransfer(device, largest_page, largest_block, copies=copies))
        return made[-1]

    monkeypatch.setattr("everlong.frame.pages.PayloadTransfer", make)
    return made
