"""A model's weights in a file of their own, with what a stranger needs to use them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.errors import RunError, is_memory
from ebpl.stored import is_object, is_text, is_whole, wrong_entry

if TYPE_CHECKING:
    from ebpl.data.images import ImageSet
    from ebpl.model.hybrid import HybridModel

LARGEST = 4096
"""Images of more pixels in height or width are no model's."""


def load_model(path: Path) -> tuple[HybridModel, dict[str, Any]]:
    """A model from a safetensors file that `Run.save_model` wrote; nothing is unpickled."""
    import torch
    from safetensors import SafetensorError, safe_open

    from ebpl.model.hybrid import Architecture

    if not path.is_file():
        raise RunError(f"{path} does not exist: the run has no weights yet. Go on with: ebpl resume {path.parent}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if "ebpl" not in metadata:
                raise ValueError("it does not say what its tensors are")
            description: dict[str, Any] = json.loads(metadata["ebpl"])
            names = file.keys()
            if reason := _wrong(description, len(names)):
                raise ValueError(reason)
            architecture = Architecture(**description["architecture"])
            with torch.device("meta"):  # shapes without memory: the description may claim any size
                wanted = {name: list(tensor.shape) for name, tensor in architecture.build().state_dict().items()}
            if wanted != {name: file.get_slice(name).get_shape() for name in names}:
                raise ValueError("its tensors are not those of the network that it describes")
            tensors = {name: file.get_tensor(name) for name in names}
        model = architecture.build()
        model.load_state_dict(tensors)
        if not all(tensor.isfinite().all() for tensor in model.state_dict().values()):  # as the model has them
            raise ValueError("it has weights that are not finite numbers")
    except (SafetensorError, TypeError, ValueError, RuntimeError, OSError) as error:
        if isinstance(error, RuntimeError) and is_memory(error):  # others quote the file, which may say anything
            raise
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"{path} is damaged or was not written by ebpl: {reason}. Where the run still has a checkpoint, remove the "
            f"file, and it is written anew by: ebpl resume {path.parent}"
        ) from error
    return model.eval(), description


def _wrong(description: Any, tensors: int) -> str | None:
    """What is wrong with the description of a model that has so many tensors; None if nothing is."""
    whole = dict.fromkeys(("depth", "width", "channels", "classes"), is_whole)
    rules = {"architecture": is_object, "classes": _is_names, "image_shape": _is_shape, "chosen": is_object}
    reason = wrong_entry(description, rules, {})
    reason = reason or wrong_entry(description["architecture"], {**whole, "precision": _is_precision}, {})
    if reason:
        return reason
    built, (channels, *sides) = description["architecture"], description["image_shape"]
    if built["depth"] > tensors + 4:  # each layer has at least a weight
        return f"it has {tensors} tensors for a depth of {built['depth']}"
    if built["classes"] != len(description["classes"]) or built["channels"] != channels:
        return "classes or image_shape are not those of the network"
    return f"image_shape is {description['image_shape']}" if max(sides) > LARGEST else None


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(is_whole, value))


def _is_precision(value: Any) -> bool:
    return value in (None, "identity", "diagonal", "full")


def describe_model(model: HybridModel, data: ImageSet, chosen: dict[str, Any]) -> dict[str, Any]:
    """What a stranger needs to use the weights."""
    return {
        "architecture": asdict(model.architecture),
        "classes": list(data.classes),
        "image_shape": list(data.shape),
        "pixels": "uint8 / 127.5 - 1",
        "chosen": chosen,
    }
