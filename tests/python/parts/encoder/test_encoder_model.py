"""The encoder against plain transformers: maps as hooks beside the layers, numpy for the heads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from everlong.models.fingerprint import weights_fingerprint
from everlong.models.low_rank import AttachedMaps, LowRankMaps
from everlong.models.pack import PackError, PackPart
from everlong.parts.encoder.model import TextEncoder, WordPieces, encoder_pack, load_minilm
from support.parts.encoder import SETTINGS, drawn_part, tiny_bert

IDS = [np.asarray(row, dtype=np.int64) for row in ([2000, 2001, 2002, 2003], [4000], list(range(5000, 5030)))]


def test_merged_maps_compute_what_they_compute_beside_the_layers() -> None:
    part, bert = drawn_part(), tiny_bert()
    encoder = TextEncoder.of_part(part, tiny_bert())
    maps = {name[5:]: tensor for name, tensor in part.tensors.items() if name.startswith("maps.")}
    settings = {"rank": SETTINGS.rank, "scale": SETTINGS.scale}
    beside = AttachedMaps(LowRankMaps.of_part(PackPart(maps, settings, {})), bert)
    pieces = WordPieces()
    for row, states in zip(IDS, encoder.states(IDS), strict=True):
        ids = torch.tensor([[pieces.begin, *row.tolist(), pieces.end]])
        with torch.no_grad():
            plain = bert(input_ids=ids).last_hidden_state[0, 1:-1]
            with beside.active():
                expected = bert(input_ids=ids).last_hidden_state[0, 1:-1]
        torch.testing.assert_close(states, expected, atol=2e-5, rtol=1e-4)
        assert (expected - plain).abs().max() > 1e-2  # the maps change something


def test_heads_are_what_numpy_computes() -> None:
    part = drawn_part()
    encoder = TextEncoder.of_part(part, tiny_bert())
    (states,) = encoder.states(IDS[2:])
    rows = states.double().numpy()
    weight = {name: tensor.double().numpy() for name, tensor in part.tensors.items() if not name.startswith("maps.")}
    importance = np.log1p(np.exp(rows @ weight["importance.weight"].T + weight["importance.bias"]))
    asked = rows @ weight["reader.weight"].T
    asked = asked / np.linalg.norm(asked, axis=1, keepdims=True) * importance / importance.sum()
    np.testing.assert_allclose(encoder.query_vectors(states), asked, atol=1e-5)
    assert np.linalg.norm(encoder.query_vectors(states), axis=1).sum() == pytest.approx(1, abs=1e-5)
    written = rows @ weight["writer.weight"].T
    written /= np.linalg.norm(written, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.written(states).numpy(), written, atol=1e-5)
    said = rows @ weight["sentence"]
    said /= np.linalg.norm(said, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.sentence_vectors(states).numpy(), said, atol=1e-5)
    for made in (encoder.written, encoder.sentence_vectors):
        assert (made(torch.zeros(2, encoder.width)) == 0).all()


def test_a_pack_that_does_not_fit_is_refused() -> None:
    part = drawn_part()
    with pytest.raises(PackError, match="cannot be made"):
        TextEncoder.of_part(dataclasses.replace(part, settings={**part.settings, "rank": 3}), tiny_bert())
    less = {name: tensor for name, tensor in part.tensors.items() if not name.startswith("maps.encoder.layer.1")}
    with pytest.raises(PackError, match="another model"):
        TextEncoder.of_part(dataclasses.replace(part, tensors=less), tiny_bert())
    with pytest.raises(PackError, match="cannot be made"):
        TextEncoder.of_part(dataclasses.replace(part, settings={**part.settings, "colour": 1}), tiny_bert())


def test_the_shipped_encoder_is_for_the_minilm_that_is_installed_and_small() -> None:
    pack = encoder_pack()
    minilm = load_minilm()
    assert pack.model == weights_fingerprint(minilm)
    part = pack.parts["encoder"]
    assert sum(tensor.nbytes for tensor in part.tensors.values()) < 12e6
    states = TextEncoder.of_part(part, minilm).states([WordPieces()("The cat sat on the mat.")[0]])
    assert states[0].shape == (7, 384)
