"""Test images of experiments, and what their records begin with."""

from dataclasses import replace

import numpy as np
import pytest

from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet, from_arrays
from experiments.images import described, photographs, with_drawn_labels, with_test_images
from tests.experiments.test_photos import folder
from tests.helpers import blobs, quick


def labelled(count: int = 90, test: int = 0) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (count + test, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(count + test) % 3
    more = {"test_images": pixels[count:], "test_labels": labels[count:]} if test else {}
    return from_arrays(pixels[:count], labels[:count], name="gray", **more)


def contents(images: ImageSet) -> set[bytes]:
    assert images.test is not None
    return {image.tobytes() for image in images.test.pixels}


def test_test_images_are_drawn_where_there_are_none_and_are_not_trained_on() -> None:
    images = with_test_images(labelled())
    assert (len(images.train), len(contents(images))) == (60, 30)
    assert images.test_in_training == 0
    assert contents(images) == contents(with_test_images(labelled()))


def test_test_images_that_the_data_brings_are_kept_and_validation_images_are_not() -> None:
    whole = labelled(test=12)
    given = replace(whole, validation=whole.train.take(np.arange(5)))
    assert contents(with_test_images(given)) == contents(given)
    assert with_test_images(given).validation is None


@pytest.mark.parametrize("test", [0, 30])
def test_settings_are_tuned_on_images_that_are_not_test_images(test: int) -> None:
    published, tuned = (with_test_images(labelled(test=test), tune) for tune in (False, True))
    assert len(contents(tuned)) > 10
    assert not contents(tuned) & contents(published)
    assert not contents(tuned) & {image.tobytes() for image in tuned.train.pixels}
    assert contents(tuned) <= {image.tobytes() for image in published.train.pixels}


def test_photographs_have_the_size_of_the_presets_encoder_unless_told() -> None:
    place = folder()
    assert photographs(place).shape[1:] == (224, 224)
    assert photographs(place, 32, tune=True).shape[1:] == (32, 32)


def test_a_record_says_which_images_and_settings_it_is_of() -> None:
    images = labelled()
    record = described(images, preset("quick", seed=4))
    assert record["data"] == {"name": "gray", "fingerprint": images.fingerprint()}
    assert record["settings"]["seed"] == 4
    assert record["environment"]["torch"]


def test_only_drawn_labels_are_kept() -> None:
    images = blobs(unlabeled=False)
    settings = quick(labels_per_class=4, validation_fraction=0.0)
    found = with_drawn_labels(images, settings)
    assert np.bincount(found.train.labels[found.train.labeled]).tolist() == [4, 4, 4]
    kept = found.train.labeled
    assert (found.train.labels[kept] == images.train.labels[kept]).all()
    again = with_drawn_labels(images, settings.changed(seed=5))
    assert (again.train.labeled != kept).any()
