"""Images and labels as scikit-learn's users have them: arrays of any numbers, flat or not, and labels of any type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebpl.errors import DataError, UsageError

ROW = "row"
"""The shape of rows that are no images: one line of pixels, each scaled by itself."""
_AT_ONCE = 4096


@dataclass(frozen=True)
class Scale:
    """What rows of numbers mean as pixels: `low` is black and `high` is white, for all of them or for each."""

    shape: tuple[int, int, int]
    """Height, width, channels."""
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any], shape: tuple[int, int, int], by_column: bool) -> Scale:
        """The scale of these rows: bytes as they are, other numbers from least to greatest, of all or `by_column`."""
        if rows.dtype == np.uint8 and not by_column:
            return cls(shape, np.array(0.0), np.array(255.0))
        axis = 0 if by_column else None
        low = np.asarray(rows.min(axis=axis), np.float64)
        high = np.asarray(rows.max(axis=axis), np.float64)
        with np.errstate(over="ignore"):
            if not np.isfinite(high - low).all():
                raise DataError("The numbers in the images are too far apart to be scaled. Scale them first.")
        return cls(shape, low, high)

    def pixels(self, rows: NDArray[Any]) -> NDArray[np.uint8]:
        """Images (N, H, W, C); what is darker than black or brighter than white is cut off."""
        made = np.empty(rows.shape, np.uint8)
        span = np.where(self.high > self.low, self.high - self.low, 1.0)
        for start in range(0, len(rows), _AT_ONCE):  # never all of them as floating-point numbers
            part = rows[start : start + _AT_ONCE].astype(np.float64)
            made[start : start + _AT_ONCE] = np.round((np.clip(part, self.low, self.high) - self.low) / span * 255)
        return made.reshape(-1, *self.shape)


BYTES = 4
"""Of a number in float32."""


def packed(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Rows of numbers (N, D) as bytes (N, 5, D, 1), to the precision of float32.

    All data is images of bytes. Here they are the four bytes of each number, and below them their sum, by which a
    model knows rows from pictures.

    >>> packed(np.ones((1, 3))).shape
    (1, 5, 3, 1)
    """
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(rows, "<f4")
    if not np.isfinite(numbers).all():
        raise DataError("The rows hold numbers that are too large for 32 bits. Scale them first.")
    parts = numbers.view(np.uint8).reshape(*numbers.shape, BYTES).transpose(0, 2, 1)
    return np.concatenate([parts, parts.sum(1, keepdims=True, dtype=np.uint8)], 1)[..., None]


def unpacked(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The rows that were packed; an error for pictures."""
    parts = pixels[:, :BYTES, :, 0]
    if pixels.shape[1] != BYTES + 1 or (parts.sum(1, dtype=np.uint8) != pixels[:, BYTES, :, 0]).any():
        raise DataError("The model was trained on rows of numbers, and takes no images. Predict with EBPLClassifier.")
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).view("<f4")[..., 0].astype(np.float32)


def shape_of(images: Any) -> tuple[int, int, int] | None:
    """Height, width and channels of an array (N, H, W) or (N, H, W, C); None of rows."""
    shape = images.shape if hasattr(images, "shape") else np.asarray(images).shape
    if len(shape) < 3:
        return None
    wanted = (*shape[1:], 1) if len(shape) == 3 else shape[1:]
    if len(wanted) != 3 or wanted[2] not in (1, 3):
        raise DataError(
            f"The images have shape {shape}; wanted is (N, H, W), (N, H, W, C) with C of 1 or 3, or (N, features)."
        )
    height, width, channels = wanted
    return height, width, channels


def shape_for(features: int, given: Any) -> tuple[int, int, int]:
    """Height, width and channels of rows with this number of features: as given, or else a square."""
    if given is None:
        side = math.isqrt(features)
        if side * side != features:
            raise DataError(
                f"Rows of {features} features are no square images. Give image_shape=(height, width) or (height, "
                f'width, channels), or image_shape="{ROW}" for features that are no image.'
            )
        return side, side, 1
    if is_row(given):
        return 1, features, 1
    try:
        height, width, channels = (int(n) for n in (*given, 1)[:3])
        wrong = len(given) not in (2, 3) or min(height, width) < 1 or channels not in (1, 3)
    except (TypeError, ValueError):
        wrong = True
    if wrong:
        raise UsageError(
            f'image_shape is {given!r}, but must be (height, width), (height, width, channels) or "{ROW}", with 1 or 3 '
            "channels."
        )
    if height * width * channels != features:
        raise DataError(
            f"Images of {height} x {width} x {channels} have {height * width * channels} numbers, but the rows have "
            f"{features}. Correct image_shape."
        )
    return height, width, channels


def is_row(given: Any) -> bool:
    """Whether rows are said to be no images."""
    return isinstance(given, str) and given == ROW


def missing(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Which labels say that there is none: -1, NaN, None, an empty text, and -1 as a text.

    >>> missing(np.array(["cat", "", "-1", None, -1, float("nan")], dtype=object)).tolist()
    [False, True, True, True, True, True]
    """
    if labels.dtype.kind in "iuf":
        unknown: NDArray[np.bool_] = (labels == -1) | (labels != labels)
        return unknown
    if labels.dtype.kind == "b":
        return np.zeros(labels.shape, bool)
    return np.array([_is_missing(label) for label in labels.tolist()], bool)


def _is_missing(label: Any) -> bool:
    if label is None or (isinstance(label, str | bytes) and label in ("", "-1", b"", b"-1")):
        return True
    try:
        return bool(label != label) or (label == -1 and not isinstance(label, bool))
    except (TypeError, ValueError):  # pandas' NA, which is neither equal to itself nor unequal
        return True


def plain(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels of one type, in an array of that type where they came as objects; texts stay objects."""
    if labels.dtype.kind != "O" or all(isinstance(label, str) for label in labels):
        return labels
    kinds = {type(label).__name__ for label in labels}
    found = np.asarray(labels.tolist())
    if found.ndim == 1 and found.dtype.kind in "iufb" and ("bool" not in kinds or len(kinds) == 1):
        return found
    raise DataError(f"The labels are of several types, or of one that is no label: {', '.join(sorted(kinds))}.")
