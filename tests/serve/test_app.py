"""The public application over real HTTP on loopback: answers, protocols and errors.

TWOPRONG_SCALE=10 in the environment makes the spoiled requests ten times as many.
"""

import asyncio
import gzip
import http.client
import io
import json
import os
import pickle
import random
import re
import struct
import threading
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from hashlib import sha256

import numpy as np
import pytest
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request

from twoprong.data.pictures import decode_picture
from twoprong.serve import images, v2
from twoprong.serve.admin import _check_host
from twoprong.serve.batcher import Batcher
from twoprong.serve.images import opened_if_small
from twoprong.serve.problems import Problem
from twoprong.serve.run import administered, bound_socket
from twoprong.serve.settings import BatchSettings, KeySettings, LimitSettings, ServeSettings

PNG = {"Content-Type": "image/png"}
SCALE = int(os.environ.get("TWOPRONG_SCALE", "1"))


def picture(pixels, kind="PNG", **more):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **more)
    return file.getvalue()


def numbered(number):
    """An image whose first pixels are a number, digit by digit."""
    pixels = np.zeros((8, 8), np.uint8)
    pixels.ravel()[:10] = [int(digit) for digit in f"{number:010d}"]
    return pixels


def number_of(probabilities):
    return int("".join(str(round(value * 255)) for value in probabilities))


