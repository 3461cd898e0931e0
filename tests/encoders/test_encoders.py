import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ebpl import encoders
from ebpl.encoders import DEFAULT, ENCODERS, Encoder, load_encoder
from ebpl.errors import DataError, UsageError
from tests.encoders.helpers import (
    PUBLISHED,
    crops,
    description,
    export_onnx,
    photographs,
    small,
    tiny,
    tiny_network,
)

CLOSE = {"rtol": 2e-3, "atol": 2e-4}
"""16 bits hold 11 binary digits."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are computed, not taken from the cache."""
    sizes: list[int] = []
    compute = Encoder._features

    def features(self: Encoder, pixels: np.ndarray) -> np.ndarray:
        sizes.append(len(pixels))
        return compute(self, pixels)

    monkeypatch.setattr(Encoder, "_features", features)
    return sizes


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_photograph_of_a_palace_is_recognised(name: str) -> None:
    encoder = load_encoder(name)
    state = torch.load(encoder.info.path, weights_only=True)
    weight, bias = (state[key].numpy() for key in state if key.startswith(("classifier.", "_fc.")))
    palace, flower = encoder.encode(photographs()) @ weight.T + bias
    assert 698 in np.argsort(-palace)[:5]  # ImageNet's palace
    assert 698 not in np.argsort(-flower)[:100]
    assert encoder.dimension == 1280
    assert encoder.size == 224


@pytest.mark.parametrize("name", PUBLISHED)
def test_features_do_not_depend_on_the_other_images_of_a_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, images = small(name), crops(6)
    together = encoder.encode(images)
    monkeypatch.setenv("EBPL_CACHE", "another")
    single = np.concatenate([encoder.encode(image[None]) for image in images])
    assert np.allclose(together, single, **CLOSE)
    assert together.dtype == np.float32
    assert np.abs(together[0] - together[1]).max() > 0.1


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_image_and_its_mirror_image_have_the_same_features(name: str) -> None:
    images = crops(3, size=48)
    encoder = small(name)
    assert np.allclose(encoder.encode(images), encoder.encode(images[:, :, ::-1]), **CLOSE)
    assert not np.allclose(encoder.encode(images), encoder.encode(images[:, ::-1]), atol=0.05)


def test_features_are_what_the_network_gives_for_normalised_images() -> None:
    encoder, images = small(), crops(3)
    network = encoder.network()
    assert not network.training
    mean, std = np.array(encoder.info.mean), np.array(encoder.info.std)
    normalised = torch.tensor((images / 255 - mean) / std, dtype=torch.float32).permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = (network(normalised) + network(normalised.flip(3))) / 2
    assert np.allclose(encoder.encode(images), expected, **CLOSE)


def test_the_network_is_where_the_encoder_was_loaded() -> None:
    encoder = load_encoder(DEFAULT, "meta")  # where tensors have no values
    assert {parameter.device.type for parameter in encoder.network().parameters()} == {"meta"}


def test_training_the_network_does_not_change_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, images = small(), crops(2)
    before = encoder.encode(images)
    for parameter in encoder.network().parameters():
        parameter.data.zero_()
    monkeypatch.setenv("EBPL_CACHE", "another")
    assert np.array_equal(encoder.encode(images), before)


@pytest.mark.parametrize("shape", [(40, 40), (64, 64), (91, 33), (300, 200)])
def test_gray_images_are_coloured_ones_without_colour(shape: tuple[int, int]) -> None:
    gray = photographs()[:, : shape[0], : shape[1], :1]
    encoder = small()
    found = encoder.encode(gray)
    assert found.shape == (2, 1280)
    assert np.allclose(found, encoder.encode(np.repeat(gray, 3, axis=3)), **CLOSE)


def test_large_images_are_made_small_as_pillow_does_it() -> None:
    encoder, images = tiny(), photographs()

    def resized(how: Image.Resampling) -> np.ndarray:
        return np.stack([np.asarray(Image.fromarray(image).resize((32, 32), how)) for image in images])

    found = encoder.encode(images)
    assert np.allclose(found, encoder.encode(resized(Image.Resampling.BILINEAR)), atol=5e-3)  # it rounds to bytes
    assert not np.allclose(found, encoder.encode(resized(Image.Resampling.NEAREST)), atol=2e-2)


def test_copies_of_an_image_are_computed_once(counted: list[int]) -> None:
    images, told = crops(3), []
    found = small().encode(images[[0, 1, 0, 2, 1, 0]], told.append)
    assert sum(counted) == 3
    assert sum(told) == 6
    assert np.array_equal(found[[0, 1]], found[[2, 4]])
    assert np.array_equal(found[0], found[5])
    assert not np.array_equal(found[0], found[1])


