"""Sentences of the page: numbers as people say them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.calibration import CalibrationCheck
from ebpl.calibration.abstention import choose_threshold
from ebpl.labeling import uncertainty
from ebpl.metrics import METRICS, by_bin, calibration, classification, confidence_direction, in_words, measure
from ebpl.metrics.calibration import calibration_error_by_chance, expected_calibration_error
from ebpl.metrics.intervals import Intervals, interval_in_words, intervals
from ebpl.models.outliers import OutlierLimit
from ebpl.reporting import charts
from ebpl.reporting.charts import Line
from ebpl.reporting.classes import by_class, class_mix, prediction_sets, stored_classes
from ebpl.reporting.feature_map import feature_map
from ebpl.reporting.labels import doubtful_labels, learned, pseudo_labels
from ebpl.reporting.report_data import (
    OUTLIER_QUANTILE,
    Context,
    Seen,
    count,
    energy_gap,
    interval,
    outlier_scores,
    percent,
    points,
    score_name,
    things,
)
from ebpl.reporting.svg import data_uri
from ebpl.runs.reader import Stored, finite, reliability_bins, updates_of
from ebpl.training import shortened

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
SURE = 0.9


def direction(gap: float, bins: Any, images: int) -> tuple[str, str]:
    """Over- or under-confident, in one word and in a sentence; neither where so few images cannot tell."""
    side = "above" if gap > 0 else "below"
    found = confidence_direction(gap, bins)
    if found not in ("over", "under"):
        return "neither", (
            f"On average its confidence is {points(gap)} {side} its accuracy, "
            f"no more than chance explains with {things(images, 'image')}: neither over- nor under-confident."
        )
    word = f"{found}-confident"
    return word, f"It is {word}: on average its confidence is {points(gap)} {side} its accuracy."


def short(word: str) -> str:
    """As tables say it: over, under or neither."""
    return word.removesuffix("-confident")


def calibration_error(probabilities: Floats, labels: Labels) -> str:
    """The ECE in a sentence, beside the one that chance would give."""
    error = expected_calibration_error(probabilities, labels)
    draws = int(np.clip(2_000_000 // max(1, len(labels)), 5, 100))
    chance = calibration_error_by_chance(probabilities.max(1), draws=draws)
    return (
        f"The expected calibration error (ECE, 15 bins) is {percent(error)}. A perfectly calibrated model would show "
        f"about {percent(chance)} on this number of images."
    )


def sure_ones(probabilities: Floats, labels: Labels) -> str:
    """Accuracy at high confidence."""
    sure = probabilities.max(1) >= SURE
    if not sure.any():
        return f"No confidence reaches {percent(SURE, 0)}."
    right, images = int((probabilities.argmax(1) == labels)[sure].sum()), int(sure.sum())
    ends = interval(classification.wilson_interval(right, images))
    return (
        f"Of {things(images, 'image')} with a confidence of at least {percent(SURE, 0)} ({percent(sure.mean(), 0)} of "
        f"all), {percent(right / images)} are predicted right (95 % interval {ends})."
    )


Section = dict[str, Any]
MISTAKES, UNCERTAIN, OUTLYING = 24, 16, 16
ACCURACY = 0.95
"""That the page says from which confidence on it is promised."""
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)


def training(stored: Stored, density: bool) -> Section:
    """How it went, epoch by epoch."""
    history = stored.history
    images, varies = "energy of images and samples", len({row.get("learning_rate") for row in history}) > 1
    drawn = [
        charts.curves(
            "Validation images",
            history,
            [
                Line("validation_accuracy", "a", "accuracy"),
                Line("validation_confidence", "b", "mean confidence"),
                Line("validation_ece", "c", "ECE"),
            ],
            share=True,
        ),
        charts.curves("Classification loss", history, [Line("cross_entropy", "a", "cross-entropy")]),
        charts.curves(
            images.capitalize(),
            history if density else [],
            [Line("energy_images", "a", "images"), Line("energy_samples", "b", "samples")],
            note="Close lines mean that the sampler keeps up with the energy model.",
        ),
        charts.curves("Learning rate", history if varies else [], [Line("learning_rate", "a", "learning rate")]),
    ]
    return {
        "charts": [chart for chart in drawn if chart],
        "check": CalibrationCheck.stored(stored.result.get("check")),
        "healed": [_healed(event) for event in stored.healed],
        "shortened": shortened(*updates_of(stored.result)),
    }


def _healed(event: dict[str, Any]) -> str:
    rate, steps = finite(event.get("learning_rate")), finite(event.get("sgld_steps"))
    epoch = finite(event.get("epoch"))
    text = f"{event.get('phase') or 'some phase'}, epoch {'?' if epoch is None else f'{epoch:.0f}'}"
    if event.get("reason"):
        text += f": {event['reason']}"
    if rate is not None and steps is not None:
        text += f". Continued with learning rate {rate:.3g} and {steps:.0f} SGLD steps"
    return text + "."


def measures(probabilities: NDArray[np.float64], labels: NDArray[np.int64], what: str) -> Section:
    """Accuracy and calibration of answers whose truth is known."""
    found, ends = measure(probabilities, labels), intervals(probabilities, labels)
    bins = by_bin(probabilities, labels)
    word, sentence = direction(found["overconfidence"], bins, len(labels))
    return {
        "what": what,
        "values": found,
        "rows": _rows(found, ends, short(word)),
        "intervals": ends,
        "confidence": float(probabilities.max(1).mean()),
        "direction": word,
        "sentences": [sentence, calibration_error(probabilities, labels), sure_ones(probabilities, labels)],
        "reliability": charts.reliability(bins, what),
        **_risk(probabilities, labels),
    }


def stored_measures(stored: Stored) -> Section | None:
    """The measures that the run wrote when it ended, where its test images cannot be looked at again."""
    metrics = stored.result.get("metrics")
    if not isinstance(metrics, dict):
        return None
    found = {name: value for name in METRICS if (value := finite(metrics.get(name))) is not None}
    if not {"accuracy", "f_score", "ece", "images", "overconfidence"} <= found.keys() or found["images"] < 1:
        return None
    bins, ends = reliability_bins(stored.result.get("reliability")), _stored_intervals(stored.result.get("intervals"))
    ends["accuracy"] = classification.wilson_interval(round(found["accuracy"] * found["images"]), int(found["images"]))
    one_bin = {"images": found["images"], "confidence": found["accuracy"] + found["overconfidence"]}
    word, sentence = direction(found["overconfidence"], bins or [one_bin], int(found["images"]))
    return {
        "what": "test images",
        "values": found,
        "rows": _rows(found, ends, short(word)),
        "intervals": ends,
        "confidence": found["accuracy"] + found["overconfidence"],
        "direction": word,
        "sentences": [sentence, f"The expected calibration error (ECE, 15 bins) is {percent(found['ece'])}."],
        "reliability": charts.reliability(bins, "test images") if bins else None,
        "risk": None,
        "coverages": [],
        "promise": "",
    }


def _rows(found: dict[str, float], ends: Intervals, word: str) -> list[tuple[str, str, str]]:
    """Every metric: its name, its value and its interval."""
    return [
        (metric.title, in_words(name, found.get(name), word), interval_in_words(name, ends.get(name)))
        for name, metric in METRICS.items()
    ]


def _stored_intervals(rows: Any) -> Intervals:
    """The intervals that the run wrote; without what are none."""
    given = rows if isinstance(rows, dict) else {}
    pairs = {name: ends for name, ends in given.items() if name in METRICS and isinstance(ends, list)}
    numbers = {name: [number for end in ends if (number := finite(end)) is not None] for name, ends in pairs.items()}
    return {name: (ends[0], ends[1]) for name, ends in numbers.items() if len(ends) == 2}


def _risk(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Section:
    coverage, error = calibration.risk_coverage(probabilities, labels)
    said = -np.sort(-probabilities.max(1), kind="stable")
    promised = 1 - np.cumsum(said) / np.arange(1, len(said) + 1)
    rows = []
    for share in COVERAGES:
        answered = round(share * len(labels))
        if answered:
            wrong = round(float(error[answered - 1]) * answered)
            ends = interval(classification.wilson_interval(answered - wrong, answered))
            right = (percent(1 - error[answered - 1]), ends)
            rows.append((percent(share, 0), count(answered), percent(said[answered - 1]), *right, count(wrong)))
    promise = choose_threshold(probabilities.max(1), probabilities.argmax(1) == labels, ACCURACY)
    sentence = f"By these images, {promise}." if len(labels) else ""
    return {"risk": charts.risk(coverage, error, promised), "coverages": rows, "promise": sentence}


def promises(seen: Seen) -> Section:
    """Confidence in unlabelled images; how many are predicted right is not known of them."""
    said = -np.sort(-seen.predictions.confidences, kind="stable")
    rows = []
    for share in COVERAGES:
        if answered := round(share * len(said)):
            rows.append(
                (percent(share, 0), count(answered), percent(said[answered - 1]), percent(said[:answered].mean()))
            )
    return {"chart": charts.confidences(said, seen.what), "coverages": rows, "confidence": float(said.mean())}


def mistakes(seen: Seen, classes: Sequence[str]) -> Section:
    """The images it is wrong about and surest of."""
    said, sure = seen.predictions.labels, seen.predictions.confidences
    wrong = np.flatnonzero(seen.images.labeled & (said != seen.images.labels))
    first = wrong[np.argsort(-sure[wrong], kind="stable")][:MISTAKES]
    shown = [{**_picture(seen, int(i), classes), "truth": classes[seen.images.labels[i]]} for i in first]
    return {"pictures": shown, "count": len(wrong), "of": int(seen.images.labeled.sum())}


def uncertain(seen: Seen, classes: Sequence[str], limit: OutlierLimit | None, pool: bool) -> Section:
    """The images it is least sure of, with its two best guesses; outliers, whose label teaches little, left out."""
    order = np.argsort(-uncertainty(seen.predictions.probabilities), kind="stable")
    if limit is not None:
        order = order[~limit.exceeded(seen.predictions)[order]]
    shown = []
    for i in map(int, order[:UNCERTAIN]):
        probabilities = seen.predictions.probabilities[i]
        best = np.argsort(-probabilities, kind="stable")[:2]
        guesses = [(classes[c], float(probabilities[c])) for c in best]
        shown.append({**_picture(seen, i, classes), "guesses": guesses})
    return {"pictures": shown, "what": looked_at(seen), "pool": pool}


def outlying(seen: Seen, classes: Sequence[str], limit: OutlierLimit | None) -> Section:
    """The images of the highest energies, or of the highest other score that outliers are judged by."""
    scores = outlier_scores(seen, limit)
    beyond = limit.exceeded(seen.predictions) if limit else np.zeros(len(scores), bool)
    shown = [
        {**_picture(seen, i, classes), "score": _signed(float(scores[i])), "beyond": bool(beyond[i])}
        for i in map(int, np.argsort(-scores, kind="stable")[:OUTLYING])
    ]
    number, share = int(beyond.sum()), percent(beyond.mean()) if limit and len(beyond) else None
    return {"pictures": shown, "what": seen.what, "beyond": number, "of": len(scores), "share": share}


def _signed(value: float) -> str:
    return (f"{value:.2f}" if abs(value) < 100 else f"{value:.3g}").replace("-", "−")


def samples(stored: Stored) -> Section | None:
    """Samples of the energy model as pictures, and whether they have the energies of images."""
    if stored.samples is None:
        return None
    return {"pictures": [data_uri(sample) for sample in stored.samples], "sentence": energy_gap(stored)}


def _picture(seen: Seen, i: int, classes: Sequence[str]) -> Section:
    label = seen.images.labels[i]
    return {
        "uri": data_uri(seen.images.pixels[i]),
        "name": seen.images.paths[i] if seen.images.paths else f"no. {seen.positions[i]}",
        "said": classes[seen.predictions.labels[i]],
        "confidence": percent(float(seen.predictions.confidences[i])),
        "truth": classes[label] if label >= 0 else None,
    }


def energy(context: Context) -> Section | None:
    """Histogram of the score that outliers are judged by, their limit, and the images beyond it."""
    seen, limit = context.looked, context.outlier_limit
    if limit is None and not context.density:
        return None
    training, name = context.training_scores.get(limit.score) if limit else None, score_name(limit)
    scores, what = outlier_scores(seen, limit) if seen else None, seen.what if seen else "images"
    return {
        "score": name,
        "chart": charts.scores(name, training, scores, what, limit.value if limit else None),
        "outlying": outlying(seen, context.classes, limit) if seen else None,
        "words": f"{percent(OUTLIER_QUANTILE, 0)} of the training images",
    }


def looked_at(seen: Seen) -> str:
    """How many images there were, and whether all were looked at."""
    what = seen.what if len(seen.images) != 1 else seen.what.replace("images", "image", 1)
    more = f", picked evenly from {count(seen.total)}" if seen.total > len(seen.images) else ""
    return f"{count(len(seen.images))} {what}{more}"


def _measures(context: Context) -> Section | None:
    """Accuracy and calibration, measured now, or else when the run ended."""
    if context.measured:
        return measures(*context.measured.truth, context.measured.what)
    own = context.looked is None or context.looked.what == "test images"
    return stored_measures(context.stored) if own else None


def _promises(context: Context) -> Section | None:
    return promises(context.looked) if context.looked and not context.measured and not _measures(context) else None


def _uncertain(context: Context) -> Section | None:
    """From the unlabelled images of the run, which are worth a label; without such, from those that are looked at."""
    seen = context.pool or context.looked
    return uncertain(seen, context.classes, context.outlier_limit, context.pool is not None) if seen else None


SECTIONS: dict[str, Callable[[Context], Any]] = {
    "measures": _measures,
    "promises": _promises,
    "training": lambda context: training(context.stored, context.density),
    "classes": lambda c: by_class(c.measured, c.classes) if c.measured else stored_classes(c.stored),
    "sets": lambda context: prediction_sets(context.measured, context.classes) if context.measured else None,
    "mix": class_mix,
    "map": feature_map,
    "pseudo": lambda context: pseudo_labels(context.stored.steps, context.stored.history, context.classes),
    "label_errors": doubtful_labels,
    "learning_curve": learned,
    "mistakes": lambda context: mistakes(context.measured, context.classes) if context.measured else None,
    "uncertain": lambda context: _uncertain(context),
    "energy": energy,
    "samples": lambda context: samples(context.stored) if context.density else None,
}
"""Values for the template by name. A new section is an entry here, and its part of the template."""
