"""The files of a run, their columns and entries.

The descriptions are here, since the files cannot carry them. Tests train a run and fail where it holds a file, a column
or an entry that is not described, or where a described one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from docs.tools.text import code, table

FILES = {
    "settings.toml": "where the data came from (`[source]`), and every setting (`[settings]`, one table per group)",
    "environment.json": "versions, commit, device, threads, command, start time, and the time limit if there is one",
    "metrics.csv": "one row per epoch, see below",
    "train.log": "messages with times: the data, each epoch, divergences and recoveries",
    "pseudo_labels/step-N.csv": "the pseudo-labels of curriculum step N, the most confident first",
    "pseudo_labels/outliers-N.csv": "images rejected as outliers in step N, with `curriculum.reject_outliers`",
    "best.safetensors": "the selected weights; class names, image shape and architecture are in the file's metadata",
    "test_metrics.json": "the result, see below; written last, so a run that has it is finished",
    "details.npz": "arrays behind figures: predictions for the test images and their true classes, samples, and the "
    "first step's selection; and short digests of the training images, by which they are known again",
    "checkpoints/epoch-N-DIGEST.pt": "the two newest checkpoints",
    "report.html": "written by `ebpl report`",
    "model.onnx": "written by `ebpl export`",
    "model_card.md": "written by `ebpl export`",
    "tensorboard/": "the numbers of `metrics.csv` for TensorBoard, with `runtime.tensorboard`",
    ".lock": "held by the process that trains, so that no second one trains the same run",
}

METRICS = {
    "phase": "`initial`, or `step t of T`",
    "epoch": "counted from 1 in each phase",
    "loss": "mean of the total loss",
    "cross_entropy": "its part from labels and pseudo-labels",
    "energy_images": "mean energy of training images",
    "energy_samples": "mean energy of the model's samples",
    "energy_gap": "mean of the difference of the two, which grows when training diverges",
    "coupling": "coupling of both heads, before its weight",
    "consistency": "consistency loss, before its weight",
    "mask_rate": "fraction of the predictions above the confidence threshold, which are used as targets",
    "pseudo_labels": "images with a pseudo-label",
    "pseudo_label_accuracy": "accuracy of the pseudo-labels, where the true classes are known",
    "rejected": "unlabelled images rejected as outliers",
    "validation_accuracy": "accuracy of the averaged weights, where there are validation images",
    "validation_ece": "ECE with 15 bins on the same images",
    "validation_confidence": "mean confidence on the same images",
    "learning_rate": "at the last update",
    "sgld_steps": "sampling steps for each update; more after a recovery",
    "healed": "recoveries from divergence so far",
    "seconds": "training time so far",
}
"""With EBPL and consistency. A method writes the columns of its loss terms: the baseline has no energies."""
METHOD_METRICS = {
    "unlabeled_loss": "loss of unlabelled images of Pseudo-Label and MixMatch, before its weight",
    "unlabeled_weight": "its weight, which rises at first",
    "threshold": "FreeMatch's threshold for the class that is predicted most",
    "fairness": "FreeMatch's fairness loss, before its weight",
}
"""Of the methods of other papers."""

PSEUDO_LABELS = {
    "image": "path below the data, or number",
    "label": "predicted class",
    "confidence": "probability of that class",
    "truth": "true class, where it is known but hidden, as in benchmarks",
    "p(CLASS)": "probability of each class",
}

RESULT = {
    "metrics": "[metrics](metrics.md) of the selected weights on the test images; null where there are none",
    "intervals": "95 % intervals of the metrics: Wilson's for accuracy, the others by bootstrap over the test images",
    "reliability": "15 bins of confidence with the number of images, their accuracy and mean confidence",
    "chosen": "phase and epoch of the selected weights, and how they were selected",
    "last": "metrics of the last averaged weights, which are selected without labels",
    "images": "number of labelled (by class), unlabelled, validation and test images, and of the test images that are "
    "also among the training images (`test_in_training`)",
    "check": "what the calibration holdout has shown (`curriculum.calibration_holdout`); null where there is none",
    "calibrations": "where labels were held out: metrics on the test images before any calibration, with the "
    "temperature, and with histogram binning",
    "class_mix": "where a class mix was given or estimated: the share of each class, the logarithm of its ratio to "
    "that among the labels, and 95 % intervals of estimated shares",
    "majority_share": "share of the largest class among the labelled test images: the accuracy of always naming it",
    "never_predicted": "classes of test images that no test image was predicted to be",
    "by_class": "for each class: test images, images that are predicted to be of it (`predicted`), precision and "
    "recall with their 95 % intervals, mean confidence of these predictions, and F-score",
    "prediction_sets": "coverage and size of [prediction sets](../how-to/prediction-sets.md) of 90 % on the test "
    "images, over all and by class, and the probability from which on a class is in them; null with fewer than 20 "
    "labelled test images",
    "pseudo_labels": "for each step: images with a pseudo-label, their accuracy if known, rejected images, and how "
    "many of each class",
    "class_means": "mean probability of each class over training images, for `ebpl predict --decide balanced`",
    "curves": "some columns of `metrics.csv`, rounded",
    "training_energies": "201 quantiles of the energies of training images, from which outliers are judged",
    "training_reconstruction_errors": "the same of their cross-validated reconstruction errors, for a model on the "
    "features of an encoder: outliers are judged from these",
    "updates": "updates that were made (`made`), and those that the settings ask for (`of`); fewer under a time limit",
    "seconds": "training time, without reading data and evaluation",
    "healed_divergences": "where training diverged, why, and the learning rate and sampling steps after recovery",
}

PREDICTIONS = {
    "image": "path of the file",
    "label": "most probable class; empty below `--abstain-below` or where `--accuracy` cannot be promised, and for an "
    "outlier unless `--label-outliers`",
    "decision": "with `--decide balanced`: the class most probable compared with its mean over the training images; "
    "with a CSV of costs: the class of the least expected cost",
    "set": "with `--coverage`: the classes of the prediction set, between vertical bars; in Parquet a list",
    "confidence": "its probability",
    "disagreement": "of several seeds: mutual information of class and seed in nats, 0 where all say the same",
    "energy": "higher means less like the training images; on features of an encoder, take the next column for that",
    "reconstruction_error": "on features of an encoder: the share of them, from 0 to 1, that the principal components "
    "of the training images leave out; higher means less like the training images",
    "outlier": "`yes` above the reconstruction error, or else the energy, of `--outlier-quantile` of the training "
    "images; empty where the model has neither",
    "p(CLASS)": "probability of each class",
    "problem": "why the image could not be read",
}

SUGGESTIONS = {
    "rank": "1 is the most uncertain image",
    "image": "path below the data, or number",
    "label": "empty, to be filled in",
    "guess": "predicted class",
    "confidence": "its probability",
    "second_guess": "second most probable class",
    "second_confidence": "its probability",
    "energy": "higher means less like the training images",
}

LABEL_ERRORS = {
    "rank": "1 is the most doubtful label; copies of an image with different labels come first",
    "image": "path below the data, or number",
    "label": "empty, to be filled in where the label is wrong",
    "given": "the label",
    "suggested": "the most probable other class",
    "p_given": "probability of the given class by a classifier that has not seen the label",
    "p_suggested": "that of the suggested class",
    "copy": "an image that is a copy and has another label, if there is one",
}


def described(entries: Mapping[str, str], head: str = "column") -> str:
    """Names and their descriptions, as a table."""
    return table([head, "content"], [[code(name), text] for name, text in entries.items()])
