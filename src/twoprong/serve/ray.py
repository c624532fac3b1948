"""`twoprong serve --engine ray`: the same queue and application on Ray Serve, for more than one machine.

Two deployments: `Ingress` answers HTTP and forms batches (`ingress.py`), `Model` judges them (`replicas.py`). The command
deploys them and removes them at its end; a Ray Serve configuration file names `application` (`deploy/kuberay.yaml`).
"""

import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import serve

from twoprong.errors import ConfigError, StateError
from twoprong.serve.ingress import Deployed, Ingress
from twoprong.serve.process import STARTING
from twoprong.serve.replicas import AT_ONCE, LOST, ModelReplica
from twoprong.serve.run import CLOSING, Addresses, bound_socket
from twoprong.serve.service import worker_settings
from twoprong.serve.settings import ServeSettings, load_settings

log = logging.getLogger("twoprong")

NAME = "twoprong"  # of the application
LOOPBACK = "127.0.0.1"
REACHED = 5.0  # seconds in which a cluster must be reached
SENDING = 1.0  # seconds that the last answers have for their way through Ray's proxy
ARGUMENTS = ("bundle", "config", "allow", "admin_host", "admin_port", "json_logs")
ROOM = 10  # requests that reach an ingress replica for every image that it accepts: it refuses the others itself, at once
QUIET = {"enable_access_log": False, "log_level": "WARNING"}
SHARED: dict[str, Any] = {
    "health_check_period_s": 1,  # a dead replica is noticed after as long
    "health_check_timeout_s": 10,
    "graceful_shutdown_wait_loop_s": 0.2,
    "logging_config": QUIET,
}


def bind(deployed: Deployed) -> Any:
    """The application: both deployments with their bounds."""
    wanted, grace = deployed.settings.ray, deployed.settings.limits.grace_seconds + CLOSING
    scale: dict[str, Any] = {"num_replicas": wanted.min_models}
    if wanted.min_models < wanted.max_models:
        bounds = {"min_replicas": wanted.min_models, "max_replicas": wanted.max_models, "target_ongoing_requests": 1}
        scale = {"autoscaling_config": bounds}
    models = serve.deployment(
        ModelReplica, name="Model", max_ongoing_requests=AT_ONCE, graceful_shutdown_timeout_s=grace,
        ray_actor_options={"num_cpus": wanted.model_cpus, "num_gpus": wanted.model_gpus}, **scale, **SHARED,
    )  # fmt: skip
    ingress = serve.deployment(
        Ingress, name="Ingress", num_replicas=wanted.ingresses, graceful_shutdown_timeout_s=grace,
        max_ongoing_requests=ROOM * deployed.settings.batch.max_items,
        ray_actor_options={"num_cpus": wanted.ingress_cpus}, **SHARED,
    )  # fmt: skip
    return ingress.bind(models.bind(deployed.worker, deployed.settings.batch.timeout), deployed)


def application(given: dict[str, Any]) -> Any:
    """For a Ray Serve configuration file, whose `args` are `bundle` and, if wanted, the path of a `config`, `allow`,
    `admin_host`, `admin_port` and `json_logs`. Raises ConfigError."""
    if "bundle" not in given or given.keys() - {*ARGUMENTS}:
        raise ConfigError(f"args: expected bundle, and others of {', '.join(ARGUMENTS)}; got {', '.join(given)}")
    settings = load_settings(Path(given["config"]) if given.get("config") else None)
    worker = worker_settings(given["bundle"], device_of(settings), settings, given.get("allow", ()))
    return bind(Deployed(worker, settings, **{name: given[name] for name in ARGUMENTS[3:] if name in given}))


def device_of(settings: ServeSettings) -> str:
    """Where the model replicas compute: this machine's GPU is not theirs."""
    return "cuda" if settings.ray.model_gpus else "cpu"


