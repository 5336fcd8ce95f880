"""The transform codec of a model: its tables against their definition in numpy, and a memory that is coded by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import everlong._core as _core
from everlong import Memory, MemoryModel
from everlong.codecs import transform
from everlong.codecs.coded_context import NEWEST, SINKS, CodedContext, through_memory
from everlong.codecs.sensitivity import sensitivity
from everlong.codecs.transform_tables import Samples, bases_of, spans_of, tables_file
from everlong.errors import CorruptMemoryError, MemoryNotFoundError, ModelMismatchError
from support import byte_tokenizer, random_text, tiny_model
from support.kept_tokens import KEPT_TOKENS

SHAPE = (4, 2, 8)  # layers, heads, head_dim
ALIKE = (torch.ones(4, 2), torch.ones(4, 2))  # sensitivities


def samples(seed: int, count: int = 3, tokens: int = 200) -> Samples:
    """Return keys and values whose numbers hang together, as a model's do: 9 of 64 directions have most of it."""
    generator = torch.Generator().manual_seed(seed)
    layers, heads, dim = SHAPE
    mixed = torch.randn(2, 9, layers * heads * dim, generator=torch.Generator().manual_seed(0))

    def one(which: int) -> torch.Tensor:
        x = 3 * torch.randn(tokens, 9, generator=generator) @ mixed[which]
        x += 0.3 * torch.randn(x.shape, generator=generator) + 5 * mixed[which, 0]
        return x.reshape(tokens, layers, heads, dim).permute(1, 2, 0, 3).contiguous()

    return [(one(0), one(1)) for _ in range(count)]


def decoded_by_definition(k: torch.Tensor, v: torch.Tensor, tables: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Round the coefficients of k, v [layers, heads, tokens, head_dim] to the tables' steps, in fp64."""
    file = safetensors.torch.load(tables)
    out = [x.double().numpy().copy() for x in (k, v)]
    for group in range(sum(name.endswith(".span") for name in file)):
        keys, first, count = file[f"group{group}.span"].tolist()
        mean, scales, basis = (file[f"group{group}.{name}"].double().numpy() for name in ("mean", "scales", "basis"))
        basis /= 2**15
        x = out[0 if keys else 1][first : first + count]
        rows = x.transpose(2, 0, 1, 3).reshape(x.shape[2], -1)
        rows = mean + np.rint((rows - mean) / scales @ basis.T) @ basis * scales
        x[:] = rows.reshape(x.shape[2], *x.shape[:2], x.shape[3]).transpose(1, 2, 0, 3)
    return out[0], out[1]


def test_layers_fall_into_groups_of_about_one_width() -> None:
    for layers, numbers in ((30, 192), (24, 128), (28, 256), (18, 256), (36, 1024), (3, 5000), (1, 2)):
        spans = spans_of(layers, numbers)
        assert [layer for first, count in spans for layer in range(first, first + count)] == list(range(layers))
        widths = [count for _, count in spans]
        assert max(widths) - min(widths) <= 1
        assert max(widths) * numbers <= max(1536, numbers)


@pytest.mark.parametrize("step", [0.5, 0.1, 0.02])
def test_a_memory_gives_back_what_the_tables_say(step: float) -> None:
    tables = tables_file(bases_of(samples(1), samples(2), ALIKE), step, "w", SHAPE)
    (k, v) = samples(3, 1)[0]
    got_k, got_v, size = through_memory(k, v, "", tables, weights="w")
    spread = sum(float(x.var(2).mean().sqrt()) for x in (k, v)) / 2
    for got, expected, x in zip((got_k, got_v), decoded_by_definition(k, v, tables), (k, v), strict=True):
        assert np.abs(got.numpy() - expected).mean() < 0.03 * step * spread  # fp32 rounds some codes otherwise
        assert float((got - x).pow(2).mean().sqrt()) < step * spread + 0.5
    assert size < 2 * 64 * 2 / 2  # less than half of bfloat16


def test_what_the_answers_hang_on_is_coded_finer() -> None:
    uneven = (torch.ones(4, 2), torch.ones(4, 2))
    uneven[0][2, 1] = 100.0
    (k, v) = samples(3, 1)[0]
    errors = []
    for sensitivities in (ALIKE, uneven):
        tables = tables_file(bases_of(samples(1), samples(2), sensitivities), 0.5, "w", SHAPE)
        got, _, _ = through_memory(k, v, "", tables, weights="w")
        errors.append((got - k).pow(2).mean((2, 3)))
    assert errors[1][2, 1] < 0.3 * errors[0][2, 1]


def test_the_sensitivity_foretells_the_kl() -> None:
    served = transform.attach(tiny_model(), 256)
    ids = torch.randint(0, 200, (288,), generator=torch.Generator().manual_seed(1))
    context = CodedContext.read(served, ids, 256)
    generator = torch.Generator().manual_seed(2)
    found = [sensitivity(context, generator) for _ in range(8)]
    inside = 256 - SINKS - NEWEST
    for which in (0, 1):
        of_numbers = torch.stack([one[which] for one in found]).mean(0)
        for layer in range(served.layers):
            for head in range(served.kv_heads):
                changed = [context.k.clone(), context.v.clone()]
                noise = torch.randn(changed[which][layer, head].shape, generator=generator)
                size = 0.1 * float(changed[which][layer, head].std())
                changed[which][layer, head] += size * noise
                foretold = (
                    0.5 * size**2 * float(of_numbers[layer, head]) * inside * served.head_dim / len(context.after)
                )
                assert context.nearness(changed[0], changed[1]).kl == pytest.approx(foretold, rel=0.7)


def test_finer_steps_are_nearer_and_larger() -> None:
    bases = bases_of(samples(1), samples(2), ALIKE)
    (k, v) = samples(3, 1)[0]
    errors, sizes = [], []
    for step in (0.5, 0.2, 0.08, 0.03):
        got, _, size = through_memory(k, v, "", tables_file(bases, step, "w", SHAPE), weights="w")
        errors.append(float((got - k).pow(2).mean()))
        sizes.append(size)
    assert errors == sorted(errors, reverse=True)
    assert sizes == sorted(sizes)


def test_a_context_that_is_given_back_exactly_says_the_same() -> None:
    model = tiny_model()
    served = transform.attach(model, 256)
    ids = torch.randint(0, 200, (300,), generator=torch.Generator().manual_seed(1))
    context = CodedContext.read(served, ids, 256)
    assert context.nearness(context.k, context.v).kl == pytest.approx(0, abs=1e-6)
    k, v, _ = through_memory(context.k, context.v, "int8")
    assert 0 <= context.nearness(k, v).kl < context.nearness(*through_memory(context.k, context.v, "int4")[:2]).kl


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"_CONTEXT": 256, "_AFTER": 32, "_FITTED": 3, "_HELD_OUT": 1}.items():
        monkeypatch.setattr(transform, name, value)
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))


