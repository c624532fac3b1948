"""A client that we did not write: NVIDIA's tritonclient speaks the Open Inference Protocol to the service, unchanged."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import picture


@pytest.fixture(scope="module")
def client(echoing):
    with echoing() as ((host, port), _):
        client = triton.InferenceServerClient(f"{host}:{port}")
        yield client
        client.close()


IMAGES = np.arange(5 * 64, dtype=np.uint8).reshape(5, 1, 8, 8)


def asked(images, kind, binary):
    one = triton.InferInput("images", images.shape, kind)
    one.set_data_from_numpy(images, binary_data=binary)
    return [one]


def test_it_asks_what_there_is(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert client.get_server_metadata()["name"] == "twoprong"
    assert client.get_model_metadata("echo")["inputs"][0]["shape"] == [-1, 1, 8, 8]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", ["FP32", "UINT8"])
@pytest.mark.parametrize("zipped", [None, "gzip", "deflate"])
def test_it_gets_answers(client, kind, binary, zipped):
    images = IMAGES if kind == "UINT8" else (IMAGES / 255).astype(np.float32)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("probabilities", "label")]
    found = client.infer("echo", asked(images, kind, binary), outputs=wanted, request_id="seven",
                         request_compression_algorithm=zipped)  # fmt: skip
    assert found.get_response()["id"] == "seven"
    assert np.allclose(found.as_numpy("probabilities"), IMAGES.reshape(5, -1)[:, :10] / 255, atol=1e-6)
    assert found.as_numpy("label").tolist() == [9] * 5


def test_it_sends_pictures_and_reads_errors(client):
    files = np.array([picture(image[0]) for image in IMAGES], dtype=object)
    found = client.infer("echo", asked(files, "BYTES", True))
    assert found.as_numpy("label").tolist() == [9] * 5
    with pytest.raises(InferenceServerException, match="expected a tensor of shape"):
        client.infer("echo", asked(IMAGES[:, :, :4], "UINT8", True))
