"""`twoprong serve --engine ray`, the whole command on a real Ray: answers, replicas that are killed, an end under load."""

import http.client
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

pytest.importorskip("ray")

import twoprong as tp
from twoprong.data import load_data
from twoprong.errors import ConfigError, StateError
from twoprong.serve import ray as module
from twoprong.serve.ingress import Deployed, _first_free, _own
from twoprong.serve.ray import ROOM, application, bind
from twoprong.serve.run import bound_socket
from twoprong.serve.settings import RaySettings, ServeSettings
from twoprong.serve.worker import WorkerSettings

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import children, picture, serving
from test_run import Clients, ask

CONFIG = """
threads = 1
[batch]
deadline = 0.1
max_batch = 40
[ray]
ingresses = 2
min_models = 2
max_models = 2
ingress_cpus = 0.1
model_cpus = 0.1
"""
DEPLOY = Path(__file__).parents[2] / "deploy"
BUNDLE, IMAGES = "cifar10-small", 40  # slow enough that a kill comes in the middle of a batch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The command with two ingress and two model replicas: gives its process, where it listens, and its log."""
    folder = tmp_path_factory.mktemp("ray")
    with serving(BUNDLE, folder, CONFIG, "--engine", "ray") as (process, where):
        yield process, where, folder / "log"
        process.terminate()  # Ray's processes end with it
        process.wait(60)


@pytest.fixture(scope="module")
def images():
    return load_data(BUNDLE).test.images[:IMAGES]


@pytest.fixture(scope="module")
def expected(images):
    decision = tp.load(BUNDLE)(images)
    assert not decision.adversarial  # so the answers draw no noise
    return decision.probabilities.numpy()


def png(image):
    return picture((image * 255).round().byte().permute(1, 2, 0).numpy())


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


def test_the_open_inference_protocol_gives_the_local_answers_in_order(cluster, images, expected):
    _, where, _ = cluster
    data = (images * 255).round().int().ravel().tolist()
    tensor = {"name": "x", "datatype": "UINT8", "shape": list(images.shape), "data": data}
    status, answer = ask(where["port"], "POST", f"/v2/models/{BUNDLE}/infer", json.dumps({"inputs": [tensor]}))
    assert status == 200, answer
    outputs = {one["name"]: one["data"] for one in json.loads(answer)["outputs"]}
    assert outputs["label"] == expected.argmax(1).tolist()
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
    assert json.loads(ask(where["port"], "GET", "/v2")[1])["models"] == [BUNDLE]


def test_replicas_are_killed_under_load_and_nothing_hangs_then_the_command_ends(cluster, images, expected):
    process, where, log = cluster
    first, second = replicas(process, "Model")
    clients = Clients(where["port"], [png(image) for image in images], expected.argmax(1).tolist())
    counts = clients.counts
    try:
        clients.answered(IMAGES)
        assert set(counts) == {200}

        os.kill(first, signal.SIGKILL)
        clients.answered(IMAGES)  # the other one goes on
        killed = []
        while not killed or not counts[503]:  # until a kill comes in the middle of a batch, mostly the first
            assert len(killed) < 10
            killed += (there := replicas(process, "Model"))
            for pid in there:
                os.kill(pid, signal.SIGKILL)
            start = time.monotonic()
            clients.answered(IMAGES)
            print(f"back after {time.monotonic() - start:.1f} s; {dict(counts)}")
        assert not {first, second, *killed} & {*replicas(process, "Model")}
        assert {*+counts} == {200, 503}, counts
        assert counts[503] <= IMAGES * (len(killed) + 1)  # each client has one image in a batch at most

        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
        print(f"ended in {time.monotonic() - start:.1f} s; {dict(counts)}")
    finally:
        clients.end()
    assert {*+counts} <= {200, 503, "reset", "refused"}, counts
    assert sum(clients.agreed) / len(clients.agreed) > 0.8
    assert min(clients.reset.values(), default=start) >= start  # what was sent before was answered
    assert "traceback" not in log.read_text()
    assert replicas(process, "Model") == []


