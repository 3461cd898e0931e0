"""What a run leaves behind, file by file and column by column.

The words are here, since a file cannot carry them; tests train a run and fail where it holds a file, a column or an
entry that is not described, or where a described one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from docs.tools.text import code, table

FILES = {
    "settings.toml": "what was asked for: where the data is, its fingerprint, and every setting",
    "environment.json": "what it ran on: versions, commit, device, threads, command, time of the start",
    "metrics.csv": "a row for each epoch, see below",
    "train.log": "what happened and when: what was trained on, each epoch, divergences and how they were healed",
    "pseudo_labels/step-N.csv": "which unlabelled images have which label in step N, the most confident first",
    "pseudo_labels/outliers-N.csv": "which were left out of step N, the strangest first; with `--reject-outliers`",
    "best.safetensors": "the chosen weights; class names, image shape and network are in the file's metadata",
    "test_metrics.json": "the result, see below; written last, so a run that has it is finished",
    "reliability.png": "the reliability diagram, where there are labelled test images",
    "details.npz": "arrays behind figures: answers for the test images, samples, what the first step selected",
    "checkpoints/epoch-N-DIGEST.pt": "the two newest states to go on from",
    "report.html": "the page that `ebpl report` makes",
    "model.onnx": "the model that `ebpl export` makes",
    "model_card.md": "what to know of that model, made with it",
    "tensorboard/": "the numbers of `metrics.csv` for TensorBoard; with `--tensorboard`",
    ".lock": "held by the process that trains, so that no second one does",
}

METRICS = {
    "phase": "`initial`, or `step t of T`",
    "epoch": "counted from 1 in each phase",
    "loss": "mean of what is minimised",
    "cross_entropy": "its part from labels and pseudo-labels",
    "energy_images": "mean energy of training images",
    "energy_samples": "mean energy of the model's samples; the bar shows the difference of both as `gap`",
    "coupling": "how far both heads are from agreeing, before its weight",
    "consistency": "cross-entropy of strong views with the predictions that passed the gate, before its weight",
    "asked": "share of the predictions that passed the gate",
    "pseudo_labels": "images that have a pseudo-label",
    "pseudo_label_accuracy": "share of them that is right, where the true classes are known",
    "rejected": "unlabelled images that were left out as outliers",
    "validation_accuracy": "of the averaged weights, where there is a validation part",
    "validation_ece": "the same for the ECE with 15 bins",
    "validation_confidence": "mean confidence there",
    "learning_rate": "at the last update",
    "sgld_steps": "sampling steps for each update; more once a divergence was healed",
    "healed": "divergences healed so far",
    "seconds": "of training so far",
}

PSEUDO_LABELS = {
    "image": "its path below the data, or its number",
    "label": "the class that it is taken for",
    "confidence": "the probability of that class",
    "truth": "its true class, where it is known and hidden, as in benchmarks",
    "p(CLASS)": "the probability of each class",
}

RESULT = {
    "metrics": "[measures](measures.md) of the chosen weights on the test images; null where there are none",
    "reliability": "15 bins of confidence with the number of images, their accuracy and mean confidence",
    "chosen": "phase and epoch of the chosen weights, and what chose them",
    "last": "measures of the last averaged weights, which need no labels to be chosen",
    "images": "how many were labelled (by class), unlabelled, for validation and for the test",
    "check": "what labels that waited (`held_back`) have shown of the confidence; null where none did",
    "pseudo_labels": "for each step: images with a pseudo-label, share of right ones if known, images left out",
    "curves": "some columns of `metrics.csv` in few digits",
    "training_energies": "201 quantiles of the training images' energies, from which outliers are judged",
    "seconds": "of training, without reading data and measuring",
    "healed_divergences": "where training ran away, why, and with which rate and sampling steps it went on",
}

PREDICTIONS = {
    "image": "the path of the file",
    "label": "the most probable class; empty below `--abstain-below`",
    "confidence": "its probability",
    "energy": "higher means less like the training images",
    "outlier": "`yes` above the energy of `--outlier-quantile` of the training images; empty for the baseline",
    "p(CLASS)": "the probability of each class",
    "problem": "why the image could not be read",
}

SUGGESTIONS = {
    "rank": "1 is the image the model is least sure of",
    "image": "its path below the data, or its number",
    "label": "the class it is taken for",
    "confidence": "the probability of that class",
    "second_label": "the next class",
    "second_confidence": "its probability",
    "energy": "higher means less like the training images",
}


def described(entries: Mapping[str, str], head: str = "column") -> str:
    """Names and what they mean, as a table."""
    return table([head, "what it holds"], [[code(name), text] for name, text in entries.items()])
