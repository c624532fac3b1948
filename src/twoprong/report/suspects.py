"""A flagged batch with its suspects marked: the images in a grid, a frame around everybody who was attacked or blamed."""

import base64
import io

import torch
import torch.nn.functional as F
from markupsafe import Markup, escape
from torch import Tensor

from twoprong.defense import Defense
from twoprong.results.detector import BlamedBatch

COLUMNS = 10
LARGEST = 32  # pixels a side: of larger images a smaller copy is shown
TILE = 40  # units of the drawing that an image is wide
FRAMES = {  # of (attacked, suspect): what it is called, and its line
    (True, True): ("attacked and blamed", "stroke:#00b050"),
    (False, True): ("clean, blamed by mistake", "stroke:#ff9900;stroke-dasharray:5 3"),
    (True, False): ("attacked, not blamed", "stroke:#ff1f1f;stroke-dasharray:2 2"),
}


def shown(defense: Defense, attacked: Tensor, clean: Tensor, draw: torch.Generator) -> BlamedBatch | None:
    """A batch of attacked images before clean ones, judged; None where it passes or nobody can be named."""
    batch = torch.cat([attacked, clean])
    decision = defense(batch, draw)
    if not decision.adversarial or decision.scores is None:
        return None
    return blamed_batch(batch, torch.arange(len(batch)) < len(attacked), decision.suspects)


def blamed_batch(images: Tensor, attacked: Tensor, suspects: Tensor) -> BlamedBatch:
    """What a page shows of a batch (N, C, H, W): one picture of all images, and two masks (N,)."""
    from PIL import Image

    side = min(LARGEST, max(images.shape[2:]))
    tiles = images.detach().cpu().float()
    if max(tiles.shape[2:]) > side:
        tiles = F.interpolate(tiles, (side, side), mode="area")
    height, width = tiles.shape[2:]
    rows = -(-len(tiles) // COLUMNS)
    grid = tiles.new_zeros(rows * COLUMNS, *tiles.shape[1:])
    grid[: len(tiles)] = tiles
    pixels = grid.unflatten(0, (rows, COLUMNS)).permute(0, 3, 1, 4, 2).reshape(rows * height, COLUMNS * width, -1)
    bytes_ = (pixels.clamp(0, 1) * 255).round().byte().numpy()
    out = io.BytesIO()
    Image.fromarray(bytes_.squeeze(-1) if bytes_.shape[-1] == 1 else bytes_).save(out, "JPEG", quality=90)
    return BlamedBatch(
        picture="data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode(),
        columns=COLUMNS,
        width=width,
        height=height,
        attacked=attacked.tolist(),
        suspects=suspects.tolist(),
    )


def figure(batch: BlamedBatch | None) -> Markup | None:
    """The picture for a template."""
    return None if batch is None else Markup(drawn(batch))


def drawn(batch: BlamedBatch) -> str:
    """The picture with its frames and a key, as an SVG element."""
    side, down = TILE, TILE * batch.height / batch.width
    kinds = _kinds(batch)
    high = -(-len(kinds) // batch.columns) * down
    frames = [
        _frame(number % batch.columns * side, number // batch.columns * down, side, down, FRAMES[kind][1])
        for number, kind in enumerate(kinds)
        if kind in FRAMES
    ]
    key = []
    for number, (kind, (said, style)) in enumerate(FRAMES.items()):
        y = high + 8 + 16 * number
        frames.append(_frame(0, y, 14, 11, style))
        key.append(f'<text x="20" y="{y + 10:g}">{said}: {kinds.count(kind)}</text>')
    wide = batch.columns * side
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high + 56:g}" role="img" aria-label="{told(batch)}" '
        f'style="max-width:{wide}px;width:100%"><image href="{escape(batch.picture)}" width="{wide}" height="{high:g}" '
        f'preserveAspectRatio="none"/><g fill="none" stroke-width="2">{"".join(frames)}</g>'
        f'<g fill="currentColor" font-size="12" font-family="sans-serif">{"".join(key)}</g></svg>'
    )


def _frame(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x + 1.5:g}" y="{y + 1.5:g}" width="{width - 3:g}" height="{height - 3:g}" style="{style}"/>'


def told(batch: BlamedBatch) -> str:
    """The picture in words."""
    kinds = _kinds(batch)
    parts = [f"{kinds.count(kind)} {said}" for kind, (said, _) in FRAMES.items()]
    return f"A flagged batch of {len(kinds)} images: {'; '.join(parts)}."


def _kinds(batch: BlamedBatch) -> list[tuple[bool, bool]]:
    return list(zip(batch.attacked, batch.suspects, strict=True))
