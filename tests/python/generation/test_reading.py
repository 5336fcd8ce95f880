"""Reading as it is interrupted by Ctrl-C, and what may be read."""

from __future__ import annotations

import io
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import everlong
from everlong.kv_cache.interrupts import interrupts_between_steps
from everlong.text.encoding import decode_text
from support import SMALL, byte_tokenizer, open_model, random_text, tiny_model
from support.interrupted import Interrupted

TEXT = random_text(3000)


def archived(mm: everlong.MemoryModel) -> str:
    return decode_text(mm.tokenizer, mm.memory.core.blocks.token_ids(0, 0, mm.stream_tokens).tolist())


def text_of(mm: everlong.MemoryModel, source: str) -> str:
    return "".join(
        decode_text(mm.tokenizer, mm.memory.core.blocks.token_ids(0, *block.span).tolist())
        for block in mm.memory.blocks(source)
    )


def test_interrupted_reading_goes_on_where_it_stopped(tmp_path: Path) -> None:
    pieces = [TEXT[i : i + 500] for i in range(0, 3000, 500)]
    with open_model(tmp_path / "m") as mm:
        with pytest.raises(KeyboardInterrupt):
            mm.read(Interrupted(pieces, after=3), source="book")
        kept = mm.stream_tokens
        assert 1500 < kept < 3000
        assert archived(mm) == TEXT[:kept]
    with open_model(tmp_path / "m") as mm:
        report = mm.read(pieces, source="book")
        assert (report.resumed_tokens, report.tokens) == (kept, 3000 - kept)
        assert archived(mm) == TEXT
        again = mm.read(pieces[0], source="book")  # read to its end before: now it is read once more
        assert (again.resumed_tokens, again.tokens) == (0, 500)


def test_another_text_or_another_name_is_read_whole() -> None:
    with open_model() as mm:
        with pytest.raises(KeyboardInterrupt):
            mm.read(Interrupted([TEXT[:500], TEXT[500:1000]], after=1), source="book")
        kept = mm.stream_tokens
        report = mm.read(random_text(600, seed=9), source="other")
        assert (report.resumed_tokens, report.tokens) == (0, 600)
        report = mm.read(TEXT[1000:1500], source="book")
        assert (report.resumed_tokens, report.tokens) == (0, 500)
        assert mm.stream_tokens == kept + 1100


def test_readings_go_on_whatever_came_between(tmp_path: Path) -> None:
    """Cut short twice, with a question and another book in between; then the book is there once and in order."""
    pieces = [TEXT[i : i + 500] for i in range(0, 3000, 500)]
    with open_model(tmp_path / "m") as mm:
        for after in (2, 4):
            with pytest.raises(KeyboardInterrupt):
                mm.read(Interrupted(pieces, after=after), source="book")
            mm.generate(TEXT[-40:], max_new_tokens=4)
            assert mm.read(random_text(300, seed=9), source="other").resumed_tokens == 0
    with open_model(tmp_path / "m") as mm:
        report = mm.read(pieces, source="book")
        assert report.resumed_tokens >= 2000
        assert report.resumed_tokens + report.tokens == 3000
        assert text_of(mm, "book") == TEXT


def read_files(
    mm: everlong.MemoryModel, files: list[tuple[str, str]], cut: int | None = None, *, again: bool = False
) -> list[tuple[int, int]]:
    """(tokens, resumed_tokens) of each; the file of number `cut` is cut short behind two thirds."""
    reports = []
    for number, (text, source) in enumerate(files):
        third = len(text) // 3
        pieces = [text[:third], text[third : 2 * third], text[2 * third :]]
        report = mm.read(
            Interrupted(pieces, after=1) if number == cut else pieces,
            source=source,
            again=again,
            more=number + 1 < len(files),
        )
        reports.append((report.tokens, report.resumed_tokens))
    return reports


