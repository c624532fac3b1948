"""What is refused before there is a request: heads that are too long, and what is not HTTP; over real connections."""

import asyncio
import http.client
import json
import socket
from contextlib import suppress

import pytest

from twoprong.serve.protocol import HEAD
from twoprong.serve.run import administered, bound_socket


@pytest.fixture(scope="module")
def service(echoing):
    with echoing() as found:
        yield found


def answered(address, *parts):
    """The last answer to bytes that are sent part by part; there is one before for each part that ends a request."""
    with socket.create_connection(address, timeout=20) as connection:
        for number, part in enumerate(parts):
            with suppress(ConnectionError):  # it has been refused by now
                connection.sendall(part)
            if number == len(parts) - 1 or part.endswith(b"\r\n\r\n"):
                response = http.client.HTTPResponse(connection)
                response.begin()
                body = response.read()
        return response, body


def check(status, response, body):
    said = json.loads(body)
    assert (response.status, response.headers["content-type"]) == (status, "application/problem+json")
    assert (said["status"], said["error"]) == (status, said["detail"])
    assert said["request_id"] == response.headers["x-request-id"] != ""
    assert response.headers["connection"] == "close"


START = b"GET /v2 HTTP/1.1\r\nHost: a\r\n"
CHUNKED = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
MANY, MUCH = [b"X: b\r\n" * 1000] * 1000, [b"b" * 6000] * 1000
LONG = {
    "many headers": [START, *MANY],
    "one long value": [START + b"X: ", *MUCH],
    "one long name": [START, *MUCH],
    "a long path": [b"GET /", *MUCH],
    "at once": [START + b"X: " + b"b" * 200_000 + b"\r\n\r\n"],
    "in the second request": [START + b"\r\n", START, *MANY],
    "trailers": [CHUNKED + b"1\r\nx\r\n0\r\n", *MANY],
    "beside the length of a chunk": [CHUNKED + b"1;", *MUCH],
}


@pytest.mark.parametrize("which", LONG)
def test_a_head_is_bounded_while_it_comes(service, which):
    address, inside = service
    response, body = answered(address, *LONG[which])
    check(431, response, body)
    assert f"{HEAD:,} bytes" in json.loads(body)["detail"]
    assert 'twoprong_requests_total{endpoint="other",status="431"}' in inside.metrics.text().decode()


def test_a_head_that_is_not_too_long_and_a_body_in_small_chunks_are_taken(service):
    address, _ = service
    assert answered(address, START + b"X: " + b"b" * (HEAD - 100) + b"\r\n\r\n")[0].status == 200
    response, _ = answered(address, CHUNKED + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
    assert response.status == 422  # no picture


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        CHUNKED + b"no number\r\n",
    ],
)
def test_what_is_not_http_is_a_problem(service, sent):
    address, inside = service
    check(400, *answered(address, sent))
    assert 'twoprong_requests_total{endpoint="other",status="400"}' in inside.metrics.text().decode()


def test_heads_are_bounded_on_the_admin_port_too(service):
    async def ask():
        with bound_socket("127.0.0.1", 0) as bound:
            async with administered(service[1], bound):
                check(431, *await asyncio.to_thread(answered, bound.getsockname(), *LONG["many headers"]))

    asyncio.run(ask())
