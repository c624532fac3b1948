"""Would the tests notice? Plants each mistake of mutants.toml in a copy of the sources and runs the tests that must fail.

    python tools/mutants.py [NAME ...]     a part of a name will do; without names, all of them

Exit code 1 if a mistake survives, or if the tests fail without one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
FAILED = 1  # pytest's exit code; others say that the tests did not run


@dataclass(frozen=True)
class Mutant:
    """A mistake: in `file` (below src/twoprong) `old` becomes `new`, and then each of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def plant(self, package: Path) -> None:
        """Raises ValueError where `old` does not stand exactly once."""
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {text.count(self.old)} times in {self.file}, expected once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def read(path: Path = TABLE) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]


def run(tests: list[str], mutant: Mutant | None = None) -> int:
    """Pytest's exit code on the tests, with the mistake planted in a copy of src/."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__")))
        if mutant is not None:
            mutant.plant(source / "twoprong")
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


def survivors(mutants: list[Mutant]) -> list[str]:
    """Plants the mistakes one by one, says how it goes, and returns a line for each test that does not notice."""
    missed = []
    for number, mutant in enumerate(mutants, 1):
        codes = {test: run([test], mutant) for test in mutant.tests}
        blind = [f"{mutant.name}: {test} (pytest's exit code {code})" for test, code in codes.items() if code != FAILED]
        print(f"{number:3} of {len(mutants)}  {'SURVIVED' if blind else 'caught  '}  {mutant.name}", flush=True)
        missed += blind
    return missed


def main(names: list[str]) -> int:
    mutants = [mutant for mutant in read() if not names or any(name in mutant.name for name in names)]
    if not mutants:
        print("no such mistake in", TABLE.name)
        return 1
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    if run(tests):
        print("the tests fail without any mistake planted: python -m pytest", *tests)
        return 1
    missed = survivors(mutants)
    print(*(f"not noticed: {line}" for line in missed), sep="\n", end="\n" if missed else "")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
