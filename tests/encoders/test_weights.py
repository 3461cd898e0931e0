import pickle
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ebpl.encoders import ENCODERS, load_encoder
from ebpl.encoders.weights import NETWORKS, build_network, folded
from ebpl.errors import DataError, UsageError
from tests.encoders.helpers import crops, description, export_onnx, photographs, small, tiny, tiny_network


def published(name: str = "efficientnet_lite0") -> dict[str, torch.Tensor]:
    return torch.load(ENCODERS[name].path, weights_only=True)


def load(weights: str, architecture: str | None = "efficientnet_lite0") -> object:
    return load_encoder(str(description(weights, architecture=architecture)))


def test_the_same_weights_as_safetensors_give_the_same_features() -> None:
    expected = small(size=32).encode(crops(3))
    save_file({name: tensor.contiguous() for name, tensor in published().items()}, "w.safetensors")
    info = ENCODERS["efficientnet_lite0"]
    how = {"architecture": "efficientnet_lite0", "mean": info.mean, "std": info.std}
    found = load_encoder(str(description("w.safetensors", **how))).encode(crops(3))
    assert np.array_equal(found, expected)


def test_weights_of_another_architecture_are_refused_with_the_first_names() -> None:
    network, _ = build_network("mobilenet_v2")
    save_file(network.state_dict(), "w.safetensors")
    with pytest.raises(UsageError) as error:
        load("w.safetensors")
    text = str(error.value)
    assert "w.safetensors does not hold weights of efficientnet_lite0: it lacks _conv_stem.weight, _bn0.weight" in text
    assert "it has features." in text
    assert "Name another architecture in" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("_bn0.bias"), "it lacks _bn0.bias"),
        (lambda state: state.update(more=torch.zeros(1)), "it has more, which the network has not"),
        (
            lambda state: state.update({"_bn0.bias": torch.zeros(3)}),
            r"shapes differ: _bn0.bias \[3\] instead of \[32\]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, message: str) -> None:
    state = published()
    change(state)
    torch.save(state, "w.pth")
    with pytest.raises(UsageError, match=message):
        load("w.pth")


def test_numbers_that_are_not_finite_are_refused() -> None:
    torch.save({**published(), "_bn0.bias": torch.full((32,), torch.nan)}, "w.pth")
    with pytest.raises(DataError, match=r"w\.pth is damaged: _bn0\.bias has numbers that are not finite"):
        load("w.pth")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path("pwned").touch, ())


@pytest.mark.parametrize("wrap", [lambda evil: {"a": evil}, lambda evil: evil])
def test_nothing_is_unpickled(wrap) -> None:
    torch.save(wrap(Evil()), "w.pth")
    with pytest.raises(DataError, match="holds more than tensors"):
        load("w.pth")
    Path("w.pth").write_bytes(pickle.dumps(wrap(Evil())))
    with pytest.raises(DataError, match=r"w\.pth is damaged"):
        load("w.pth")
    assert not Path("pwned").exists()


@pytest.mark.parametrize("value", [[torch.zeros(2)], {"state_dict": {"a": torch.zeros(2)}}, torch.zeros(2)])
def test_what_is_no_state_dict_is_refused(value: object) -> None:
    torch.save(value, "w.pth")
    with pytest.raises(DataError, match=r"w\.pth is no state dict.*state_dict\(\)"):
        load("w.pth")


