"""What a result was made with: versions, commit, hardware."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import torch

from twoprong.results.part import Origin, Provenance


def origin() -> Origin:
    """The source and the libraries of this process."""
    commit = _commit() or os.environ.get("TWOPRONG_COMMIT")
    return Origin(commit=commit, twoprong=metadata.version("twoprong"), torch=str(torch.__version__))


def made_with(device: torch.device, earlier: Iterable[Origin] = ()) -> Provenance:
    """Versions, commit and hardware of this process, and of what was made `earlier` by others."""
    name = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    )
    now = origin()
    others = [one for one in dict.fromkeys(earlier) if one != now]
    found = Provenance(
        twoprong=now.twoprong,
        torch=now.torch,
        python=platform.python_version(),
        commit=now.commit,
        platform=platform.system(),
        device=name,
        threads=torch.get_num_threads(),
    )
    return found.model_copy(update={"resumed_from": others}) if others else found


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
