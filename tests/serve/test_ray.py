"""`twoprong serve --engine ray`, the whole command on a real Ray: answers, replicas that are killed, an end under load."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("ray")

import twoprong as tp
from twoprong.errors import ConfigError, StateError
from twoprong.serve.ingress import Deployed, _first_free, _own
from twoprong.serve.ray import ROOM, application, bind
from twoprong.serve.run import bound_socket
from twoprong.serve.settings import RaySettings, ServeSettings
from twoprong.serve.worker import WorkerSettings

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import children, serving
from test_run import Clients, ask, png, until

CONFIG = """
threads = 1
[batch]
deadline = 0.1
max_batch = 50
[ray]
ingresses = 2
min_models = 2
max_models = 2
ingress_cpus = 0.1
model_cpus = 0.1
"""
IMAGES = 60


@pytest.fixture(scope="module")
def cluster(bundle, tmp_path_factory):
    """The command with two ingress and two model replicas: gives its process, where it listens, and its log."""
    folder = tmp_path_factory.mktemp("ray")
    with serving(bundle, folder, CONFIG, "--engine", "ray") as (process, where):
        yield process, where, folder / "log"
        process.terminate()  # Ray's processes end with it
        process.wait(60)


def replicas(process, name):
    """The processes of a deployment's replicas."""
    found, waiting = [], [process.pid]
    while waiting:
        waiting += (below := children_of(waiting.pop()))
        found += [pid for pid in below if f"ServeReplica:twoprong:{name}" in called(pid)]
    return found


def children_of(pid):
    try:
        return children(pid)
    except FileNotFoundError:  # it has just ended
        return []


def called(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def expected(bundle, digits):
    return tp.load(bundle)(digits.test.images[:IMAGES]).probabilities.numpy()


def test_the_open_inference_protocol_gives_the_local_answers_in_order(cluster, digits, expected):
    _, where, _ = cluster
    images = digits.test.images[:IMAGES].numpy()
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(images.shape), "data": images.ravel().tolist()}]}
    for count in range(2):
        status, answer = ask(where["port"], "POST", "/v2/models/digits/infer", json.dumps(request))
        assert status == 200, answer
        outputs = {one["name"]: one["data"] for one in json.loads(answer)["outputs"]}
        assert outputs["label"] == expected.argmax(1).tolist(), count
        assert np.allclose(np.reshape(outputs["probabilities"], expected.shape), expected, atol=1e-4)


def test_ids_errors_and_limits_are_those_of_one_machine(cluster):
    _, where, _ = cluster
    connection = http.client.HTTPConnection("127.0.0.1", where["port"], timeout=30)
    connection.request("POST", "/v1/classify", b"no picture", {"X-Request-ID": "my-id"})
    response = connection.getresponse()
    said = json.loads(response.read())
    assert (response.status, said["status"], said["request_id"]) == (422, 422, "my-id")
    assert response.headers.get_all("x-request-id") == ["my-id"]
    connection.close()
    assert json.loads(ask(where["port"], "GET", "/v2")[1])["models"] == ["digits"]


def test_replicas_are_killed_under_load_and_nothing_is_lost_or_hangs(cluster, digits, expected):
    """One model replica, all of them, an ingress replica; then the end of the command."""
    process, where, log = cluster
    (first, second), ingresses = replicas(process, "Model"), replicas(process, "Ingress")
    assert len(ingresses) == 2
    bodies = [png(image) for image in digits.test.images[:IMAGES]]
    clients = Clients(where["port"], bodies, expected.argmax(1).tolist())
    counts = clients.counts
    try:
        clients.answered(200)
        assert set(counts) == {200}

        os.kill(first, signal.SIGKILL)
        clients.answered(200)  # the other one goes on
        for pid in replicas(process, "Model"):
            os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        clients.answered(200)
        print(f"back after {time.monotonic() - start:.1f} s; {dict(counts)}")
        assert not {first, second} & {*replicas(process, "Model")}
        assert set(counts) <= {200, 503}, counts
        assert counts[503] <= 3 * 2 * 2 * 50  # three replicas, at most two batches in each

        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert process.wait(40) == 0
        print(f"ended in {time.monotonic() - start:.1f} s; {dict(counts)}")
        assert set(counts) <= {200, 503, "reset", "refused"}, counts
    finally:
        clients.end()
    assert sum(clients.agreed) / len(clients.agreed) > 0.8
    text = log.read_text()
    seen = set(re.findall(r'"request_id": "([^"]+)"', text))
    assert clients.reset & seen == set()  # what was not answered had not been accepted
    assert "traceback" not in text
    assert replicas(process, "Model") == []
