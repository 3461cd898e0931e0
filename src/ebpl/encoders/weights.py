"""From the description of an encoder to what computes its features. Nothing is unpickled but tensors."""

from __future__ import annotations

import copy
import hashlib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebpl.encoders.registry import ONNX, TIMM, EncoderInfo, timm_config, timm_package
from ebpl.errors import DataError, UsageError, is_memory, some_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    Compute = Callable[[Tensor], Tensor]

NETWORKS = {"mobilenet_v2": "ebpl.encoders.mobilenet_v2", "efficientnet_lite0": "ebpl.encoders.efficientnet_lite"}
SHOWN = 3
"""Names of wrong weights that an error lists."""


def load_weights(info: EncoderInfo) -> tuple[Compute, str]:
    """What turns normalised images (N, 3, size, size) into features (N, D), and the SHA-256 of its weights."""
    if info.file is None:
        network = _pretrained_timm(info.architecture)
        return network, _tensors_digest(network.state_dict())
    path = info.path
    if path is None:
        raise UsageError(f"The weights of {info.name} are not installed. Install them with: {info.install}")
    try:
        if info.architecture == ONNX:
            return _onnx(path, info.size)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if info.sha256 not in (None, digest):
        again = info.install.replace("pip install", "pip install --force-reinstall")
        raise DataError(f"{path} is damaged: its check sum is not the published one. Install it again with: {again}")
    network, classifiers = build_network(info.architecture)
    state = {name: value for name, value in _read(path).items() if not name.startswith(classifiers)}
    if wrong := _mismatch(state, network.state_dict()):
        raise UsageError(
            f"{path} does not hold weights of {info.architecture}: {wrong}. Name another architecture in {info.name}, "
            "or export the network as .onnx."
        )
    network.load_state_dict(state)
    return network.eval(), digest


def build_network(architecture: str) -> tuple[nn.Module, tuple[str, ...]]:
    """A network with weights still to be loaded, and how names of its classifier begin, which is left out of it."""
    import torch

    with torch.random.fork_rng(devices=[]):  # the weights that it begins with are not used
        if architecture.startswith(TIMM):
            classifier = timm_config(architecture).classifier or ()
            names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
            return _timm_model(architecture, pretrained=False), tuple(f"{name}." for name in names)
        module = importlib.import_module(NETWORKS[architecture])
        return module.build(), (module.CLASSIFIER,)


def folded(network: nn.Module) -> nn.Module:
    """A copy without batch normalisation, which becomes part of the convolution before it, for what does not learn.

    Its features are the same, in about half the time on a CPU. `network` is one of `NETWORKS`.
    """
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    made = copy.deepcopy(network).eval()
    for module in list(made.modules()):
        before: tuple[str, nn.Module] | None = None
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                assert before is not None
                assert isinstance(before[1], nn.Conv2d)
                module.add_module(before[0], fuse_conv_bn_eval(before[1], child))
                module.add_module(name, nn.Identity())
            before = name, child
    return made


def is_network(architecture: str) -> bool:
    """Whether `build_network` takes this name."""
    return architecture in NETWORKS or architecture.startswith(TIMM)


def _pretrained_timm(architecture: str) -> nn.Module:
    import torch

    with torch.random.fork_rng(devices=[]):
        return _timm_model(architecture, pretrained=True).eval()


def _timm_model(architecture: str, *, pretrained: bool) -> nn.Module:
    """A model of timm without its classifier."""
    try:
        made: nn.Module = timm_package().create_model(
            architecture.removeprefix(TIMM), pretrained=pretrained, num_classes=0
        )
    except Exception as error:  # timm asks other packages and the network, which have errors of their own
        if isinstance(error, UsageError) or is_memory(error):
            raise
        hint = " Its weights are downloaded on first use." if pretrained else ""
        raise UsageError(f"timm could not make {architecture}: {first_line(error)}.{hint}") from error
    return made


def _tensors_digest(state: Mapping[str, Tensor]) -> str:
    import torch

    found = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from safetensors or from a state dict of PyTorch."""
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix.lower() == ".safetensors":
            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can be wrong in any way
        if is_memory(error):
            raise
        raise DataError(
            f"{path} is damaged, or holds more than tensors, which is not loaded: {first_line(error)}. Get the file "
            "again, or save only the network's state_dict()."
        ) from error
    if not isinstance(state, dict) or not all(torch.is_tensor(tensor) for tensor in state.values()):
        raise DataError(f"{path} is no state dict, which has tensors by name. Save the network's state_dict().")
    if bad := [name for name, tensor in state.items() if not tensor.isfinite().all()]:
        raise DataError(f"{path} is damaged: {some_of(bad, SHOWN)} has numbers that are not finite.")
    return state


def _mismatch(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """How weights differ from those of a network; nothing where they do not."""
    parts = []
    if missing := [name for name in wanted if name not in given]:
        parts.append(f"it lacks {some_of(missing, SHOWN)}")
    if extra := [name for name in given if name not in wanted]:
        parts.append(f"it has {some_of(extra, SHOWN)}, which the network has not")
    shapes = {name: (list(given[name].shape), list(wanted[name].shape)) for name in wanted if name in given}
    if other := [f"{name} {is_} instead of {should}" for name, (is_, should) in shapes.items() if is_ != should]:
        parts.append(f"shapes differ: {some_of(other, SHOWN)}")
    return "; ".join(parts)


def _onnx(path: Path, size: int) -> tuple[Compute, str]:
    """An ONNX model run by ONNX Runtime; weights in files beside it are read too."""
    import torch

    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"{path} needs ONNX Runtime: pip install 'ebpl[export]'") from error
    try:
        model = onnx.load(path).SerializeToString()  # all that counts is in these bytes
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a damaged file can be wrong in any way
        if is_memory(error):
            raise
        raise DataError(f"{path} is damaged, or no ONNX model: {first_line(error)}. Export it again.") from error
    given, results = session.get_inputs(), session.get_outputs()
    shape = given[0].shape if given else []
    dimensions = [one for one, needed in zip(shape, (None, 3, size, size), strict=False) if one != needed]
    fits = len(given) == 1 and given[0].type == "tensor(float)" and len(shape) == 4
    if not fits or any(isinstance(one, int) for one in dimensions):  # others are names of what may vary
        takes = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in given)
        raise UsageError(
            f"{path} takes {takes or 'no input'}, but must take one tensor(float) of (N, 3, {size}, {size}) for any N. "
            "Export it with a batch of any size, or change size in the .toml file."
        )
    if len(results) != 1:
        names = some_of([one.name for one in results], SHOWN)
        raise UsageError(f"{path} gives {len(results)} outputs ({names}), but must give one: features (N, D).")
    name = given[0].name

    def compute(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: images.contiguous().cpu().numpy()})[0])

    return compute, hashlib.sha256(model).hexdigest()


def first_line(error: BaseException) -> str:
    """What another package's error says, without its details."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
