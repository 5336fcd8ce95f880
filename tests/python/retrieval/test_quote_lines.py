"""Several quotes stand as lines, each behind its source, title, date and speaker, the oldest first; also alone."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

import everlong
from everlong.text.sentences import sentences
from everlong.text.unit_context import Turns
from support import SMALL, byte_tokenizer, random_text, tiny_model, tiny_text_model

CONFIG = SMALL.changed(search={"index": ("lexical",), "groups": 4}, answer={"quotes": 4}, archive={"block_tokens": 256})
FILLER = "Somebody walked along the quiet river and counted every tree. " * 8
LAST = "Nothing else was written down. " * 20
QUESTION = "the HARBOUR budget?"
TOLD = "The HARBOUR budget is 40,000 crowns."
LATER = "The HARBOUR budget is 55,000 crowns."


def asked(*texts: tuple[str, dict[str, Any]], question: str = QUESTION, config: Any = CONFIG) -> everlong.Answer:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, config, pack=None) as mm:
        for text, how in texts:
            mm.read(f"{text}\n\n{FILLER}", **how)
        mm.read(LAST, source="last")
        return mm.generate(question, max_new_tokens=1, remember=False)


def about(answer: everlong.Answer, word: str = "HARBOUR") -> list[str]:
    return [line for line in answer.quoted if word in line]


@pytest.mark.parametrize(
    ("head", "source", "said"),
    [
        ("", "minutes", "[minutes]"),
        ("Session 12, in April\n\n", "session 12", "[Session 12, in April]"),
        ("Session 12, in April\n\n", "notes/talk.txt", "[notes/talk.txt, Session 12, in April]"),
        ("# Minutes of the board\n", "board.md", "[board.md, Minutes of the board]"),
        ("Mara: hello\n\n", "talk", "[talk]"),  # who speaks is no title
        ("It was a long day.\n\n", "talk", "[talk]"),  # nor is a sentence
        ("A line of a poem\nand another\n\n", "poem", "[poem]"),
        (f"{'long ' * 20}\n\n", "long", "[long]"),
        ("A title\n\n", "", ""),
        ("", "a]\n[b", "[a] [b]"),  # a name is no second line
        ("", "n" * 20_000, f"[{'n' * 77}...]"),  # nor is it longer than a title
    ],
)
def test_a_quote_stands_behind_its_source_and_title(head: str, source: str, said: str) -> None:
    assert about(asked((f"{head}{FILLER}{TOLD}", {"source": source}))) == [f"{said} {TOLD}".strip()]


def test_a_date_stands_where_it_was_told() -> None:
    happened = datetime.date(2026, 3, 5)
    answer = asked((f"{FILLER}{TOLD}", {"source": "minutes", "happened": happened}))
    assert about(answer) == [f"[minutes, 2026-03-05] {TOLD}"]


def test_the_title_is_that_of_its_own_text() -> None:
    texts = [
        (f"Session {number}\n\n{FILLER}{told}", {"source": "talk", "happened": f"2026-0{number}-01"})
        for number, told in ((1, "The HARBOUR is open."), (2, "The HARBOUR was painted."))
    ]
    assert about(asked(*texts, question="the HARBOUR?")) == [
        "[talk, Session 1, 2026-01-01] The HARBOUR is open.",
        "[talk, Session 2, 2026-02-01] The HARBOUR was painted.",
    ]


def test_a_title_that_a_question_is_kept_from_does_not_stand_there() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG, pack=None) as mm:
        mm.read(f"SECRET title\n\n{FILLER}{TOLD} {FILLER}", source="minutes")
        mm.read(LAST, source="last")
        second = mm.memory.blocks("minutes")[1].created_at
        assert about(mm.generate(QUESTION, 1, remember=False)) == [f"[minutes, SECRET title] {TOLD}"]
        later = everlong.Where(after=second)
        assert about(mm.generate(QUESTION, 1, remember=False, where=later)) == [f"[minutes] {TOLD}"]


def test_the_speaker_stands_before_a_sentence_that_does_not_begin_with_it() -> None:
    text = f"{FILLER}\nMara: Hello there. The HARBOUR is open.\nKofi: The HARBOUR was painted."
    assert about(asked((text, {"source": "talk"}), question="the HARBOUR?")) == [
        "[talk] Mara: The HARBOUR is open.",
        "[talk] Kofi: The HARBOUR was painted.",
    ]


def test_who_speaks() -> None:
    text = "One.\nMara: Two. Three.\nFour goes on.\nKofi Ade: Five. Six.\n\nSeven."
    said = [text[first:last] for first, last in sentences(text)]
    told = dict(zip(said, [Turns(text).speaker_of(begin) for begin, _ in sentences(text)], strict=True))
    assert told["One."] == told["Mara: Two."] == told["Kofi Ade: Five."] == told["Seven."] == ""
    assert told["Three."] == "Mara"
    assert told["Six."] == "Kofi Ade"


@pytest.mark.parametrize("later_first", [False, True])
def test_the_oldest_stands_first_and_the_newest_of_rivals_is_marked(later_first: bool) -> None:
    texts = [
        (f"{FILLER}{TOLD}", {"source": "a", "happened": "2026-01-02"}),
        (f"{FILLER}{LATER}", {"source": "b", "happened": "2026-02-03"}),
    ]
    answer = asked(*(reversed(texts) if later_first else texts))
    assert about(answer) == [f"[a, 2026-01-02] {TOLD}", f"[b, 2026-02-03, newest] {LATER}"]
    unmarked = asked(*texts, config=CONFIG.changed(search={"newest_first": False}))
    assert about(unmarked) == [f"[a, 2026-01-02] {TOLD}", f"[b, 2026-02-03] {LATER}"]


@pytest.mark.parametrize("kind", ["kv", "auto", "text", "gpt2"])
def test_alone_they_bring_no_keys(kind: str) -> None:
    alone = CONFIG.changed(answer={"quotes_alone": True, "recall_mode": "text" if kind == "gpt2" else kind})
    model = tiny_text_model() if kind == "gpt2" else tiny_model()
    with everlong.MemoryModel(model, byte_tokenizer(), None, alone, pack=None) as mm:
        mm.read(f"{FILLER}{TOLD}{FILLER}", source="minutes")
        mm.read(LAST, source="last")
        assert tokens_recalled(mm) == 0
        assert any(TOLD in one.text for one in mm.last_recalled)
        assert about(mm.generate(QUESTION, max_new_tokens=3)) == [f"[minutes] {TOLD}"]
        mm.config = mm.config.changed(answer={"quotes_alone": False})
        assert about(mm.generate(QUESTION, max_new_tokens=3, remember=False)) == [f"[minutes] {TOLD}"]
        assert tokens_recalled(mm) > 0


def tokens_recalled(mm: everlong.MemoryModel) -> int:
    """Return how many tokens came back for the question into the frame, besides those in its own turn."""
    answer = mm.stream(QUESTION, max_new_tokens=3, min_new_tokens=3, remember=False)
    next(answer)
    tokens: int = mm.frame.os.recalled_tokens
    answer.close()
    return tokens


def test_alone_more_groups_are_found_than_the_frame_has_room_for() -> None:
    config = CONFIG.changed(search={"groups": 9, "neighbours": 0}, frame={"recalled_tokens": 64})
    text = "".join(f"{FILLER}The HARBOUR budget {number}. " for number in range(12))
    few = asked((text, {"source": "a"}), config=config)
    many = asked((text, {"source": "a"}), config=config.changed(answer={"quotes_alone": True}))
    assert len(few.recalled) < len(many.recalled) <= 9 + 9 // 4  # with those of a second search


def test_alone_a_group_is_no_more_than_its_pages() -> None:
    """A search without a limit would join all pages that the question's words are in."""
    config = SMALL.changed(search={"index": ("lexical",), "groups": 3, "neighbours": 2})
    config = config.changed(answer={"policy": ("prompt", "signal"), "quotes": 3, "quotes_alone": True})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, config) as mm:
        mm.read(random_text(6000))
        found = mm.generate(random_text(40), max_new_tokens=4).recalled
        pages = sum(end - begin for begin, end in (one.span for one in found))
        assert 0 < pages <= 3 * 6 * config.archive.page_tokens
        mm.signal("retrieve")  # it comes back as keys and values
        later = mm.last_recalled[len(found) :]
        assert 0 < sum(end - begin for begin, end in (one.span for one in later)) <= config.frame.recalled_tokens


def test_alone_a_passage_is_used_where_it_has_a_quote() -> None:
    config = CONFIG.changed(search={"groups": 6, "neighbours": 0}, answer={"quotes": 2})
    text = "".join(f"{FILLER}The HARBOUR budget {number}. " for number in range(12))
    answer = asked((text, {"source": "a"}), config=config.changed(answer={"quotes_alone": True}))
    assert len(answer.quoted) == 2
    quoted = [line.partition("] ")[2] for line in answer.quoted]
    places = [(text.index(words), text.index(words) + len(words)) for words in quoted]  # a token is a character
    for one in answer.recalled:
        assert text[slice(*one.span)] == one.text
        assert one.used == any(one.span[0] < end and begin < one.span[1] for begin, end in places)
    assert {one.used for one in answer.recalled} == {True, False}
    assert all(one.used for one in asked((text, {"source": "a"}), config=config).recalled)


def test_alone_without_quotes_is_refused() -> None:
    with pytest.raises(ValueError, match="quotes_alone is True, and quotes is 0"):
        CONFIG.changed(answer={"quotes": 0, "quotes_alone": True})