def test_features_from_the_cache_are_those_that_were_computed(counted: list[int]) -> None:
    images, told = crops(11), []
    encoder = small()
    first = encoder.encode(images)
    computed = sum(counted)
    again = encoder.encode(images[::-1], told.append)
    assert computed == sum(counted) == sum(told) == 11
    assert np.array_equal(first[::-1], again)
    assert np.array_equal(first, first.astype(np.float16))


def test_the_time_to_encode_is_measured_also_where_features_are_in_the_cache(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(encoders.BATCH, "cpu", 1)
    images, encoder = crops(30), small()
    encoder.encode(images)
    counted.clear()
    clock = iter([10.0, 10.0 + 0.25 * 12])
    monkeypatch.setattr(encoders.time, "perf_counter", lambda: next(clock))
    assert encoder.seconds_per_image(images) == 0.25
    assert counted == [12, 12], "the first batch warms up, and is not counted"


def test_an_interrupted_encoding_continues_where_it_stopped(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(encoders.BATCH, "cpu", 1)  # 12 images of 64 x 64
    images, encoder = crops(30), small()

    def stop(count: int) -> None:
        if sum(counted) >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoder.encode(images, stop)
    assert counted == [12, 12]
    found = encoder.encode(images)
    assert counted == [12, 12, 6]
    monkeypatch.setenv("EBPL_CACHE", "another")
    assert np.allclose(encoder.encode(images), found, **CLOSE)


def test_features_of_another_encoder_are_never_taken(counted: list[int]) -> None:
    images = crops(4, size=32)
    info = ENCODERS[DEFAULT]
    given = {"architecture": DEFAULT, "size": 64, "mean": info.mean, "std": info.std}
    changes = [{}, {"size": 32}, {"mean": [0.4, 0.4, 0.4]}, {"std": [0.4, 0.4, 0.4]}]
    made = [load_encoder(str(description(info.path, **{**given, **change}))) for change in changes]
    made.append(tiny(features=1280))
    made.append(load_encoder(str(description(export_onnx(tiny_network(1280)), mean=[0.4, 0.4, 0.4]))))
    assert len({encoder.digest for encoder in made}) == len(made)
    found = [encoder.encode(images) for encoder in made]
    assert sum(counted) == len(images) * len(made)
    for index, one in enumerate(found):
        assert not any(np.allclose(one, other, atol=1e-3) for other in found[:index])


def test_memory_is_bounded_for_large_images(counted: list[int]) -> None:
    encoder = tiny()
    encoder.encode(np.random.default_rng(0).integers(0, 256, (5, 500, 700, 3), dtype=np.uint8))
    assert counted == [1] * 5


def test_no_images_have_no_features() -> None:
    assert tiny().encode(np.zeros((0, 8, 8, 3), np.uint8)).shape == (0, 5)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((2, 8, 8, 3), np.float32),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((2, 8, 8, 4), np.uint8),
        np.zeros((2, 0, 8, 3), np.uint8),
    ],
)
def test_what_is_no_image_is_refused(pixels: np.ndarray) -> None:
    with pytest.raises(DataError, match="takes images as bytes"):
        tiny().encode(pixels)


def test_features_that_16_bits_cannot_hold_are_an_error() -> None:
    network = tiny_network()
    network[0].bias.data.fill_(1e6)
    encoder = load_encoder(str(description(export_onnx(network))))
    with pytest.raises(DataError, match=r"mine\.toml gives features that are not finite"):
        encoder.encode(crops(1))


def test_loading_twice_is_free_until_the_file_changes() -> None:
    first = tiny()
    assert load_encoder("mine.toml") is first
    export_onnx(tiny_network(7))
    other = load_encoder("mine.toml")
    assert (first.dimension, other.dimension) == (5, 7)
    assert load_encoder(DEFAULT) is load_encoder(DEFAULT)


def test_an_encoder_that_gives_no_vectors_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gives \(2, 5, 1, 1\) for 2 images, but must give features"):
        load_encoder(str(description(export_onnx(tiny_network()[:3]))))


def test_importing_the_package_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, ebpl.encoders; print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_cache_that_cannot_be_used_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    monkeypatch.setenv("EBPL_CACHE", "file")
    encoder, images, told = tiny(), crops(2), []
    with pytest.warns(UserWarning, match="Features are computed without it"):
        first = encoder.encode(images)
    assert np.array_equal(encoder.encode(images, say=told.append), first)
    assert told == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_gpu_gives_the_same_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = crops(40, size=224)
    encoder = load_encoder(name)
    expected = encoder.encode(images)
    monkeypatch.setenv("EBPL_CACHE", "another")
    assert np.allclose(encoder.encode(images, device="cuda"), expected, rtol=2e-3, atol=1e-3)
    monkeypatch.setenv("EBPL_CACHE", "a third")
    assert np.array_equal(encoder.encode(images), expected)  # it is back on the CPU
