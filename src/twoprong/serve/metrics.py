"""What the service's owner sees: Prometheus metrics, and the last batches for the dashboard. Clients see none of it."""

import time
from collections import deque
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from twoprong.serve.worker import BatchFacts

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
LEVELS = tuple(level / 20 for level in range(1, 21))
KEPT = 500  # batches that the dashboard shows


class Metrics:
    """One registry for one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.history: deque[dict[str, Any]] = deque(maxlen=KEPT)
        to: Any = {"namespace": "twoprong", "registry": self.registry}
        self.requests = Counter("requests", "Requests by what became of them", ["endpoint", "status"], **to)
        self.seconds = Histogram("request_seconds", "Until a request with images was answered", buckets=SECONDS, **to)
        self.queue = Histogram("queue_seconds", "What an image waits for its batch", buckets=SECONDS, **to)
        self.batch_seconds = Histogram("batch_seconds", "What a batch takes in the worker", buckets=SECONDS, **to)
        self.size = Histogram("batch_size", "Images in a batch, copies once", buckets=SIZES, **to)
        self.batches = Counter("batches", "Batches by route, and why", ["route", "reason"], **to)
        self.images = Counter("images", "Images by key and route", ["key", "route"], **to)
        self.failed = Counter("batches_failed", "Batches that could not be judged", **to)
        skipped = "Flagged batches that were not kept for review because too many were waiting for it"
        self.reviews_skipped = Counter("reviews_skipped", skipped, **to)
        self.statistic = Gauge("statistic", "Of the last tested batch", **to)
        self.threshold = Gauge("threshold", "Of the last tested batch, by its size", **to)
        self.p_value = Histogram("p_value", "Of tested batches", buckets=LEVELS, **to)
        self.pending = Gauge("pending", "Images that are accepted and not answered", **to)
        self.pending_bytes = Gauge("pending_bytes", "Bytes that are held for them", **to)
        self.watched = Gauge("keys_watched", "Keys whose images look attacked too often", **to)
        self.restarts = Gauge("worker_restarts", "How often the worker was started again", **to)
        self.ready = Gauge("ready", "Whether the service takes requests", **to)

    def heard(self, facts: BatchFacts) -> None:
        """Count one batch."""
        route, reason = route_of(facts)
        self.size.observe(facts.size)
        self.batches.labels(route, reason).inc()
        for key, flagged in zip(facts.keys, facts.flagged, strict=True):
            self.images.labels(key, "flagged" if flagged else "passing").inc()
        if facts.tested and facts.statistic is not None and facts.threshold is not None:
            self.statistic.set(facts.statistic)
            self.threshold.set(facts.threshold)
        if facts.p_value is not None:
            self.p_value.observe(facts.p_value)
        self.history.append({
            "time": time.time(), "size": facts.size, "route": route, "reason": reason, "statistic": facts.statistic,
            "threshold": facts.threshold, "p_value": facts.p_value, "blamed": list(facts.blamed),
        })  # fmt: skip

    def text(self) -> bytes:
        return generate_latest(self.registry)


def route_of(facts: BatchFacts) -> tuple[str, str]:
    """The route that a batch took, and why."""
    if not facts.tested:
        return "flagged" if facts.adversarial else "passing", "too_small"
    route = "flagged" if all(facts.flagged) else "divided" if any(facts.flagged) else "passing"
    if not facts.adversarial:
        return route, "watched" if any(facts.flagged) else "passed"
    return route, "alarm" if all(facts.flagged) else "blamed"