def test_both_deployments_have_bounds_and_room_for_a_queue(tmp_path):
    settings = ServeSettings(ray=RaySettings(ingresses=3, min_models=2, max_models=8, model_gpus=0.5))
    deployed = Deployed(WorkerSettings("a"), settings)
    ingress = bind(deployed)._bound_deployment
    models = ingress.init_args[0]._bound_deployment
    assert (ingress.num_replicas, ingress.max_ongoing_requests) == (3, ROOM * settings.batch.max_items)
    scaling = models._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, models.ray_actor_options["num_gpus"]) == (2, 8, 0.5)
    assert 3 * deployed.batches >= 2 * 8  # every model replica can have one batch to judge and one to come


def test_what_the_manifest_deploys_can_be_built_and_has_the_machines_it_asks_for(tmp_path):
    settings, service, _ = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    (one,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, name = one["import_path"].partition(":")
    assert getattr(importlib.import_module(module), name) is application
    (tmp_path / "serve.toml").write_text(settings["data"]["serve.toml"])
    deployed = application(one["args"] | {"config": str(tmp_path / "serve.toml")})._bound_deployment.init_args[1]
    assert (deployed.worker.device, deployed.json_logs) == ("cuda", True)
    wanted, groups = deployed.settings.ray, service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    http_, models = [(group, group["template"]["spec"]["containers"][0]["resources"]["limits"]) for group in groups]
    assert wanted.ingresses * wanted.ingress_cpus <= http_[0]["minReplicas"] * int(http_[1]["cpu"])
    assert wanted.max_models * wanted.model_gpus <= models[0]["maxReplicas"] * int(models[1]["nvidia.com/gpu"])
    assert wanted.model_cpus <= int(models[1]["cpu"])
    graces = [group["template"]["spec"]["terminationGracePeriodSeconds"] for group in groups]
    assert min(graces) > deployed.settings.limits.grace_seconds
    with pytest.raises(ConfigError, match="args: expected bundle"):
        application({"bundel": "x"})


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        ("DEPLOY_FAILED", "Traceback:\n  x\ntwoprong.errors.BundleError: mine: no such bundle\n",
         "the replicas did not come up: mine: no such bundle"),
        ("DEPLOYING", "", r"within 0 s; they need 1 x 1 \+ 1 x 1 CPUs and 1 x 1 GPUs, the cluster has 2 and 0"),
    ],
)  # fmt: skip
def test_replicas_that_do_not_come_up_say_why(monkeypatch, status, said, message):
    models = SimpleNamespace(message=said)
    app = SimpleNamespace(status=status, message="", deployments={"Model": models})
    monkeypatch.setattr(module.serve, "status", lambda: SimpleNamespace(applications={module.NAME: app}))
    monkeypatch.setattr(module.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(module, "STARTING", 0)
    with pytest.raises(StateError, match=message):
        module._running(ServeSettings(ray=RaySettings(model_gpus=1)), threading.Event())


def test_a_cluster_that_is_not_there_is_heard_of_at_once():
    with bound_socket("127.0.0.1", 0) as silent:  # bound and not listening: connections are refused
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StateError, match=f"ray.address: expected a cluster at '{address}'"), module._connected(address):
            pass


def test_admin_ports_follow_each_other_and_review_folders_are_apart(tmp_path):
    with _first_free("127.0.0.1", 0) as taken, _first_free("127.0.0.1", taken.getsockname()[1]) as other:
        assert other.getsockname()[1] > taken.getsockname()[1]
    with pytest.raises(StateError, match="cannot listen there"):
        _first_free("203.0.113.1", 8001)
    settings = ServeSettings(review={"folder": str(tmp_path)})
    assert _own(settings, 1).review.folder == str(tmp_path / "ingress-1")
    assert _own(ServeSettings(), 1) == ServeSettings()


MAIN = "from twoprong.__main__ import main; main()"


@pytest.mark.parametrize(
    ("code", "more", "message"),
    [
        (MAIN, ["--device", "cuda"], "--device cuda: on Ray the models' device follows ray.model_gpus"),
        (f"import sys; sys.modules['ray'] = None; {MAIN}", [],
         r"serve --engine ray needs more packages \(ray.* is missing\): pip install 'twoprong\[ray\]'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(code, more, message):
    line = [sys.executable, "-c", code, "serve", "--engine", "ray", *more]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert re.search(message, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_one_machine_needs_no_ray():
    code = "import sys, twoprong.cli.serve, twoprong.serve.run; print([name for name in sys.modules if name == 'ray'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
