"""What a figure says of the machine that it was measured on."""

from pathlib import Path

from everlong.machine import processor


def test_a_processor_is_named_with_what_it_can_do(tmp_path: Path) -> None:
    cores = "processor\t: 0\nmodel name\t: A Chip: 9\nflags\t\t: fpu avx2 avx512_bf16 avx512fp16\n\nmodel name\t: B\n"
    (tmp_path / "cpuinfo").write_text(cores)
    assert processor(tmp_path / "cpuinfo") == "A Chip: 9 (avx2 avx512_bf16)"


def test_a_system_that_lists_no_flags_still_has_a_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor: 0\nmodel name: Board\n")
    assert processor(tmp_path / "cpuinfo") == "Board"
    assert processor(tmp_path / "missing")
    assert processor()
