from typing import get_args

import pytest
import torch

from ebpl.data.augment import augment
from ebpl.settings import field_type


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


@pytest.mark.parametrize("kind", [kind for kind in get_args(field_type("augment")) if kind != "auto"])
def test_channels_move_together_and_shape_stays(kind: str) -> None:
    images = torch.rand(20, 1, 5, 9).expand(20, 3, 5, 9)
    result = augment(images, kind, 1, torch.Generator().manual_seed(0))
    assert result.shape == images.shape
    assert torch.equal(result[:, 0], result[:, 1])
