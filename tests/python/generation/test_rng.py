"""Nothing that everlong does draws from the global generators: a caller's seed is the caller's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from everlong import doctor
from everlong.frame.part import PartSettings
from everlong.models.low_rank import LowRankMaps, MapSettings
from everlong.models.pack import shipped_packs
from everlong.parts.retrieve.model import RETRIEVE, RetrieveRow
from everlong.parts.towers.model import TOWERS, LateTowers
from everlong.parts.trigger.model import TRIGGER, TriggerNet
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet
from everlong.parts.walker import Walker
from everlong.parts.walker.model import WALKER, WalkerNet, shipped_walker
from everlong.parts.writer.model import WRITER, WriterNet
from support import SMALL, byte_tokenizer, random_text, tiny_model, tiny_text_model
from support.rng import no_global_draws


@pytest.mark.parametrize("parts", [(), (Walker(ahead_every=1),)], ids=["plain", "walker"])
def test_no_step_of_a_memory_s_life_draws(parts: tuple[PartSettings, ...], tmp_path: Path) -> None:
    model, tokenizer, text = tiny_model(), byte_tokenizer(), random_text(1500)
    config = SMALL.changed(parts=parts)
    shipped_walker.cache_clear()  # as in a new process
    with no_global_draws():
        with everlong.MemoryModel(model, tokenizer, tmp_path / "m", config) as mm:
            mm.read(text[:1400], source="a")
            mm.read(iter([text[1400:]]), source="b")
            mm.generate(text[:20], max_new_tokens=3)
            "".join(mm.stream(text[:20], max_new_tokens=3, remember=False))
            mm.answer_many([text[:20]], max_new_tokens=2)
            mm.recall(text[:20])
            mm.calibrate()
            for policy in ("recent", "prompt", "random", "window"):
                mm.perplexity(text[:100], policy=policy)
            mm.trace()
        with (
            everlong.Memory.open(tmp_path / "m") as memory,
            everlong.MemoryModel(model, tokenizer, memory, config) as mm,
        ):
            mm.recall(text[:20])
            mm.memory.forget(source="a")


def test_a_memory_of_text_alone_draws_nothing() -> None:
    config = SMALL.changed(answer={"recall_mode": "text"})
    model = tiny_text_model("gpt2")
    with no_global_draws(), everlong.MemoryModel(model, byte_tokenizer(), None, config) as mm:
        mm.read(random_text(500))
        mm.generate("a", max_new_tokens=2)


def test_the_doctor_draws_nothing() -> None:
    model = tiny_model()
    with no_global_draws():
        doctor.examine(model, byte_tokenizer(), tokens=64)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (WALKER, WalkerNet),
        (TRIMMER, TrimmerNet),
        (TOWERS, LateTowers),
        (TRIGGER, TriggerNet),
        (WRITER, WriterNet),
        (RETRIEVE, RetrieveRow),
    ],
)
def test_a_shipped_part_is_made_without_draws(part: str, kind: Any) -> None:
    kept = next((pack.parts[part] for pack in shipped_packs() if part in pack.parts), None)
    if kept is None:
        pytest.skip(f"no pack has a {part}")
    with no_global_draws():
        kind.of_part(kept)


def test_an_untrained_writer_draws_from_its_own_seed() -> None:
    part = next(pack.parts[WRITER] for pack in shipped_packs() if WRITER in pack.parts)
    settings = WriterNet.of_part(part).settings
    with no_global_draws():
        made = [WriterNet.untrained(settings, seed=seed) for seed in (5, 5, 6)]
        LowRankMaps(MapSettings(rank=2), {"a": (3, 4)}, seed=1)
    first, again, other = (torch.cat([tensor.flatten() for tensor in one.parameters()]) for one in made)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
