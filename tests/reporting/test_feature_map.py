import base64
import io
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.manifold import trustworthiness

from ebpl.data.dataset import Images
from ebpl.models.outliers import OutlierLimit
from ebpl.models.predictions import Predictions
from ebpl.reporting import feature_map as maps
from ebpl.reporting.feature_map import feature_map, layout
from ebpl.reporting.report_data import Context, Seen, Sight
from ebpl.runs.reader import Stored

CLASSES = ("a", "b", "c")
Make = Callable[..., Context]


def seen(what: str, count: int, seed: int = 0, size: int = 4, **changes: Any) -> Seen:
    """Images whose features show their class; the last one has the highest energy, the first the lowest confidence."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    probabilities = np.full((count, 3), 0.05) + 0.85 * np.eye(3)[labels]
    if count:
        probabilities[0] = 0.32, 0.34, 0.34
    pixels = random.integers(0, 256, (count, size, size, 1), dtype=np.uint8)
    pixels[:, 0, 0, 0] = labels
    energies = np.linspace(0, 1, count)
    predictions, places = Predictions(probabilities, energies), np.arange(count)
    return Seen(what, Images(pixels, labels, **changes), predictions, places, count, features=features(pixels))


def features(pixels: np.ndarray) -> np.ndarray:
    """The class in three dimensions, and the other pixels as noise."""
    others = pixels[:, 1:, :, 0]
    return np.hstack(
        [20 * np.eye(3)[pixels[:, 0, 0, 0]], others.reshape(len(pixels), math.prod(others.shape[1:])) / 255]
    )


def context(looked: Seen, known: Seen | None = None, energies: Any = (0.0, 0.5), density: bool = True) -> Context:
    sight = Sight(CLASSES, {}, 1, density, None, looked, None, None, [], (), known)
    return Context(Stored(result={"training_energies": list(energies)}), sight, density)


def dots_of(found: dict[str, Any]) -> list[Any]:
    assert found is not None
    return found["dots"]


def test_each_image_is_a_dot_either_drawn_or_with_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "PICTURES", 20)
    found = feature_map(context(seen("unlabelled images", 60), seen("labelled images", 9, seed=1)))
    assert found is not None
    assert found["drawing"].count("<circle") + len(found["dots"]) == 69
    assert len(found["dots"]) <= 20
    assert found["number"] == {"other": 48, "doubtful": 6, "outlying": 6, "labelled": 9}
    assert all(0 < dot.x < 1 and 0 < dot.y < 1 for dot in found["dots"])


def test_images_with_similar_features_are_close() -> None:
    dots = dots_of(feature_map(context(seen("unlabelled images", 90))))
    places = np.array([(dot.x, dot.y) for dot in dots])
    shown = np.array([dot.i % 3 for dot in dots])
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + np.eye(len(dots))
    assert (shown[distances.argmin(1)] == shown).all()


def test_the_least_confident_are_doubtful_and_those_beyond_the_limit_outlying() -> None:
    dots = dots_of(feature_map(context(seen("unlabelled images", 40), energies=(0.0, 0.96))))
    kinds = {dot.i: dot.kind for dot in dots}
    assert kinds[0] == "doubtful"
    assert {i for i, kind in kinds.items() if kind == "outlying"} == {38, 39}  # a tenth would be four
    found = feature_map(context(seen("unlabelled images", 40), density=False))
    assert found is not None
    assert found["number"]["outlying"] == 0


def test_where_nothing_is_beyond_the_limit_the_furthest_hundredth_is_outlying() -> None:
    found = feature_map(context(seen("unlabelled images", 200), energies=(0.0, 9.0)))
    assert found is not None
    assert {dot.i for dot in found["dots"] if dot.kind == "outlying"} == {198, 199}


def test_on_features_of_an_encoder_the_reconstruction_error_tells_what_is_outlying() -> None:
    looked = seen("unlabelled images", 40)
    errors = np.linspace(1, 0, 40)
    given = context(replace(looked, predictions=replace(looked.predictions, reconstruction_errors=errors)))
    given.stored.result["training_reconstruction_errors"] = [0.0, 0.9]
    assert given.outlier_limit == OutlierLimit("reconstruction_errors", pytest.approx(0.891))
    found = feature_map(given)
    assert found is not None
    assert found["score"] == "reconstruction error"
    assert {dot.i for dot in found["dots"] if dot.kind == "outlying"} == {0, 1, 2, 3}


def test_of_many_images_the_doubtful_and_outlying_ones_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MOST", 50), ("MARKED", 3)):
        monkeypatch.setattr(maps, name, value)
    looked = seen("unlabelled images", 400)
    at = maps._chosen(looked, None, OutlierLimit("energies", 0.5))
    assert len(at) == len(set(at.tolist())) == 50
    assert {0, 397, 398, 399} <= set(at.tolist())
    assert np.diff(at).max() < 20
    found = feature_map(context(looked, seen("labelled images", 6, seed=1)))
    assert found is not None
    assert found["number"].total() == 50
    assert found["shown"] == "44 of 400"


def test_marked_images_have_a_picture_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "PICTURES", 10)
    kinds = ["other"] * 50 + ["labelled"] * 30 + ["doubtful"] * 3 + ["outlying"] * 3
    chosen = maps._pictured(kinds)
    assert len(chosen) == len(set(chosen)) == 10
    assert Counter(kinds[i] for i in chosen) == {"outlying": 3, "doubtful": 3, "labelled": 2, "other": 2}
    assert [kinds[i] for i in chosen][-3:] == ["outlying"] * 3  # drawn last


def test_labelled_images_of_a_run_without_others_are_shown_once() -> None:
    known = seen("labelled images", 12)
    found = feature_map(context(seen("training images", 15), known))
    assert found is not None
    assert found["number"]["labelled"] == 12
    assert found["number"].total() == 15


@pytest.mark.parametrize(("size", "expected"), [(4, 4), (200, maps.SIZE)])
def test_pictures_are_small(size: int, expected: int) -> None:
    dot = dots_of(feature_map(context(seen("unlabelled images", 10, size=size))))[0]
    kind, _, packed = dot.uri.partition(";base64,")
    assert kind == "data:image/jpeg"
    assert Image.open(io.BytesIO(base64.b64decode(packed))).size == (expected, expected)


def test_names_of_classes_are_where_their_dots_are_and_do_not_cover_each_other() -> None:
    found = feature_map(context(seen("unlabelled images", 90)))
    assert found is not None
    assert {name for name, *_ in found["names"]} == set(CLASSES)
    for name, x, y, _ in found["names"]:
        nearest = min(found["dots"], key=lambda dot: np.hypot(dot.x - x, dot.y - y))
        assert nearest.said == name
    places = [(x, y) for _, x, y, _ in found["names"]]
    assert all(np.hypot(a[0] - b[0], a[1] - b[1]) > maps.LINE for a in places for b in places if a != b)


def test_the_text_says_what_is_to_be_seen() -> None:
    found = feature_map(context(seen("unlabelled images", 40), seen("labelled images", 9, seed=1)))
    assert found is not None
    label = re.search('aria-label="([^"]*)"', found["drawing"])
    assert label is not None
    assert label[1] == (
        "Map of 49 images (unlabelled images) by their features, in 3 classes: 9 labelled, 4 doubtful, 4 outlying"
    )
    assert found["between"].startswith("a or b (")


def test_names_of_files_are_text_in_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "PICTURES", 0)
    found = feature_map(context(seen("unlabelled images", 10, paths=("<b>.png",) * 10)))
    assert found is not None
    assert "<b>" not in found["drawing"]
    assert "&lt;b&gt;.png: " in found["drawing"]


@pytest.mark.parametrize("count", [0, 1, maps.LEAST - 1])
def test_few_images_are_no_map(count: int) -> None:
    assert feature_map(context(seen("unlabelled images", count))) is None
    assert feature_map(Context(Stored(), None, True)) is None


def groups(count: int, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of groups that are well apart in 20 dimensions."""
    random = np.random.default_rng(seed)
    number = np.arange(rows) % count
    return 8 * random.normal(size=(count, 20))[number] + random.normal(size=(rows, 20)), number


