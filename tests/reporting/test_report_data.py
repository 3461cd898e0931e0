import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.errors import DataError, RunError
from ebpl.models.predictions import predict
from ebpl.reporting import report_data as seen
from ebpl.reporting.report_data import Sight, energy_gap
from ebpl.runs import Run
from ebpl.runs.reader import Stored
from tests.helpers import blobs, class_folders, quick, write_png
from tests.named_runs import named_blobs

Named = Callable[[str], Run]


def looked(run: Run, data: object = None, energies: bool = False) -> Sight:
    return seen.look(run, data, None, energies, lambda _: None)  # type: ignore[arg-type]


def test_answers_are_those_of_the_model(run_named: Named) -> None:
    run, data = run_named("with truth"), named_blobs()
    sight = looked(run, data)
    assert data.test is not None
    assert sight.measured is sight.looked
    assert sight.measured is not None
    expected = predict(run.load_model()[0], data.test.pixels)
    np.testing.assert_allclose(sight.measured.predictions.probabilities, expected.probabilities, atol=1e-6)
    assert dict(sight.counts) == {"labelled": 15, "unlabelled": 105, "test": 30}


def test_arrays_are_not_in_the_run_and_must_be_given(run_named: Named) -> None:
    sight = looked(run_named("with truth"))
    assert sight.measured is None
    assert sight.looked is None
    assert "data=" in sight.notes[0]


def test_unlabelled_images_are_looked_at_where_there_are_no_others(run_named: Named) -> None:
    sight = looked(run_named("without truth"))
    assert sight.measured is None
    assert sight.looked is not None
    assert sight.looked.what == "unlabelled images"
    assert len(sight.looked.images) == 12
    assert sight.pool is sight.looked
    assert not sight.looked.images.labeled.any()


def test_labels_that_were_hidden_in_training_can_be_measured_on() -> None:
    class_folders(Path("pets"), labeled=6)
    sight = looked(ebpl.train("pets", quick(labels_per_class=2, pseudo_labels="none"), run="run"))
    assert sight.measured is not None
    assert len(sight.measured.truth[1]) == 8
    assert "trained on these images" in sight.measured.caveat


def test_validation_images_are_measured_on_with_a_caveat() -> None:
    class_folders(Path("pets"), labeled=6)
    sight = looked(ebpl.train("pets", quick(validation_fraction=0.5, pseudo_labels="none"), run="run"))
    assert sight.measured is not None
    assert sight.measured.what == "validation images"
    assert "slightly optimistic" in sight.measured.caveat
    assert sight.looked is not None
    assert sight.looked.what == "unlabelled images"


def test_labels_learned_by_heart_prove_nothing() -> None:
    class_folders(Path("pets"), unlabeled=0)
    sight = looked(ebpl.train("pets", quick(pseudo_labels="none"), run="run"))
    assert sight.measured is None
    assert sight.looked is not None
    assert sight.looked.what == "training images"
    assert not sight.looked.images.labeled.any()


