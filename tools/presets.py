"""Writes configs/paper.toml from the preset in the package: python tools/presets.py"""

from pathlib import Path
from typing import Any

from twoprong.presets import PRESETS

FILE = Path(__file__).parents[1] / "configs" / "paper.toml"
HEAD = """\
# Made by `python tools/presets.py` from the preset `paper` (src/twoprong/presets.py): the paper's settings for CIFAR-10, to
# the letter. `--preset paper` is the same without a file. Settings that are unset stand as comments.
"""


def as_toml(name: str) -> str:
    """Every setting of a preset as TOML."""
    lines, sections = [HEAD.rstrip()], PRESETS[name].model_dump(mode="json")
    lines += [_line(key, value) for key, value in sections.items() if not isinstance(value, dict)]
    for section, values in sections.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *(_line(key, value) for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    return f"# {key} =" if value is None else f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and value < 0.1 and abs(255 * value - round(255 * value)) < 1e-9:
        return f'"{round(255 * value)}/255"' if value else "0.0"
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    FILE.write_text(as_toml("paper"), encoding="utf-8")
