"""`twoprong serve`, the whole command: answers, a worker that is killed, an end under load, and the admin port."""

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
import torch

import twoprong as tp
from twoprong.attacks import PGD
from twoprong.data import load_data
from twoprong.errors import InputError, StateError
from twoprong.serve.run import Addresses, bound_socket, listen, serve
from twoprong.serve.settings import ServeSettings

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import SCALE, children, picture, serving, worker_of

CONFIG = """
threads = 1
[batch]
deadline = 0.1
max_batch = 50
"""


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def png(image):
    return picture((image.permute(1, 2, 0).squeeze(2) * 255).round().byte().numpy())


TIMES = min(SCALE, 20)


class Clients:
    """Sixty of them, each with an image of its own, who ask until the service has gone."""

    def __init__(self, port, bodies, expected):
        self.counts, self.agreed, self.reset, self._stop = Counter(), [], {}, threading.Event()
        self._port, self._bodies, self._expected = port, bodies, expected
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(len(bodies))]
        for thread in self._threads:
            thread.start()

    def _ask(self, number):
        while not self._stop.is_set():
            name, start = f"{number}-{self.counts.total()}", time.monotonic()
            try:
                status, answer = ask(self._port, "POST", "/v1/classify", self._bodies[number], {"X-Request-ID": name})
            except ConnectionRefusedError:
                status = "refused"  # it has gone
            except (ConnectionError, http.client.HTTPException):
                status = "reset"
                self.reset[name] = start
            self.counts[status] += 1
            if status == 200:
                self.agreed.append(json.loads(answer)["label"] == self._expected[number])
            elif status == "refused":
                return

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def answered(self, more):
        """Wait until so many more are answered."""
        before = self.counts[200]
        until(lambda: self.counts[200] > before + more, self.counts)


def until(reached, said):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end, said
        time.sleep(0.02)


def kill_worker(process, where, clients):
    """Gives for how many seconds nobody was answered."""
    worker = worker_of(process.pid)
    os.kill(worker, signal.SIGKILL)
    start = time.monotonic()
    until(lambda: ask(where["admin_port"], "GET", "/healthz")[0] == 503, "still ready")
    clients.answered(0)
    away = time.monotonic() - start
    clients.answered(200)
    assert ask(where["admin_port"], "GET", "/healthz")[0] == 200
    assert worker_of(process.pid) != worker
    return away


@pytest.mark.parametrize("turn", range(TIMES))
def test_it_answers_survives_kills_of_its_worker_and_ends_without_losing_anything(bundle, digits, tmp_path, turn):
    """At scale 20 times: the first turn has 20 kills, each turn has an end under load."""
    kills, bodies = TIMES if turn == 0 else 1, [png(image) for image in digits.test.images[:60]]
    expected = tp.load(bundle).classifier(digits.test.images[:60]).argmax(1).tolist()
    with serving(bundle, tmp_path, CONFIG) as (process, where):
        clients = Clients(where["port"], bodies, expected)
        counts = clients.counts
        clients.answered(200)
        away = [kill_worker(process, where, clients) for _ in range(kills)]
        assert counts[503] <= 100 * kills, counts  # one batch, and perhaps one that had been sent to it already
        metrics = ask(where["admin_port"], "GET", "/metrics")[1].decode()
        assert f"twoprong_worker_restarts {kills}.0" in metrics
        total = sum(float(count) for count in re.findall(r"^twoprong_images_total{.*} (.*)$", metrics, re.MULTILINE))
        assert total >= 200

        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert process.wait(30) == 0
        print(f"away for {max(away):.2f} s at most, ended in {time.monotonic() - start:.2f} s, {dict(counts)}")
        clients.end()
        assert SCALE == 1 or max(away) < 5
        assert sum(clients.agreed) / len(clients.agreed) > 0.8
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        seen = {line["request_id"] for line in lines if "request_id" in line}
        assert len(seen) >= counts[200]
        assert clients.reset.keys() & seen == set()  # what was not answered had not been accepted
        assert not any("traceback" in line for line in lines)


