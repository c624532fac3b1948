"""The pages in a real browser: an image is dropped and answered, and the dashboard shows what /metrics says."""

import asyncio
import base64
import io
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from scipy.stats import binom

from twoprong.attacks import PGD
from twoprong.serve.admin import make_admin
from twoprong.serve.run import _server, bound_socket

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import picture, serving

SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


CONFIG = """
threads = 1
[batch]
deadline = 0.1
max_batch = 20
[review]
folder = "{folder}"
[keys.alice]
sha256 = "{alice}"
[keys."bob <b>"]
sha256 = "{bob}"
[keys.mallory]
sha256 = "{mallory}"
"""
KEYS = {"alice": 5, "bob <b>": 3, "mallory": 8}  # and how many clients each has


@pytest.fixture(scope="module")
def service(bundle, defense, digits, tmp_path_factory):
    """The command itself, with the digits, after some traffic: where it listens, images to send it, and its log."""
    folder, images = tmp_path_factory.mktemp("served"), digits.test.images[:100]
    attacked = PGD(eps=0.3, step=0.05)(defense.classifier, images, digits.test.labels[:100]).images
    noisy = (images + 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    bodies = {
        name: [png(image) for image in some] for name, some in (("clean", images), ("attacked", attacked), ("noisy", noisy))
    }
    hashes = {name.split()[0]: sha256(name.encode()).hexdigest() for name in KEYS}
    with serving(bundle, folder, CONFIG.format(folder=folder / "review", **hashes)) as (_, where):
        with Traffic(where["port"], bodies) as traffic:
            until(lambda: traffic.sent[200] > 100, traffic.sent)
        yield where, bodies, folder / "log"


def until(reached, said):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end, said
        time.sleep(0.02)


def png(image):
    return picture((image[0] * 255).round().byte().numpy())


class Traffic:
    """Clients who send one image after the other until it stops: clean ones, mallory's attacked; and a few bad requests."""

    def __init__(self, port, bodies):
        self.sent, self._port, self._bodies, self._stop = Counter(), port, bodies, threading.Event()
        names = [name for name, count in KEYS.items() for _ in range(count)]
        self._threads = [threading.Thread(target=self._client, args=one) for one in enumerate(names)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self, number, key):
        draw, kind = random.Random(number), {"mallory": "attacked", "alice": "clean"}.get(key, "noisy")
        while not self._stop.is_set():
            body = draw.choice(self._bodies[kind])
            name = draw.choices([key, "nobody"], [20, 1])[0]
            if draw.random() < 0.05:
                body = b"no picture"
            headers = {"X-API-Key": name, "Content-Type": "image/png"}
            request = urllib.request.Request(f"http://127.0.0.1:{self._port}/v1/classify", body, headers)
            try:
                self.sent[urllib.request.urlopen(request).status] += 1
            except urllib.error.HTTPError as error:
                self.sent[error.code] += 1


def ticks(page, more):
    """Wait until the page has asked so many times more."""
    said = int(page.get_attribute("body", "data-ticks") or 0)
    page.wait_for_selector(f"body[data-ticks='{said + more}']")


@contextmanager
def _thread(app):
    server, socket = _server(app), bound_socket("127.0.0.1", 0)
    socket.listen()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([socket])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        socket.close()


@pytest.fixture
def open_page(browser):
    contexts = []

    def open_at(address, size="desk", scheme="light"):
        contexts.append(browser.new_context(viewport=SIZES[size], color_scheme=scheme))
        page, wrong = contexts[-1].new_page(), []
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        return page, wrong

    yield open_at
    for context in contexts:
        context.close()


class Said:
    """What the admin port says, read by Prometheus' own parser."""

    def __init__(self, address):
        def get(path):
            return urllib.request.urlopen(f"{address}/{path}").read().decode()

        families = text_string_to_metric_families(get("metrics"))
        self.samples = [sample for family in families for sample in family.samples]
        self.batches, self.flagged, self.config = (json.loads(get(path)) for path in ("batches", "flagged", "config"))

        self.alarms = self.total("batches_total", reason=("alarm", "blamed"))
        self.errors = self.total("requests_total") - self.total("requests_total", status=("200",))

    def total(self, name, **labels):
        """The sum over all samples of that name whose labels are among the given ones."""
        fits = (one for one in self.samples if one.name == f"twoprong_{name}")
        return int(sum(one.value for one in fits if all(one.labels[label] in values for label, values in labels.items())))

    def bars(self, name):
        """How many observations each bucket of a histogram has for itself, by its upper edge."""
        buckets = [one for one in self.samples if one.name == f"twoprong_{name}_bucket"]
        before = [0, *(one.value for one in buckets)]
        return {one.labels["le"]: int(one.value - less) for one, less in zip(buckets, before, strict=False)}

    def quantile(self, share):
        bars = self.bars("request_seconds")
        least = share * sum(bars.values())
        return next(edge for edge, count in zip(bars, accumulate(bars.values()), strict=True) if count >= least)


def test_the_dashboard_follows_live_traffic_and_every_value_is_that_of_the_service(service, open_page):
    where, bodies, log = service
    address = f"http://127.0.0.1:{where['admin_port']}"
    page, wrong = open_page(f"{address}/dashboard")
    seen, before = [], Said(address)
    with Traffic(where["port"], bodies) as traffic:
        while traffic.sent[200] < 300 or len(seen) < 3:
            ticks(page, 1)
            assert len(seen) < 15, traffic.sent
            seen.append([int(page.inner_text(f"#{one}")) for one in ("images", "pending")])
    assert [images for images, _ in seen] == sorted({images for images, _ in seen}), "it stands still"
    assert max(pending for _, pending in seen) > 0
    ticks(page, 2)  # the first may have asked before the end
    said = Said(address)
    answered = before.total("requests_total", status=("200",)) + traffic.sent[200]
    assert said.total("request_seconds_count") == said.total("requests_total", status=("200",)) == answered
    assert said.errors == before.errors + traffic.sent.total() - traffic.sent[200] > 0
    same_numbers(page, said)
    same_histograms(page, said)
    same_keys(page, said)
    same_statistics(page, said)
    same_flagged(page, said)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    alarms = [line for line in lines if line["message"] == "alarm"]
    assert len(alarms) == said.alarms
    assert {one for line in alarms for one in line["requests"]} < {line.get("request_id") for line in lines}
    assert all(len(line["requests"]) >= line["size"] for line in alarms)
    assert wrong == []


def same_numbers(page, said):
    small = said.total("batches_total", reason=("too_small",))
    tested = said.total("batches_total") - small
    assert said.alarms > 0
    assert len(said.batches) == min(500, tested + small)
    assert said.total("images_total") == said.total("batch_size_sum")
    low, high = binom.ppf([0.025, 0.975], tested, said.config["model"]["false_alarm_rate"]) / tested * 100
    for which, text in {
        "images": f"{said.total('images_total')}",
        "batches": f"{tested + small} batches",
        "share": f"{100 * said.alarms / tested:.1f} %",
        "band": f"{said.alarms} of {tested}; without attacks {low:.1f} % to {high:.1f} %",
        "small": f"{small}",
        "pending": f"{said.total('pending')}",
        "bytes": f"{said.total('pending_bytes') / 1e6:.1f} MB",
        "p50": f"≤ {said.quantile(0.5)} s",
        "p99": f"99 %: ≤ {said.quantile(0.99)} s",
        "errors": f"{said.errors}",
        "restarts": f"{said.total('batches_failed_total')} batches failed, {said.total('worker_restarts')} restarts",
    }.items():
        assert page.inner_text(f"#{which}") == text, which
    assert page.get_attribute("#share", "class") == ("" if low <= 100 * said.alarms / tested <= high else "bad")


def same_histograms(page, said):
    for which, name, metric in (
        ("pvalues", "p-value", "p_value"),
        ("sizes", "images", "batch_size"),
        ("latency", "seconds", "request_seconds"),
    ):
        bars = said.bars(metric)
        if which == "pvalues":
            assert bars.pop("+Inf") == 0  # the page has no bar for it
        assert page.locator(f"#{which} title").all_text_contents() == [f"{name} up to {to}: {n}" for to, n in bars.items()]
        heights = page.eval_on_selector_all(f"#{which} rect", "all => all.map(one => +one.getAttribute('height'))")
        most = max(bars.values())
        assert [height / max(heights) for height in heights] == pytest.approx([count / most for count in bars.values()])


def same_keys(page, said):
    shares = {}
    for key in KEYS:
        count, bad = said.total("images_total", key=(key,)), said.total("images_total", key=(key,), route=("flagged",))
        shares[key] = [str(count), f"{100 * bad / count:.1f} %"]
    rows = [row.split("\t") for row in page.inner_text("#keys").splitlines()[1:]]
    assert {row[0]: row[1:] for row in rows} == shares
    assert float(shares["mallory"][1][:-2]) > float(shares["alice"][1][:-2])
    watched = said.total("keys_watched")
    assert page.inner_text("#watched") == (f"({watched} watched: too many of their images look attacked)" if watched else "")


def same_statistics(page, said):
    drawn = [one for one in said.batches if one["reason"] != "too_small"]
    times = np.array([one["time"] for one in drawn])
    places = "all => all.map(one => [+one.getAttribute('cx'), +one.getAttribute('cy')])"
    across, down = np.array(page.eval_on_selector_all("#statistic circle", places)).T
    assert (across - across[0]) / (across[-1] - across[0]) == pytest.approx((times - times[0]) / (times[-1] - times[0]))
    line = float(page.get_attribute("#statistic line[stroke='var(--bad)']", "y1"))
    assert [bool(height < line) for height in down] == [one["statistic"] > one["threshold"] for one in drawn]
    clocks = [time.strftime("%H:%M:%S", time.localtime(at)) for at in (times[0], times[-1])]
    assert page.locator("#statistic text").all_text_contents()[-4::3] == clocks


def same_flagged(page, said):
    late = [one for one in said.batches if one["route"] != "passing"][-8:][::-1]
    rows = [row.split("\t") for row in page.inner_text("#flagged").splitlines()[1:]]
    assert [row[1] for row in rows] == [str(one["size"]) for one in late]
    for place, name in ((2, "statistic"), (3, "threshold")):
        assert [float(row[place]) for row in rows] == pytest.approx([one[name] for one in late], rel=0.006)
    assert len(said.flagged) == min(8, said.alarms)
    sizes = "all => Promise.all(all.map(one => one.decode().then(() => [one.naturalWidth, one.naturalHeight])))"
    found = page.eval_on_selector_all("#pictures img", sizes)
    assert found == [[9 * len(one["shown"]), 27] for one in said.flagged]  # as sent, denoised, the difference


@pytest.mark.parametrize(("size", "scheme"), [("desk", "light"), ("desk", "dark"), ("phone", "light"), ("phone", "dark")])
def test_the_dashboard_fits_its_screen(service, open_page, size, scheme, tmp_path):
    page, wrong = open_page(f"http://127.0.0.1:{service[0]['admin_port']}/dashboard", size, scheme)
    page.wait_for_selector("body[data-ticks]")
    page.locator("#pictures img").last.wait_for()
    page.screenshot(path=tmp_path / f"dashboard-{size}-{scheme}.png", full_page=True)
    assert "bob <b>" in page.inner_text("#keys")  # as text
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert wrong == []


def test_the_expected_band_is_the_binomials_own(service, open_page):
    page, _ = open_page(f"http://127.0.0.1:{service[0]['admin_port']}/dashboard")
    for rate in (0.01, 0.05, 0.3):
        for trials in (1, 2, 3, 10, 59, 100, 1000, 12_345, 10**6):
            found = page.evaluate(f"band({trials}, {rate})")
            assert found == binom.ppf([0.025, 0.975], trials, rate).tolist(), (trials, rate)


def test_the_dashboard_says_when_the_service_is_not_ready(echoing, open_page):
    with echoing() as (_, service), _thread(make_admin(service)) as address:
        service.draining = True
        page, _ = open_page(f"{address}/dashboard")
        page.wait_for_selector("body[data-ticks]")
        assert page.inner_text("#state") == "draining"


@pytest.mark.parametrize(("size", "scheme"), [("desk", "dark"), ("phone", "light")])
def test_a_person_gets_an_answer(echoing, open_page, size, scheme, tmp_path):
    pixels = np.zeros((8, 8), np.uint8)
    pixels[0, 3] = 204
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    with echoing() as ((host, port), _):
        page, wrong = open_page(f"http://{host}:{port}/", size, scheme)
        page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": file.getvalue()})
        page.wait_for_selector("#answer", state="visible")
        assert page.inner_text("#classes .row:first-child").split() == ["3", "80.0", "%"]
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert wrong == []
        page.screenshot(path=tmp_path / f"page-{size}-{scheme}.png", full_page=True)
        page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"})
        page.wait_for_selector("#error:not(:empty)")
        assert "expected a JPEG, PNG or WebP" in page.inner_text("#error")


def test_a_person_tries_the_samples_and_attacks_them(echoing, open_page, tmp_path):
    def sample(place):
        pixels = np.zeros((8, 8), np.uint8)
        pixels[0, place] = 204
        return base64.b64encode(picture(pixels)).decode()

    samples = tuple({"class": str(one), "image": sample(one), "attacked": sample(one + 1), "bare": "5"} for one in (4, 5))
    with echoing(samples=samples) as ((host, port), _):
        page, wrong = open_page(f"http://{host}:{port}/", "phone", "dark")
        page.click("#samples button:nth-child(2)")
        page.wait_for_selector("#answer", state="visible")
        assert page.inner_text("#classes .row:first-child").split() == ["5", "80.0", "%"]
        page.click("#attack")
        page.wait_for_selector("#attacked:not([hidden])")
        rows = [row.split() for row in page.inner_text("#attacked").splitlines()[1:]]
        assert [row for row in rows if row] == [["4", "5", "5"], ["5", "5", "6"]]
        assert page.locator("#attacked .wrong").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert wrong == []
        page.screenshot(path=tmp_path / "demo.png", full_page=True)


def test_without_a_demo_the_samples_are_clean(echoing, open_page):
    pixels = np.zeros((8, 8), np.uint8)
    pixels[0, 7] = 204
    one = {"class": "7", "image": base64.b64encode(picture(pixels)).decode()}
    with echoing(samples=(one,)) as ((host, port), _):
        page, wrong = open_page(f"http://{host}:{port}/")
        page.click("#samples button")
        page.wait_for_selector("#answer", state="visible")
        assert page.inner_text("#classes .row:first-child").split() == ["7", "80.0", "%"]
        assert not page.is_visible("#demo")
        assert wrong == []


def test_other_bundles_have_no_samples(echoing, open_page):
    with echoing() as ((host, port), _):
        page, wrong = open_page(f"http://{host}:{port}/")
        page.wait_for_load_state("networkidle")
        assert not page.is_visible("#try")
        assert not page.is_visible("#demo")
        assert wrong == []


def test_the_command_offers_clean_samples_on_the_page(service, open_page):
    page, wrong = open_page(f"http://127.0.0.1:{service[0]['port']}/", "phone")
    page.fill("#key", "alice")
    page.click("#samples button")
    page.wait_for_selector("#answer", state="visible")
    assert page.locator("#samples button").count() == 8
    assert page.locator("#classes .row").count() == 5
    assert not page.is_visible("#demo")
    assert wrong == []
