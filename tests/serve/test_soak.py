"""Many clients at once, some of whom leave or send rubbish: whose answer is whose, and what is left afterwards.

The bundle's flagged route draws no noise here, so that every answer can be compared, whichever route it took.
"""

import asyncio
import json
import os
import random
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL.PngImagePlugin import PngInfo

import twoprong as tp
from twoprong.serve.batcher import Batcher
from twoprong.serve.images import decode

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import SCALE, Connection, Crossed, Vitals, Watch, picture, request, serving, worker_of

CLIENTS, REQUESTS = 200, 3000
SAME, OTHER = 2e-5, 1e-3  # how far two answers to one image are apart at most, and answers to two images at least
LEAK = 4.0 / SCALE  # kilobytes per request; over few requests more is noise
CONFIG = "threads = 1\n[batch]\nmax_batch = 100\nmax_items = 20000\nmax_items_per_key = 20000\n"
LONG = PngInfo()
LONG.add_text("comment", "x" * 100_000)
WIDER = [(0, 0), ((0, 0), (3, 3)), ((150, 150), (0, 0)), (0, 0)]
KINDS = [("PNG", {}), ("PNG", {"pnginfo": LONG}), ("WEBP", {"lossless": True})]  # the long one is decoded in a thread


class Cases:
    """Requests with the answers that they must get: pictures of two formats, short and long, of the model's size, wider and
    higher, and tensors of many images. The `first` images are sent in the first fifth of the requests, and only there."""

    def __init__(self, images, answer, shape=(1, 8, 8), first=0):
        """`images` are bytes (N, H, W), `answer` gives the probabilities (routes, N, classes) for images of the model's
        shape."""
        bodies = []
        for number, pixels in enumerate(images):
            kind, more = KINDS[number % len(KINDS)]
            wider = np.pad(pixels, WIDER[number % len(WIDER)], constant_values=255)  # the centre is what counts
            bodies.append(picture(wider, kind, **more))
        seen = np.stack([decode(body, shape, 10**6) for body in bodies])
        rows = answer(seen)
        kept = _distinct(rows)
        self.rows, self.seen = rows[:, kept], seen[kept]
        self.pictures = [request(bodies[index]) for index in kept]
        self.first = sum(index < first for index in kept)

    def among(self, progress):
        """The numbers of the images to choose from at this share of the requests."""
        return range(self.first) if self.first and progress < 0.2 else range(self.first, len(self.pictures))

    def tensor(self, which, model):
        images = self.seen[which]
        one = {"name": "a", "datatype": "UINT8", "shape": list(images.shape)}
        one["parameters"] = {"binary_data_size": images.size}
        head = json.dumps({"inputs": [one], "outputs": [{"name": "probabilities"}]}).encode()
        return request(head + images.tobytes(), f"/v2/models/{model}/infer", {"Inference-Header-Content-Length": len(head)})

    def broken(self, draw, model):
        """A request that is none: bytes instead of a picture, or a tensor cut short or of another shape."""
        if draw.random() < 0.5:
            return request(draw.randbytes(draw.randrange(500)))
        _, _, body = self.tensor([draw.randrange(len(self.pictures))], model).partition(b"\r\n\r\n")
        length = {"Inference-Header-Content-Length": body.index(b"]}") + 2}
        body = body[: -draw.randrange(1, 64)] if draw.random() < 0.5 else body.replace(b"[1, 1, 8, 8]", b"[1, 1, 4, 4]")
        return request(body, f"/v2/models/{model}/infer", length)

    def whose(self, found, number):
        """The route by which this is the answer to the image: "route 0" or "route 1"; or "another's", or "nobody's"."""
        (routes,) = np.nonzero(np.abs(self.rows[:, number] - found).max(1) <= SAME)
        if len(routes):
            return f"route {routes[0]}"
        return "another's" if np.abs(self.rows - found).max(2).min() <= SAME else "nobody's"


def _distinct(rows):
    """Images of which no answer, by whatever route, is like one of another image."""
    kept = [0]
    for number in range(1, rows.shape[1]):
        if all(np.abs(rows[:, kept] - row).max(2).min() > OTHER for row in rows[:, number]):
            kept.append(number)
    return kept