@pytest.mark.parametrize("sources", [("a", "b", "c"), ("all", "all", "all"), ("", "", "")])
def test_several_texts_go_on_as_one_piece_of_work(sources: tuple[str, ...], tmp_path: Path) -> None:
    texts = [TEXT[:900], TEXT[:400] + TEXT[900:1500], TEXT[1500:2000]]
    files = list(zip(texts, sources, strict=True))
    for opened, cut in enumerate((1, 1, 2)):
        with open_model(tmp_path / "m") as mm:
            with pytest.raises(KeyboardInterrupt):
                read_files(mm, files, cut)
            mm.generate("what" + TEXT[opened:20], max_new_tokens=4)
    with open_model(tmp_path / "m") as mm:
        reports = read_files(mm, files)
        assert [tokens + resumed for tokens, resumed in reports] == [len(text) for text in texts]
        assert [tokens for tokens, _ in reports[:2]] == [0, 0]
        assert 0 < reports[2][0] <= 168
        if sources[0]:
            assert "".join(text_of(mm, source) for source in dict.fromkeys(sources)) == "".join(texts)
        again = read_files(mm, files, again=True)  # the work was done: this is another
        assert again == [(len(text), 0) for text in texts]


def test_what_was_forgotten_of_unfinished_work_is_read_again() -> None:
    files = [(TEXT[:900], "a"), (TEXT[900:1500], "b")]
    with open_model() as mm:
        with pytest.raises(KeyboardInterrupt):
            read_files(mm, files, cut=1)
        mm.memory.forget(source="a")
        first, second = read_files(mm, files)
        assert first == (900, 0)
        assert second[1] >= 300
        assert (text_of(mm, "a"), text_of(mm, "b")) == (TEXT[:900], TEXT[900:1500])


def test_a_reading_that_fails_is_filed_under_its_name(tmp_path: Path) -> None:
    def pieces() -> Iterator[str]:
        yield TEXT[:700]
        raise OSError("the line went dead")

    with open_model(tmp_path / "m") as mm:
        with pytest.raises(OSError, match="went dead"):
            mm.read(pieces(), source="book", tags=["work"])
        assert mm.generate("abc", max_new_tokens=3).tokens == 3
    with open_model(tmp_path / "m") as mm:
        named = [(block.source, block.tags, block.span[1]) for block in mm.memory.blocks() if block.source]
        assert {(source, tags) for source, tags, _ in named} == {("book", ("work",))}
        assert named[-1][-1] == 700
        assert mm.read(TEXT[:1000], source="book").resumed_tokens == 700


def test_files_and_file_objects(tmp_path: Path) -> None:
    file = tmp_path / "novel.txt"
    file.write_text(TEXT[:300])
    with open_model() as mm:
        mm.read(file)
        with file.open() as opened:
            mm.read(opened, again=True)
        mm.read(io.StringIO(TEXT[:300]), source="string")
        assert [block.source for block in mm.memory.blocks()] == ["novel"] * 3 + ["novel"] * 3 + ["string"] * 3
        assert mm.read("").tokens == 0
        assert mm.read([]).tokens == 0
        (tmp_path / "noise.txt").write_bytes(b"caf\xe9\0 au lait")
        with pytest.raises(ValueError, match=r"noise.txt is not UTF-8: .* at byte 3"):
            mm.read(tmp_path / "noise.txt")


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": Path("novel.txt")},
        {"source": b"novel"},
        {"source": "a\udce9"},
        {"tags": [2026]},
        {"tags": "a\udce9"},
        {"tags": None},
        {"tags": 7},
    ],
    ids=repr,
)
def test_a_name_that_is_none_is_refused_before_anything_is_read(wrong: dict[str, object]) -> None:
    with open_model() as mm:
        with pytest.raises((TypeError, ValueError), match="name"):
            mm.read(TEXT[:300], **wrong)
        assert mm.stream_tokens == 0
        assert mm.read(TEXT[:300], source="novel", tags=iter(["work"])).resumed_tokens == 0
        assert {(block.source, block.tags) for block in mm.memory.blocks()} == {("novel", ("work",))}


