"""What is in `deploy/` fits the service."""

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from twoprong.serve.metrics import Metrics

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import picture

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_grafana_dashboard_asks_for_metrics_that_exist():
    metrics = Metrics()
    metrics.requests.labels("a", "200").inc()
    metrics.images.labels("a", "passing").inc()
    metrics.batches.labels("passing", "passed").inc()
    families = text_string_to_metric_families(metrics.text().decode())
    known = {sample.name for family in families for sample in family.samples}
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    asked = {name for panel in panels for one in panel["targets"] for name in re.findall(r"twoprong_\w+", one["expr"])}
    assert len(panels) == 12
    assert asked <= known


def test_latency_is_that_of_answered_requests_with_images(echoing):
    def ask(path, body=None):
        request = urllib.request.Request(f"http://{host}:{port}{path}", body, {"Content-Type": "image/png"})
        try:
            return urllib.request.urlopen(request).status
        except urllib.error.HTTPError as error:
            return error.code

    with echoing() as ((host, port), service):
        good = picture(np.zeros((8, 8), np.uint8))
        paths = ["/", "/samples", "/v2", "/v2/health/ready", "/nothing"]
        assert [ask(path) for path in paths] == [200, 200, 200, 200, 404]
        assert [ask("/v1/classify", body) for body in (good, b"no picture", good)] == [200, 422, 200]
        service.draining = True
        assert ask("/v2/health/ready") == 503
        families = text_string_to_metric_families(service.metrics.text().decode())
        counts = {sample.name: sample.value for family in families for sample in family.samples}
    assert counts["twoprong_request_seconds_count"] == 2


def test_the_systemd_unit_gives_enough_time_to_answer():
    unit = (DEPLOY / "twoprong.service").read_text()
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > 30 + 5  # grace_seconds and what closing takes
    assert "KillMode=mixed" in unit  # the worker must outlive SIGTERM
