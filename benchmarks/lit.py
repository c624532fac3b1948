"""The classifier of `cifar10-small`, without its defence, behind LitServe: `python -m benchmarks.lit PORT BATCH DEADLINE`.

Pictures come as its documentation shows it: base64 in JSON. One worker, one thread for the model, as the service has it.
"""

import base64
import io
import sys
from typing import Any

import litserve
import numpy as np
import torch
from PIL import Image

import twoprong as tp
from twoprong.malloc import keep_freed_memory


class Bare(litserve.LitAPI):
    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()  # as the service's worker does
        self.classifier = tp.load("cifar10-small").classifier

    def decode_request(self, request: dict[str, str]) -> np.ndarray:
        return np.array(Image.open(io.BytesIO(base64.b64decode(request["image"]))).convert("RGB"))

    def batch(self, inputs: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack(inputs)).permute(0, 3, 1, 2).float() / 255

    @torch.no_grad()
    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(x).softmax(1)

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        return list(output)

    def encode_response(self, output: torch.Tensor) -> dict[str, Any]:
        values, labels = output.topk(5)
        return {"label": int(labels[0]), "probabilities": dict(zip(labels.tolist(), values.tolist(), strict=True))}


if __name__ == "__main__":
    api = Bare(max_batch_size=int(sys.argv[2]), batch_timeout=float(sys.argv[3]))
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, generate_client_file=False, log_level="warning")
