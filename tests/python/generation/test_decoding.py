"""Generation settings mean what they mean to transformers: against the plain model.generate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import everlong
from everlong.text.encoding import decode_text
from support import SMALL, byte_tokenizer, random_text, tiny_model

PROMPT = random_text(40)


@pytest.fixture
def mm():
    with everlong.MemoryModel(tiny_model("qwen3"), byte_tokenizer(), config=SMALL) as opened:
        yield opened


class Heard:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def plain(mm: everlong.MemoryModel, **generation: Any) -> list[int]:
    """What transformers alone generates behind PROMPT."""
    ids = mm.encode(PROMPT)[None]
    with torch.no_grad():
        out = mm.model.generate(ids, attention_mask=torch.ones_like(ids), tokenizer=mm.tokenizer, **generation)
    return out[0, ids.shape[1] :].tolist()


def ours(mm: everlong.MemoryModel, **generation: Any) -> list[int]:
    heard = Heard()
    answer = mm.generate(PROMPT, remember=False, streamer=heard, **generation)
    tokens = [token for given in heard.given[1:] for token in given]
    assert answer.tokens == len(tokens)
    assert answer.text == decode_text(mm.tokenizer, tokens)
    return tokens


@pytest.mark.parametrize("where", ["call", "config", "model"])
def test_stop_strings_end_an_answer_where_transformers_ends_it(mm, where: str) -> None:
    whole = decode_text(mm.tokenizer, plain(mm, max_new_tokens=60, do_sample=False))
    stops = [whole[20:23], "never this"]
    if where == "model":
        mm.model.generation_config.stop_strings = stops
        settings: dict[str, Any] = {"max_new_tokens": 60, "do_sample": False}
    elif where == "config":
        config = transformers.GenerationConfig(max_new_tokens=60, stop_strings=stops, eos_token_id=256)
        settings = {"generation_config": config}
    else:
        settings = {"max_new_tokens": 60, "do_sample": False, "stop_strings": stops}
    expected = plain(mm, **settings)
    assert len(expected) < 60
    assert ours(mm, **settings) == expected
    if where == "model":
        assert mm.model.generation_config.stop_strings == stops
        assert len(ours(mm, **settings, stop_strings=None)) == 60


def test_a_generation_config_is_taken_as_it_is(mm) -> None:
    for settings in (
        {"max_new_tokens": 70},
        {"max_new_tokens": 12, "do_sample": True, "temperature": 0.7, "top_k": 20},
        {"max_length": 55, "repetition_penalty": 1.3},
    ):
        config = transformers.GenerationConfig(**settings, eos_token_id=None)
        torch.manual_seed(7)
        expected = plain(mm, generation_config=config)
        torch.manual_seed(7)
        assert ours(mm, generation_config=config) == expected
    assert len(expected) == 15
    assert len(ours(mm, generation_config=config, max_new_tokens=3)) == 3
    assert len(ours(mm)) == len(plain(mm, max_new_tokens=64, do_sample=False))
    assert len(ours(mm, max_length=50)) == 10


@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "top_k": 5}, {"cache_implementation": "static"}])
def test_a_generation_config_without_a_length_answers_a_prompt_beyond_the_window(settings: dict[str, Any]) -> None:
    model = tiny_model("qwen3", max_position_embeddings=SMALL.frame.tokens)
    config = transformers.GenerationConfig(**settings, eos_token_id=None)
    caches: list[object] = []
    prepare_cache = model._prepare_cache_for_generation
    model._prepare_cache_for_generation = lambda config, *given: (
        caches.append(config.cache_implementation) or prepare_cache(config, *given)
    )
    with everlong.MemoryModel(model, byte_tokenizer(), config=SMALL) as mm:
        question = random_text(SMALL.frame.tokens + 100)
        answer = mm.generate(question, generation_config=config, chat=False)
        assert answer.tokens == 64
        assert mm.generate(PROMPT, generation_config=config, max_new_tokens=3).tokens == 3
        model.generation_config.max_new_tokens = 5
        assert mm.generate(PROMPT, generation_config=config).tokens == 5
    assert caches == [None] * 3


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 2},
        {"num_beams": 2, "do_sample": True},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"prompt_lookup_num_tokens": 3},
        {"dola_layers": "low"},
        {"num_return_sequences": 2, "do_sample": True},
        {"generation_config": transformers.GenerationConfig(num_beams=3, max_new_tokens=4)},
    ],
)
def test_other_ways_of_decoding_are_refused(mm, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"greedy search or sampling|must be 1"):
        mm.generate(PROMPT, **settings)
    with pytest.raises(ValueError, match="assistant_model"):
        mm.generate(PROMPT, assistant_model=tiny_model())
    assert mm.stream_tokens == 0


@pytest.mark.parametrize("name", ["return_dict_in_generate", "output_scores", "output_logits", "output_attentions"])
def test_what_an_answer_has_no_place_for_is_refused(mm, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: an answer is"):
        mm.generate(PROMPT, **{name: True})
    with pytest.raises(ValueError, match="the frame is the cache"):
        mm.generate(PROMPT, use_cache=False)
    assert mm.stream_tokens == 0
    assert mm.generate(PROMPT, max_new_tokens=2, use_cache=True, **{name: False}).tokens == 2


def test_a_streamer_hears_what_transformers_would_tell_it(mm) -> None:
    theirs, heard = Heard(), Heard()
    expected = plain(mm, max_new_tokens=9, do_sample=False, streamer=theirs)
    mm.generate(PROMPT, max_new_tokens=9, remember=False, streamer=heard)
    assert (heard.given, heard.ended) == (theirs.given, theirs.ended)
    assert heard.given[1:] == [[token] for token in expected]


def test_a_streamer_is_told_the_end_of_an_answer_that_fails(mm, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    monkeypatch.setattr(mm.frame, "extend", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mm.generate(PROMPT, remember=False, streamer=heard)
    assert heard.ended == 1


def test_who_hears_the_end_may_ask_the_next_question(mm) -> None:
    """As with transformers' TextIteratorStreamer in a thread, which nobody joins."""

    class AskingAtTheEnd(Heard):
        def end(self) -> None:
            super().end()
            self.next = mm.generate("And what then?", max_new_tokens=3, recall=False)

    mm.read(random_text(1500, seed=1))
    for remember in (True, False):
        heard = AskingAtTheEnd()
        answer = mm.generate(PROMPT, max_new_tokens=3, remember=remember, streamer=heard)
        assert heard.next.tokens == 3
        assert answer.recalled  # its own, not those of the next one
        assert heard.next.recalled == ()
    assert mm.frame.os.archiving
    assert mm.memory.stats().tokens == mm.stream_tokens