@pytest.mark.parametrize("ending", ["pth", "safetensors", "onnx"])
@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[: len(whole) // 2], lambda whole: b"x" * 99])
def test_damaged_files_are_named(ending: str, damage) -> None:
    path = Path(f"w.{ending}")
    if ending == "onnx":
        export_onnx(tiny_network(), str(path))
    elif ending == "pth":
        torch.save(tiny_network().state_dict(), path)
    else:
        save_file(tiny_network().state_dict(), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises((DataError, UsageError), match=rf"w\.{ending}"):
        load(path.name, None if ending == "onnx" else "efficientnet_lite0")


def test_a_damaged_package_is_told_by_its_check_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    info = ENCODERS["efficientnet_lite0"]
    content = bytearray(info.path.read_bytes())
    content[len(content) // 2] ^= 1
    Path("w.pth").write_bytes(content)
    monkeypatch.setattr(type(info), "path", Path("w.pth"))
    with pytest.raises(
        DataError, match=r"its check sum is not the published one\. Install it again with: pip install --f"
    ):
        load_encoder("efficientnet_lite0")


def test_building_a_network_uses_no_random_numbers_of_others() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    build_network("efficientnet_lite0")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_onnx_file_computes_what_its_network_computes() -> None:
    encoder, images = tiny(), photographs()
    network = tiny_network()
    normalised = torch.from_numpy(images).permute(0, 3, 1, 2) / 255 * 2 - 1
    normalised = nn.functional.interpolate(normalised, (32, 32), mode="bilinear", antialias=True)
    with torch.inference_mode():
        expected = (network(normalised) + network(normalised.flip(3))) / 2
    assert np.allclose(encoder.encode(images), expected, atol=1e-3)
    with pytest.raises(UsageError, match="ONNX model, which has no network"):
        encoder.network()


def test_an_onnx_file_may_have_its_weights_beside_it() -> None:
    encoder = tiny()
    model = onnx.load("tiny.onnx")
    onnx.save(model, "other.onnx", save_as_external_data=True, location="other.data", size_threshold=0)
    other = load_encoder(str(description("other.onnx")))
    assert Path("other.data").stat().st_size > 0
    assert np.array_equal(encoder.encode(crops(2)), other.encode(crops(2)))
    content = bytearray(Path("other.data").read_bytes())
    content[3] ^= 1
    Path("other.data").write_bytes(content)
    Path("other.onnx").touch()
    assert load_encoder("mine.toml").digest != other.digest
    Path("other.data").unlink()
    Path("other.onnx").touch()
    with pytest.raises(DataError, match=r"other\.onnx is damaged"):
        load_encoder("mine.toml")


def test_onnx_models_of_other_shapes_are_refused() -> None:
    export_onnx(tiny_network(), size=48)
    with pytest.raises(UsageError, match=r"takes images: tensor\(float\) \['batch', 3, 48, 48\], but must take one"):
        load("tiny.onnx", None)
    export_onnx(tiny_network(), fixed=True)
    with pytest.raises(UsageError, match=r"\[2, 3, 32, 32\].*Export it with a batch of any size"):
        load("tiny.onnx", None)
    export_onnx(nn.Linear(32, 2))
    with pytest.raises(UsageError, match="must give features"):
        load("tiny.onnx", None)


def test_onnx_models_with_other_inputs_or_outputs_are_refused() -> None:
    value = onnx.helper.make_tensor_value_info
    floats, shape = onnx.TensorProto.FLOAT, ["N", 3, 32, 32]

    def save(inputs: list[object], count: int) -> None:
        outputs = [value(f"y{i}", floats, shape) for i in range(count)]
        nodes = [onnx.helper.make_node("Abs", [inputs[0].name], [f"y{i}"]) for i in range(count)]
        graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
        opset = [onnx.helper.make_opsetid("", 17)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), "w.onnx")

    save([value("x", floats, shape)], 2)
    with pytest.raises(UsageError, match=r"gives 2 outputs \(y0, y1\)"):
        load("w.onnx", None)
    save([value("x", floats, shape), value("mask", floats, ["N"])], 1)
    with pytest.raises(UsageError, match=r"takes x: .*, mask: tensor\(float\)"):
        load("w.onnx", None)
    save([value("x", floats, ["N", 3])], 1)
    with pytest.raises(UsageError, match="must take one"):
        load("w.onnx", None)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_onnx_needs_an_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    export_onnx(tiny_network())
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=r"pip install 'ebpl\[export\]'"):
        load("tiny.onnx", None)


def network_with_statistics(architecture: str) -> nn.Module:
    """Random weights, and batch normalisation that does something."""
    random = torch.Generator().manual_seed(0)
    network = build_network(architecture)[0].eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, generator=random)
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.bias):
                nn.init.normal_(tensor, std=0.1, generator=random)
            for tensor in (module.running_var, module.weight):
                nn.init.uniform_(tensor, 0.5, 1.5, generator=random)
    return network


@pytest.mark.parametrize("architecture", NETWORKS)
@pytest.mark.parametrize("size", [64, 75])
def test_a_folded_network_gives_the_same_features(architecture: str, size: int) -> None:
    network = network_with_statistics(architecture)
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = network(images)
        assert expected.std(0).mean() > 0.1
        torch.testing.assert_close(folded(network)(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", NETWORKS)
def test_only_the_copy_is_without_batch_normalisation(architecture: str) -> None:
    network = network_with_statistics(architecture)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded(network).modules())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert len(before) == len(network.state_dict())
