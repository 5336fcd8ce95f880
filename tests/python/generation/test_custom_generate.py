"""`model.generate(..., custom_generate=mm.decode)` against plain `model.generate`, where all of it fits the frame."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import transformers

import everlong
from everlong.models.releases import cache_argument
from support import SMALL, byte_tokenizer, random_text, tiny_model

PROMPT = random_text(60, seed=5)
# As in transformers' own GenerationTesterMixin: three architectures, one of them with sliding windows.
MODELS = [("llama", "default"), ("qwen3", "yarn"), ("gemma3", "nested")]


@pytest.fixture(params=MODELS, ids=[kind for kind, _ in MODELS])
def mm(request: pytest.FixtureRequest):
    with everlong.MemoryModel(tiny_model(*request.param), byte_tokenizer(), config=SMALL) as opened:
        opened.model.generation_config.eos_token_id = None
        yield opened


def inputs(mm: everlong.MemoryModel, text: str = PROMPT) -> dict[str, torch.Tensor]:
    return dict(mm.tokenizer(text, return_tensors="pt", return_token_type_ids=False))


def plain(mm: everlong.MemoryModel, **how: Any) -> Any:
    torch.manual_seed(11)
    return mm.model.generate(**inputs(mm), **how)


def ours(mm: everlong.MemoryModel, **how: Any) -> Any:
    torch.manual_seed(11)
    return mm.model.generate(**inputs(mm), custom_generate=mm.decode, remember=False, **how)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True},
    "warped": {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "penalised": {"do_sample": False, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    "not these": {"do_sample": False, "suppress_tokens": list(range(128))},
    "at least": {"do_sample": False, "min_new_tokens": 20, "eos_token_id": list(range(0, 257, 2))},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_decoding_gives_the_same_tokens(mm, way: str) -> None:
    expected = plain(mm, max_new_tokens=25, **WAYS[way])
    assert torch.equal(ours(mm, max_new_tokens=25, **WAYS[way]), expected)
    assert mm.stream_tokens == 0  # remember=False


def test_lengths_are_transformers_own(mm) -> None:
    for how in ({"max_new_tokens": 1}, {"max_length": len(PROMPT) + 7}, {}):
        assert torch.equal(ours(mm, do_sample=False, **how), plain(mm, do_sample=False, **how))


def test_an_end_token_ends_it(mm) -> None:
    whole = plain(mm, do_sample=False, max_new_tokens=30)[0, len(PROMPT) :].tolist()
    how = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": [whole[4], 256]}
    expected = plain(mm, **how)
    assert expected.shape[1] <= len(PROMPT) + 5
    assert torch.equal(ours(mm, **how), expected)


def test_stop_strings_and_criteria_end_it(mm) -> None:
    ascii_alone = {"do_sample": False, "max_new_tokens": 40, "suppress_tokens": list(range(128, 257))}
    stop = mm.tokenizer.decode(plain(mm, **ascii_alone)[0, len(PROMPT) :][10:13])
    how = {**ascii_alone, "stop_strings": [stop], "tokenizer": mm.tokenizer}
    expected = plain(mm, **how)
    assert expected.shape[1] < len(PROMPT) + 40
    assert torch.equal(ours(mm, **how), expected)

    class After(transformers.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            return torch.tensor([input_ids.shape[1] >= len(PROMPT) + 3])

    stops = transformers.StoppingCriteriaList([After()])
    assert torch.equal(ours(mm, **ascii_alone, stopping_criteria=stops), expected[:, : len(PROMPT) + 3])


def test_processors_of_the_caller_are_honoured(mm) -> None:
    class Only(transformers.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            forced = torch.full_like(scores, float("-inf"))
            forced[:, input_ids.shape[1] % 100] = 0
            return forced

    processors = transformers.LogitsProcessorList([Only()])
    answer = ours(mm, max_new_tokens=5, logits_processor=processors)
    assert answer[0, len(PROMPT) :].tolist() == [number % 100 for number in range(len(PROMPT), len(PROMPT) + 5)]


def test_an_output_object_is_returned_where_one_is_asked_for(mm) -> None:
    expected = plain(mm, do_sample=False, max_new_tokens=4)
    output = ours(mm, do_sample=False, max_new_tokens=4, return_dict_in_generate=True)
    assert torch.equal(output.sequences, expected)


def test_a_streamer_hears_prompt_tokens_and_end(mm) -> None:
    class Heard:
        def __init__(self) -> None:
            self.given: list[list[int]] = []
            self.ended = 0

        def put(self, value: torch.Tensor) -> None:
            self.given.append(value.flatten().tolist())

        def end(self) -> None:
            self.ended += 1

    theirs, heard = Heard(), Heard()
    plain(mm, do_sample=False, max_new_tokens=6, streamer=theirs)
    ours(mm, do_sample=False, max_new_tokens=6, streamer=heard)
    assert (heard.given, heard.ended) == (theirs.given, theirs.ended)


def test_text_comes_from_a_thread_by_transformers_own_streamer(mm) -> None:
    expected = mm.tokenizer.decode(plain(mm, do_sample=False, max_new_tokens=12)[0, len(PROMPT) :])
    streamer = transformers.TextIteratorStreamer(mm.tokenizer, skip_prompt=True, timeout=60)
    how = {"do_sample": False, "max_new_tokens": 12, "streamer": streamer}
    thread = threading.Thread(target=ours, args=(mm,), kwargs=how)
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == expected


def test_it_goes_on_from_the_memory_as_generate_does(mm) -> None:
    mm.read(random_text(1500, seed=1), source="book")
    question = random_text(1500, seed=1)[300:330]
    answer = mm.generate(question, max_new_tokens=8, chat=False, remember=False)
    found = mm.last_recalled
    assert found
    how = {"do_sample": False, "max_new_tokens": 8, "custom_generate": mm.decode}
    ids = mm.model.generate(**inputs(mm, question), **how, remember=False)
    assert ids[0, len(question) :].tolist() == list(answer.token_ids)
    assert mm.last_recalled == found
    mm.model.generate(**inputs(mm, question), **how, remember=False, recall=False)
    assert mm.last_recalled == ()
    mm.model.generate(**inputs(mm, question), **how, remember=False, where=everlong.Where(source="another"))
    assert mm.last_recalled == ()
    before = mm.stream_tokens
    assert torch.equal(mm.model.generate(**inputs(mm, question), **how), ids)
    assert mm.stream_tokens == before + ids.shape[1]


def test_what_a_memory_cannot_do_is_refused(mm) -> None:
    batch = {name: value.repeat(2, 1) for name, value in inputs(mm).items()}
    padded = inputs(mm)
    padded["attention_mask"][0, :3] = 0
    with pytest.raises(ValueError, match="batch of 2"):
        mm.model.generate(**batch, custom_generate=mm.decode)
    with pytest.raises(ValueError, match="without padding"):
        mm.model.generate(**padded, custom_generate=mm.decode)
    with pytest.raises(ValueError, match="greedy search or sampling"):
        mm.model.generate(**inputs(mm), custom_generate=mm.decode, num_beams=2)
    with pytest.raises(ValueError, match="output_scores"):
        mm.model.generate(**inputs(mm), custom_generate=mm.decode, output_scores=True, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="another model"):
        tiny_model().generate(**inputs(mm), custom_generate=mm.decode)
    read = transformers.DynamicCache(config=mm.model.config)
    mm.model(input_ids=inputs(mm, "before")["input_ids"], **{cache_argument(mm.model): read})
    whole = inputs(mm, "before" + PROMPT)
    with pytest.raises(ValueError, match="goes on from the token ids of one prompt"):
        mm.model.generate(**whole, custom_generate=mm.decode, **{cache_argument(mm.model): read})
    assert mm.stream_tokens == 0
    assert ours(mm, do_sample=False, max_new_tokens=2).shape[1] == len(PROMPT) + 2


class Wrapper(torch.nn.Module):
    """A model in another one that hands on what it is asked, as a wrapper of adapters does."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.inner(*given, **named)

    def generate(self, *given: Any, **named: Any) -> Any:
        return self.inner.generate(*given, **named)


