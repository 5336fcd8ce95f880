"""What a service counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters, gauges and times of one service. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name = "everlong"
        told: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(f"{name}_requests", "Requests, by route and status.", ["route", "status"], **told)
        self.seconds = Histogram(
            f"{name}_request_seconds", "Seconds of a request.", ["route"], buckets=_SECONDS, **told
        )
        self.errors = Counter(f"{name}_errors", "Refusals and failures, by code.", ["code"], **told)
        self.read = Counter(f"{name}_tokens_read", "Tokens read: of texts, and of questions.", ["what"], **told)
        self.generated = Counter(f"{name}_tokens_generated", "Tokens generated.", **told)
        self.recalled = Counter(f"{name}_recalls", "Passages that came back.", **told)
        self.evictions = Counter(f"{name}_evictions", "Open memories that were closed to make room.", **told)
        self.retired = Counter(f"{name}_retired_blocks", "Blocks that were forgotten for their age or size.", **told)
        self.waited = Histogram(f"{name}_queue_seconds", "Seconds a question waited.", buckets=_SECONDS, **told)
        self.first_token = Histogram(
            f"{name}_first_token_seconds",
            "Seconds from a question's turn to its first token.",
            buckets=_SECONDS,
            **told,
        )
        self.answer = Histogram(f"{name}_answer_seconds", "Seconds of an answer.", buckets=_SECONDS, **told)
        self.reading = Histogram(f"{name}_reading_seconds", "Seconds of a reading.", buckets=_SECONDS, **told)

    def gauge(self, name: str, says: str, value: Callable[[], float]) -> None:
        """Show a value that is asked for whenever somebody looks."""
        Gauge(f"everlong_{name}", says, registry=self.registry).set_function(value)

    def answered(self, read: int, generated: int, recalled: int, seconds: float) -> None:
        self.read.labels("questions").inc(read)
        self.generated.inc(generated)
        self.recalled.inc(recalled)
        self.answer.observe(seconds)

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self.registry)