def serve_on_ray(deployed: Deployed, where: Addresses, listening: Callable[[Addresses], None]) -> bool:
    """Deploy, serve until SIGTERM or SIGINT, drain, and remove it all. Whether everything that was accepted was answered.

    Raises StateError where Ray cannot be reached, the replicas do not come up, or an address is taken.
    """
    address = deployed.settings.ray.address
    where = _checked(where, elsewhere=bool(address))
    with _connected(address), _signals() as stop:
        try:
            http = {"host": where.host, "port": where.port}
            serve.start(proxy_location="EveryNode", http_options=http, logging_config=QUIET)
            serve.run_many([serve.RunTarget(bind(deployed), NAME, "/")], wait_for_applications_running=False)
            if not _running(deployed.settings, stop):
                return True
            handle = serve.get_app_handle(NAME)
            host, port = min(handle.broadcast("admin").results())
            listening(replace(where, admin_host=host, admin_port=port))
            stop.wait()
            return _drained(handle)
        except StateError:
            raise
        except (*LOST, RuntimeError) as error:
            raise StateError(f"Ray Serve failed: {_last_line(str(error))}") from error
        finally:
            if address:  # else all of Ray ends here
                _remove()


def _drained(handle: Any) -> bool:
    log.info("stopping: what was accepted is answered")
    try:
        whole = all(handle.broadcast("drain").results())
        time.sleep(SENDING)
        return whole
    except LOST as error:
        log.error("an ingress replica was lost meanwhile: %s", type(error).__name__)
        return False


def _remove() -> None:
    """Take the application off the cluster, and end Ray Serve where nobody else uses it."""
    try:
        serve.delete(NAME)
        if not serve.status().applications:
            serve.shutdown()
    except (*LOST, TimeoutError) as error:
        log.error("the application could not be removed: %s", error)


def _checked(where: Addresses, elsewhere: bool) -> Addresses:
    """The address with a port that is free; of other machines that is not known here."""
    if elsewhere and where.port:
        return where
    with bound_socket(where.host, where.port) as bound:
        return replace(where, port=bound.getsockname()[1])


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Ray, started here or reached at its address. Raises StateError where it is not there."""
    own: dict[str, Any] = {"_node_ip_address": LOOPBACK, "include_dashboard": False} if not address else {}
    try:
        if (host_port := address.rpartition("//")[2].rpartition(":"))[0]:  # Ray itself would try for many minutes
            socket.create_connection((host_port[0], int(host_port[2])), REACHED).close()
        ray.init(address or "local", logging_level=logging.WARNING, **own)
    except (OSError, ValueError, RuntimeError) as error:
        raise StateError(f"ray.address: expected a cluster at {address or 'this machine'!r}, got: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stop, before = threading.Event(), {}
    for one in (signal.SIGTERM, signal.SIGINT):
        before[one] = signal.signal(one, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _running(settings: ServeSettings, stop: threading.Event) -> bool:
    """Wait until all replicas are there; False where it is stopped before. Raises StateError where they do not come up."""
    end = time.monotonic() + STARTING
    while not stop.wait(0.2):
        found = serve.status().applications[NAME]
        if found.status == "RUNNING":
            return True
        said = [one.message for one in found.deployments.values() if one.message] or [found.message]
        if found.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise StateError(f"the replicas did not come up: {_last_line(said[0])}")
        if time.monotonic() > end:
            wanted, there = settings.ray, ray.cluster_resources()
            raise StateError(
                f"the replicas did not come up within {STARTING:g} s; they need {wanted.ingresses} x "
                f"{wanted.ingress_cpus:g} + {wanted.min_models} x {wanted.model_cpus:g} CPUs and {wanted.min_models} x "
                f"{wanted.model_gpus:g} GPUs, the cluster has {there.get('CPU', 0):g} and {there.get('GPU', 0):g}"
            )
    return False


def _last_line(message: str) -> str:
    """Of a traceback what went wrong."""
    lines = message.strip().splitlines() or ["Ray says nothing of it"]
    return re.sub(r"^twoprong\.[\w.]+: ", "", lines[-1])