class Client:
    def __init__(self, address):
        self.address = address

    def __call__(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, dict((name.lower(), value) for name, value in response.getheaders()), response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def service(echoing):
    settings = ServeSettings(
        batch=BatchSettings(deadline=0.02),
        limits=LimitSettings(max_upload=200_000, max_pixels=100_000, max_images=50, read_seconds=1.0),
    )
    with echoing(settings) as (address, service):
        yield Client(address), service


@pytest.fixture(scope="module")
def ask(service):
    return service[0]


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_picture_is_classified(ask, kind):
    more = {"lossless": True} if kind == "WEBP" else {}
    body = picture(np.stack([numbered(8123456790)] * 3, 2), kind, **more)
    status, headers, answer = ask("POST", "/v1/classify?top_k=3", body, {"X-Request-ID": "mine-1"})
    said = json.loads(answer)
    assert status == 200
    assert (headers["x-request-id"], said["request_id"]) == ("mine-1", "mine-1")
    assert [one["label"] for one in said["probabilities"]] == [8, 0, 7]  # nine, eight, seven
    assert said["label"] == 8
    assert {*said} == {"label", "probability", "probabilities", "request_id"}  # nothing of routes


def test_a_form_and_other_sizes_and_jpeg_are_taken(ask):
    body = picture(np.full((40, 60, 3), 200, np.uint8), "JPEG")
    for sent, headers in (form(body), (body, {"Content-Type": "image/jpeg"})):
        status, _, answer = ask("POST", "/v1/classify", sent, headers)
        assert status == 200
        assert json.loads(answer)["probability"] == pytest.approx(200 / 255, abs=0.01)


def tensor(images, kind="FP32", **more):
    return {"inputs": [{"name": "images", "datatype": kind, "shape": list(images.shape), **more}]}


IMAGES = np.stack([numbered(number) for number in range(5, 25)])[:, None]


def binary(head, raw):
    said = json.dumps(head).encode()
    return said + raw, {"Inference-Header-Content-Length": str(len(said))}


def v2_bodies():
    floats = (IMAGES / 255).astype(np.float32)
    yield "json", json.dumps(tensor(floats, data=floats.ravel().tolist())).encode(), {}
    yield "nested json", json.dumps(tensor(IMAGES, "UINT8", data=IMAGES.tolist())).encode(), {}
    yield "binary", *binary(tensor(floats, parameters={"binary_data_size": floats.nbytes}), floats.tobytes())
    yield "binary bytes", *binary(tensor(IMAGES, "UINT8", parameters={"binary_data_size": IMAGES.size}), IMAGES.tobytes())
    files = b"".join(struct.pack("<I", len(one)) + one for one in (picture(image[0]) for image in IMAGES))
    encoded = {"inputs": [{"name": "a", "datatype": "BYTES", "shape": [20], "parameters": {"binary_data_size": len(files)}}]}
    yield "pictures", *binary(encoded, files)
    zipped, headers = binary(tensor(floats, parameters={"binary_data_size": floats.nbytes}), floats.tobytes())
    yield "gzip", gzip.compress(zipped), headers | {"Content-Encoding": "gzip"}
    yield "deflate", zlib.compress(zipped), headers | {"Content-Encoding": "deflate"}


@pytest.mark.parametrize(("body", "headers"), [pytest.param(*rest, id=name) for name, *rest in v2_bodies()])
def test_the_open_inference_protocol_gives_every_image_its_answer_in_order(ask, body, headers):
    status, _, answer = ask("POST", "/v2/models/echo/infer", body, headers)
    said = json.loads(answer)
    assert status == 200, said
    found = {one["name"]: np.array(one["data"]).reshape(one["shape"]) for one in said["outputs"]}
    assert [number_of(row) for row in found["probabilities"]] == list(range(5, 25))
    assert found["label"].tolist() == found["probabilities"].argmax(1).tolist()


def test_outputs_are_binary_where_that_is_asked(ask):
    head = tensor(IMAGES, "UINT8", data=IMAGES.ravel().tolist()) | {
        "id": "seven",
        "parameters": {"binary_data_output": True},
    }
    head["outputs"] = [{"name": "label", "parameters": {"binary_data": False}}, {"name": "probabilities"}]
    status, headers, answer = ask("POST", "/v2/models/echo/versions/1/infer", json.dumps(head))
    size = int(headers["inference-header-content-length"])
    said = json.loads(answer[:size])
    assert (status, said["id"], said["model_name"]) == (200, "seven", "echo")
    assert [one["name"] for one in said["outputs"]] == ["label", "probabilities"]
    values = np.frombuffer(answer[size:], "<f4").reshape(said["outputs"][1]["shape"])
    assert [number_of(row) for row in values] == list(range(5, 25))


def test_the_server_says_what_it_has(ask):
    assert json.loads(ask("GET", "/v2")[2])["models"] == ["echo"]
    assert json.loads(ask("GET", "/v2/models/echo")[2])["inputs"][0]["shape"] == [-1, 1, 8, 8]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready", "/v2/models/echo/versions/1/ready"):
        assert ask("GET", path)[0] == 200
    document = json.loads(ask("GET", "/openapi.json")[2])
    assert {"/v1/classify", "/v2/models/{name}/infer"} <= {*document["paths"]}


def infer(**changes):
    one = {"name": "a", "datatype": "UINT8", "shape": [1, 1, 8, 8], "data": [0] * 64} | changes
    return json.dumps({"inputs": [one]}).encode()


def form(body):
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + body + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


def with_scans(count):
    """A JPEG whose last scan is there again and again: each costs as much as the first."""
    body = picture(np.zeros((8, 8), np.uint8), "JPEG", progressive=True)
    last = body[body.rindex(b"\xff\xda") : -2]
    return body[:-2] + last * (count - body.count(b"\xff\xda")) + body[-2:]


BOMB = picture(np.zeros((1000, 1000), np.uint8))
BAD = [
    ("POST", "/v1/classify", b"", {}, 422),
    ("POST", "/v1/classify", b"GIF89a", {}, 422),
    ("POST", "/v1/classify", picture(numbered(1))[:-30], {}, 422),
    ("POST", "/v1/classify", picture(numbered(1)), {"Content-Type": "text/html"}, 415),
    ("POST", "/v1/classify", picture(numbered(1)), {"Content-Encoding": "br"}, 415),
    ("POST", "/v1/classify", b"no zip", {"Content-Encoding": "gzip"}, 400),
    ("POST", "/v1/classify", gzip.compress(bytes(300_000)), {"Content-Encoding": "gzip"}, 413),
    ("POST", "/v1/classify", bytes(200_001), {}, 413),
    ("POST", "/v1/classify", b"", {"Content-Length": "1" + "0" * 17}, 413),
    ("POST", "/v1/classify", BOMB, {}, 413),
    ("POST", "/v1/classify", with_scans(101), {}, 422),
    ("POST", "/v1/classify", with_scans(9000), {}, 422),
    ("POST", "/v1/classify", *form(with_scans(9000)), 422),
    ("POST", "/v1/classify?top_k=0", picture(numbered(1)), {}, 422),
    ("POST", "/v1/classify", b"--x--", {"Content-Type": "multipart/form-data; boundary=x"}, 400),
    ("POST", "/v1/classify", b"--x--", {"Content-Type": "multipart/form-data"}, 400),
    ("GET", "/v1/classify", None, {}, 405),
    ("GET", "/nothing", None, {}, 404),
    ("GET", "/v2/", None, {"Host": "evil.example"}, 404),
    ("POST", "/v1/classify/", b"", {"Host": "evil.example"}, 404),
    ("GET", "/v2/models/other", None, {}, 404),
    ("POST", "/v2/models/echo/versions/2/infer", b"{}", {}, 404),
    ("POST", "/v2/models/echo/infer", b"{", {}, 400),
    ("POST", "/v2/models/echo/infer", b"[]", {}, 400),
    ("POST", "/v2/models/echo/infer", b"[" * 100_000, {}, 400),
    ("POST", "/v2/models/echo/infer", b'{"inputs": []}', {}, 400),
    ("POST", "/v2/models/echo/infer", infer(shape=[1, 1, 8, -8]), {}, 400),
    ("POST", "/v2/models/echo/infer", infer(shape=[2**70, 1, 8, 8]), {}, 413),
    ("POST", "/v2/models/echo/infer", infer(shape=[51, 1, 8, 8]), {}, 413),
    ("POST", "/v2/models/echo/infer", infer(shape=[0, 1, 8, 8]), {}, 422),
    ("POST", "/v2/models/echo/infer", infer(shape=[1, 3, 8, 8]), {}, 422),
    ("POST", "/v2/models/echo/infer", infer(datatype="FP64"), {}, 422),
    ("POST", "/v2/models/echo/infer", infer(datatype=None), {}, 422),
    ("POST", "/v2/models/echo/infer", infer(data=[256] * 64), {}, 422),
    ("POST", "/v2/models/echo/infer", infer(data=[0] * 63), {}, 400),
    ("POST", "/v2/models/echo/infer", infer(data=[[0], [0, 0]]), {}, 400),
    ("POST", "/v2/models/echo/infer", infer(datatype="FP32", data=[1.5] * 64), {}, 422),
    ("POST", "/v2/models/echo/infer", infer(datatype="FP32", data=[float("nan")] * 64), {}, 422),
    ("POST", "/v2/models/echo/infer", infer(datatype="BYTES", shape=[1]), {}, 400),
    ("POST", "/v2/models/echo/infer", infer(), {"Inference-Header-Content-Length": "9999999"}, 400),
    ("POST", "/v2/models/echo/infer", infer(), {"Inference-Header-Content-Length": "-1"}, 400),
    ("POST", "/v2/models/echo/infer", infer() + b"more", {"Inference-Header-Content-Length": str(len(infer()))}, 400),
    ("POST", "/v2/models/echo/infer", infer(parameters={"binary_data_size": 64}), {}, 400),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "headers", "expected"), BAD)
