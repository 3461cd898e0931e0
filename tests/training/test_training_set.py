import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ebpl
from ebpl.calibration import holdout_mask
from ebpl.config import Settings
from ebpl.data.split import split_for
from ebpl.errors import RunError
from ebpl.sampling import FittedGaussian
from ebpl.training.distributed import ALONE, Ranks
from ebpl.training.training_set import ALL, LABELED, UNLABELED, TrainingSet, batches, epoch_order
from tests.helpers import architecture, blobs, quick, random_images, trainer_of


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 20), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_batches_are_whole_passes_one_after_the_other(count: int, updates: int, size: int, seed: int) -> None:
    table = batches(count, updates, size, torch.Generator().manual_seed(seed))
    assert table.shape == (updates, size)
    flat = table.flatten().tolist()
    for start in range(0, len(flat), count):
        chunk = flat[start : start + count]
        assert len(set(chunk)) == len(chunk)
        assert set(chunk) <= set(range(count))


def test_the_order_is_the_generators() -> None:
    first, again, other = (batches(50, 3, 10, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


KNOWN, TOTAL = 6, 40


def ordered(
    ranks: Ranks = ALONE,
    selected: range = range(20),
    rejected: range = range(30, 34),
    unlabeled_batch: int = 0,
    **changes: object,
) -> dict[str, torch.Tensor]:
    settings = quick(**{"batch_size": 8, **changes})
    generator = torch.Generator().manual_seed(0)
    return epoch_order(
        KNOWN, TOTAL, selected, rejected, 50, settings, ranks, generator, unlabeled_batch=unlabeled_batch
    )


def drawn(table: torch.Tensor) -> set[int]:
    return set(table.flatten().tolist())


def test_each_stream_draws_from_the_images_that_are_meant_for_it() -> None:
    order = ordered(unlabeled_batch=12)
    assert drawn(order[LABELED]) == set(range(KNOWN + 20))
    assert drawn(order[ALL]) == set(range(TOTAL)) - set(range(KNOWN + 30, KNOWN + 34))
    assert order[UNLABELED].shape == (50, 12)
    assert drawn(order[UNLABELED]) == drawn(order[ALL]) - set(range(KNOWN))
    assert ordered().keys() == {LABELED, ALL}


def test_a_stream_of_unlabelled_images_leaves_the_other_streams_as_they_are() -> None:
    with_it, without = ordered(unlabeled_batch=12), ordered()
    assert all(torch.equal(with_it[name], without[name]) for name in without)


def test_without_unlabelled_images_strong_views_are_those_of_labelled_ones() -> None:
    order = ordered(unlabeled_batch=12, selected=range(0), rejected=range(TOTAL - KNOWN))
    assert drawn(order[UNLABELED]) == set(range(KNOWN))


def test_a_fraction_of_true_labels_is_kept_in_every_batch_and_mixed_among_the_others() -> None:
    share = {"curriculum__labeled_batch_fraction": 0.25}
    true = ordered(**share)[LABELED] < KNOWN
    assert (true.sum(1) == 2).all()
    assert len(true.float().unique(dim=0)) == 1  # where they stand is drawn once an epoch
    assert not true[0, :2].all()
    assert (ordered(**share, selected=range(0))[LABELED] < KNOWN).all()


def test_processes_share_the_same_order() -> None:
    how = {"unlabeled_batch": 12, "curriculum__labeled_batch_fraction": 0.5}
    whole = ordered(**how)
    halves = [ordered(Ranks(2, index), **how) for index in range(2)]
    for name in (LABELED, ALL, UNLABELED):
        assert torch.equal(torch.cat([half[name] for half in halves], 1), whole[name])


def test_held_out_labels_are_compared_like_images_without_and_not_classified() -> None:
    def epoch(rejected: range) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return epoch_order(
            6, 20, [], rejected, 40, quick(batch_size=8), ALONE, generator, held_out=2, unlabeled_batch=8
        )

    order = epoch(range(0))
    assert drawn(order[LABELED]) == set(range(4))
    assert drawn(order[ALL]) == set(range(20))
    assert drawn(order[UNLABELED]) == set(range(4, 20))
    assert drawn(epoch(range(14))[UNLABELED]) == set(range(6))


# --- what is drawn from ----------------------------------------------------------------------------------------------


def prepared(data: ebpl.ImageSet, chosen: Settings, holdout: float = 0.0) -> TrainingSet:
    return TrainingSet.prepare(data, chosen, holdout, architecture().build().features, torch.device("cpu"))


def test_labelled_images_come_first_each_with_its_label_and_the_others_have_none() -> None:
    data, chosen = blobs(unlabeled=False), quick(labels_per_class=4, validation_fraction=0.3)
    made, parts = prepared(data, chosen), split_for(data, chosen)
    assert (made.labeled, made.held_out, made.unlabeled, len(made)) == (12, 0, len(parts.unlabeled), len(made.targets))
    order = [*parts.labeled, *parts.unlabeled]
    np.testing.assert_array_equal(made.inputs.permute(0, 2, 3, 1).numpy(), data.train.pixels[order])
    assert made.labels.tolist() == data.train.labels[parts.labeled].tolist()
    assert made.targets[:12].sum(1).tolist() == [1.0] * 12
    assert made.targets[12:].abs().sum() == 0
    assert made.hidden_labels.tolist() == data.train.labels[parts.unlabeled].tolist()


def test_validation_images_are_those_of_the_split_with_their_own_labels() -> None:
    data, chosen = blobs(unlabeled=False), quick(labels_per_class=4, validation_fraction=0.3)
    made, parts = prepared(data, chosen), split_for(data, chosen)
    assert made.validation is not None
    assert made.validation_inputs is not None
    np.testing.assert_array_equal(made.validation.pixels, data.train.pixels[parts.validation])
    np.testing.assert_array_equal(made.validation.labels, data.train.labels[parts.validation])
    np.testing.assert_array_equal(made.validation_inputs.permute(0, 2, 3, 1).numpy(), made.validation.pixels)
    others = {image.tobytes() for image in made.inputs.permute(0, 2, 3, 1).numpy()}
    assert not others & {image.tobytes() for image in made.validation.pixels}


def test_validation_images_of_the_data_are_taken_where_the_split_has_none_and_test_images_never() -> None:
    data = blobs()
    assert data.test is not None
    own = ebpl.Images(random_images(9, 8, 8, 1), np.array([0, 1, 2, -1, 0, 1, 2, 0, 1]))
    made = prepared(dataclasses.replace(data, validation=own), quick())
    assert made.validation is not None
    np.testing.assert_array_equal(made.validation.pixels, own.pixels[own.labels >= 0])
    assert made.counts()["validation"] == 8
    none = prepared(data, quick())
    assert none.validation is none.validation_inputs is None
    assert none.counts() == {
        "labelled": {"0": 5, "1": 5, "2": 5}, "unlabelled": 105, "validation": 0, "test": 30
    }  # fmt: skip


def test_held_out_labels_are_the_last_of_the_labelled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebpl.calibration.MIN_HOLDOUT", 1)
    data, chosen = blobs(unlabeled=False), quick(labels_per_class=10)
    made, parts = prepared(data, chosen, 0.3), split_for(data, chosen)
    waits = holdout_mask(data.train.labels[parts.labeled], 0.3, chosen.seed)
    assert made.held_out == waits.sum() == 9
    first, last = parts.labeled[~waits], parts.labeled[waits]
    np.testing.assert_array_equal(
        made.inputs[:30].permute(0, 2, 3, 1).numpy(), data.train.pixels[np.concatenate([first, last])]
    )
    assert made.labels[-9:].tolist() == data.train.labels[last].tolist()


def test_the_network_is_given_pixels_in_minus_one_to_one() -> None:
    made = prepared(blobs(), quick())
    index = torch.tensor([3, 0, 40])
    expected = made.inputs[index].double() / 255 * 2 - 1
    torch.testing.assert_close(made.take(index).double(), expected, rtol=0, atol=1e-6)


def test_images_that_are_not_selected_any_more_lose_their_label() -> None:
    made = prepared(blobs(), quick())
    targets = made.targets
    made.set_pseudo_labels(np.array([7, 2]), np.eye(3)[[0, 1]])
    made.set_pseudo_labels(np.array([2, 5]), np.eye(3)[[1, 2]])
    assert made.targets is targets, "captured GPU graphs read from this tensor"
    pseudo = targets[made.labeled :]
    assert pseudo.sum(1).nonzero().flatten().tolist() == [2, 5]
    assert pseudo[[2, 5]].argmax(1).tolist() == [1, 2]
    assert targets[: made.labeled].sum(1).tolist() == [1.0] * made.labeled


def test_the_gaussian_that_chains_start_from_is_fitted_to_the_networks_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(quick(sgld__start="gaussian"))
    start, images = trainer.state.buffer.start, trainer.training_set
    everything = images.take(torch.arange(len(images)))
    torch.testing.assert_close(start.mean, everything.mean(0))
    monkeypatch.setattr(FittedGaussian, "MOST", 10)
    first, again, other = (images.fitted_gaussian(seed).mean for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert trainer_of(quick()).state.buffer.start is None


def test_images_that_do_not_fit_on_the_device_are_an_error_that_says_how_large_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "to", full)
    backbone = architecture().build().features
    with pytest.raises(RunError, match=r"The 120 training images take 0\.0 GB, which is more memory than cpu has left"):
        TrainingSet.prepare(blobs(), quick(), 0.0, backbone, torch.device("cpu"))
