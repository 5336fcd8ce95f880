"""What blocks are about, as the model says it: after a block's first tokens it continues "tags:".

The model is asked in a thread of its own, several blocks at once, off the path of reading.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.memory.origins import TAGGED_BY_MODEL, key_tag
from everlong.models.releases import cache_argument
from everlong.text.encoding import encode
from everlong.text.keyphrases import MOST_CHARACTERS, TAGS_A_BLOCK, phrases_of
from everlong.text.prompt import start_ids

FIRST_TOKENS: Final = 128  # tokens of a block that the model sees
_NEW_TOKENS = 24
_BATCH = 8
# A model that was not trained to answer continues in the form that it was shown: two made-up texts, and their tags.
_SHOWN = (
    "Text: The old ferryman rowed across the Tarn at night with a cargo of salt and two sleeping goats.\n"
    "tags: ferryman, Tarn, salt, goats\n\n"
    "Text: Prices of copper fell after the strike in the northern mines ended, and Weaver & Sons sold what they had.\n"
    "tags: copper, prices, strike, mines, Weaver\n\nText: "
)
_ASKED = "\ntags:"
# A word that more than one page in so many has tells no block from others, and is no tag.
_COMMON = 8


class ModelTags:
    """Gives the blocks of a memory the model's tags. It asks the memory which blocks lack them.

    A block's tags and the note that it was tagged are one commit, so a process that died has lost none.
    """

    def __init__(self, core: _core.Memory, model: Any, tokenizer: Any) -> None:
        """`tokenizer`: one for this thread alone."""
        self._core = core
        self._tagged = 0  # the model was asked about every block up to this id
        self._model = model
        self._tokenizer = tokenizer
        self._before = torch.cat([torch.tensor(start_ids(tokenizer), dtype=torch.int64), encode(tokenizer, _SHOWN)])
        self._behind = encode(tokenizer, _ASKED)
        # What may be said twice. All else may be said once, or a small model says one thing without end.
        self._separators = set(encode(tokenizer, ", , and").tolist()) | set(encode(tokenizer, ",").tolist())
        self._end = set(encode(tokenizer, "\n").tolist()) | set(encode(tokenizer, "\n\n").tolist())

    def missing(self) -> list[int]:
        """Return the ids of the blocks that the model was not asked about, in order of archiving."""
        infos = self._core.blocks.infos(behind=self._tagged)
        return [block.id for block in infos if TAGGED_BY_MODEL not in block.tags]

    def fill(self, closed: Callable[[], bool]) -> None:
        """Tag batch after batch, until `closed()`."""
        missing = self.missing()
        for first in range(0, len(missing), _BATCH):
            if closed():
                return
            self._tag(missing[first : first + _BATCH])
            self._tagged = missing[min(first + _BATCH, len(missing)) - 1]

    def _tag(self, blocks: Sequence[int]) -> None:
        ids: dict[int, torch.Tensor] = {}
        for block in blocks:
            try:
                info = self._core.blocks.info(block)
                first = self._core.blocks.token_ids(info.stream, info.begin, min(info.end, info.begin + FIRST_TOKENS))
            except MemoryNotFoundError:  # forgotten meanwhile
                continue
            ids[block] = torch.from_numpy(first.astype(np.int64))
        # Texts of the same length are asked together: no model, whatever its layers, is disturbed by padding then.
        alike = collections.defaultdict(list)
        for block, tokens in ids.items():
            alike[len(tokens)].append(block)
        for of_length in alike.values():
            said = self.generate_tags([ids[block] for block in of_length])
            for block, words in zip(of_length, said, strict=True):
                tags = [key_tag(tag) for tag in self.tags_in(words)]
                try:
                    self._core.blocks.add_tags(block, [*tags, TAGGED_BY_MODEL])
                except MemoryNotFoundError:
                    continue

    @torch.inference_mode()
    def generate_tags(self, texts: Sequence[torch.Tensor]) -> list[str]:
        """Return what the model says after texts of equally many tokens, greedily, up to the end of the line."""
        rows = [torch.cat([self._before, ids, self._behind]) for ids in texts]
        cache = DynamicCache(config=self._model.config.get_text_config(decoder=True))
        name = cache_argument(self._model)
        put = torch.stack(rows).to(self._model.device)
        answers: list[list[int]] = [[] for _ in texts]
        ended = [False] * len(texts)
        for _ in range(_NEW_TOKENS):
            logits = self._model(input_ids=put, use_cache=True, logits_to_keep=1, **{name: cache}).logits[:, -1]
            for row, answer in enumerate(answers):
                for once in set(answer) - self._separators:
                    logits[row, once] = -torch.inf
            newest = logits.argmax(-1)
            for row, token in enumerate(newest.tolist()):
                ended[row] = ended[row] or token in self._end
                if not ended[row]:
                    answers[row].append(token)
            if all(ended):
                break
            put = newest[:, None]
        return [self._tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]

    def tags_in(self, text: str) -> list[str]:
        """Return the phrases of what the model answered, in lower case, and the rare words of phrases of several words.

        A question names words, and names of two.
        """
        phrases = [" ".join(phrases_of(part.lower())) for part in text.replace(";", ",").split(",")]
        chosen = [phrase for phrase in dict.fromkeys(phrases) if 2 < len(phrase) <= MOST_CHARACTERS][:TAGS_A_BLOCK]
        words = [word for phrase in chosen if " " in phrase for word in phrase.split()]
        return list(dict.fromkeys([*chosen, *(word for word in words if self._is_rare(word))]))

    def _is_rare(self, word: str) -> bool:
        ids = encode(self._tokenizer, f" {word}").numpy().astype(np.int32)
        return bool(np.max(self._core.search.idf(ids), initial=0.0) > np.log1p(_COMMON))
