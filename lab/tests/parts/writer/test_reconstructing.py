"""Head B's measure: pages said again from vectors, by transformers' own generation, and what is compared."""

from __future__ import annotations

import pathlib
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import everlong_lab.parts.writer.measure_reconstruction as reconstructing
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack
from everlong.models.soft_tokens import embedded, with_soft_tokens
from everlong.parts.latents import LatentSettings
from everlong.parts.writer.model import WRITER, WriterNet, WriterSettings
from everlong.text.control import memory_marks
from everlong.text.encoding import encode
from everlong_lab.eval.tables import print_report
from everlong_lab.parts.writer.measure_reconstruction import (
    Pages,
    compare,
    fit_vectors,
    pages_of,
    reconstruct,
    rouge_l,
    run_reconstructing,
)
from everlong_lab.parts.writer.train import AGAIN, around
from support import byte_tokenizer, deep_model
from support.examples import examples
from support.texts import starts_of_books

LAYERS = (1, 2)


def drawn_writer(model: Any) -> WriterNet:
    size = model.config.hidden_size
    opening, closing = memory_marks(byte_tokenizer())
    reader = LatentSettings(LAYERS, size, size, width=32, heads=2, inner=32)
    writer = WriterNet.untrained(WriterSettings(reader, 8, 64, opening, closing))
    writer.reader.embedding_scale.copy_(model.get_input_embeddings().weight.detach().square().mean().sqrt())
    return writer


@examples(60)
@given(st.lists(st.integers(0, 3), max_size=9), st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_rouge_l_is_that_of_the_longest_common_subsequence(said: list[int], wanted: list[int]) -> None:
    subsequences = {()}
    for token in said:
        subsequences |= {(*before, token) for before in subsequences}

    def is_within(some: tuple[int, ...]) -> bool:
        rest = iter(wanted)
        return all(token in rest for token in some)

    longest = max(len(some) for some in subsequences if is_within(some))
    assert abs(rouge_l(said, wanted) - 2 * longest / (len(said) + len(wanted))) < 1e-12


def test_what_is_said_again_is_what_transformers_generates(tmp_path: pathlib.Path) -> None:
    model, tokenizer = deep_model(), byte_tokenizer()
    writer = drawn_writer(model)
    pages = pages_of(model, tokenizer, writer, starts_of_books(), Pages(3, seed=0), tmp_path)
    assert len(pages) == 3
    for page in pages:
        assert page.code in tokenizer.decode(page.ids)
        assert len(page.states) == len(page.ids) == 64
    page = pages[0]
    vectors = torch.randn(8, model.config.hidden_size) * 0.05
    found = reconstruct(writer, model, tokenizer, page, vectors)
    before, behind = around(writer.settings, page.sinks, encode(tokenizer, AGAIN))
    expected = model.generate(
        inputs_embeds=with_soft_tokens(model, before, vectors[None], behind),
        max_new_tokens=64,
        min_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert found.tolist() == expected[0].tolist()
    perfect = compare(tokenizer, page, page.ids)
    assert (perfect.same, perfect.rouge, perfect.code) == (1.0, 1.0, True)
    nothing = compare(tokenizer, page, torch.full_like(page.ids, 256))
    assert (nothing.same, nothing.rouge, nothing.code) == (0.0, 0.0, False)


def test_vectors_that_are_fitted_bring_the_page_nearer(tmp_path: pathlib.Path) -> None:
    model, tokenizer = deep_model(), byte_tokenizer()
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.ndim == 2 else 1
    writer = drawn_writer(model)
    (page, *_) = pages_of(model, tokenizer, writer, starts_of_books(), Pages(1, seed=0), tmp_path)
    start = writer.details(page.states, embedded(model, page.ids), 8).detach()

    def loss(vectors: torch.Tensor) -> float:
        before, behind = around(writer.settings, page.sinks, encode(tokenizer, AGAIN))
        with torch.no_grad():
            whole = with_soft_tokens(model, before, vectors[None], torch.cat([behind, page.ids[:-1]]))
            logits = model(inputs_embeds=whole).logits[0, -64:]
        return float(torch.nn.functional.cross_entropy(logits, page.ids))

    assert loss(fit_vectors(writer, model, tokenizer, page, start, 30)) < 0.98 * loss(start)


def test_from_a_pack_to_a_table(tmp_path: pathlib.Path) -> None:
    model, tokenizer = deep_model(), byte_tokenizer()
    pack = Pack(weights_fingerprint(model), "", {WRITER: drawn_writer(model).part({})})
    pages = Pages(2, tokens=(2, 4), fitted=1, steps=2)
    report = run_reconstructing((model, tokenizer), pack, pages, work=tmp_path, books=starts_of_books())
    assert report.again[reconstructing.DETAILS]["2"]["pages"] == 2
    assert report.again[reconstructing.FITTED]["4"]["pages"] == 1
    # An untrained writer is pooling.
    assert report.again[reconstructing.DETAILS] == report.again[reconstructing.POOLED]
    console = Console(record=True, width=160)
    print_report(report, console)
    assert "vectors fitted to the page, 1 pages" in console.export_text()
