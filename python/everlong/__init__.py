"""everlong: a memory of a million tokens and more for any HuggingFace causal LM."""

from everlong import _native

_native.check_torch()
