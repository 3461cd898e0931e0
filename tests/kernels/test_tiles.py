import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpl.kernels.tiles import HALF, SHARED_MEMORY, Rows, Tile, box, choose

CHANNELS = [16 * width * factor for width in (1, 2, 4, 5, 8, 10) for factor in (1, 2, 4)]


@given(st.sampled_from([64, 128, 256]), st.integers(1, 200), st.integers(1, 70), st.integers(1, 70))
def test_a_box_has_the_asked_number_of_pixels_and_powers_of_two_as_sides(
    pixels: int, images: int, height: int, width: int
) -> None:
    sides = box(pixels, images, height, width)
    assert math.prod(sides) == pixels
    assert all(side & (side - 1) == 0 and side <= 256 for side in sides)


@pytest.mark.parametrize("size", [32, 28, 16, 14, 8])
def test_boxes_of_usual_images_have_no_overhang(size: int) -> None:
    for side, whole in zip(box(128, 64, size, size), (64, size, size), strict=True):
        assert whole % side == 0


@pytest.mark.parametrize("simple", [True, False])
@pytest.mark.parametrize("size", [128, 96, 64, 48, 32, 28, 16, 14, 8, 7, 4, 2])
@pytest.mark.parametrize("images", [64, 192, 7])
def test_every_layer_of_every_width_has_a_tile_that_fits(images: int, size: int, simple: bool) -> None:
    for inputs in (16, *CHANNELS):
        for outputs in (16, *CHANNELS):
            tile = choose((images, size, size), inputs, outputs, simple)
            assert outputs % (tile.outputs + tile.more_outputs) == 0
            assert inputs % tile.depth == 0
            assert tile.stages >= 2
            if isinstance(tile, Rows):
                assert simple
                assert size % tile.rows == 0
                assert size % tile.columns == 0
                assert tile.rows * tile.columns % (16 * tile.warps) == 0
                stage = tile.images * (tile.rows + 2) * tile.columns + 3 * (tile.outputs + tile.more_outputs)
                assert stage * tile.depth * 2 * tile.stages < SHARED_MEMORY
            else:
                assert isinstance(tile, Tile)
                stage = tile.pixels + tile.outputs + tile.more_outputs
                assert stage * tile.depth * 2 * tile.stages < HALF


def test_a_wide_image_is_computed_like_several_narrow_ones() -> None:
    assert choose((16, 128, 128), 64, 64, True) == choose((64, 128, 32), 64, 64, True)
