"""What `make dist` builds: the wheel works outside the source tree, with all its data."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USE = """
import sys
from pathlib import Path
import twoprong as tp
from twoprong.data import load_data
assert Path(tp.__file__).is_relative_to(sys.prefix), tp.__file__
defense, images = tp.load("cifar10-small"), load_data("cifar10-small").test.images
assert len(defense(images[:20]).labels) == 20
"""


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel built from it, from a copy: the source tree may hold an older build."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_every_file_of_the_package_is_in_both(built):
    sdist, wheel = built
    files = [path for path in (ROOT / "src/twoprong").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        assert expected <= {name.partition("/src/")[2] for name in archive.getnames()}


def test_the_wheel_works_in_a_fresh_environment(built, tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", built[1])
    paths = sysconfig.get_paths(vars={"base": str(tmp_path / "env"), "platbase": str(tmp_path / "env")})
    # torch and the like come from this environment; what is installed in the fresh one goes first
    Path(paths["purelib"], "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run(python, "-c", USE, cwd=tmp_path, env=clean)
    assert run(tmp_path / "env/bin/twoprong", "--version", cwd=tmp_path, env=clean).startswith("twoprong ")
