"""Query heads that share a key head, one token at a time: the same logits, with a mask where it serves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import everlong
from everlong.models.packing import open_mask, packed, packs
from everlong.models.releases import PACKS_QUERIES
from support import ARCHITECTURES, OWN_STATE, SMALL, TOLERANCE, byte_tokenizer, random_text, tiny_model


@contextlib.contextmanager
def masks_of(model: Any) -> Iterator[list[Any]]:
    """The attention masks that the model's forwards of one token get, behind whatever hooks it has by now."""
    seen: list[Any] = []

    def note(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs["input_ids"].shape[-1] == 1:
            seen.append(kwargs.get("attention_mask"))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def is_open(mask: Any) -> bool:
    return mask is not None and mask.ndim == 4


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_a_frame_says_the_same_with_packed_queries(kind: str, rope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(kind, rope)
    said = []
    for packing in (True, False):
        if not packing:
            monkeypatch.setattr("everlong.kv_cache.forward.packs", lambda model: False)
        with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm, masks_of(model) as seen:
            ids = mm.encode(random_text(400))
            mm.frame.extend(ids[:360], "read")
            said.append(torch.cat([mm.frame.extend(token[None], "read") for token in ids[360:]]))
            alone = not mm.frame.cache.own
        assert len(seen) == 40
        assert all(is_open(mask) == (packing and alone and PACKS_QUERIES) for mask in seen)
    torch.testing.assert_close(*said, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("kind", "rope"), [("llama", "default"), *OWN_STATE])
def test_generate_says_the_same_with_packed_queries(kind: str, rope: str) -> None:
    """Where every layer sees all tokens; elsewhere it is left as it is."""
    model = tiny_model(kind, rope)
    ids = torch.randint(5, 200, (1, 60), generator=torch.Generator().manual_seed(1))
    how = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 12,
        "do_sample": False,
        "pad_token_id": 256,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    plain = model.generate(ids, **how)
    with packed(model), masks_of(model) as seen:
        again = model.generate(ids, **how)
    assert len(seen) >= len(again.logits) - 1
    assert all(is_open(mask) == (kind == "llama" and PACKS_QUERIES) for mask in seen)
    assert torch.equal(again.sequences, plain.sequences)
    torch.testing.assert_close(torch.stack(again.logits), torch.stack(plain.logits), atol=TOLERANCE, rtol=0)
    with masks_of(model) as seen:
        model.generate(ids, **how)
    assert not any(map(is_open, seen)), "the hook is gone"


def test_another_attention_gets_no_mask() -> None:
    model = tiny_model()
    assert packs(model) == PACKS_QUERIES
    model.set_attn_implementation("eager")
    assert not packs(model)


def test_heads_that_share_nothing_get_no_mask() -> None:
    model = tiny_model(num_key_value_heads=4)
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm, masks_of(model) as seen:
        mm.frame.extend(mm.encode(random_text(1)), "read")
        assert not any(map(is_open, seen))
        assert len(seen) == 1


def test_an_open_mask_hides_nothing() -> None:
    q, k, v = (torch.randn(1, 2, n, 8, generator=torch.Generator().manual_seed(n)) for n in (1, 9, 10))
    v = v[:, :, :9]
    attention = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(attention(q, k, v, attn_mask=open_mask(9)), attention(q, k, v))
