import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from ebpl.calibration.class_mix import (
    ClassMix,
    estimate_mix,
    log_covariance,
    mix_of,
    most_likely_mix,
    read_mix,
    reweight,
)
from ebpl.errors import DataError, UsageError

MEANS = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
NAMES = ["cat", "dog", "emu"]


def drawn(random: np.random.Generator, mix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of three Gaussians of unit variance, and which they are of."""
    labels = random.choice(3, count, p=mix)
    return MEANS[labels] + random.normal(size=(count, 2)), labels


def posterior(points: np.ndarray, mix: np.ndarray) -> np.ndarray:
    """Bayes' rule for those Gaussians in this mix."""
    densities = mix * np.exp(-0.5 * np.square(points[:, None] - MEANS).sum(2))
    return np.asarray(densities / densities.sum(1, keepdims=True))


def test_probabilities_for_another_mix_are_those_of_bayes_rule() -> None:
    points, _ = drawn(np.random.default_rng(0), np.full(3, 1 / 3), 100)
    labels, used = np.array([0.2, 0.3, 0.5]), np.array([0.7, 0.2, 0.1])
    found = reweight(posterior(points, labels), np.log(used / labels))
    np.testing.assert_allclose(found, posterior(points, used), atol=1e-12)


def test_the_same_mix_leaves_every_bit_of_the_probabilities() -> None:
    probabilities = posterior(drawn(np.random.default_rng(0), np.full(3, 1 / 3), 10)[0], np.full(3, 1 / 3))
    assert reweight(probabilities, np.zeros(3)) is probabilities


@pytest.mark.parametrize("pseudo_count", [0.0, 1.0])
def test_the_most_likely_mix_is_the_maximum_that_a_search_finds(pseudo_count: float) -> None:
    prior = np.array([0.2, 0.3, 0.5])
    points, _ = drawn(np.random.default_rng(1), np.array([0.6, 0.3, 0.1]), 400)
    probabilities = posterior(points, prior)

    def loss(scores: np.ndarray) -> float:
        mix = np.exp(scores - np.logaddexp.reduce(scores))
        return float(-np.log((probabilities / prior * mix).sum(1)).sum() - pseudo_count * np.log(mix).sum())

    best = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).x
    expected = np.exp(best - np.logaddexp.reduce(best))
    np.testing.assert_allclose(most_likely_mix(probabilities, prior, pseudo_count), expected, atol=1e-4)


@pytest.mark.parametrize("mix", [[0.8, 0.15, 0.05], [0.05, 0.25, 0.7]])
def test_the_mix_of_many_images_is_found_where_labels_are_many(mix: list[float]) -> None:
    points, labels = drawn(np.random.default_rng(2), np.array(mix), 5000)
    found = estimate_mix(posterior(points, np.full(3, 1 / 3)), np.full(3, 200))
    assert found.differs
    np.testing.assert_allclose(found.shares, np.bincount(labels) / 5000, atol=0.03)
    assert found.interval is not None
    assert all(low < share < high for (low, high), share in zip(found.interval, found.shares, strict=True))


def test_the_fewer_the_labels_the_wider_are_the_intervals() -> None:
    points, _ = drawn(np.random.default_rng(3), np.array([0.8, 0.15, 0.05]), 2000)
    probabilities = posterior(points, np.full(3, 1 / 3))
    widths = []
    for count in (4, 40, 400):
        found = estimate_mix(probabilities, np.full(3, count))
        assert found.interval is not None
        assert all(low <= share <= high for (low, high), share in zip(found.interval, found.shares, strict=True))
        widths.append(np.diff(found.interval).mean())
    assert widths[0] > 1.5 * widths[1] > 1.5 * widths[2]


def test_images_that_cannot_be_told_apart_keep_the_mix_of_the_labels_and_say_nothing_of_their_own() -> None:
    points, _ = drawn(np.random.default_rng(3), np.array([0.8, 0.15, 0.05]), 2000)
    faint = posterior(points, np.full(3, 1 / 3)) ** 0.02
    found = estimate_mix(faint / faint.sum(1, keepdims=True), np.full(3, 10))
    assert not found.differs
    assert found.shares == (1 / 3,) * 3
    assert found.interval is not None
    assert all(high - low > 0.9 for low, high in found.interval)


def test_the_covariance_is_that_of_estimates_with_scores_that_are_off_by_chance() -> None:
    random, mix, labels = np.random.default_rng(8), np.array([0.5, 0.3, 0.2]), np.array([40, 60, 80])
    prior = labels / labels.sum()
    points, _ = drawn(random, mix, 1000)
    scores, found = np.log(posterior(points, prior)), []
    for _ in range(400):
        off = scores[random.integers(0, 1000, 1000)] + random.normal(size=3) * np.sqrt(1 / labels + 0.02)
        found.append(np.log(most_likely_mix(np.exp(off - np.logaddexp.reduce(off, axis=1, keepdims=True)), prior)))
    probabilities = np.exp(scores)
    expected = log_covariance(probabilities, most_likely_mix(probabilities, prior), labels)
    contrasts = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]])
    np.testing.assert_allclose(
        contrasts @ np.cov(np.transpose(found)) @ contrasts.T, contrasts @ expected @ contrasts.T, rtol=0.3
    )


def test_images_of_the_labels_own_mix_bend_nothing() -> None:
    bent = 0
    for seed in range(20):
        points, _ = drawn(np.random.default_rng(seed), np.full(3, 1 / 3), 1000)
        bent += estimate_mix(posterior(points, np.full(3, 1 / 3)), np.full(3, 10)).differs
    assert bent == 0


