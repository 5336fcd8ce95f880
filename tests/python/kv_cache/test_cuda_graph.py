"""A token computed over all slots under a mask, as a CUDA graph plays it, beside the frame's own forward.

Nothing is recorded here: that takes a GPU (tests/python/gpu/test_gpu_captured_step.py).
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import everlong
from everlong.frame.kv_zones import KvZones
from everlong.kv_cache.cuda_graph import GraphStep
from support import OWN_STATE, SMALL, TINY_KINDS, TOLERANCE, byte_tokenizer, random_text, tiny_model


def by_both(mm: everlong.MemoryModel, zones: KvZones, token: int) -> None:
    """Compute one token both ways. The logits and what the slots hold must agree."""
    cache, frame = zones.cache, mm.frame
    step = GraphStep(frame.served, cache, zones.computing.phase)
    position = frame.os.next_position() + frame.served.first_position
    end = cache.end
    step.give(token, position)
    with torch.no_grad(), mock.patch("torch.bmm", wraps=torch.bmm) as products:
        masked = step.compute()
    assert products.call_count == 2 * cache.k.shape[0]  # every layer attends so
    assert cache.end == end
    written = [cache.k[:, :, end].clone(), cache.v[:, :, end].clone(), cache.cos[end].clone(), cache.sin[end].clone()]
    for buffer in (cache.k, cache.v):
        buffer[:, :, end] = 7
    with frame.branch():
        expected = frame.extend(torch.tensor([token]), "generated")
        torch.testing.assert_close(masked, expected, atol=TOLERANCE, rtol=0)
        own = [cache.k[:, :, end], cache.v[:, :, end], cache.cos[end], cache.sin[end]]
        for one, other in zip(written, own, strict=True):
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("kind", "rope"), [kind for kind in TINY_KINDS if kind not in OWN_STATE])
def test_all_slots_under_a_mask_give_what_the_slots_in_use_give(kind: str, rope: str) -> None:
    """In an empty frame, in one that has evicted, and behind pages that came back."""
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), None, SMALL) as mm:
        zones = mm.frame.zones
        assert isinstance(zones, KvZones)
        mm.frame.extend(mm.encode(random_text(60)), "read")
        by_both(mm, zones, 17)
        mm.read(random_text(900))
        assert mm.frame.os.evicted
        by_both(mm, zones, 99)
        mm.frame.recall(mm.memory.core.blocks.pages()[2:5])
        assert zones.cache.recalled > 0
        by_both(mm, zones, 200)


def test_without_a_gpu_no_step_is_recorded() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL) as mm:
        assert isinstance(mm.frame.zones, KvZones)
        step = mm.frame.zones.computing.step
        assert len(mm.generate("What did it say?", max_new_tokens=12).token_ids) > 0
        assert not step.recorded