@pytest.mark.parametrize("count", [3, 10])
def test_groups_stay_together(count: int) -> None:
    rows, number = groups(count, 300)
    places = layout(rows)
    assert places is not None
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + np.diag(np.full(300, np.inf))
    assert (number[distances.argmin(1)] == number).all()
    centers = np.stack([places[number == i].mean(0) for i in range(count)])
    apart = np.linalg.norm(centers[:, None] - centers[None], axis=2) + np.diag(np.full(count, np.inf))
    within = max(np.linalg.norm(places[number == i] - centers[i], axis=1).max() for i in range(count))
    assert apart.min() > within


def test_neighbours_are_neighbours_in_the_features() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 2)) @ random.normal(size=(2, 30)) + 0.05 * random.normal(size=(400, 30))
    assert trustworthiness(rows, layout(rows), n_neighbors=10) > 0.97


def test_the_same_rows_have_the_same_places_at_any_scale() -> None:
    rows, _ = groups(4, 100)
    first = layout(rows)
    assert first is not None
    np.testing.assert_array_equal(first, layout(rows.copy()))
    assert np.isfinite(layout(1e30 * rows)).all()


def test_twins_and_a_single_feature_are_no_problem() -> None:
    twins = np.repeat(np.random.default_rng(0).normal(size=(20, 5)), 4, axis=0)
    line = np.arange(30.0)[:, None]
    for rows in (twins, line, np.concatenate([twins, np.zeros((60, 5))])):
        places = layout(rows)
        assert places is not None
        assert np.isfinite(places).all()


def test_rows_without_any_difference_have_no_layout() -> None:
    assert layout(np.ones((50, 4))) is None
    assert layout(np.zeros((0, 4))) is None
    assert layout(np.random.default_rng(0).normal(size=(3, 4))) is None