def test_code_that_hands_the_tokenizer_to_generate_works(mm) -> None:
    answer = mm.generate(PROMPT, max_new_tokens=4, stop_strings=["\n\n"], tokenizer=mm.tokenizer, remember=False)
    assert answer.tokens <= 4


def test_processors_keep_no_graph(mm) -> None:
    """Guidance asks the model itself, with what it asked before."""
    seen: list[bool] = []

    class Asking(transformers.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            seen.append(mm.model(input_ids=input_ids).logits.requires_grad)
            return scores

    mm.generate(PROMPT, max_new_tokens=2, logits_processor=transformers.LogitsProcessorList([Asking()]))
    assert seen == [False, False]


def test_what_the_call_leaves_open_the_model_s_own_settings_say(mm) -> None:
    own = mm.model.generation_config
    own.eos_token_id = None
    assert len(ours(mm)) == 64
    own.update(do_sample=True, temperature=0.9, top_k=7, max_new_tokens=23)
    torch.manual_seed(3)
    expected = plain(mm)
    greedy = plain(mm, do_sample=False)
    assert len(expected) == 23
    assert expected != greedy
    torch.manual_seed(3)
    assert ours(mm) == expected
    assert ours(mm, do_sample=False) == greedy
    torch.manual_seed(3)
    assert ours(mm, max_new_tokens=5) == expected[:5]
    torch.manual_seed(3)
    pieces = "".join(mm.stream(PROMPT, remember=False))
    assert pieces == decode_text(mm.tokenizer, expected)
    own.update(max_new_tokens=None, max_length=len(PROMPT) + 11)
    assert len(ours(mm)) == 11
    own.update(max_length=None, eos_token_id=[expected[2], 256])
    torch.manual_seed(3)
    assert ours(mm) == expected[:3]


def test_a_length_of_the_call_goes_before_the_model_s_own_without_a_word(mm, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(transformers.generation.utils.logger, "warning", lambda text, *_: said.append(text))
    mm.model.generation_config.update(max_length=50, eos_token_id=None)
    assert len(ours(mm, max_new_tokens=70)) == 70
    assert said == []


def test_an_answer_says_why_it_ends_and_of_which_tokens_it_is(mm) -> None:
    whole = mm.generate(PROMPT, max_new_tokens=30, eos_token_id=None, remember=False)
    assert (whole.finish_reason, whole.tokens, len(whole.token_ids)) == ("length", 30, 30)
    assert decode_text(mm.tokenizer, list(whole.token_ids)) == whole.text
    third = whole.token_ids[2]
    first = whole.token_ids.index(third) + 1
    for how in ({"eos_token_id": third}, {"eos_token_id": third, "max_new_tokens": first}):
        ended = mm.generate(PROMPT, remember=False, **{"max_new_tokens": 30, **how})
        assert (ended.finish_reason, ended.token_ids) == ("stop", whole.token_ids[:first])
    stopped = mm.generate(PROMPT, max_new_tokens=30, eos_token_id=None, stop_strings=[whole.text[9:11]], remember=False)
    assert stopped.finish_reason == "stop"
    assert stopped.tokens < 30
    late = mm.generate(PROMPT, max_new_tokens=30, eos_token_id=None, max_time=0.0, remember=False)
    assert (late.finish_reason, late.tokens) == ("time", 1)
    assert mm.generate(PROMPT, max_length=len(PROMPT) + 4, eos_token_id=None).finish_reason == "length"