def with_adapters(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"])).eval()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # peft's
@pytest.mark.parametrize("wrap", [Wrapper, lambda model: Wrapper(Wrapper(model)), with_adapters])
def test_a_wrapped_model_decodes_over_the_frame(wrap: Any) -> None:
    model = tiny_model()
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as plain_one:
        expected = ours(plain_one, do_sample=False, max_new_tokens=9)
    with everlong.MemoryModel(wrap(model).eval(), byte_tokenizer(), config=SMALL) as wrapped:
        assert torch.equal(ours(wrapped, do_sample=False, max_new_tokens=9), expected)
        with pytest.raises(ValueError, match="another model"):
            Wrapper(tiny_model()).generate(**inputs(wrapped), custom_generate=wrapped.decode)


def test_the_frame_s_cache_is_as_long_as_it_is_and_says_what_to_do_instead(mm) -> None:
    cache = mm.frame.cache
    assert cache.get_seq_length() == 0
    mm.read(PROMPT)
    assert cache.get_seq_length() == len(PROMPT)
    before = mm.frame.extend(mm.encode("so"), "read")
    for call, says in (
        (lambda: cache.crop(3), r"mm\.frame\.branch"),
        (cache.reset, "another MemoryModel"),
        (lambda: cache.reorder_cache(torch.tensor([0])), "no beams"),
        (lambda: cache.batch_repeat_interleave(2), "no batch"),
        (lambda: cache.batch_select_indices(torch.tensor([0])), "no batch"),
    ):
        with pytest.raises(everlong.EverlongError, match=says):
            call()
    assert cache.get_seq_length() == len(PROMPT) + 2
    with mm.frame.branch():  # as that says
        mm.frame.extend(mm.encode("something"), "read")
        assert cache.get_seq_length() == len(PROMPT) + 11
    assert cache.get_seq_length() == len(PROMPT) + 2
    assert before.shape == (1, 257)


def test_plain_generate_over_the_frame_s_cache_is_refused_and_changes_nothing(mm) -> None:
    mm.read(random_text(100, seed=9))
    with mm.frame.branch():
        expected = mm.frame.extend(mm.encode("so"), "read")
    given = {cache_argument(mm.model): mm.frame.cache}
    with pytest.raises(everlong.EverlongError, match=r"custom_generate=mm\.decode"):
        mm.model(**inputs(mm), **given)
    longer = inputs(mm, PROMPT * 3)
    with pytest.raises(everlong.EverlongError, match=r"custom_generate=mm\.decode"):
        mm.model.generate(**longer, **given, max_new_tokens=2)
    assert torch.equal(mm.frame.extend(mm.encode("so"), "read"), expected)


def test_many_questions_are_answered_from_one_state(mm) -> None:
    mm.read(random_text(1500, seed=1), source="book")
    mm.read(random_text(300, seed=2), source="letters")
    questions = [random_text(1500, seed=1)[first : first + 30] for first in (100, 300, 500)]
    each = [mm.generate(question, max_new_tokens=6, remember=False) for question in questions]
    before = mm.stream_tokens
    told: list[tuple[int, everlong.Answer]] = []
    answers = mm.answer_many(questions, max_new_tokens=6, on_answer=lambda number, one: told.append((number, one)))
    assert answers == each
    assert told == list(enumerate(each))
    assert mm.stream_tokens == before
    assert mm.answer_many(reversed(questions), max_new_tokens=6) == each[::-1]
    places = [everlong.Where(source=name) for name in ("book", "letters", "book")]
    narrowed = mm.answer_many(questions, max_new_tokens=6, where=places)
    assert narrowed[0].recalled
    assert [{found.source for found in one.recalled} <= {"book"} for one in narrowed] == [
        True,
        not narrowed[1].recalled,
        True,
    ]
    assert mm.answer_many([]) == []


def test_many_questions_are_looked_at_before_one_is_answered(mm) -> None:
    told: list[int] = []
    for questions, how, error in (
        (["a", " "], {}, ValueError),
        ("a question", {}, TypeError),
        (["a", "b"], {"where": [everlong.Where()]}, ValueError),
        (["a", "b"], {"where": [everlong.Where(), "b"]}, TypeError),
    ):
        with pytest.raises(error):
            mm.answer_many(questions, on_answer=lambda number, one: told.append(number), **how)
    assert told == []
