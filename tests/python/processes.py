"""Processes of a test's own, for what would end this one or change it: one has imported torch, they come out of it."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["everlong", "transformers.models.llama.modeling_llama"])
