import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from ebpl.config import find
from ebpl.data.transforms import CHANGES, GEOMETRY, augment, changed, randaugment, strongly_augment


def moved(kind: str, max_shift: int, count: int = 400, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    image = torch.arange(size * size, dtype=torch.float32).view(1, 1, size, size)
    batch = image.expand(count, 2, size, size).clone()
    return image[0, 0], augment(batch, kind, max_shift, torch.Generator().manual_seed(0))


def found(images: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(image.flatten().tolist()) for image in images[:, 0]}


def test_none_changes_nothing() -> None:
    image, result = moved("none", 2)
    assert found(result) == found(image[None, None])


@pytest.mark.parametrize(("kind", "views"), [("shift", 1), ("flip", 2), ("dihedral", 8)])
def test_each_kind_gives_exactly_its_own_views(kind: str, views: int) -> None:
    image, result = moved(kind, 0)
    turned = [torch.rot90(image, k) for k in range(4)]
    every_view = found(torch.stack([*turned, *[t.flip(1) for t in turned]])[:, None])
    assert len(found(result)) == views
    assert found(result) <= every_view


def test_shifts_reach_every_offset_and_repeat_the_edge() -> None:
    image, result = moved("shift", 1)
    padded = torch.nn.functional.pad(image[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
    expected = {tuple(padded[r : r + 6, c : c + 6].flatten().tolist()) for r in range(3) for c in range(3)}
    assert found(result) == expected


@pytest.mark.parametrize(("height", "width", "down", "across"), [(32, 24, 2, 2), (33, 64, 2, 4), (128, 48, 8, 3)])
def test_shifts_are_as_long_a_part_of_a_larger_image(height: int, width: int, down: int, across: int) -> None:
    image = torch.stack([(torch.arange(height)[:, None] + torch.zeros(width)), torch.arange(width).expand(height, -1)])
    result = augment(image.expand(400, -1, -1, -1), "shift", 2, torch.Generator().manual_seed(0))
    middle = result[:, :, height // 2, width // 2] - torch.tensor([height // 2, width // 2])
    assert middle.amin(0).tolist() == [-down, -across]
    assert middle.amax(0).tolist() == [down, across]


@pytest.mark.parametrize("kind", [kind for kind in get_args(find("augment").type) if kind != "auto"])
def test_channels_move_together_and_shape_stays(kind: str) -> None:
    images = torch.rand(20, 1, 5, 9).expand(20, 3, 5, 9)
    result = augment(images, kind, 1, torch.Generator().manual_seed(0))
    assert result.shape == images.shape
    assert torch.equal(result[:, 0], result[:, 1])


LIMITS = ("ROTATION", "ZOOM", "SHEAR", "MOVE", "BRIGHTNESS", "CONTRAST", "SATURATION", "HIDDEN")


def strong(monkeypatch: pytest.MonkeyPatch, images: torch.Tensor, colors: float = 1.0, **limits: float) -> torch.Tensor:
    """Strong views in which nothing happens but what is named."""
    for name in LIMITS:
        monkeypatch.setattr(f"ebpl.data.transforms.{name}", limits.get(name, 0.0))
    return strongly_augment(images, "none", 0, torch.Generator().manual_seed(0), colors)


def pictures(channels: int = 3, count: int = 200, size: int = 8) -> torch.Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(1)) - 0.5


@pytest.mark.parametrize("channels", [1, 3])
def test_strong_views_stay_images_and_no_two_are_alike(channels: int) -> None:
    same = pictures(channels, 1).expand(50, -1, -1, -1)
    views, again = (strongly_augment(same, "dihedral", 2, torch.Generator().manual_seed(3)) for _ in range(2))
    assert views.shape == same.shape
    assert views.abs().max() <= 1
    assert len(views.flatten(1).unique(dim=0)) == 50
    assert torch.equal(views, again)


def test_a_strong_view_without_limits_is_the_image_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures()
    torch.testing.assert_close(strong(monkeypatch, images), images)


def test_one_square_of_up_to_half_the_side_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures()
    hidden = (strong(monkeypatch, images, HIDDEN=0.5) - images).abs().amax(1) > 1e-5
    assert 0 < hidden.float().mean() < 0.2
    for mask in hidden[hidden.flatten(1).any(1)]:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        assert mask.sum() == len(rows) * len(columns)
        assert max(len(rows), len(columns)) <= 4


def test_light_and_colour_change_as_named(monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures() / 4
    brighter = strong(monkeypatch, images, BRIGHTNESS=0.4) - images
    torch.testing.assert_close(brighter, brighter[:, :1, :1, :1].expand_as(images))
    assert 0.3 < brighter.abs().max() <= 0.4
    stretched = strong(monkeypatch, images, CONTRAST=0.5)
    factor = stretched.std((1, 2, 3)) / images.std((1, 2, 3))
    assert (factor.log().abs() <= 0.5).all()
    assert factor.min() < 0.8 < 1.3 < factor.max()
    torch.testing.assert_close(stretched.mean((1, 2, 3)), images.mean((1, 2, 3)))
    paler = strong(monkeypatch, images, SATURATION=0.8)
    torch.testing.assert_close(paler.mean(1), images.mean(1))
    assert not torch.allclose(paler, images)
    gray = images[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(strong(monkeypatch, gray, SATURATION=0.8), gray)


def test_light_and_colours_change_by_a_share_of_what_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    images = 0.2 * torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(5)) - 0.1
    limits = {"BRIGHTNESS": 0.4, "CONTRAST": 0.5, "SATURATION": 0.8}
    torch.testing.assert_close(strong(monkeypatch, images, 0.0, **limits), images)
    half, whole = (strong(monkeypatch, images, share, BRIGHTNESS=0.4) - images for share in (0.5, 1.0))
    torch.testing.assert_close(2 * half, whole)
    assert whole.abs().max() > 0.1


@pytest.mark.parametrize(("name", "limit"), [("ROTATION", 0.5), ("ZOOM", 0.2), ("SHEAR", 0.2), ("MOVE", 0.15)])
def test_a_spot_moves_as_the_image_does(monkeypatch: pytest.MonkeyPatch, name: str, limit: float) -> None:
    size = 33
    at = torch.arange(size) - size // 2
    spot = torch.exp(-((at[:, None] - 8.0) ** 2 + (at[None] - 0.0) ** 2) / 8) - 1  # below the middle
    views = strong(monkeypatch, spot.expand(60, 1, -1, -1).clone(), **{name: limit})[:, 0] + 1
    weight = views / views.sum((1, 2), keepdim=True)
    down, across = (weight.sum(2) * at).sum(1), (weight.sum(1) * at).sum(1)
    distance = torch.hypot(down, across)
    if name == "ROTATION":  # stays as far from the middle, at up to the angle
        torch.testing.assert_close(distance, torch.full_like(distance, 8.0), rtol=0.05, atol=0)
        assert 0.4 < torch.atan2(across, down).abs().max() <= 0.52
    elif name == "ZOOM":
        assert across.abs().max() < 0.1
        assert (torch.log(down / 8).abs() < 0.22).all()
        assert down.std() > 0.5
    elif name == "SHEAR":
        assert (down - 8).abs().max() < 0.2
        assert 1.2 < across.abs().max() < 1.8
    else:
        assert 3 < torch.maximum((down - 8).abs(), across.abs()).max() <= 0.15 * size + 0.2


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, _: image,
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "brightness": lambda image, strength: ImageEnhance.Brightness(image).enhance(0.05 + 0.9 * strength),
    "color": lambda image, strength: ImageEnhance.Color(image).enhance(0.05 + 0.9 * strength),
    "contrast": lambda image, strength: ImageEnhance.Contrast(image).enhance(0.05 + 0.9 * strength),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "posterize": lambda image, strength: ImageOps.posterize(image, 4 + int(5 * strength)),
    "sharpness": lambda image, strength: ImageEnhance.Sharpness(image).enhance(0.05 + 0.9 * strength),
    "solarize": lambda image, strength: ImageOps.solarize(image, int(255 * strength) + 1),
}


def smooth_pictures(channels: int) -> np.ndarray:
    """Images (N, H, W, C) of few, unequal colours, as photographs have them."""
    random = np.random.default_rng(1)
    small = random.integers(0, 256, (5, channels, 4, 4)).astype(np.float32)
    large = torch.nn.functional.interpolate(torch.from_numpy(small), (32, 30), mode="bicubic").clamp(10, 230)
    return large.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def after(pixels: np.ndarray, name: str, strength: float, sign: float = 1.0) -> np.ndarray:
    """Pixels after a change, as numbers from 0 to 255."""
    count = len(pixels)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    change = torch.full((count,), CHANGES.index(name))
    views = changed(images, change, torch.full((count,), strength), torch.full((count,), sign))
    return np.asarray((127.5 * (views + 1)).permute(0, 2, 3, 1))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("strength", [0.1, 0.55, 0.97])
@pytest.mark.parametrize("name", PILLOW)
def test_a_change_of_colours_is_pillows(name: str, strength: float, channels: int) -> None:
    pixels = smooth_pictures(channels)
    for own, view in zip(pixels, after(pixels, name, strength), strict=True):
        image = Image.fromarray(own if channels == 3 else own[..., 0])
        expected = np.asarray(PILLOW[name](image, strength), np.float32).reshape(own.shape)
        np.testing.assert_allclose(view, expected, atol=1.6)  # Pillow rounds, twice in some


def test_all_changes_are_compared_with_pillow_or_known_geometry() -> None:
    assert set(CHANGES) == set(PILLOW) | set(GEOMETRY)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_geometry_moves_a_spot_by_up_to_the_limits(sign: float) -> None:
    size = 33
    at = np.arange(size) - size // 2
    spot = 255 * np.exp(-((at[:, None] - 8.0) ** 2 + (at[None] - 0.0) ** 2) / 8)  # below the middle

    def place(name: str) -> tuple[float, float]:
        pixels = np.repeat(spot[None, :, :, None].round().astype(np.uint8), 2, 0)
        view = after(pixels, name, 0.5, sign)[0, :, :, 0]
        view = np.where(view > 130, view - 127.5, 0)  # what comes in from outside is gray
        return float((view.sum(1) * at).sum() / view.sum()), float((view.sum(0) * at).sum() / view.sum())

    assert place("identity") == pytest.approx((8, 0), abs=0.1)
    assert place("rotate") == pytest.approx((8 * math.cos(math.pi / 12), sign * 8 * math.sin(math.pi / 12)), abs=0.2)
    assert place("shear_x") == pytest.approx((8, -sign * 0.15 * 8), abs=0.2)
    assert place("shear_y") == pytest.approx((8, 0), abs=0.2)
    assert place("translate_x") == pytest.approx((8, -sign * 0.15 * size), abs=0.2)
    assert place("translate_y")[0] == pytest.approx(8 - sign * 0.15 * size, abs=0.6)


def test_a_view_has_two_changes_and_half_the_side_hidden_and_stays_in_range(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.from_numpy(np.repeat(smooth_pictures(3), 40, 0)).permute(0, 3, 1, 2).float() / 127.5 - 1
    views = randaugment(images, "none", 0, torch.Generator().manual_seed(0))
    assert views.shape == images.shape
    assert views.min() >= -1.001
    assert views.max() <= 1.001
    again = randaugment(images, "none", 0, torch.Generator().manual_seed(0))
    assert torch.equal(views, again)
    plain = randaugment(images, "none", 0, torch.Generator().manual_seed(0), colors=0.0)
    recoloured = (views != plain).flatten(1).any(1).float().mean()
    assert 1 - (6 / 14) ** 2 - 0.25 < recoloured <= 1 - (6 / 14) ** 2 + 0.1
    monkeypatch.setattr("ebpl.data.transforms.CHOSEN", 0)
    hidden = (randaugment(images, "none", 0, torch.Generator().manual_seed(0)) != images).any(1)
    assert hidden.sum((1, 2)).max() == 16 * 15  # of half the height and width, where the border cuts nothing
    assert hidden.sum((1, 2)).min() >= 8 * 7
