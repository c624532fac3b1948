"""The clients in docs/serving.md, as they stand there, against the service that they are written for."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import picture, serving

from twoprong.data import load_data

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", TEXT, re.DOTALL)
LINES = [("bash", line.strip()) for line in TEXT.splitlines() if line.startswith("    curl ")]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    images = (load_data("cifar10-small").test.images[:2] * 255).round().byte()
    (folder / "cat.png").write_bytes(picture(images[0].permute(1, 2, 0).numpy()))
    (folder / "images.raw").write_bytes(images.numpy().tobytes())
    with serving("cifar10-small", folder, "") as (_, where):
        yield folder, where["port"]


def test_there_are_examples_of_both_endpoints_in_both_languages():
    assert [language for language, _ in [*BLOCKS, *LINES]] == ["python", "bash", "python", "bash"]


@pytest.mark.parametrize(("language", "code"), [*BLOCKS, *LINES])
def test_the_example_gets_an_answer(service, language, code):
    if language == "bash" and shutil.which("curl") is None:
        pytest.skip("no curl")
    folder, port = service
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
    done = subprocess.run(
        [*command, code.replace("127.0.0.1:8000", f"127.0.0.1:{port}")],
        cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r'"label"|\[\d+ \d+\]|cat|dog|ship|airplane', done.stdout), done.stdout
