"""everlong as a transformers pipeline: `transformers.pipeline("everlong-text-generation", ...)`.

Importing this module registers the task. `import everlong` alone does not, because transformers' pipelines take a
second to load.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import transformers
from transformers.pipelines import PIPELINE_REGISTRY

from everlong.config import MemoryConfig
from everlong.generation.memory_model import MemoryModel

TASK = "everlong-text-generation"


class EverlongTextGenerationPipeline(transformers.Pipeline):
    """Reads a context that may be longer than the model's window, and answers questions about it.

    `pipe(context, question="...")` returns {"answer", "recalled"}. `pipe(context, questions=[...])` returns a list
    under "answers". `memory` names a folder that keeps what was read; a second call may then pass "" as context.
    `config` is a MemoryConfig. Other arguments go to `MemoryModel.answer_many`.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def _sanitize_parameters(
        self,
        question: str | None = None,
        questions: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if question is not None and questions is not None:
            raise ValueError("name either question or questions")
        if isinstance(questions, str):
            raise TypeError("questions is a str: give a list of questions, or one as question=")
        # Only what was given: a call's parameters override those of the pipeline's construction.
        if question is None and questions is None:
            return {}, kwargs, {}
        batch = [question] if question is not None else list(questions or ())
        return {}, {**kwargs, "questions": batch}, {"single": question is not None}

    def preprocess(self, context: str) -> dict[str, str]:
        return {"context": context}

    def _forward(
        self,
        inputs: dict[str, str],
        questions: Sequence[str] = (),
        memory: str | pathlib.Path | None = None,
        config: MemoryConfig | None = None,
        source: str = "context",
        **generation: Any,
    ) -> list[dict[str, Any]]:
        if not isinstance(inputs["context"], str):
            raise ValueError("a batch of contexts: each has a memory of its own; batch_size=1 takes them one by one")
        if not questions:
            raise ValueError("a question is needed: pipe(context, question=...) or questions=[...]")
        with MemoryModel(self.model, self.tokenizer, memory, config) as mm:
            if inputs["context"]:
                mm.read(inputs["context"], source=source)
            answers = mm.answer_many(questions, **generation)
        return [
            {"answer": answer.text, "recalled": answer.recalled, "confidence": answer.confidence} for answer in answers
        ]

    def postprocess(self, outputs: list[dict[str, Any]], single: bool = True) -> dict[str, Any]:
        return outputs[0] if single else {"answers": outputs}


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=EverlongTextGenerationPipeline, pt_model=transformers.AutoModelForCausalLM
)
