"""A question as tokens: the template's turn around it, and where its own words stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.prompt import build_prompt
from tiny_models import byte_tokenizer

TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<sys>be good</sys>{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</{{ m['role'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def chat_tokenizer():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_question_is_a_later_turn_without_a_system_message(chat_tokenizer) -> None:
    prompt = build_prompt(chat_tokenizer, "Where is Kyoto?")
    assert chat_tokenizer.decode(prompt.ids) == "</assistant><user>Where is Kyoto?</user><assistant>"
    assert chat_tokenizer.decode(prompt.ids[prompt.question]) == "Where is Kyoto?"


def test_plain_text_stays_as_it_is(chat_tokenizer) -> None:
    for tokenizer, chat in ((chat_tokenizer, False), (byte_tokenizer(), True)):
        prompt = build_prompt(tokenizer, "go on", chat=chat)
        assert tokenizer.decode(prompt.ids) == "go on"
        assert prompt.question == slice(0, 5)


@pytest.mark.parametrize("question", ["", "  \n"])
@pytest.mark.parametrize("chat", [True, False])
def test_an_empty_question_is_refused(chat_tokenizer, question: str, chat: bool) -> None:
    with pytest.raises(ValueError, match="the question is empty"):
        build_prompt(chat_tokenizer, question, chat=chat)


@given(st.text(min_size=1, max_size=60).filter(lambda text: text.strip()))
def test_span_covers_the_question_whatever_it_says(question: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    prompt = build_prompt(tokenizer, question)
    words = tokenizer.decode(prompt.ids[prompt.question], clean_up_tokenization_spaces=False)
    assert question.strip() in words