def test_of_too_many_images_some_are_picked_evenly(run_named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = run_named("with truth"), named_blobs()
    whole = looked(run, data).measured
    monkeypatch.setattr(seen, "MOST_PROBABILITIES", 3 * 12)
    some = looked(run, data).measured
    assert whole is not None
    assert some is not None
    assert (len(some.images), some.total) == (10, 30)
    np.testing.assert_array_equal(some.positions, np.arange(0, 30, 3))
    np.testing.assert_allclose(some.predictions.energies, whole.predictions.energies[::3], atol=1e-5)


def test_pieces_are_put_together_in_order(run_named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = run_named("with truth"), named_blobs()
    whole = looked(run, data).measured
    monkeypatch.setattr(seen, "CHUNK", 7)
    told: list[int] = []
    pieces = seen.look(run, data, None, False, told.append).measured
    assert whole is not None
    assert pieces is not None
    assert sum(told) == 30 + 105 + 15  # test images, unlabelled ones that could be labelled next, and labelled ones
    np.testing.assert_allclose(pieces.predictions.energies, whole.predictions.energies, atol=1e-5)
    assert pieces.features is not None
    np.testing.assert_allclose(pieces.features, whole.features, atol=1e-4)


def test_images_to_label_next_are_the_unlabelled_ones_of_the_run(
    run_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = run_named("with truth"), named_blobs()
    pool = looked(run, data).pool
    assert pool is not None
    assert (pool.what, len(pool.images), pool.total) == ("unlabelled images", 105, 105)
    np.testing.assert_array_equal(pool.images.pixels, data.train.pixels[pool.positions])
    monkeypatch.setattr(seen, "MOST_POOL", 50)
    pool = looked(run, data).pool
    assert pool is not None
    assert (len(pool.images), pool.total) == (35, 105)


def test_training_energies_are_computed_where_the_run_has_none(run_named: Named) -> None:
    run, data = run_named("with truth"), named_blobs()
    found = looked(run, data, energies=True).training_energies
    assert found is not None
    stored = run.metrics()["training_energies"]
    assert (found[0], found[-1]) == pytest.approx((stored[0], stored[-1]), abs=1e-4)
    assert looked(run, data).training_energies is None


def test_other_data_is_measured_on_in_the_models_own_numbering(run_named: Named) -> None:
    run, own = run_named("with truth"), named_blobs()
    assert own.test is not None
    turned = tuple(reversed(own.classes))
    other = from_arrays(own.test.pixels, 2 - own.test.labels, classes=turned, name="other")
    found, expected = looked(run, other).measured, looked(run, own).measured
    assert found is not None
    assert expected is not None
    assert found.what == "images of other"
    np.testing.assert_array_equal(found.images.labels, expected.images.labels)


def test_other_data_without_labels_is_looked_at(run_named: Named) -> None:
    own = named_blobs()
    other = from_arrays(own.train.pixels, np.full(len(own.train), -1), classes=(), name="other", training=False)
    sight = looked(run_named("with truth"), other)
    assert sight.measured is None
    assert sight.looked is not None
    assert len(sight.looked.images) == 120


def test_other_data_that_does_not_fit_is_an_error(run_named: Named) -> None:
    run = run_named("with truth")
    with pytest.raises(DataError, match="classes the model does not know"):
        looked(run, blobs())
    with pytest.raises(DataError, match="does not exist"):
        looked(run, "no/such/folder")
    nothing = ImageSet("nothing", (), named_blobs().train.take(np.zeros(0, np.int64)))
    with pytest.raises(DataError, match="holds no images"):
        looked(run, nothing)


def test_changed_images_of_the_run_are_not_shown() -> None:
    class_folders(Path("pets"))
    run = ebpl.train("pets", quick(pseudo_labels="none"), run="run")
    shutil.copy("pets/cats/0.png", "pets/unlabeled/more.png")
    sight = looked(run)
    assert sight.looked is None
    assert "not those that the run was trained on" in sight.notes[0]


@pytest.fixture
def tested() -> Run:
    """A run of a folder with a test part."""
    class_folders(Path("photos"))
    class_folders(Path("photos/test"), unlabeled=0)
    return ebpl.train("photos", quick(epochs=1, pseudo_labels="none"), run="tested")


def test_the_test_images_are_shown_though_other_images_of_the_run_have_changed(tested: Run) -> None:
    before = looked(tested)
    write_png(Path("photos/unlabeled/large.png"), size=(40, 70), mode="RGB")
    Path("photos/unlabeled/0.png").unlink()
    write_png(Path("photos/unlabeled/more.png"), value=9)
    write_png(Path("photos/birds/0.png"))  # the classes are numbered otherwise now
    sight = looked(tested, energies=True)
    assert before.measured is not None
    assert sight.measured is not None
    assert sight.pool is not None
    assert sight.measured is sight.looked
    np.testing.assert_array_equal(sight.measured.truth[1], before.measured.truth[1])
    np.testing.assert_allclose(
        sight.measured.predictions.probabilities, before.measured.predictions.probabilities, atol=1e-6
    )
    names = [sight.pool.images.name(i) for i in range(len(sight.pool.images))]
    assert sorted(names) == [f"unlabeled/{name}.png" for name in (1, 2, 3, 4, 5, "large", "more")]
    assert sight.training_energies is None  # they would be those of other images
    (note,) = sight.notes
    assert "photos have changed since training. Its test images are the same" in note
    text = ebpl.report(tested, "page.html").read_text()
    assert "8 test images" in text
    assert note in text
    assert "could not be looked at" not in text


@pytest.mark.parametrize("change", ["pixels", "removed"])
def test_changed_test_images_are_not_shown(tested: Run, change: str) -> None:
    if change == "pixels":
        write_png(Path("photos/test/cats/0.png"), value=77)
    else:
        shutil.rmtree("photos/test")
    sight = looked(tested)
    assert sight.looked is None
    assert "not those that the run was trained on" in sight.notes[0]


def test_a_path_of_a_stranger_shows_nothing_but_the_very_images_of_the_run(run_named: Named) -> None:
    class_folders(Path("private"))
    run = run_named("without truth")
    settings = run.path / "settings.toml"
    lines = [f'path = "{Path("private").resolve()}"' if line.startswith("path") else line
             for line in settings.read_text().splitlines()]  # fmt: skip
    settings.write_text("\n".join(lines))
    sight = looked(Run(run.path))
    assert sight.looked is None
    assert "not those that the run was trained on" in sight.notes[0]


@pytest.mark.parametrize("line", ["path = 3", "path = [1]", 'path = "x.npz"\nimage_size = "a"'])
def test_a_settings_file_that_says_nonsense_of_the_data_is_told(run_named: Named, line: str) -> None:
    run = run_named("with truth")
    settings = run.path / "settings.toml"
    settings.write_text(settings.read_text().replace("[settings]", line + "\n[settings]"))
    with pytest.raises(RunError, match=r"settings\.toml is damaged"):
        Run(run.path)


def test_weights_outside_the_run_are_not_read(run_named: Named) -> None:
    run = run_named("with truth")
    weights = run.path / "best.safetensors"
    weights.rename("elsewhere.safetensors")
    weights.symlink_to(Path("elsewhere.safetensors").resolve())
    with pytest.raises(RunError, match="leads out of the run directory"):
        looked(run, named_blobs())


def test_weights_that_do_not_say_what_they_are_for_are_an_error(run_named: Named) -> None:
    run = run_named("with truth")
    model, description = run.load_model()
    for wrong in ({"classes": ["a"]}, {"classes": [1, 2, 3]}, {"image_shape": [1, 8]}, {"image_shape": "x"}):
        run.save_model(model.state_dict(), {**description, **wrong})
        with pytest.raises(RunError, match="is damaged or was not written by ebpl"):
            looked(run, named_blobs())


def test_the_images_of_a_run_are_read_as_in_its_training() -> None:
    folder = class_folders(Path("pets"))
    (folder / "cats" / "broken.png").write_bytes(b"no image")
    run = ebpl.train(folder, quick(epochs=1, pseudo_labels="none"), run="run", skip_unreadable=True)
    sight = looked(run)
    assert sight.looked is not None
    assert sight.notes == ()


def test_other_images_that_cannot_be_read_are_skipped_where_that_is_asked_for(run_named: Named) -> None:
    folder = class_folders(Path("pets"), unlabeled=0)
    (folder / "cats" / "broken.png").write_bytes(b"no image")
    run = run_named("without truth")
    with pytest.raises(DataError, match="skip-unreadable"):
        ebpl.report(run, "page.html", "pets")
    assert "8 images of pets" in ebpl.report(run, "page.html", "pets", skip_unreadable=True).read_text()


def test_the_energy_gap_is_compared_with_the_spread_of_energies() -> None:
    spread = [float(value) for value in np.linspace(-1, 1, 201)]  # a standard deviation of 0.58
    close = Stored(history=[{"energy_gap": 3.0}, {"energy_gap": 0.03}], result={"training_energies": spread})
    assert "0.03 above that of samples, 5\N{NO-BREAK SPACE}% of the spread" in energy_gap(close)
    assert "as those of a likelihood do" in energy_gap(close)
    apart = Stored(history=[{"energy_gap": -1.95}], result={"training_energies": spread})
    assert "1.95 below that of samples, 336\N{NO-BREAK SPACE}% of the spread" in energy_gap(apart)
    assert "separates images from samples" in energy_gap(apart)
    early = Stored(history=[{"energy_gap": 1.0}], result={"training_energies": spread})
    assert "lower energies than images" in energy_gap(early)
    assert energy_gap(Stored(result={"training_energies": spread})) == ""
    assert energy_gap(Stored(history=[{"energy_gap": 1.0}])) == ""
