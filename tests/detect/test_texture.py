import torch

from twoprong.detect.texture import FLOOR, patch_directions, texture
from twoprong.seeds import generator


def smooth(count, *name):
    """Photographs, roughly: the same slow waves in all colours."""
    phase = torch.rand(count, 1, 1, 1, generator=generator(0, *name)) * 6
    x = torch.linspace(0, 3, 12)
    return (0.5 + 0.4 * torch.sin(phase + x[:, None] + x[None, :])).expand(-1, 3, -1, -1).contiguous()


def test_directions_are_orthonormal_and_sorted_by_how_much_images_vary_along_them():
    images = smooth(50, "waves")
    filters = patch_directions(images, 3)
    assert filters.shape == (27, 3, 3, 3)
    flat = filters.flatten(1)
    assert torch.allclose(flat @ flat.T, torch.eye(27), atol=1e-5)
    spread = texture(images, filters).mean(0)
    assert spread[-1] > spread[0] + 5


def test_it_is_the_log_of_a_variance_over_positions():
    images, filters = (
        torch.rand(4, 2, 6, 7, generator=generator(0, "x")),
        torch.rand(5, 2, 2, 3, generator=generator(0, "f")),
    )
    found = texture(images, filters)
    for n in range(4):
        for f in range(5):
            seen = [(images[n, :, i : i + 2, j : j + 3] * filters[f]).sum().double() for i in range(5) for j in range(5)]
            expected = (torch.stack(seen).var(unbiased=False) + FLOOR).log()
            assert torch.allclose(found[n, f].double(), expected, atol=1e-3)


def test_one_grey_level_stands_out_where_images_hardly_vary():
    images = smooth(100, "waves")
    noise = torch.randint(-1, 2, images.shape, generator=generator(0, "noise")) / 255
    filters = patch_directions(images, 3)
    gain = texture(images + noise, filters) - texture(images, filters)
    assert gain[:, 0].min() > 1
    assert gain[:, -1].abs().max() < 0.1


def test_flat_and_tiny_images_are_finite_and_have_gradients():
    images = torch.full((3, 1, 2, 2), 0.5, requires_grad=True)
    filters = patch_directions(images.detach())
    assert filters.shape == (4, 1, 2, 2)
    found = texture(images, filters)
    assert found.isfinite().all()
    assert torch.autograd.grad(found.sum(), images)[0].isfinite().all()