def test_labels_that_are_a_random_sample_are_recognised() -> None:
    random, mix, bent = np.random.default_rng(4), np.array([0.7, 0.2, 0.1]), 0
    for _ in range(40):
        labels = random.multinomial(60, mix)
        bent += estimate_mix(posterior(drawn(random, mix, 1000)[0], labels / 60), labels).differs
    assert bent <= 4
    reversed_labels = np.array([6, 12, 42])
    assert estimate_mix(posterior(drawn(random, mix, 1000)[0], reversed_labels / 60), reversed_labels).differs


def test_without_images_the_mix_is_that_of_the_labels() -> None:
    found = estimate_mix(np.zeros((0, 2)), np.array([1, 3]))
    assert (found.shares, found.differs) == ((0.25, 0.75), False)


def test_one_class_has_every_image() -> None:
    assert estimate_mix(np.ones((5, 1)), np.array([3])).shares == (1.0,)


@pytest.mark.parametrize(("distance", "widest"), [(0.6, 0.9), (1.0, 0.5), (2.0, 0.1)])
@pytest.mark.parametrize("mix", [[0.8, 0.15, 0.05], [0.4, 0.35, 0.25]])
def test_intervals_hold_for_a_classifier_that_learned_from_ten_labels_a_class(
    mix: list[float], distance: float, widest: float
) -> None:
    random, held, widths = np.random.default_rng(5), [], []
    for _ in range(40):
        learned = distance * MEANS + random.normal(size=(3, 10, 2)).mean(1)
        points, labels = drawn(random, np.array(mix), 1500)
        points += (distance - 1) * MEANS[labels]
        scores = -0.5 * np.square(points[:, None] - learned).sum(2)
        found = estimate_mix(np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)), np.full(3, 10))
        assert found.interval is not None
        held.append([low <= share <= high for (low, high), share in zip(found.interval, mix, strict=True)])
        widths.append(np.diff(found.interval, axis=1))
    assert np.mean(held) >= 0.85
    assert np.mean(widths) < widest


def test_a_mix_is_described_from_the_largest_share_with_its_intervals() -> None:
    mix = ClassMix((0.1, 0.9), (0.0, 0.0), ((0.05, 0.2), (0.8, 0.95)))
    assert mix.described(["cat", "dog"]) == "dog 90 % (80 to 95), cat 10 % (5 to 20)"


def test_a_mix_is_that_of_the_labels_estimated_balanced_or_given(tmp_path: Path) -> None:
    labels = np.array([10, 20, 70])
    (tmp_path / "mix.csv").write_text("cat,10\ndog,20\nemu,70\n")
    assert mix_of("labels", NAMES, labels) is None
    assert mix_of("auto", NAMES, labels) == "auto"
    balanced, given = (mix_of(wanted, NAMES, labels) for wanted in ("balanced", str(tmp_path / "mix.csv")))
    assert isinstance(balanced, ClassMix)
    np.testing.assert_allclose(balanced.log_ratio, np.log([10 / 3, 5 / 3, 10 / 21]))
    assert isinstance(given, ClassMix)
    assert not given.differs


def test_a_mix_that_was_written_down_is_read_back() -> None:
    mix = ClassMix((0.1, 0.9), (-1.0, 1.0), ((0.05, 0.2), (0.8, 0.95)))
    assert ClassMix.stored(json.loads(json.dumps(asdict(mix)))) == mix
    assert ClassMix.stored(asdict(replace(mix, interval=None))) == replace(mix, interval=None)
    assert ClassMix.stored(None) is None


def test_users_are_told_what_the_mix_is_and_whether_it_is_used() -> None:
    estimated = ClassMix((0.1, 0.9), (-1.0, 1.0), ((0.05, 0.2), (0.8, 0.95)))
    assert estimated.in_words(["cat", "dog"]).startswith("the unlabelled images seem to be dog 90 % (80 to 95), cat")
    assert replace(estimated, interval=None).in_words(["cat", "dog"]).startswith("the class mix is dog 90 %, cat 10 %")
    assert "labels, which is kept" in replace(estimated, log_ratio=(0.0, 0.0)).in_words(["cat", "dog"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mix.csv", "class,share\ndog,60\nemu,10\ncat,30\n"),
        ("mix.csv", "cat,30 %\ndog,60 %\n\nemu,10 %\n"),
        ("mix.toml", "cat = 0.3\ndog = 0.6\nemu = 0.1\n"),
    ],
)
def test_a_mix_is_read_from_csv_or_toml(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    np.testing.assert_allclose(read_mix(tmp_path / name, NAMES), [0.3, 0.6, 0.1])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("mix.csv", "cat,3\ndog,6\n", "no share for emu"),
        ("mix.csv", "cat,3\ndog,6\nemu,1\nfox,1\n", "share for fox, but no label"),
        ("mix.csv", "cat,0\ndog,6\nemu,1\n", "share of cat is not above 0"),
        ("mix.csv", "cat,3\ndog,many\nemu,1\n", "line 2 has 'many'"),
        ("mix.csv", "cat;3\n", "line 1 has 1 columns"),
        ("mix.toml", "cat = 'a'\n", "cat is 'a'"),
        ("mix.toml", "cat = \n", "cannot be read as a class mix"),
        ("mix.csv", "\xff", "cannot be read as a class mix"),
    ],
)
def test_a_file_that_is_no_mix_is_an_error_that_says_why(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=expected):
        read_mix(tmp_path / name, NAMES)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be auto, labels, balanced, or an existing CSV"):
        read_mix(tmp_path / "none.csv", NAMES)
