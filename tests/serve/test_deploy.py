"""What is in `deploy/` fits the service."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from twoprong.serve.metrics import Metrics

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


def test_the_systemd_unit_gives_enough_time_to_answer():
    unit = (DEPLOY / "twoprong.service").read_text()
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > 30 + 5  # grace_seconds and what closing takes
    assert "KillMode=mixed" in unit  # the worker must outlive SIGTERM
