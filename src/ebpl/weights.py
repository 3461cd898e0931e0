"""A model's weights in a file of their own, with what a stranger needs to use them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.errors import RunError

if TYPE_CHECKING:
    from ebpl.data.images import ImageSet
    from ebpl.model.hybrid import HybridModel


def load_model(path: Path) -> tuple[HybridModel, dict[str, Any]]:
    """A model from a safetensors file that `Run.save_model` wrote; nothing is unpickled."""
    from safetensors import SafetensorError, safe_open

    from ebpl.model.hybrid import Architecture

    if not path.is_file():
        raise RunError(f"{path} does not exist: the run has no weights yet. Go on with: ebpl resume {path.parent}")
    try:
        with safe_open(path, "pt") as file:
            description: dict[str, Any] = json.loads(file.metadata()["ebpl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        architecture = Architecture(**description["architecture"])
        model = architecture.build()
        model.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise RunError(
            f"{path} is damaged or was not written by ebpl: {error}. Where the run still has a checkpoint, remove the "
            f"file, and it is written anew by: ebpl resume {path.parent}"
        ) from error
    return model.eval(), description


def describe_model(model: HybridModel, data: ImageSet, chosen: dict[str, Any]) -> dict[str, Any]:
    """What a stranger needs to use the weights."""
    return {
        "architecture": asdict(model.architecture),
        "classes": list(data.classes),
        "image_shape": list(data.shape),
        "pixels": "uint8 / 127.5 - 1",
        "chosen": chosen,
    }
