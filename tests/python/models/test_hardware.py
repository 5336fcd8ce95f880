"""What a figure says of the machine that it was measured on, and of all else that it was made with."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

import everlong
import everlong._core as _core
from everlong.models.hardware import processor, use_allowed_cpus
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


@pytest.fixture(name="threads")
def torchs_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("group", "affinity", "asked", "wanted"), [(None, 3, 8, 3), (2, 64, 8, 2), (1, 2, 1, 1), (None, 64, 4, 4)]
)
def test_threads_are_no_more_than_the_process_may_use_cpus(
    group: int | None, affinity: int, asked: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(_core, "group_cpus", lambda: group)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    torch.set_num_threads(asked)
    use_allowed_cpus()
    assert torch.get_num_threads() == wanted
    torch.set_num_threads(8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    use_allowed_cpus()
    assert torch.get_num_threads() == 8


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("named", ["", "0", "-3", "many"])
def test_a_name_that_says_no_number_of_threads_says_nothing(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    monkeypatch.setattr(_core, "group_cpus", lambda: 1)
    torch.set_num_threads(8)
    use_allowed_cpus()
    assert torch.get_num_threads() == 1


def test_the_cores_own_limit_is_none_or_positive() -> None:
    cpus = _core.group_cpus()
    assert cpus is None or cpus >= 1
