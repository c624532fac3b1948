"""The picture on the README's first page, drawn from a published run.

python tools/figure.py           write docs/withstands.svg
python tools/figure.py --check   only compare: exit code 1 where it differs
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from published import Run, read
from withstands import rows

PICTURE = "docs/withstands.svg"
WIDTH, LEFT, SCALE = 640, 230, 3.1  # SCALE: pixels for each percent
KINDS = (("alone", "classifier alone"), ("defended", "with the defence"), ("hardened", "hardened mode"))
LABELS = ("nobody attacks", "does not know the defence", "runs the paper's attack", "knows everything")
STYLE = (
    "text{font:15px system-ui,sans-serif;fill:#1c2733}.small{font-size:13px;fill:#52606d}.bold{font-weight:600}"
    ".box{fill:#eef2f6;stroke:#7b8794}.test{fill:#fff4d6;stroke:#b7791f}.line{stroke:#52606d;stroke-width:1.5;fill:none}"
    ".alone{fill:#9aa5b1}.defended{fill:#2b6cb0}.hardened{fill:#2f855a}image{image-rendering:pixelated}"
)


def main(arguments: Sequence[str] | None = None, root: Path = Path(__file__).parents[1]) -> int:
    parser = argparse.ArgumentParser(description="The picture on the first page.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args(arguments).check
    published = read(root / "results")
    drawn, file = draw(published.first()), root / PICTURE
    if file.is_file() and file.read_text(encoding="utf-8") == drawn:
        return 0
    if check:
        print(f"{PICTURE}: differs from results/; run `make figure`")
        return 1
    file.write_text(drawn, encoding="utf-8")
    print(f"{PICTURE}: written")
    return 0


def draw(runs: Sequence[Run]) -> str:
    """The flow of a batch above, what is classified correctly below: the first run, and the hardened mode if any."""
    parts = [*_flow(runs[0].results), *_bars(runs)]
    height = 350 + 60 * (len(runs) + 1)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join(
        [head, f"<style>{STYLE}</style>", '<rect width="100%" height="100%" rx="8" fill="#fff"/>', *parts, "</svg>\n"]
    )


def _flow(results: dict[str, Any]) -> Iterator[str]:
    """Batch, test, two routes; with an image of the run that the attack fooled and the denoiser brought back."""
    example = next(
        picture
        for picture in results["pictures"]
        if picture["attack"] == "paper" and picture["says"]["adversarial"] != picture["label"] == picture["says"]["denoised"]
    )
    classes = results["defense"]["classes"]
    seen = {name: f"“{classes[label]}”" for name, label in example["says"].items()}
    yield from _image(example["images"]["adversarial"], 20, 62, "a batch of images")
    yield from _box("test", 130, 68, 110, 52, "batch test", "MMD-OPT")
    yield from _box("box", 330, 22, 100, 48, "classifier")
    yield from _box("box", 330, 118, 100, 52, "denoiser", "noise first")
    yield from _image(example["images"]["denoised"], 450, 112)
    yield from _box("box", 536, 118, 90, 52, "classifier")
    yield from _arrow("M88 94H126", "M240 84L326 50", "M240 104L326 140", "M430 144H446", "M514 144H532")
    yield _text(258, 44, "passes", "small")
    yield _text(258, 152, "flagged", "small")
    yield _text(446, 50, f"this attacked image: {seen['adversarial']}", "small")
    yield _text(450, 194, f"denoised: {seen['denoised']}", "small")


def _bars(runs: Sequence[Run]) -> Iterator[str]:
    kinds = list(zip(KINDS, (20, 160, 300), strict=True))[: len(runs) + 1]
    yield _text(20, 236, "Classified correctly, by what the attacker knows", "bold")
    for (kind, name), x in kinds:
        yield f'<rect class="{kind}" x="{x}" y="248" width="12" height="12"/>' + _text(x + 18, 259, name, "small")
    y = 276
    for label, row, *others in zip(LABELS, *map(rows, runs), strict=True):
        yield _text(20, y + 7 + 7 * len(kinds), label)
        shares = [row.score.alone, row.score.defended, *(other.score.defended for other in others)]
        for number, (((kind, _), _), share) in enumerate(zip(kinds, shares, strict=True)):
            at = y + 15 * number
            yield f'<rect class="{kind}" x="{LEFT}" y="{at}" width="{100 * share * SCALE:.1f}" height="13"/>'
            note = f"{100 * share:.1f} %"
            if kind == "defended" and row.weaker:
                note += f" ({100 * row.weaker[1].defended:.1f} % at {255 * row.weaker[0]:.0f}/255)"
            yield _text(f"{LEFT + 6 + 100 * share * SCALE:.1f}", at + 11, note, "small")
        y += 11 + 15 * len(kinds)
    made, images = runs[0].results["run"], " and ".join(f"{run.results['run']['images']:,}" for run in runs)
    budget = f"at most {255 * made['eps']:.0f}/255 per pixel"
    yield _text(20, y + 12, f"{made['data']}, {images} images, {budget}, protocol {made['protocol']}", "small")


def _box(kind: str, x: int, y: int, width: int, height: int, *lines: str) -> Iterator[str]:
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    for number, line in enumerate(lines):
        small = ' class="small"' if number else ""
        yield f'<text{small} x="{x + width / 2:g}" y="{first + 18 * number:g}" text-anchor="middle">{escape(line)}</text>'


def _image(address: str, x: int, y: int, name: str = "") -> Iterator[str]:
    yield f'<image href="{address}" x="{x}" y="{y}" width="64" height="64"/>'
    if name:
        yield _text(x, y - 10, name, "small")


def _arrow(*paths: str) -> Iterator[str]:
    yield (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#52606d"/></marker>'
    )
    for path in paths:
        yield f'<path class="line" d="{path}" marker-end="url(#tip)"/>'


def _text(x: int | str, y: int, text: str, kind: str = "") -> str:
    return f'<text{f" class={chr(34)}{kind}{chr(34)}" if kind else ""} x="{x}" y="{y}">{escape(text)}</text>'


if __name__ == "__main__":
    sys.exit(main())