@pytest.mark.parametrize("one", [signal.SIGTERM, signal.SIGINT])
def test_it_can_be_told_to_stop_while_the_bundle_is_loaded(bundle, one):
    command = [sys.executable, "-m", "twoprong", "serve", str(bundle), "--port", "0", "--admin-port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: children(process.pid), "no worker")
        (worker,) = children(process.pid)
        process.send_signal(one)
        said, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said == ""  # it never listened
    assert "Traceback" not in errors
    until(lambda: not Path(f"/proc/{worker}").exists(), "the worker goes on")  # one just born ends once its pipe is closed


NAMES = [f"key{number}" for number in range(10)]
KEYS = "".join(f'[keys.{name}]\nsha256 = "{sha256(name.encode()).hexdigest()}"\n' for name in NAMES)


LOST = {
    "digits": 0.01,
    "cifar10-small": 0.05,
}  # accuracy that the others may lose until a drip is stopped: some batches are flagged
NOTICED = {"digits": 8, "cifar10-small": 32}  # of 32: eight of eighty digits pass, until too many of the key's look attacked
BUDGETS = {"digits": (0.3, 0.05), "cifar10-small": (8 / 255, 2 / 255)}
both = pytest.mark.parametrize("which", BUDGETS)


def protected(which, bundle, digits):
    """What to serve, its classifier, its test images, and an attack on the classifier that does not know the defence."""
    path, data = (bundle, digits) if which == "digits" else (which, load_data(which))
    (eps, step), classifier = BUDGETS[which], tp.load(path).classifier

    def attack(images, labels):
        return PGD(eps=eps, step=step)(classifier, images, labels, torch.Generator().manual_seed(0)).images

    return path, classifier, data.test, attack


def sent(where, jobs):
    """The labels for pairs of a key and an image, all sent at once."""

    def client(job):
        status, answer = ask(where["port"], "POST", "/v1/classify", png(job[1]), {"X-API-Key": job[0]})
        assert status == 200, answer
        return json.loads(answer)["label"]

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(client, jobs))


def by_route(where):
    """How many images of each key took each route, and how many keys are watched."""
    metrics = ask(where["admin_port"], "GET", "/metrics")[1].decode()
    found = re.findall(r'^twoprong_images_total{key="(.*)",route="(.*)"} (.*)$', metrics, re.MULTILINE)
    watched = re.search(r"^twoprong_keys_watched (.*)$", metrics, re.MULTILINE)
    return {(key, route): int(float(count)) for key, route, count in found}, float(watched[1])


def kept(found, classifier, images, labels):
    """Whether the others' accuracy is within a point of the bare classifier's."""
    with torch.no_grad():
        bare = classifier(images).argmax(1) == labels
    defended = (torch.tensor(found) == labels).float().mean()
    print(f"others: {bare.float().mean():.1%} by the classifier alone, {defended:.1%} by the service")
    return defended >= bare.float().mean() - 0.01


@both
def test_one_key_that_attacks_is_flagged_and_the_nine_others_keep_their_accuracy(bundle, digits, tmp_path, which):
    """At a rate that fills batches of its own."""
    path, classifier, data, attack = protected(which, bundle, digits)
    config = f'threads = 1\n[review]\nfolder = "{tmp_path / "review"}"\n'
    config += "[batch]\ndeadline = 20\nmax_batch = 30\nmax_per_key = 10\n" + KEYS
    images, labels = data.images[:300].clone(), data.labels[:300]
    images[::10] = attack(images[::10], labels[::10])
    with serving(path, tmp_path, config) as (_, where):
        found = sent(where, [(NAMES[index % 10], image) for index, image in enumerate(images)])
        routes, _ = by_route(where)
        kept_batches = json.loads(ask(where["admin_port"], "GET", "/flagged")[1])
        status, picture = ask(where["admin_port"], "GET", f"/flagged/{kept_batches[0]['name']}.png")
    assert routes["key0", "flagged"] == 30
    print(f"routes: {routes}")
    assert ["key0"] * 25 in [batch["keys"] for batch in kept_batches]
    assert (status, picture[1:4]) == (200, b"PNG")
    others = [index for index in range(300) if index % 10]
    assert kept([found[index] for index in others], classifier, images[others], labels[others])