def test_what_is_wrong_is_a_problem_for_its_sender_only(service, method, path, body, headers, expected):
    ask, inside = service
    status, got, answer = ask(method, path, body, headers)
    said = json.loads(answer)
    assert (status, got["content-type"]) == (expected, "application/problem+json")
    assert said["status"] == expected
    assert said["error"] == said["detail"] != ""
    assert said["request_id"] == got["x-request-id"]
    assert inside.batcher.pending == inside.batcher.pending_bytes == 0


def test_a_body_that_does_not_come_is_not_waited_for(service):
    ask, inside = service
    connection = http.client.HTTPConnection(*ask.address, timeout=30)
    connection.putrequest("POST", "/v1/classify")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"half")
    assert connection.getresponse().status == 408
    connection.close()
    assert inside.batcher.pending == 0


def test_keys_are_asked_for_and_their_rate_is_kept(echoing):
    keys = {"alice": KeySettings(sha256=sha256(b"secret").hexdigest(), rate=0.001, burst=2)}
    with echoing(ServeSettings(batch=BatchSettings(deadline=0.02), keys=keys)) as (address, service):
        ask, body = Client(address), picture(numbered(1))
        status, headers, _ = ask("POST", "/v1/classify", body)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert ask("POST", "/v1/classify", body, {"X-API-Key": "wrong"})[0] == 403
        assert ask("POST", "/v1/classify", body, {"X-API-Key": "secret"})[0] == 200
        assert ask("POST", "/v1/classify", body, {"Authorization": "Bearer secret"})[0] == 200
        status, headers, _ = ask("POST", "/v1/classify", body, {"X-API-Key": "secret"})
        assert status == 429
        assert int(headers["retry-after"]) > 100
        assert ask("POST", "/v2/models/echo/infer", infer(), {"X-API-Key": "wrong"})[0] == 403
        metrics = service.metrics.text().decode()
        assert 'twoprong_requests_total{endpoint="/v1/classify",status="401"} 1.0' in metrics
        assert "secret" not in metrics


