import numpy as np
import pytest
import torch

from ebpl.errors import DataError
from ebpl.models.predictions import predict
from tests.helpers import architecture


def model():
    return architecture(shape=(3, 8, 8), classes=4).build().initialise(torch.Generator().manual_seed(0))


def test_batches_do_not_matter() -> None:
    images = np.random.default_rng(0).integers(0, 256, (23, 9, 7, 3), dtype=np.uint8)
    whole, parts = predict(model(), images, batch=100), predict(model(), images, batch=5)
    np.testing.assert_allclose(whole.probabilities, parts.probabilities, atol=1e-6)
    np.testing.assert_allclose(whole.energies, parts.energies, atol=1e-5)
    np.testing.assert_allclose(whole.probabilities.sum(1), 1)


def test_arrays_and_tensors_give_the_same() -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    first, second = predict(model(), images), predict(model(), tensor)
    assert np.array_equal(first.probabilities, second.probabilities)
    assert np.array_equal(first.labels, first.probabilities.argmax(1))


def test_no_images_give_no_predictions() -> None:
    nothing = predict(model(), np.zeros((0, 8, 8, 3), np.uint8))
    assert nothing.probabilities.shape == (0, 4)
    assert nothing.energies.shape == (0,)


def test_gray_images_need_no_channel_axis_and_wrong_ones_are_refused() -> None:
    gray = architecture(None, classes=4).build().initialise(torch.Generator().manual_seed(0))
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    assert np.array_equal(predict(gray, images).labels, predict(gray, images[..., None]).labels)
    for wrong in (images / 255, np.zeros((5, 8, 8, 3), np.uint8), images[0]):
        with pytest.raises(DataError, match="takes uint8 images with 1 channels"):
            predict(gray, wrong)
