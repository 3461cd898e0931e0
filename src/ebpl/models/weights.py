"""A model's weights in one file, with the description that is needed to use them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.config.compat import modern_architecture
from ebpl.errors import RunError, is_memory
from ebpl.io import is_object, is_text, is_whole, wrong_entry

if TYPE_CHECKING:
    from torch import Tensor

    from ebpl.data.dataset import ImageSet
    from ebpl.models import HybridModel

LOG_MIX = "log_mix"
"""The name of a tensor that a file may have: what a class mix adds to the scores."""
LARGEST = 4096
"""Images of more pixels in height or width are no model's."""


def packed_model(state: Mapping[str, Tensor], description: dict[str, Any]) -> bytes:
    """Weights as safetensors, with their description and their check sum in the file's own metadata."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in state.items()}
    whole = {**description, "sha256": _check_sum(tensors, description)}
    return save(tensors, {"ebpl": json.dumps(whole, ensure_ascii=False)})  # one entry: the order of several is random


def _check_sum(tensors: Mapping[str, Tensor], description: dict[str, Any]) -> str:
    """Of names, shapes and values of all tensors, and of their description."""
    found = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def load_model(path: Path) -> tuple[HybridModel, dict[str, Any]]:
    """A model from a safetensors file that `Run.save_model` wrote; nothing is unpickled."""
    import torch
    from safetensors import SafetensorError, safe_open

    from ebpl.models import Architecture

    if not path.is_file():
        raise RunError(f"{path} does not exist: the run has no weights yet. Continue with: ebpl resume {path.parent}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if "ebpl" not in metadata:
                raise ValueError("it does not say what its tensors are")
            description: dict[str, Any] = json.loads(metadata["ebpl"])
            names = file.keys()
            if is_object(description):
                check_sum, given = description.pop("sha256", None), dict(description)  # version 0.2 had none
                shape = description.get("image_shape")
                description["architecture"] = modern_architecture(description.get("architecture"), shape)
            if reason := _wrong(description, len(names)):
                raise ValueError(reason)
            built = description["architecture"]
            architecture = Architecture(**{**built, "image_shape": tuple(built["image_shape"])})
            with torch.device("meta"):  # shapes without memory: the description may claim any size
                wanted = {name: list(tensor.shape) for name, tensor in architecture.build().state_dict().items()}
            if LOG_MIX in names:  # only where the class mix is another than that of the labels
                wanted[LOG_MIX] = [architecture.classes]
            if wanted != {name: file.get_slice(name).get_shape() for name in names}:
                raise ValueError("its tensors are not those of the network that it describes")
            tensors = {name: file.get_tensor(name) for name in names}
            if check_sum is not None and check_sum != _check_sum(tensors, given):
                raise ValueError("its check sum is wrong")
        model = architecture.build()
        load_weights(model, tensors)
        values = (*model.state_dict().values(), model.log_mix)  # as the model has them
        if not all(tensor.isfinite().all() for tensor in values):
            raise ValueError("it has weights that are not finite numbers")
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        if isinstance(error, RuntimeError) and is_memory(error):  # others quote the file, which may say anything
            raise
        reason = f"options have no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise RunError(
            f"{path} is damaged or was not written by ebpl: {reason}. Where the run still has a checkpoint, remove the "
            f"file, and it is written anew by: ebpl resume {path.parent}"
        ) from error
    return model.eval(), description


def load_weights(model: HybridModel, tensors: Mapping[str, Tensor]) -> None:
    """Put the weights of a file into a model, with the class mix that they may have."""
    weights = dict(tensors)
    mix = weights.pop(LOG_MIX, None)
    model.load_state_dict(weights)
    if mix is not None:
        model.set_mix(mix)


def _wrong(description: Any, tensors: int) -> str | None:
    """What is wrong with the description of a model with this number of tensors; None if nothing is."""
    from ebpl.models import backbones
    from ebpl.models.wide_resnet import MOST

    rules = {"architecture": is_object, "classes": _is_names, "image_shape": _is_shape, "chosen": is_object}
    parts = {
        "backbone": lambda value: value in backbones(),
        "image_shape": _is_shape,
        "classes": is_whole,
        "precision_matrix": _is_precision,
        "options": _is_options,
    }
    reason = wrong_entry(description, rules, {})
    reason = reason or wrong_entry(description["architecture"], parts, {})
    if reason:
        return reason
    built, shape = description["architecture"], description["image_shape"]
    if built.keys() - parts.keys():
        return f"architecture has an unknown entry {min(built.keys() - parts.keys())}"
    if built["backbone"] == "wide_resnet" and built["options"].get("depth", 0) > tensors + 4:  # a weight a layer
        return f"it has {tensors} tensors for a depth of {built['options']['depth']}"
    if built["backbone"] == "wide_resnet" and built["options"].get("stages", 0) > MOST:
        return f"it has {built['options']['stages']} stages"
    if built["classes"] != len(description["classes"]) or list(built["image_shape"]) != shape:
        return "classes or image_shape are not those of the network"
    return f"image_shape is {shape}" if max(shape[1:]) > LARGEST else None


def _is_options(value: Any) -> bool:
    """Numbers, the kind of normalisation, and what an encoder is called, where it is from and how it is trained."""
    named = ("encoder", "digest", "architecture", "title", "licence", "source", "fine_tune", "norm")
    return is_object(value) and all(is_text(each) if key in named else is_whole(each) for key, each in value.items())


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(is_whole, value))


def _is_precision(value: Any) -> bool:
    return value in (None, "identity", "diagonal", "full")


def describe_model(model: HybridModel, data: ImageSet) -> dict[str, Any]:
    """The description that is needed to use the weights."""
    return {
        "architecture": asdict(model.architecture),
        "classes": list(data.classes),
        "image_shape": list(data.shape),
        "pixels": "uint8 / 127.5 - 1",
    }