def test_tables_are_fitted_once_and_keep_to_the_quality(quick: None, tmp_path: Path) -> None:
    told: list[str] = []
    coarse = transform.tables_for(tiny_model(), byte_tokenizer(), 10.0, log=told.append)
    assert any("is read" in line for line in told)
    told.clear()
    assert transform.tables_for(tiny_model(), byte_tokenizer(), 10.0, log=told.append) == coarse
    assert told == []
    with pytest.raises(ValueError, match="quality is 0"):
        transform.tables_for(tiny_model(), byte_tokenizer(), 0)
    fitted = transform.fit_bases(tiny_model(), byte_tokenizer())
    assert fitted.tables(transform.STEPS[0]) == coarse
    sizes = [fitted.judge(fitted.tables(step))[0] for step in transform.STEPS]
    assert sizes == sorted(sizes)


def test_a_memory_is_coded_by_the_transform_and_goes_anywhere(quick: None, tmp_path: Path) -> None:
    config = KEPT_TOKENS.changed(search={"index": ("heads", "lexical"), "heads_keys": "int8"})
    text = random_text(3000)
    tables = transform.tables_for(tiny_model(), byte_tokenizer(), 1e-4)

    def found(mm: MemoryModel) -> list[object]:
        return [(recall.span, recall.text) for recall in mm.recall(text[900:930])]

    with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        mm.read(text)
        said = found(mm)
        assert said
        with pytest.raises(ValueError, match="no tables of a transform"):
            mm.memory.compact("transform")
        mm.memory.compact("transform", tables=tables)
        name = mm.memory.core.manifest().attributes["transform"]
        codecs = [mm.memory.core.blocks.codec(block.id) for block in mm.memory.blocks()]
        assert codecs == [config.archive.codec, *[name] * (len(codecs) - 1)]  # sinks stay as they are
        assert found(mm) == said
        assert mm.memory.recoding("transform").blocks == ()
        mm.memory.fork(tmp_path / "fork").close()
        mm.memory.export(tmp_path / "file")
        mm.read(random_text(600, seed=5))
        mm.memory.compact("transform")  # the tables are there
        said_now = found(mm)
        assert len(mm.memory.recoding("int4").blocks) == len(mm.memory.blocks())
    Memory.import_file(tmp_path / "file", tmp_path / "imported").close()
    for folder in ("m", "fork", "imported"):
        with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / folder, config=config) as mm:
            assert found(mm) == (said_now if folder == "m" else said), folder
            assert mm.memory.verify().damage == ()
    with Memory.open(tmp_path / "m") as memory:
        memory.compact("int8")
        assert {memory.core.blocks.codec(block.id) for block in memory.blocks()} == {"int8"}


def test_tables_that_are_damaged_or_of_another_model_are_refused(quick: None, tmp_path: Path) -> None:
    tables = transform.tables_for(tiny_model(), byte_tokenizer(), 1e-4)
    with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=KEPT_TOKENS) as mm:
        mm.read(random_text(2000))
        foreign = tables_file(bases_of(samples(1), samples(2), ALIKE), 0.1, "w", SHAPE)
        with pytest.raises(ModelMismatchError, match="fit them to its model"):
            mm.memory.compact("transform", tables=foreign)
        for damaged in (b"", tables[:100], tables[:-50], tables[: len(tables) // 2]):
            with pytest.raises(CorruptMemoryError):
                mm.memory.compact("transform", tables=damaged)
        with pytest.raises(MemoryNotFoundError):
            mm.memory.core.upkeep.recode(1, "transform.00000000")
        mm.memory.compact("transform", tables=tables)
        name = mm.memory.core.manifest().attributes["transform"]
    file = tmp_path / "m" / "files" / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    core = _core.Memory.open(str(tmp_path / "m"), True)
    pages = [page for page in core.blocks.pages() if page.block > 1]  # the first has sinks
    out = np.empty(core.page_bytes(pages[0].end - pages[0].begin, "fp32"), np.uint8)
    with pytest.raises(CorruptMemoryError, match="damaged"):
        core.blocks.read_pages(pages[:1], out, "fp32")
    core.close()
    with Memory.open(tmp_path / "m") as memory:
        damage = memory.verify().damage
        assert len(damage) == len(memory.blocks()) - 1
        assert "tables" in str(damage[0])
    file.write_bytes(whole)
    core = _core.Memory.open(str(tmp_path / "m"), True)
    core.blocks.read_pages(pages[:1], out, "fp32")
    core.close()