def test_a_request_that_cannot_be_read_counts_against_the_rate_too(echoing):
    keys = {"alice": KeySettings(sha256=sha256(b"secret").hexdigest(), rate=0.001, burst=4)}
    with echoing(ServeSettings(batch=BatchSettings(deadline=0.02), keys=keys)) as (address, _):
        ask, key = Client(address), {"X-API-Key": "secret"}
        assert ask("POST", "/v2/models/echo/infer", b"{", key)[0] == 400
        three = json.dumps(tensor(IMAGES[:3], "UINT8", data=IMAGES[:3].ravel().tolist()))
        assert ask("POST", "/v2/models/echo/infer", three, key)[0] == 200  # one and two more
        assert ask("POST", "/v2/models/echo/infer", b"{", key)[0] == 429


def test_a_405_says_what_is_allowed(ask):
    status, headers, _ = ask("GET", "/v1/classify")
    assert (status, headers["allow"]) == (405, "POST")


def until(true):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextmanager
def half_sent(address, headers, body=b"", path="/v2/models/echo/infer"):
    """A request whose body has begun."""
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.putrequest("POST", path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    try:
        yield connection
    finally:
        connection.close()


ZIPPED = {"Content-Length": "9", "Content-Encoding": "gzip"}


@pytest.mark.parametrize("headers", [{"Transfer-Encoding": "chunked"}, {"Content-Length": "200000"}, ZIPPED])
def test_clients_that_announce_much_and_send_nothing_take_no_room(echoing, headers):
    batch = BatchSettings(deadline=0.02, max_bytes=3 * 200_000)
    settings = ServeSettings(batch=batch, limits=LimitSettings(max_upload=200_000))
    with echoing(settings) as (address, service):
        with half_sent(address, headers), half_sent(address, headers), half_sent(address, headers):
            until(lambda: service.batcher.pending == 3)
            assert Client(address)("POST", "/v1/classify", picture(numbered(1)))[0] == 200
        until(lambda: service.batcher.pending == service.batcher.pending_bytes == 0)


def test_room_is_held_for_what_has_come_and_refused_when_there_is_no_more(echoing):
    batch = BatchSettings(deadline=0.02, max_bytes=300_000)
    settings = ServeSettings(batch=batch, limits=LimitSettings(max_upload=200_000))
    with echoing(settings) as (address, service):
        headers = {"Content-Length": "200000"}
        with half_sent(address, headers, bytes(150_000)) as first:
            until(lambda: service.batcher.pending_bytes >= 150_000)
            assert Client(address)("POST", "/v1/classify", bytes(150_000))[0] == 503  # as announced
            with half_sent(address, {"Content-Length": "99000"}) as second:
                until(lambda: service.batcher.pending == 2)
                first.send(bytes(49_000))  # all that was announced is held now
                until(lambda: service.batcher.pending_bytes == 200_000)
                second.send(bytes(1000))
                until(lambda: service.batcher.pending_bytes > 200_000)
                with half_sent(address, {"Content-Length": "30000"}) as third:
                    until(lambda: service.batcher.pending == 3)
                    second.send(bytes(69_000))
                    until(lambda: service.batcher.pending_bytes > 275_000)
                    third.send(b"1")
                    assert third.getresponse().status == 503
            first.send(bytes(1000))
            assert first.getresponse().status == 400  # zeros are no JSON
        until(lambda: service.batcher.pending == service.batcher.pending_bytes == 0)


def test_json_is_bounded_and_binary_data_is_not():
    shape, large = (1, 8, 8), (3, 256, 256)
    junk = b'{"inputs": ["' + b"a" * 2**20 + b'"]}'
    for headers in (None, str(len(junk))):
        with pytest.raises(Problem, match=v2.HEADER) as caught:
            v2.Request(junk, headers, shape, 5)
        assert caught.value.status == 413
    with pytest.raises(Problem, match="one tensor"):  # an image of this size may be JSON
        v2.Request(junk, None, large, 5)
    head = tensor(np.empty((1, *large)), "UINT8", parameters={"binary_data_size": 3 * 2**20})
    body, headers = binary(head, bytes(3 * 2**20))
    assert v2.Request(body, headers[v2.HEADER], large, 5).images == 1


@pytest.mark.parametrize(("name", "body", "headers"), [one for one in v2_bodies() if "Content-Encoding" not in one[2]])
def test_what_was_sent_is_not_kept_while_images_wait(name, body, headers):
    asked = v2.Request(body, headers.get(v2.HEADER), (1, 8, 8), 50)
    assert len(asked.decode(lambda data: np.array(Image.open(io.BytesIO(data)))[None])) == 20
    assert len(pickle.dumps(asked)) < 500


def test_a_picture_with_zipped_texts_is_not_opened_by_the_event_loop(ask):
    plain = picture(numbered(8123456790))
    zipped = zlib.compress(bytes(10**6))
    for kind, data in ((b"zTXt", b"a\0\0"), (b"iTXt", b"a\0\1\0\0\0"), (b"iCCP", b"a\0\0")):
        chunk = kind + data + zipped
        body = plain[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + plain[33:]
        assert opened_if_small(body) is None
        assert ask("POST", "/v1/classify", body, PNG)[0] == 200
    assert opened_if_small(plain) is not None


def never(judge, settings):
    async def judge_never(batch):
        await asyncio.Event().wait()

    return Batcher(judge_never, settings)


REQUESTS = [("/v1/classify", picture(numbered(1)), PNG), ("/v2/models/echo/infer", infer(), {})]


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_that_takes_too_long_is_504(echoing, request_):
    settings = ServeSettings(batch=BatchSettings(deadline=0.02, timeout=0.2), limits=LimitSettings(answer_seconds=0.1))
    with echoing(settings, never) as (address, service):
        status, _, answer = Client(address)("POST", *request_)
        assert (status, json.loads(answer)["detail"]) == (504, "no answer within 0.1 s")
        until(lambda: service.batcher.pending == service.batcher.pending_bytes == 0)


@contextmanager
def busy(decoders):
    """All threads that decode wait."""
    free = threading.Event()
    for _ in range(decoders._max_workers):
        decoders.submit(free.wait)
    try:
        yield
    finally:
        free.set()


def pictures(files):
    """A request of the protocol with encoded pictures."""
    raw = b"".join(struct.pack("<I", len(one)) + one for one in files)
    one = {"name": "a", "datatype": "BYTES", "shape": [len(files)], "parameters": {"binary_data_size": len(raw)}}
    return binary({"inputs": [one]}, raw)


ONE_COLOUR = picture(np.zeros((100, 100, 3), np.uint8), "WEBP", lossless=True)  # 10,000 pixels in a few dozen bytes


def test_the_pixels_of_all_pictures_of_a_request_are_bounded_together(echoing, monkeypatch):
    decoded = []
    monkeypatch.setattr(images, "decode_picture", lambda *given: decoded.append(given) or decode_picture(*given))
    settings = ServeSettings(batch=BatchSettings(deadline=0.02), limits=LimitSettings(max_pixels=50_000))
    with echoing(settings) as (address, service):
        ask = Client(address)
        assert ask("POST", "/v2/models/echo/infer", *pictures([ONE_COLOUR] * 5))[0] == 200
        decoded.clear()
        status, _, answer = ask("POST", "/v2/models/echo/infer", *pictures([ONE_COLOUR] * 200))
        assert (status, "50,000 pixels" in json.loads(answer)["detail"]) == (413, True)
        assert len(decoded) <= 5
        large = picture(np.zeros((300, 300), np.uint8), "JPEG")  # it is decoded smaller, which no other picture may be
        assert ask("POST", "/v2/models/echo/infer", *pictures([large]))[0] == 200
        assert ask("POST", "/v2/models/echo/infer", *pictures([large, ONE_COLOUR]))[0] == 413
        assert service.batcher.pending == service.batcher.pending_bytes == 0


@pytest.mark.parametrize("leaves", [False, True], ids=["504", "client left"])
def test_the_pictures_of_a_request_that_was_given_up_are_not_decoded(echoing, monkeypatch, leaves):
    started, go_on, decoded = threading.Event(), threading.Event(), []

    def slow(*given):
        decoded.append(given)
        started.set()
        go_on.wait(20)
        return decode_picture(*given)

    monkeypatch.setattr(images, "decode_picture", slow)
    limits = LimitSettings(answer_seconds=60.0 if leaves else 0.2)
    with echoing(ServeSettings(batch=BatchSettings(deadline=0.02), limits=limits)) as (address, service):
        body, headers = pictures([ONE_COLOUR] * 50)
        with half_sent(address, headers | {"Content-Length": str(len(body))}, body) as connection:
            assert started.wait(20)
            if not leaves:
                assert connection.getresponse().status == 504
        until(lambda: service.batcher.pending == 0)
        go_on.set()
        service.decoders.shutdown()
    assert len(decoded) == 1


LARGE = [("/v1/classify", picture(np.zeros((200, 200), np.uint8)), PNG), REQUESTS[1]]  # decoded by these threads


@pytest.mark.parametrize("request_", LARGE)
def test_decoding_that_takes_too_long_is_504(echoing, request_):
    settings = ServeSettings(batch=BatchSettings(deadline=0.02), limits=LimitSettings(answer_seconds=0.1))
    with echoing(settings) as (address, service), busy(service.decoders):
        assert Client(address)("POST", *request_)[0] == 504
        assert service.batcher.pending == service.batcher.pending_bytes == 0


@pytest.mark.parametrize("request_", LARGE)
def test_who_leaves_while_a_picture_is_decoded_is_not_waited_for(service, request_):
    ask, inside = service
    path, body, headers = request_
    with busy(inside.decoders):
        with half_sent(ask.address, headers | {"Content-Length": str(len(body))}, body, path):
            until(lambda: inside.batcher.pending == 1)
        until(lambda: inside.batcher.pending == inside.batcher.pending_bytes == 0)


def test_the_admin_port_refuses_the_names_of_other_hosts(echoing):
    async def ask(service):
        with bound_socket("127.0.0.1", 0) as bound:
            async with administered(service, bound):
                host, port = bound.getsockname()
                for name in ("localhost", f"127.0.0.1:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"):
                    assert (await asyncio.to_thread(Client((host, port)), "GET", "/metrics", None, {"Host": name}))[0] == 200
                for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost@evil.example", ""):
                    for path in ("/metrics", "/flagged", "/flagged/x.png", "/config", "/dashboard"):
                        assert (await asyncio.to_thread(Client((host, port)), "GET", path, None, {"Host": name}))[0] == 403

    with echoing() as (_, service):
        asyncio.run(ask(service))


def test_the_admin_port_knows_a_loopback_address_that_is_written_as_ipv6():
    def asked(server):
        scope = {"type": "http", "server": (server, 1), "headers": [(b"host", b"evil.example")]}
        asyncio.run(_check_host(Request(scope)))

    for server in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        with pytest.raises(HTTPException):
            asked(server)
    asked("::ffff:10.0.0.1")


def test_no_room_and_no_readiness_are_503(echoing):
    settings = ServeSettings(batch=BatchSettings(deadline=0.02, max_items=100, max_bytes=4000))
    with echoing(settings) as (address, service):
        ask = Client(address)
        with half_sent(address, {"Content-Length": "2500"}, bytes(2000)):
            until(lambda: service.batcher.pending_bytes >= 2000)
            status, headers, _ = ask("POST", "/v1/classify", bytes(2000))
        assert (status, headers["retry-after"]) == (503, "1")
        service.draining = True
        assert ask("GET", "/v2/health/ready")[0] == 503
        assert ask("GET", "/v2/health/live")[0] == 200


@pytest.mark.parametrize("batch", [{"max_items_per_key": 100}, {"max_bytes_per_key": 9000}])
def test_what_an_idle_service_has_no_room_for_is_413_with_the_number_that_fits(echoing, batch):
    keys, key = {"alice": KeySettings(sha256=sha256(b"secret").hexdigest())}, {"X-API-Key": "secret"}

    def infer_many(number):
        head = tensor(np.empty((number, 1, 8, 8)), "UINT8", parameters={"binary_data_size": 64 * number})
        body, headers = binary(head, bytes(64 * number))
        return ask("POST", "/v2/models/echo/infer", body, headers | key)

    with echoing(ServeSettings(batch=BatchSettings(deadline=0.02, **batch), keys=keys)) as (address, service):
        ask = Client(address)
        status, _, answer = infer_many(120)
        said = re.search(r"expected (at most|1 to) (\d+) images", json.loads(answer)["detail"])
        assert status == 413
        assert infer_many(int(said[2]))[0] == 200
        assert ask("POST", "/v1/classify", bytes(service.settings.limits.max_upload), key)[0] == 422  # there is room for it


def huge(width, height):
    """A small PNG that says it is large, with a checksum that fits."""
    data = bytearray(picture(numbered(1)))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def mutated(draw):
    """A request that is nearly right."""
    seed = draw.choice([picture(numbered(3)), picture(np.zeros((30, 20, 3), np.uint8), draw.choice(["JPEG", "WEBP"]))])
    if draw.random() < 0.1:
        seed = huge(draw.choice([1, 9, 5000, 2**31 - 1]), draw.choice([1, 9, 5000, 2**31 - 1]))
    elif draw.random() < 0.5:
        bodies = [(body, headers) for _, body, headers in v2_bodies()]
        body, headers = draw.choice(bodies)
        if draw.random() < 0.5 and b":" in body:  # not zipped
            words = [b"null", b"-1", b"1e999", b"[]", b"{}", b'"x"', b"NaN", b"99999999999999999999", b"true", b"20", b"64"]
            parts = body.split(b":")
            place = draw.randrange(1, min(len(parts), 9))
            rest = parts[place].partition(b",")
            parts[place] = b" " + draw.choice(words) + rest[1] + rest[2]
            body = b":".join(parts)
        if draw.random() < 0.3:
            headers = headers | {"Inference-Header-Content-Length": draw.choice(["0", "1", "77", "999999", "x", "-5", "²"])}
        return "/v2/models/echo/infer", _spoiled(body, draw), {k: v.encode() for k, v in headers.items()}
    elif draw.random() < 0.4:
        body, headers = form(seed)
        return "/v1/classify", _spoiled(body, draw), headers
    return "/v1/classify", _spoiled(seed, draw), {"Content-Type": draw.choice(["image/png", "image/jpeg", "image/webp"])}


def _spoiled(body, draw):
    data = bytearray(body)
    for _ in range(draw.choice([0, 1, 1, 2, 5, 30])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    if draw.random() < 0.3:
        del data[draw.randrange(len(data)) :]
    if draw.random() < 0.2:
        at = draw.randrange(len(data) + 1)
        data[at:at] = draw.randbytes(draw.randrange(40))
    return bytes(data)


def test_nearly_right_requests_never_break_it(service):
    ask, inside = service
    draw, counts = random.Random(7), Counter()
    for number in range(400 * SCALE):
        path, body, headers = mutated(draw)
        status, _, answer = ask("POST", path, body, headers)
        assert status < 500, (number, path, body[:300], answer)
        assert (status == 200) or json.loads(answer)["status"] == status
        counts[status] += 1
    assert counts[200] > 20
    assert counts[422] > 20
    assert counts[400] > 20
    assert inside.batcher.pending == 0
    assert ask("POST", "/v1/classify", picture(numbered(1)))[0] == 200
