"""A GGUF file from anybody is a model, or refused by name: ModelFileError, and no other error, whatever is in it."""

from __future__ import annotations

import math
import os
import pathlib
import resource
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from everlong.models import gguf_file, load
from everlong.models.conversion_cache import entries
from everlong.models.fingerprint import weights_fingerprint
from everlong.models.geometry import geometry_of
from everlong.models.gguf_reader import ModelFileError
from support.examples import examples
from support.gguf_files import write_gguf
from support.gguf_parts import FLOATS, FORMATS, TEXT, TYPES, Entry, Parts, Tensor, number

INTEGERS = [0, 1, 2, 3, 7, 33, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, -1, -(2**31)]
REALS = [0.0, -1.0, 0.5, 1e30, 1e-30, math.nan, math.inf, -math.inf]
WORDS = [b"", b" ", b"a", b"a b c", b"\xff\xfe", b"llama", b"gpt2", b"t5", b"qwen2", b"mamba", b"gemma3", b"x" * 2000]
ARCHITECTURES = ["qwen2", "qwen3", "gemma3", "phi3", "mamba", "gpt2", "qwen2moe", "stablelm", "lfm2", "gpt-oss", "t5"]
NAMES = ["x", "blk.0.attn_q.bias", "blk.7.attn_q.weight", "rope_freqs.weight"]
MOST_MB = 512  # that loading tiny files may add to the process
IDS = torch.tensor([[5, 6, 7]])


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(name="file")
def a_file(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_gguf(tmp_path / "tiny.gguf")


def values_of(type: int) -> st.SearchStrategy[Any]:
    if type == TEXT:
        return st.sampled_from(WORDS)
    return st.sampled_from(REALS if type in FLOATS else [number(type, one) for one in INTEGERS])


@st.composite
def changed_entries(draw: Any, sound: list[Entry]) -> list[Entry]:
    """Draw one entry of another kind, other values, another length or name, or leave it out."""
    made = list(sound)
    at = draw(st.integers(0, len(made) - 1))
    entry = made[at]
    how = draw(st.sampled_from(["gone", "renamed", "kind", "array", "value", "shorter", "longer", "architecture"]))
    if how == "gone":
        return made[:at] + made[at + 1 :]
    if how == "architecture":
        name = draw(st.sampled_from(ARCHITECTURES))
        return [
            Entry(one.key, TEXT, False, [name.encode()])
            if one.key == "general.architecture"
            else Entry(one.key.replace("llama.", f"{name}."), one.type, one.is_array, one.values)
            for one in made
        ]
    key, kind, is_array, values = entry.key, entry.type, entry.is_array, list(entry.values)
    if how == "renamed":
        key += "x"
    elif how in ("kind", "array"):
        kind, is_array = draw(st.sampled_from(TYPES)), how == "array"
        count = draw(st.sampled_from([0, 1, 2, len(values)])) if is_array else 1
        values = [draw(values_of(kind))] * count
    elif how == "value" or not is_array:
        values[draw(st.integers(0, len(values) - 1))] = draw(values_of(kind))
    elif how == "shorter":
        values = values[: draw(st.sampled_from([0, 1, len(values) - 1]))]
    else:
        values.append(draw(values_of(kind)))
    made[at] = Entry(key, kind, is_array, values)
    return made


@st.composite
def changed_tensors(draw: Any, sound: list[Tensor]) -> list[Tensor]:
    """Draw one tensor of another name, format, shape or place."""
    made = list(sound)
    at, other = (draw(st.integers(0, len(made) - 1)) for _ in range(2))
    one = made[at]
    how = draw(st.sampled_from(["gone", "name", "format", "size", "sizes", "place"]))
    if how == "gone":
        return made[:at] + made[at + 1 :]
    name, kind, shape, offset = one.name, one.type, one.shape, one.offset
    if how == "name":
        name = draw(st.sampled_from(NAMES))
    elif how == "format":
        kind = draw(st.sampled_from([0, 1, 2, 3, 6, 8, 10, 12, 16, 24, 30, 99, -1]))
    elif how == "size":
        shape = (*shape[:-1], draw(st.sampled_from([0, 1, 31, 32, 64, 2**32, 2**62])))
    elif how == "sizes":
        shape = draw(st.sampled_from([shape[::-1], (*shape, 1), (*shape, 1, 1, 1), ()]))
    else:
        offset = draw(st.sampled_from([made[other].offset, offset + 1, offset + 32, 2**40, 2**63]))
    made[at] = Tensor(name, kind, shape, offset)
    return made


def outcome(file: pathlib.Path, dtype: str | None) -> str:
    """Load a file, and compute with the model. Return "a model" or why it is refused; other errors come through."""
    try:
        model, tokenizer = load(str(file), dtype)
    except ModelFileError as error:
        why = str(error)
    else:
        model(IDS.clamp(max=model.config.vocab_size - 1))
        tokenizer("the thing")
        return "a model"
    assert file.name in why, "the file is named"
    return why


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.fixture(name="sound", scope="module")
def sound_parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return Parts.of(write_gguf(tmp_path_factory.mktemp("sound") / "tiny.gguf"))


@given(drawn=st.data(), dtype=st.sampled_from([None, None, "float32"]))
@examples(240, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_changed_file_is_a_model_or_refused(file: pathlib.Path, sound: Parts, drawn: Any, dtype: str | None) -> None:
    entries, tensors = sound.entries, sound.tensors
    for _ in range(drawn.draw(st.integers(1, 2))):
        if drawn.draw(st.integers(0, 3)):
            entries = drawn.draw(changed_entries(entries)) if entries else entries
        else:
            tensors = drawn.draw(changed_tensors(tensors)) if tensors else tensors
    file.write_bytes(Parts(entries, tensors, sound.data).encoded())
    before = peak_mb()
    outcome(file, dtype)
    assert peak_mb() - before < MOST_MB


@given(drawn=st.data())
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_changed_bytes_of_the_header_are_a_model_or_refused(file: pathlib.Path, sound: Parts, drawn: Any) -> None:
    content = bytearray(sound.encoded())
    begin = len(content) - len(sound.data)
    for _ in range(drawn.draw(st.integers(1, 3))):
        at = drawn.draw(st.integers(0, begin - 8))
        changed = drawn.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, b"\0" * 8])))
        content[at : at + len(changed)] = changed
    file.write_bytes(content[: drawn.draw(st.sampled_from([len(content), begin, begin // 2]))])
    before = peak_mb()
    outcome(file, None)
    assert peak_mb() - before < MOST_MB


def with_entry(sound: Parts, key: str, type: int, value: Any, *, is_array: bool = False) -> Parts:
    """Return the file with another entry, or one more."""
    changed = Entry(key, type, is_array, value if is_array else [value])
    there = [entry.key for entry in sound.entries]
    made = [changed if entry.key == key else entry for entry in sound.entries]
    return Parts(made if key in there else [*made, changed], sound.tensors, sound.data)


OF_LLAMA = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv")
RATIOS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
COUNTS = (*OF_LLAMA, "vocab_size", "rope.dimension_count")


@pytest.mark.parametrize("key", [f"llama.{name}" for name in COUNTS])
def test_a_count_of_another_kind_is_refused(file: pathlib.Path, sound: Parts, key: str) -> None:
    own = sound.entry(key).values[0]
    for type in TYPES:
        value: Any = b"2" if type == TEXT else number(type, own)
        if type not in (0, 1, 2, 3, 4, 5, 10, 11):
            file.write_bytes(with_entry(sound, key, type, value).encoded())
            assert f"its {key} is" in outcome(file, None)
    for value in (0, -1, 2**31, 2**62):
        file.write_bytes(with_entry(sound, key, 11, value).encoded())
        assert outcome(file, None) != "a model", value
    file.write_bytes(with_entry(sound, key, 10, own).encoded())  # the same number, wider
    assert outcome(file, None) == "a model"


@pytest.mark.parametrize("key", [f"llama.{name}" for name in RATIOS])
def test_a_ratio_of_another_kind_is_refused(file: pathlib.Path, sound: Parts, key: str) -> None:
    for type, value in [*((6, value) for value in (0.0, -1.0, math.nan, math.inf)), (4, 1), (7, 1), (TEXT, b"1")]:
        file.write_bytes(with_entry(sound, key, type, value).encoded())
        assert f"its {key} is" in outcome(file, None), (type, value)


@pytest.mark.parametrize(
    ("key", "type", "value", "words"),
    [
        ("general.architecture", 4, 7, "general.architecture is no text"),
        ("general.architecture", TEXT, b"", "general.architecture is no text"),
        ("general.architecture", TEXT, b"\xff", "no UTF-8"),
        ("general.architecture", TEXT, b"nothing", "architecture nothing is not supported"),
        ("general.name", 4, 7, "general.name is 7"),
        ("tokenizer.chat_template", 4, 7, "chat_template is 7"),
        ("tokenizer.chat_template", 7, 1, "chat_template is 1"),
        ("tokenizer.ggml.model", TEXT, b"another", "tokenizer 'another'"),
        ("tokenizer.ggml.model", 6, 1.0, "model is 1.0"),
        ("tokenizer.ggml.bos_token_id", 5, -1, "bos_token_id is -1"),
        ("tokenizer.ggml.eos_token_id", 4, 10**6, "eos_token_id is 1000000"),
        ("tokenizer.ggml.padding_token_id", 6, 1.0, "padding_token_id is 1.0"),
        ("tokenizer.ggml.unknown_token_id", 7, 1, "unknown_token_id is 1"),
        ("tokenizer.ggml.add_bos_token", 4, 1, "add_bos_token is 1"),
        ("tokenizer.ggml.tokens", TEXT, b"a", "tokens is no array of texts"),
        ("tokenizer.ggml.merges", TEXT, b"a b", "merges is no array of texts"),
    ],
)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_an_entry_that_cannot_be_is_refused(
    file: pathlib.Path, sound: Parts, key: str, type: int, value: Any, words: str, dtype: str | None
) -> None:
    file.write_bytes(with_entry(sound, key, type, value).encoded())
    assert words in outcome(file, dtype)


def test_arrays_of_the_tokenizer_fit_each_other(file: pathlib.Path, sound: Parts) -> None:
    of = "tokenizer.ggml."
    tokens, kinds = sound.entry(f"{of}tokens").values, sound.entry(f"{of}token_type").values
    cases: list[tuple[str, int, Any, str]] = [
        ("tokens", TEXT, [], "tokens is no array of texts"),
        ("tokens", 4, [1] * len(tokens), "tokens is no array of texts"),
        ("tokens", TEXT, [*tokens, b"more"], "262 tokens, and no tensor with more than 261 rows"),
        ("tokens", TEXT, tokens[:-1], "token_type is no array of a number for each of 260 tokens"),
        ("tokens", TEXT, [*tokens[:-1], b"\xff"], "no UTF-8"),
        ("tokens", TEXT, [*tokens[:-1], b"x" * 1025], "a token of 1025 bytes"),
        ("token_type", 5, kinds[:-1], "token_type is no array"),
        ("token_type", 6, [1.0] * len(kinds), "token_type is no array"),
        ("scores", 6, [0.0], "scores is no array"),
        ("scores", 6, [math.nan] * len(tokens), "scores has a NaN"),
        ("merges", TEXT, [b"th"], "merges has b'th'"),
        ("merges", TEXT, [b"t h e"], "merges has b't h e'"),
        ("merges", TEXT, [b" t"], "merges has b' t'"),
        ("merges", TEXT, [b"t h"] * (8 * len(tokens) + 1), "2089 merges for 261 tokens"),
        ("merges", 4, [1], "merges is no array of texts"),
        ("merges", TEXT, [b"zz yy"], "transformers makes no model of it"),
    ]
    for name, type, values, words in cases:
        file.write_bytes(with_entry(sound, of + name, type, values, is_array=True).encoded())
        assert words in outcome(file, None), (name, words)


def test_what_the_model_needs_must_be_there(file: pathlib.Path, sound: Parts) -> None:
    for key in ("general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.model", "llama.attention.head_count"):
        kept = [entry for entry in sound.entries if entry.key != key]
        file.write_bytes(Parts(kept, sound.tensors, sound.data).encoded())
        assert outcome(file, None) != "a model", key


def test_layers_that_nothing_names_are_refused(file: pathlib.Path, sound: Parts) -> None:
    file.write_bytes(with_entry(sound, "llama.block_count", 4, 1).encoded())
    assert "tensors of layer 1, and says it has 1 layers" in outcome(file, None)


def test_the_shape_of_an_archive_takes_the_same_care(file: pathlib.Path, sound: Parts) -> None:
    assert geometry_of(str(file), 128).layers == 2
    file.write_bytes(with_entry(sound, "llama.attention.head_count", 4, 0).encoded())
    with pytest.raises(ModelFileError, match=r"tiny\.gguf"):
        geometry_of(str(file), 128)


# --- what lies at the path


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_path_that_is_no_file_is_refused_at_once(tmp_path: pathlib.Path, dtype: str | None) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "zeros.gguf").symlink_to("/dev/zero")
    (tmp_path / "folder.gguf").mkdir()
    for name in ("pipe.gguf", "zeros.gguf"):
        with pytest.raises(ModelFileError, match="is no file"):
            load(str(tmp_path / name), dtype)
    for source, name in ((tmp_path, "folder.gguf"), (pathlib.Path("/dev"), "zero")):
        with pytest.raises(ModelFileError, match="is no file"):
            load(str(source), dtype, gguf_file=name)


def replace(file: pathlib.Path, other: pathlib.Path) -> None:
    os.replace(other, file)


def overwrite(file: pathlib.Path, other: pathlib.Path) -> None:
    with file.open("r+b") as opened:
        opened.write(other.read_bytes())


def shorten(file: pathlib.Path, other: pathlib.Path) -> None:
    other.write_bytes(other.read_bytes()[:3000])
    os.replace(other, file)


def spoil(file: pathlib.Path, other: pathlib.Path) -> None:
    other.write_bytes(b"\x7f" * file.stat().st_size)
    os.replace(other, file)


def remove(file: pathlib.Path, other: pathlib.Path) -> None:
    file.unlink()


def touch(file: pathlib.Path, other: pathlib.Path) -> None:
    os.utime(file, ns=(0, 0))


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("keeps", ["0", "1"])
@pytest.mark.parametrize("change", [replace, overwrite, shorten, spoil, remove, touch])
def test_a_file_that_changes_while_it_is_loaded_is_refused(
    file: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str | None,
    keeps: str,
    change: Callable[[pathlib.Path, pathlib.Path], None],
) -> None:
    monkeypatch.setenv("EVERLONG_CACHE_GB", keeps)
    other = write_gguf(file.with_name("other.gguf"), seed=9)
    described = gguf_file._config_and_tokenizer

    def then_changed(*arguments: Any) -> Any:
        made = described(*arguments)
        change(file, other)
        return made

    with monkeypatch.context() as between:
        between.setattr(gguf_file, "_config_and_tokenizer", then_changed)
        with pytest.raises(ModelFileError, match="was replaced or written to while it was loaded"):
            load(str(file), dtype)
    assert entries() == [], "nothing of it is kept"


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_link_that_comes_to_mean_another_file_is_refused(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: str | None
) -> None:
    other, link = write_gguf(file.with_name("other.gguf"), seed=9), file.with_name("newest.gguf")
    link.symlink_to(file)
    described = gguf_file._config_and_tokenizer

    def then_changed(*arguments: Any) -> Any:
        made = described(*arguments)
        link.unlink()
        link.symlink_to(other)
        return made

    with monkeypatch.context() as between:
        between.setattr(gguf_file, "_config_and_tokenizer", then_changed)
        with pytest.raises(ModelFileError, match="was replaced"):
            load(str(link), dtype)
    assert weights_fingerprint(load(str(link), dtype)[0]) == weights_fingerprint(load(str(other), dtype)[0])


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_file_of_that_name_in_the_working_directory_is_another(
    file: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: str | None
) -> None:
    """transformers takes the weights from there, and all else from the file that is meant."""
    here = tmp_path / "here"
    here.mkdir()
    write_gguf(here / file.name, seed=9)
    own = weights_fingerprint(load(str(file), "bfloat16")[0])
    monkeypatch.chdir(here)
    assert weights_fingerprint(load(str(file), dtype)[0]) == weights_fingerprint(load("../tiny.gguf", dtype)[0])
    assert weights_fingerprint(load(str(file), "bfloat16")[0]) == own
    assert weights_fingerprint(load(str(file.parent), dtype, gguf_file=file.name)[0]) != weights_fingerprint(
        load(file.name, dtype)[0]
    )


def test_every_type_of_a_value_is_tried() -> None:
    assert set(TYPES) == {*range(9), 10, 11, 12}
    assert set(FORMATS) == set(TYPES) - {TEXT}
