"""What a figure says of the machine that it was measured on, and of all else that it was made with."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

import everlong
from everlong.models.hardware import processor
from everlong.models.provenance import provenance
from support import byte_tokenizer, tiny_model


def test_a_processor_is_named_with_what_it_can_do(tmp_path: Path) -> None:
    cores = "processor\t: 0\nmodel name\t: A Chip: 9\nflags\t\t: fpu avx2 avx512_bf16 avx512fp16\n\nmodel name\t: B\n"
    (tmp_path / "cpuinfo").write_text(cores)
    assert processor(tmp_path / "cpuinfo") == "A Chip: 9 (avx2 avx512_bf16)"


def test_a_system_that_lists_no_flags_still_has_a_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor: 0\nmodel name: Board\n")
    assert processor(tmp_path / "cpuinfo") == "Board"
    assert processor(tmp_path / "missing")
    assert processor()


def test_software_machine_and_weights_are_named() -> None:
    model = tiny_model()
    made = provenance(model)
    assert json.loads(json.dumps(made)) == made
    with everlong.MemoryModel(model, byte_tokenizer()) as mm:
        weights = mm.memory.core.manifest().weights
        assert provenance(model) == made, "also while a memory hears it"
    assert made == {
        "everlong": everlong.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpu": None,
        "revision": None,
        "weights": weights,
    }
    assert provenance(tiny_model(seed=1))["weights"] != weights


def test_a_gpu_and_a_revision_are_named_where_there_are_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers notes what the hub gave, and torch names its devices."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"A GPU {device}")
    weights = tiny_model()
    model = SimpleNamespace(
        device=torch.device("cuda:1"),
        config=SimpleNamespace(_commit_hash="12fd25f"),
        named_parameters=weights.named_parameters,
        named_modules=weights.named_modules,
        modules=weights.modules,
    )
    made = provenance(model)
    assert (made["gpu"], made["revision"], made["processor"]) == ("A GPU cuda:1", "12fd25f", processor())