async def soak(address, cases, model, requests, pids):
    """Gives what became of the requests, and how the processes' memory grew (kilobytes per request)."""
    counts, done = Counter(), 0

    async def client(seed):
        nonlocal done
        draw, connection = random.Random(seed), Connection(address)
        for _ in range(requests // CLIENTS):
            numbers, done = cases.among(done / requests), done + 1
            chance, number = draw.random(), draw.choice(numbers)
            if chance < 0.05:
                await connection.send(cases.broken(draw, model))
                counts[f"rubbish {(await connection.answer())[0]}"] += 1
            elif chance < 0.25:  # sent and left: at once, while it waits, or while its batch is judged
                await connection.send(cases.pictures[number])
                await asyncio.sleep(draw.choice([0, 0.02, 0.2]))
                connection.close()
                counts["left"] += 1
            elif chance < 0.3:
                which = draw.choices(numbers, k=draw.randrange(1, 30))
                await connection.send(cases.tensor(which, model))
                status, body = await connection.answer()
                counts[f"tensor {status}"] += 1
                values = np.array(json.loads(body)["outputs"][0]["data"]).reshape(len(which), -1)
                counts.update(cases.whose(row, one) for row, one in zip(values, which, strict=True))
            else:
                await connection.send(cases.pictures[number])
                status, body = await connection.answer()
                counts[f"picture {status}"] += 1
                found = {one["label"]: one["probability"] for one in json.loads(body)["probabilities"]}
                counts[cases.whose(np.array([found[label] for label in range(10)]), number)] += 1
        connection.close()

    async with Watch(pids, lambda: done) as watch:
        await asyncio.wait_for(asyncio.gather(*map(client, range(CLIENTS))), 60 + requests / 20)
    return counts, watch


FINE = ("route 0", "route 1", "left", "rubbish 400", "rubbish 422", "tensor 200", "picture 200")


def faults(counts, watch, leak=4.0):
    """What is wrong; nothing should be."""
    wrong = [name for name in counts if name not in FINE]
    if watch.slope() > leak:
        wrong.append(f"memory grows by {watch.slope():.1f} kB per request")
    return wrong


@torch.no_grad()
def test_everybody_gets_their_own_answer_and_nothing_is_kept(bundle, digits, tmp_path):
    defense = tp.load(bundle)
    defense.flagged.sigma = 0.0
    defense.save(tmp_path / "digits")

    def answer(seen):
        images = torch.from_numpy(seen).float() / 255
        return torch.stack([route.logits(images)[0].softmax(1) for route in (defense.passing, defense.flagged)]).numpy()

    images = (digits.test.images[:, 0] * 255).round().byte().numpy()
    images[:100] = 255 - images[:100]  # no digits to the test, on any machine: the second route is not left to false alarms
    cases = Cases(images, answer, first=100)
    with serving(tmp_path / "digits", tmp_path, CONFIG) as (process, where):
        pids = [process.pid, worker_of(process.pid)]
        address = ("127.0.0.1", where["port"])
        asyncio.run(soak(address, cases, "digits", CLIENTS * 2, pids))  # what is made once
        before = Vitals.of(pids)
        counts, watch = asyncio.run(soak(address, cases, "digits", REQUESTS * SCALE, pids[:1]))
        metrics = settled(where["admin_port"])
        after = Vitals.of(pids)
    print(dict(counts), f"{watch.slope():.3f} kB per request", before, after)
    assert faults(counts, watch, LEAK) == []
    assert after.memory < before.memory + 64  # megabytes: in the worker, torch keeps plans for every size of a batch
    assert counts["route 0"] > 0.5 * REQUESTS * SCALE
    assert counts["route 1"] > 0.1 * REQUESTS * SCALE
    assert counts["left"] > 0.15 * REQUESTS * SCALE
    assert metrics["twoprong_pending"] == metrics["twoprong_pending_bytes"] == 0
    assert after.files <= before.files + 2  # connections to the admin port
    assert after.threads <= before.threads
    assert metrics["twoprong_worker_restarts"] == metrics["twoprong_batches_failed_total"] == 0


def settled(port):
    """The metrics once nothing is pending, or after ten seconds."""
    for _ in range(100):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            lines = [line.rsplit(" ", 1) for line in response.read().decode().splitlines() if not line.startswith("#")]
        found = {name: float(value) for name, value in lines}
        if not found["twoprong_pending"]:
            break
        asyncio.run(asyncio.sleep(0.1))
    return found


class Hoarding(Batcher):
    """Keeps something of every image."""

    def _finish(self, batch, outcome):
        self.kept = [*getattr(self, "kept", []), *(b"x" * 200_000 for _ in batch)]
        super()._finish(batch, outcome)


@pytest.mark.parametrize(("kind", "found"), [(Batcher, []), (Crossed, ["another's"]), (Hoarding, ["memory"])])
def test_planted_mistakes_are_found(echoing, digits, kind, found):
    """In this process, whose clients take memory, too: a few kilobytes a request are noise here, the planted leak is 200."""
    images = (digits.test.images[:, 0] * 255).round().byte().numpy()
    images[:, 0, :] += np.arange(len(images) * 8, dtype=np.uint8).reshape(-1, 8)
    cases = Cases(images, lambda seen: seen.reshape(1, len(seen), -1)[:, :, :10] / 255)
    with echoing(batcher=kind) as (address, service):
        asyncio.run(soak(address, cases, "echo", CLIENTS, [os.getpid()]))  # what is made once
        counts, watch = asyncio.run(soak(address, cases, "echo", 600, [os.getpid()]))
        held = service.batcher.pending
    assert [name.split(" ")[0] for name in faults(counts, watch, 40.0)] == found
    assert held == 0
