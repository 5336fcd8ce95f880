"""A byte tokenizer, made without a file."""

from __future__ import annotations

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


def byte_tokenizer(*, begins: bool = False) -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer with one token a byte: ids 0 to 255, and <end> as 256.

    With `begins`, it puts <begin>, id 257, before every text.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if not begins:
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    tokenizer.add_special_tokens(["<end>", "<begin>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 257)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", bos_token="<begin>")
