"""Text, its tokens and its vectors: a tokenizer's ids, prompts, boundaries, control tokens, and what an encoder is."""
