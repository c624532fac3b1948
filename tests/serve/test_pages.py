"""The pages in a real browser: an image is dropped and answered, and the dashboard shows what /metrics says."""

import asyncio
import base64
import io
import random
import re
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twoprong.serve.admin import make_admin
from twoprong.serve.review import Review
from twoprong.serve.run import _server, bound_socket
from twoprong.serve.worker import BatchFacts

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import picture

SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def dashboard(echoing, tmp_path_factory):
    """The admin application over a service that has judged some batches: its address, and the service."""
    with echoing() as (_, service), _thread(make_admin(service)) as address:
        draw = random.Random(1)
        service.review = Review(tmp_path_factory.mktemp("review"), 10**7)
        sent, none = list(np.random.default_rng(0).random((20, 3, 32, 32), dtype=np.float32)), (True,) * 20
        seen = np.stack([(image * 200).astype(np.uint8) for image in sent])
        kept = BatchFacts(20, ("carol",) * 20, none, none, (), True, True, 0.03, 0.01, 0.005, sent, tuple(range(20)), seen)
        service.review.keep(kept)
        for number in range(60):
            size, flagged = draw.randrange(2, 100), number % 7 == 0
            keys = tuple(draw.choice(["alice", "bob <b>", "carol"]) for _ in range(size))
            blamed = ("carol",) if number % 14 == 0 else ()
            routes = tuple(flagged and (not blamed or key in blamed) for key in keys)
            ratio = draw.uniform(2, 5) if flagged else draw.uniform(-0.8, 0.9)
            service.metrics.heard(
                BatchFacts(
                    size,
                    keys,
                    routes,
                    routes,
                    blamed,
                    flagged,
                    True,
                    0.01 * ratio,
                    0.01,
                    draw.random() ** (9 if flagged else 1),
                )
            )
        service.metrics.heard(BatchFacts(1, ("bob <b>",), (True,), (False,), (), True, False, None, None, None))
        yield address, service


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


@pytest.mark.parametrize(("size", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_the_dashboard_shows_what_the_metrics_say(dashboard, open_page, size, scheme, tmp_path):
    address, _ = dashboard
    page, wrong = open_page(f"{address}/dashboard", size, scheme)
    page.wait_for_selector("body[data-ticks]")
    metrics = urllib.request.urlopen(f"{address}/metrics").read().decode()

    def total(pattern):
        return sum(float(value) for value in re.findall(rf"^twoprong_{pattern} (\S+)$", metrics, re.MULTILINE))

    assert page.inner_text("#images") == f"{total('images_total{.*}'):.0f}"
    assert page.inner_text("#small") == f"{total('batches_total{reason=.too_small.*}'):.0f}" == "1"
    alarms, tested = total("batches_total{reason=.(?:alarm|blamed).*}"), 60
    assert page.inner_text("#share") == f"{100 * alarms / tested:.1f} %"
    assert page.inner_text("#state") == "ready"
    assert page.locator("#statistic circle").count() == 60
    assert "bob <b>" in page.inner_text("#keys")  # as text
    page.wait_for_function("document.querySelector('#pictures img').naturalWidth === 640")
    assert "20 images, statistic 3.00 x threshold; keys: carol" in page.inner_text("#pictures")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert wrong == []
    page.screenshot(path=tmp_path / f"dashboard-{size}-{scheme}.png", full_page=True)


def test_the_dashboard_says_when_the_service_is_not_ready(dashboard, open_page):
    address, service = dashboard
    service.draining = True
    page, _ = open_page(f"{address}/dashboard")
    page.wait_for_selector("body[data-ticks]")
    service.draining = False
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


def test_without_a_demo_there_are_no_samples(echoing, open_page):
    with echoing() as ((host, port), _):
        page, wrong = open_page(f"http://{host}:{port}/")
        assert not page.is_visible("#demo")
        assert wrong == []
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{host}:{port}/demo/samples")
