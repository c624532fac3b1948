"""The public application over real HTTP on loopback: answers, protocols and errors.

TWOPRONG_SCALE=10 in the environment makes the spoiled requests ten times as many.
"""

import gzip
import http.client
import io
import json
import os
import random
import struct
import zlib
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
from PIL import Image

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
    form = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n' + body + b"\r\n--x--\r\n"
    for sent, kind in ((form, "multipart/form-data; boundary=x"), (body, "image/jpeg")):
        status, _, answer = ask("POST", "/v1/classify", sent, {"Content-Type": kind})
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
    ("POST", "/v1/classify", BOMB, {}, 413),
    ("POST", "/v1/classify?top_k=0", picture(numbered(1)), {}, 422),
    ("POST", "/v1/classify", b"--x--", {"Content-Type": "multipart/form-data; boundary=x"}, 400),
    ("POST", "/v1/classify", b"--x--", {"Content-Type": "multipart/form-data"}, 400),
    ("GET", "/v1/classify", None, {}, 405),
    ("GET", "/nothing", None, {}, 404),
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


def test_no_room_and_no_readiness_are_503(echoing):
    settings = ServeSettings(batch=BatchSettings(deadline=0.02, max_items=100, max_bytes=1000))
    with echoing(settings) as (address, service):
        ask = Client(address)
        status, headers, _ = ask("POST", "/v1/classify", bytes(2000))
        assert (status, headers["retry-after"]) == (503, "1")
        service.draining = True
        assert ask("GET", "/v2/health/ready")[0] == 503
        assert ask("GET", "/v2/health/live")[0] == 200


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