@both
def test_one_key_that_attacks_in_shared_batches_is_flagged_and_the_nine_others_keep_their_accuracy(
    bundle, digits, tmp_path, which
):
    """With the usual settings and eight images of each key at a time: too few for a batch of its own."""
    path, classifier, data, attack = protected(which, bundle, digits)
    images, labels, found = data.images[:320].clone(), data.labels[:320], []
    images[::10] = attack(images[::10], labels[::10])
    with serving(path, tmp_path, "threads = 1\n" + KEYS) as (_, where):
        for start in range(0, 320, 80):
            found += sent(where, [(NAMES[index % 10], images[index]) for index in range(start, start + 80)])
        routes, _ = by_route(where)
        sizes = [batch["size"] for batch in json.loads(ask(where["admin_port"], "GET", "/batches")[1])]
    print(f"routes: {routes}, batches of {sizes}")
    assert max(sizes) > 20  # of several keys
    assert routes["key0", "flagged"] >= NOTICED[which]
    others = [index for index in range(320) if index % 10]
    assert kept([found[index] for index in others], classifier, images[others], labels[others])


@both
def test_a_slow_drip_is_stopped_and_the_nine_others_lose_little_by_it(bundle, digits, tmp_path, which):
    """One attacked image in every shared batch, which the batch test does not notice; before that, the same without."""
    path, _, data, attack = protected(which, bundle, digits)
    rounds = 16
    config = "threads = 1\n[batch]\ndeadline = 0.15\nmax_batch = 20\n" + KEYS
    images, labels = data.images[:304], data.labels[:304]
    clean, right, flagged = data.images[304:320], [], [0]
    with serving(path, tmp_path, config) as (_, where):
        for dripped in (clean, attack(clean, data.labels[304:320])):
            found = []
            for turn in range(rounds):
                others = [(NAMES[1 + index % 9], images[19 * turn + index]) for index in range(19)]
                found += sent(where, [*others, ("key0", dripped[turn])])[:19]
                routes, watched = by_route(where)
                flagged.append(routes.get(("key0", "flagged"), 0))
            right.append((torch.tensor(found) == labels).float().mean().item())
    print(f"flagged of key0: {flagged}; of the others are right: {right[0]:.1%} without the drip, {right[1]:.1%} with it")
    assert watched == 1
    assert flagged[-1] - flagged[-5] == 4  # by now all of them
    assert right[1] >= right[0] - LOST[which]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["nothing-here"], "no such bundle"),
        (["--config", "bad.toml"], r"bad.toml: 2 problems"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, more, message):
    (tmp_path / "bad.toml").write_text('[batch]\ndeadlin = 1\n[keys.a]\nsha256 = "x"\n')
    command = [sys.executable, "-m", "twoprong", "serve", *more, "--port", "0", "--admin-port", "0", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named():
    with pytest.raises(InputError, match="expected another port than --port, got 7777 for both"):
        asyncio.run(serve("cifar10-small", "cpu", ServeSettings(), Addresses(port=7777, admin_port=7777), print))
    with bound_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bound_socket("127.0.0.1", port) as second:  # both, for neither listens yet
            listen(first)
            for late in (lambda: listen(second), lambda: bound_socket("127.0.0.1", port)):
                with pytest.raises(StateError, match=f"127.0.0.1:{port}: cannot listen there"):
                    late()


def test_help_needs_neither_torch_nor_a_web_framework():
    code = "import sys\nfrom twoprong.cli import app\ntry:\n    app(['serve', '--help'])\nexcept SystemExit:\n    pass\n"
    code += "print('loaded', [name for name in ('torch', 'fastapi', 'uvicorn', 'prometheus_client') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("loaded []")
