"""Tasks for Label Studio with the model's answer filled in, and the labels out of its exports."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from ebpl.data.decode import FORMATS
from ebpl.data.formats import predictions_for_labels, read_table, text_of
from ebpl.errors import DataError
from ebpl.io import is_text

if TYPE_CHECKING:
    from ebpl.labeling import Suggestion

NAME = "ebpl_image"
"""The field of a task that says which image it is; Label Studio hands it back in every export."""
SHOWN_SIZE = 224
"""Images smaller than this are enlarged, so that a person can see what they show."""
LARGEST_SIZE = 1600
BY_BROWSERS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}


def config(classes: Sequence[str]) -> str:
    """The labelling interface: one choice for each image."""
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="label" toName="image" choice="single" showInline="true">\n{choices}\n  </Choices>\n</View>\n'
    )


def tasks(
    suggestions: Sequence[Suggestion], pictures: Sequence[str], model_version: str, pre_annotate: bool = True
) -> list[dict[str, Any]]:
    """One task for each suggestion, with its picture's address and, unless switched off, the model's prediction."""
    made = []
    for suggestion, picture in zip(suggestions, pictures, strict=True):
        task: dict[str, Any] = {"data": {"image": picture, NAME: suggestion.image}}
        if pre_annotate:
            choice = {
                "from_name": "label",
                "to_name": "image",
                "type": "choices",
                "value": {"choices": [suggestion.guess]},
            }
            answer = {"model_version": model_version, "score": round(suggestion.confidence, 6), "result": [choice]}
            task["predictions"] = [answer]
        made.append(task)
    return made


def picture(pixels: NDArray[np.uint8], file: Path | None = None) -> str:
    """An image as a data URI, which needs no server: its own file where a browser can show it, else a PNG."""
    from PIL import Image, ImageOps

    if file is None:
        array = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        shown = Image.fromarray(array)
        times = max(1, round(SHOWN_SIZE / max(shown.size)))
        return _png(shown.resize((times * shown.width, times * shown.height), Image.Resampling.NEAREST))
    with Image.open(file, formats=FORMATS) as image:
        kind = BY_BROWSERS.get(file.suffix.lower())
        if kind and max(image.size) <= LARGEST_SIZE:
            return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
        upright = ImageOps.exif_transpose(image)
        upright.thumbnail((LARGEST_SIZE, LARGEST_SIZE))
        return _png(upright.convert("RGB"))


def _png(image: Any) -> str:
    packed = io.BytesIO()
    image.save(packed, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(packed.getvalue()).decode()}"


def read_labels(path: Path) -> dict[str, str]:
    """Labels by image: from an export of Label Studio (JSON, JSON-MIN, CSV), or from any CSV of image and label.

    Tasks that were skipped have no label. An image that was labelled more than once must have got the same label.
    """
    text = text_of(path)
    as_json = text.lstrip()[:1] in ("[", "{")
    labels: dict[str, str] = {}
    for image, label in _from_json(path, text) if as_json else _from_csv(path, text):
        if not (is_text(image) and is_text(label)):
            raise DataError(f"{path} holds {image[:100]!a} with the label {label[:100]!a}, half a character of text.")
        if label.strip() and labels.setdefault(image, label) != label:
            raise DataError(f"{path} gives {image} two labels: {labels[image]} and {label}. Keep one of them.")
    if not labels:
        raise no_labels(path, as_json)
    return labels


def no_labels(path: Path, as_json: bool = False) -> DataError:
    """The error for labels of which there is none."""
    if as_json:
        return DataError(f"{path} holds no label. Export it from Label Studio once its tasks are done.")
    return DataError(
        f"{path}: no label was filled in. Write the class of each image into its column label, and leave it empty "
        "where you cannot tell."
    )


def _from_json(path: Path, text: str) -> list[tuple[str, str]]:
    try:
        entries = json.loads(text)
        return [pair for entry in entries for pair in _of_task(entry)]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise DataError(f"{path} is not an export of tasks made by `ebpl suggest` ({reason}).") from error


def _of_task(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """Image and label of one task: of its annotations, or, in JSON-MIN, in a field of its own."""
    if "annotations" not in entry:
        return [(str(entry[NAME]), str(entry["label"]))] if entry.get("label") else []
    image = str(entry["data"][NAME])
    return [
        (image, str(result["value"]["choices"][0]))
        for annotation in entry["annotations"]
        if not annotation.get("was_cancelled")
        for result in annotation["result"]
        if result.get("type") == "choices"
    ]


def _from_csv(path: Path, text: str) -> list[tuple[str, str]]:
    found = []
    for line, row in read_table(path, text, ["image", NAME], ["label"]):
        if "confidence" in row and "guess" not in row:
            raise predictions_for_labels(path)
        image = row.get(NAME) or row.get("image", "")
        if "label" not in row or not image:
            raise DataError(f"{path}, line {line} has no {'label' if image else 'image'}: its cells are too few.")
        found.append((image, row["label"]))
    return found
