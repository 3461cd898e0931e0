import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.data import load
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.data.split import split
from ebpl.errors import DataError


def dataset(counts: list[int], unlabeled: int = 0, labels_per_class: int | None = None) -> ImageSet:
    labels = np.repeat([*range(len(counts)), -1], [*counts, unlabeled])
    data = from_arrays(np.zeros((len(labels), 2, 2), np.uint8), labels)
    return dataclasses.replace(data, labels_per_class=labels_per_class)


@given(
    counts=st.lists(st.integers(10, 40), min_size=2, max_size=5),
    unlabeled=st.integers(0, 30),
    wanted=st.integers(1, 3),
    fraction=st.floats(0, 0.4),
    seed=st.integers(0, 50),
)
@settings(max_examples=100, deadline=None)
def test_every_image_is_in_exactly_one_part_and_labels_are_balanced(counts, unlabeled, wanted, fraction, seed) -> None:
    data = dataset(counts, unlabeled)
    try:
        parts = split(data, seed=seed, labels_per_class=wanted, validation_fraction=fraction)
    except DataError:
        return  # an unlucky draw left too few of a class: said, not hidden
    everything = np.concatenate([parts.labeled, parts.unlabeled, parts.validation])
    assert sorted(everything.tolist()) == list(range(len(data.train)))
    assert np.bincount(data.train.labels[parts.labeled]).tolist() == [wanted] * len(counts)
    assert len(parts.validation) == round(fraction * sum(counts))
    assert (data.train.labels[parts.validation] >= 0).all()


def test_the_split_is_a_function_of_the_seed() -> None:
    data = load("digits")
    first, again, other = (split(data, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.labeled, again.labeled)
    assert np.array_equal(first.validation, again.validation)
    assert not np.array_equal(first.labeled, other.labeled)


def test_the_split_is_the_same_on_every_machine() -> None:
    # read off once; NumPy guarantees RandomState's stream, so these must never change
    parts = split(load("digits"), seed=0)
    assert parts.labeled[:8].tolist() == [14, 17, 71, 73, 75, 78, 119, 121]
    assert parts.validation[:8].tolist() == [1, 7, 11, 15, 21, 23, 27, 28]


def test_a_benchmark_follows_the_paper_by_default() -> None:
    data = dataset([100, 100], labels_per_class=7)
    parts = split(data)
    assert (len(parts.validation), len(parts.labeled), len(parts.unlabeled)) == (60, 14, 126)


def test_own_data_keeps_all_its_labels_by_default() -> None:
    data = dataset([5, 3], unlabeled=20)
    parts = split(data)
    assert parts.labeled.tolist() == list(range(8))
    assert len(parts.validation) == 0
    assert len(parts.unlabeled) == 20


def test_a_fifth_of_many_labels_is_spared_to_choose_the_weights() -> None:
    assert len(split(dataset([50, 70], 9)).validation) == 24
    assert len(split(dataset([49, 900], 9)).validation) == 0
    assert len(split(dataset([50, 70], 9), labels_per_class=5).validation) == 0
    own = dataclasses.replace(dataset([50, 70], 9), validation=dataset([3, 3]).train)
    assert len(split(own).validation) == 0


def test_fewer_images_than_labels_asked_for_is_a_clear_error() -> None:
    with pytest.raises(DataError, match=r"Class '1' has 1 labelled image .*but 2 labels per class.*Lower"):
        split(dataset([9, 1]), labels_per_class=2)


def test_a_class_without_any_label_left_gets_other_advice() -> None:
    with pytest.raises(DataError, match=r"has 0 labelled images .*Label more"):
        split(dataset([1, 1]), labels_per_class=1, validation_fraction=0.5)


def test_a_class_that_lost_its_only_label_to_validation_is_an_error() -> None:
    with pytest.raises(DataError, match="no label left"):
        split(dataset([1, 1]), validation_fraction=0.5)
