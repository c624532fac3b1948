"""What a result was made with: versions, commit, hardware."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from twoprong.results.part import Provenance


def made_with(device: torch.device) -> Provenance:
    """Versions, commit and hardware of this process."""
    name = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    )
    return Provenance(
        twoprong=metadata.version("twoprong"),
        torch=str(torch.__version__),
        python=platform.python_version(),
        commit=_commit() or os.environ.get("TWOPRONG_COMMIT"),
        platform=platform.system(),
        device=name,
        threads=torch.get_num_threads(),
    )


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with `-dirty` for changes; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        tracked = subprocess.run(
            ["git", "-C", str(here), "ls-files", "--error-unmatch", Path(__file__).name],
            capture_output=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() if tracked.returncode == 0 else None