def test_a_file_whose_name_is_not_utf_8_is_read(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.txt")
    file.write_text(TEXT[:100])
    with open_model() as mm:
        mm.read(file)
        with tempfile.TemporaryFile("w+") as unnamed:  # its name is a number
            unnamed.write(TEXT[:100])
            unnamed.seek(0)
            mm.read(unnamed)
        assert [block.source for block in mm.memory.blocks()] == ["caf?", ""]


def test_words_one_by_one_are_read_as_the_text_that_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many forwards, the same blocks, and one bar, whatever the pieces are."""
    words = [TEXT[i : i + 5] for i in range(0, 3000, 5)]
    seen: dict[str, tuple[object, ...]] = {}
    for name, pieces in {"text": TEXT, "words": iter(words)}.items():
        forwards: list[int] = []
        bars: list[str] = []
        with monkeypatch.context() as patched, open_model() as mm:
            compute, track = mm.frame.zones.compute, everlong.generation.progress.track_tokens

            def counting(chunk, compute=compute, forwards=forwards, **how):
                forwards.append(len(chunk))
                return compute(chunk, **how)

            def tracking(label, track=track, bars=bars, **how):
                bars.append(label)
                return track(label, **how)

            patched.setattr(mm.frame.zones, "compute", counting)
            patched.setattr(everlong.generation.progress, "track_tokens", tracking)
            report = mm.read(pieces, source="book")
            seen[name] = forwards, bars, report.tokens, [block.span for block in mm.memory.blocks()]
            assert archived(mm) == TEXT
    assert seen["words"] == seen["text"]
    assert len(seen["words"][0]) < 100


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "novel.txt"
    file.write_text(TEXT[:100], encoding="utf-8-sig")
    with open_model() as mm:
        assert mm.read(file).tokens == 100
        assert archived(mm) == TEXT[:100]


def test_a_temporary_file_is_a_file() -> None:
    with open_model() as mm, tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
        file.write("a line\n" * 30)
        file.seek(0)
        mm.read(file)
        assert {block.source for block in mm.memory.blocks()} == {Path(file.name).stem}


def test_a_text_ends_no_turn_and_a_rendered_conversation_does() -> None:
    page = TEXT[:900] + "<end>" + TEXT[900:1800]
    for special_tokens in (False, True):
        with open_model() as mm:
            report = mm.read(page, special_tokens=special_tokens)
            assert report.tokens == 1801 if special_tokens else 1805
            assert archived(mm) == (page.replace("<end>", "") if special_tokens else page)


@pytest.mark.slow
def test_one_token_repeated_many_times() -> None:
    config = SMALL.changed(frame={"chunk_tokens": 512})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        assert mm.read("a" * 100_000).tokens == 100_000
        assert mm.frame.cache.length <= SMALL.frame.tokens
        assert archived(mm) == "a" * 100_000
        assert mm.memory.verify().damage == ()
        assert mm.generate("a", max_new_tokens=4, remember=False).tokens == 4


@pytest.mark.parametrize("remember", [False, True])
def test_prompt_longer_than_the_frame_is_answered(remember: bool) -> None:
    prompt = random_text(2 * SMALL.frame.tokens, seed=5)
    with open_model() as mm:
        mm.read(TEXT)
        assert mm.generate(prompt, max_new_tokens=4, remember=remember).tokens == 4
        assert mm.stream_tokens == 3000 + remember * (2 * SMALL.frame.tokens + 4)
        assert archived(mm)[: mm.stream_tokens - 4 * remember] == TEXT + prompt * remember
        assert mm.memory.verify().damage == ()


def test_interrupt_waits_for_a_step_and_the_second_does_not() -> None:
    done = []

    def one_and_a_step() -> None:
        with interrupts_between_steps() as step:
            signal.raise_signal(signal.SIGINT)
            done.append("rest of the step")
            step()
            done.append("never")

    def one_and_the_end() -> None:
        with interrupts_between_steps():
            signal.raise_signal(signal.SIGINT)
            done.append("rest of all")

    def two() -> None:
        with interrupts_between_steps():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("never")

    for interrupted in (one_and_a_step, one_and_the_end, two):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert done == ["rest of the step", "rest of all"]


def cut_short(mm: everlong.MemoryModel, text: str, source: str = "") -> None:
    def pieces() -> Iterator[str]:
        yield text
        raise OSError("the line went dead")

    with pytest.raises(OSError, match="went dead"):
        mm.read(pieces(), source)


@pytest.mark.parametrize("source", ["", "notes"])
def test_a_text_goes_on_whatever_else_was_read_under_its_name(source: str) -> None:
    other = random_text(900, seed=4)
    with open_model() as mm:
        cut_short(mm, TEXT[:1200], source)
        assert mm.read(other, source).resumed_tokens == 0
        report = mm.read(TEXT, source)
        assert (report.resumed_tokens, report.tokens) == (1200, 1800)
        assert archived(mm) == TEXT[:1200] + other + TEXT[1200:]
        assert mm.read(TEXT, source).resumed_tokens == 0  # it was read to its end


def test_a_text_with_the_beginning_of_another_has_its_own() -> None:
    """As books do that begin with the same licence."""
    licence, one, other = random_text(400, seed=1), random_text(800, seed=2), random_text(800, seed=3)
    pieces = [f"{licence}{other}"[first : first + 100] for first in range(0, 1200, 100)]
    with open_model() as mm:
        cut_short(mm, licence + one)
        report = mm.read(pieces)
        assert (report.resumed_tokens, report.tokens) == (0, 1200)
        assert archived(mm) == licence + one + licence + other


def test_of_two_that_were_cut_short_the_one_that_it_has_all_of_goes_on() -> None:
    one, other = TEXT[:1000], TEXT[:600] + random_text(300, seed=5)
    with open_model() as mm:
        cut_short(mm, one)
        cut_short(mm, other)
        held = mm.stream_tokens
        more = mm.read(other + TEXT[:100])
        assert (more.resumed_tokens, more.tokens) == (900, 100)
        more = mm.read(one + TEXT[:50])
        assert (more.resumed_tokens, more.tokens) == (1000, 50)
        assert mm.stream_tokens == held + 150


def test_a_text_that_ends_within_what_was_read_of_it_is_not_read_again() -> None:
    with open_model() as mm:
        cut_short(mm, TEXT[:1000], "book")
        report = mm.read(TEXT[:700], "book")
        assert (report.resumed_tokens, report.tokens) == (700, 0)


def test_a_text_that_names_a_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("what it holds")
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        with pytest.warns(UserWarning, match="names a file") as told:
            assert mm.read(str(file)).tokens == len(str(file))
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert mm.read(file).tokens == len("what it holds")
            mm.read("notes.txt\0")
            mm.read("x" * 5000)


@pytest.mark.parametrize("opened_again", [False, True])
def test_every_reading_that_was_cut_short_goes_on_where_it_stopped(tmp_path: Path, opened_again: bool) -> None:
    """However many there are, in whatever order, and where several have one name."""
    texts = [random_text(700, seed=seed) for seed in range(40)]
    names = [f"s{number % 30}" for number in range(40)]  # ten names are those of two texts
    mm = open_model(tmp_path / "m")
    for text, name in zip(texts, names, strict=True):
        with pytest.raises(KeyboardInterrupt):
            mm.read(Interrupted([text[:300], text[300:]], after=1), source=name)
    if opened_again:
        mm.close()
        mm = open_model(tmp_path / "m")
    for number in reversed(range(40)):
        report = mm.read(texts[number], source=names[number])
        assert report.resumed_tokens > 0
        assert report.resumed_tokens + report.tokens == 700
    assert mm.stream_tokens == 40 * 700
    assert sum(block.span[1] - block.span[0] for block in mm.memory.blocks()) == 40 * 700
    mm.close()
