import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import ebpl
from ebpl.cli import main
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.errors import RunError, UsageError
from ebpl.inference import export as exporting
from ebpl.inference.export import card_path, export
from ebpl.models import Architecture
from ebpl.models.encoder import Preparation
from ebpl.models.predictions import predict
from ebpl.runs import Run
from tests.docs.pages import blocks, text_of
from tests.encoders.helpers import small, tiny
from tests.helpers import architecture, blobs, quick, random_images

LARGEST_PROBABILITY_DIFFERENCE = 1e-6
LARGEST_ENERGY_DIFFERENCE = 1e-5
"""Relative to the size of the energy. float32 has 1.2e-7; both sides add in their own order."""


def computed(model: bytes | Path, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What ONNX Runtime makes of images."""
    session = onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model))
    probabilities, energies = session.run(["probabilities", "energy"], {"images": images})
    return probabilities, energies


@pytest.mark.parametrize(
    "built",
    [
        architecture("diagonal", shape=(1, 8, 8)),
        architecture("full", shape=(3, 9, 14), classes=2),
        architecture("identity", width=2, shape=(1, 28, 28), classes=11),
        architecture(None, depth=16, shape=(3, 32, 32), classes=5),
    ],
)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_onnx_runtime_computes_what_ebpl_predicts_for_batches_of_any_size(built: Architecture, spread: float) -> None:
    channels, height, width = built.image_shape
    model = built.build().eval().initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():  # heads that disagree, and are surer of themselves than fresh ones
        for head in (model.classifier, model.gaussian):
            for parameter in head.parameters() if head else ():
                parameter.add_(spread * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)) / 10)
    graph = exporting._traced(exporting.Whole(model).eval(), list(built.image_shape))
    for count in (1, 7, 40):
        images = random_images(count, height, width, channels)
        probabilities, energies = computed(graph, images)
        expected = predict(model, images)
        assert np.abs(probabilities - expected.probabilities).max() < LARGEST_PROBABILITY_DIFFERENCE
        scale = 1 + np.abs(expected.energies).max()
        assert np.abs(energies - expected.energies).max() / scale < LARGEST_ENERGY_DIFFERENCE
        assert (probabilities.dtype, energies.shape) == (np.float32, (count,))


def test_the_trained_model_and_what_it_is_are_in_the_file(run: Run) -> None:
    path = export(run)
    assert path == Path("run/model.onnx")
    test = blobs().test
    assert test is not None
    model, _ = run.load_model()
    expected = predict(model, test.pixels)
    probabilities, energies = computed(path, test.pixels)
    assert np.abs(probabilities - expected.probabilities).max() < LARGEST_PROBABILITY_DIFFERENCE
    assert energies == pytest.approx(expected.energies, rel=1e-4, abs=1e-5)
    graph = onnx.load(path)
    (images,) = graph.graph.input
    dimensions = images.type.tensor_type.shape.dim
    assert images.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [d.dim_param or d.dim_value for d in dimensions] == ["batch", 8, 8, 1]
    told = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(told["classes"]) == ["0", "1", "2"]
    assert json.loads(told["image_shape"]) == [8, 8, 1]
    energies = predict(model, blobs().train.pixels).energies
    assert float(told["outlier_energy"]) == pytest.approx(np.quantile(energies, 0.99), rel=0.05, abs=0.05)
    training = json.loads(told["training"])
    assert training["images"]["labelled"] == {"0": 5, "1": 5, "2": 5}
    assert training["images"]["unlabelled"] == len(blobs().train) - 15
    assert training["metrics"] == run.metrics()["metrics"]
    assert "Not a medical device" in told["limits"]
    assert json.loads(told["class_mix"]) == pytest.approx([1 / 3] * 3)
    stored = run.metrics()["prediction_sets"]
    assert json.loads(told["prediction_sets"]) == {"wanted": 0.9, "least_probability": stored["least_probability"]}
    assert str(Path.cwd()) not in path.read_bytes().decode("latin1")


def test_the_file_is_used_without_ebpl_and_pytorch(run: Run) -> None:
    code = """
import json, sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
told = session.get_modelmeta().custom_metadata_map
height, width, channels = json.loads(told["image_shape"])
probabilities, energy = session.run(None, {"images": numpy.zeros((3, height, width, channels), numpy.uint8)})
assert not {"torch", "ebpl"} & set(sys.modules)
print(json.loads(told["classes"])[probabilities[0].argmax()])
"""
    command = [sys.executable, "-I", "-c", code, str(export(run, "elsewhere/blobs.onnx"))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    model, description = run.load_model()
    expected = predict(model, np.zeros((1, 8, 8), np.uint8)).labels[0]
    assert printed.strip() == description["classes"][expected]


def test_the_command_puts_a_card_beside_the_model(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "run", "--output", "out/blobs.onnx"]) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["blobs.onnx", "blobs_card.md"]
    assert str(Path("out/blobs_card.md")) in capsys.readouterr().out
    assert "blobs.onnx is an ONNX model" in Path("out/blobs_card.md").read_text(encoding="utf-8")
    assert card_path(Path("a.b/c.d.onnx")) == Path("a.b/c.d_card.md")
    assert main(["export", "run"]) == 0
    assert main(["export", "run"]) == 0  # the same weights give the same file, so it may be written again
    assert Path("run/model_card.md").is_file()


def test_a_classifier_alone_has_no_limit_for_outliers() -> None:
    ebpl.train(blobs(), quick(method="curriculum-labeling", pseudo_labels="none"), run="run")
    told = {entry.key for entry in onnx.load(export("run")).metadata_props}
    assert "outlier_energy" not in told


def test_a_model_that_computes_something_else_is_not_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting.Whole, "forward", lambda self, images: self.model(images.permute(0, 3, 1, 2) / 127.0))
    with pytest.raises(RunError, match="does not compute what the run's does"):
        export(run)
    assert not Path("run/model.onnx").exists()
    assert not Path("run/model_card.md").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_computes_no_finite_numbers_is_not_written(
    run: Run, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    model, description = run.load_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    monkeypatch.setattr(Run, "load_model", lambda _: (model, description))
    with pytest.raises(RunError, match="not finite"):
        export(run, "a.onnx")
    assert not Path("a.onnx").exists()


def test_a_link_or_a_folder_is_no_place_for_a_model(run: Run) -> None:
    Path("precious").write_text("untouched")
    Path("link.onnx").symlink_to("precious")
    Path("folder.onnx").mkdir()
    Path("a_card.md").symlink_to("precious")
    for name in ("link.onnx", "folder.onnx", "a.onnx"):
        with pytest.raises(UsageError, match=r"is a link|is a folder"):
            export(run, name)
    assert Path("precious").read_text() == "untouched"


def test_what_cannot_be_exported_is_a_message(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"ends in \.onnx"):
        export(run, "model.pt")
    with pytest.raises(RunError, match="no run at nowhere"):
        export("nowhere")
    Run.create("begun", quick(), blobs(), {})
    with pytest.raises(RunError, match="ebpl resume begun"):
        export("begun")
    Path("folder.onnx").mkdir()
    assert main(["export", "run", "--output", "folder.onnx"]) == 2
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", "run"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'ebpl[export]'" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"metrics": 5, "chosen": {"phase": "initial", "epoch": 1, "by": "x"}, "seconds": 1}',
        '{"metrics": null, "chosen": null}',
        '{"metrics": null, "chosen": {"phase": [], "epoch": {}, "by": 1}, "seconds": "long"}',
        '{"metrics": null, "chosen": {"phase": "a", "epoch": 1, "by": "b"}, "seconds": 1, "images": [1]}',
        '{"metrics": null, "chosen": {"phase": "a", "epoch": 1, "by": "b"}, "training_energies": ["?"]}',
    ],
)
def test_a_damaged_run_is_a_message(run: Run, content: str) -> None:
    Path("run/test_metrics.json").write_text(content)
    with pytest.raises(RunError, match="damaged"):
        export(run)
    assert not Path("run/model.onnx").exists()


def test_weights_that_lie_about_themselves_are_refused(run: Run) -> None:
    model, description = run.load_model()
    for lie in ({"classes": ["a"]}, {"classes": [1, 2, 3]}, {"image_shape": [3, 8, 8]}, {"image_shape": [1, 0, 8]}):
        run.save_model(model.state_dict(), {**description, **lie})
        with pytest.raises(RunError, match="is damaged or was not written by ebpl"):
            export(run)


@pytest.mark.parametrize("taken", ["mine.onnx", "mine_card.md"])
def test_an_existing_file_is_replaced_only_by_force(run: Run, taken: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(taken).write_text("precious")
    with pytest.raises(UsageError, match=rf"{taken} exists already"):
        export(run, "mine.onnx")
    assert main(["export", "run", "--output", "mine.onnx"]) == UsageError.exit_code
    assert f"{taken} exists already" in capsys.readouterr().err
    assert Path(taken).read_text() == "precious"
    assert main(["export", "run", "--output", "mine.onnx", "--force"]) == 0
    assert export(run, "mine.onnx", force=True) == Path("mine.onnx")
    assert Path(taken).read_bytes() != b"precious"


def test_the_files_in_the_run_directory_are_replaced(run: Run) -> None:
    for output in (None, "run/model.onnx"):
        Path("run/model.onnx").write_text("old")
        Path("run/model_card.md").write_text("old")
        export(run, output)
        assert Path("run/model_card.md").read_text() != "old"
        onnx.load("run/model.onnx")


@pytest.mark.parametrize("colour", [False, True])
def test_the_example_of_the_documentation_sees_images_as_predict_does(colour: bool) -> None:
    (example,) = [block.text for block in blocks("how-to/export.md") if "onnxruntime" in block.text]
    data = blobs()
    pixels = np.repeat(data.train.pixels, 3, axis=3) if colour else data.train.pixels
    run = ebpl.train(ebpl.from_arrays(pixels, data.train.labels), quick(epochs=2, pseudo_labels="none"), run="run")
    export(run, "photos.onnx")
    Path("new").mkdir()
    exif = Image.Exif()
    for turn in range(1, 9):
        exif[0x0112] = turn
        Image.fromarray(random_images(1, 9, 14, 3)[0]).save(f"new/turned {turn}.png", exif=exif)
    for mode, channels in (("RGBA", 4), ("LA", 2), ("RGB", 3)):
        image = Image.fromarray(random_images(1, 12, 10, channels)[0], mode)
        image.save(f"new/{mode}.png", **({"transparency": image.getpixel((3, 3))} if mode == "RGB" else {}))
    Image.fromarray(random_images(1, 8, 8)[0]).convert("P").save("new/palette.png", transparency=7)
    names: dict[str, object] = {}
    exec(compile(example, "export.md", "exec"), names)
    rows = ebpl.predict(run, "new")
    assert [str(path) for path in names["paths"]] == [row["image"] for row in rows]
    expected = [[row[f"p({name})"] for name in names["classes"]] for row in rows]
    np.testing.assert_allclose(names["probabilities"], expected, atol=1e-6)
    np.testing.assert_allclose(names["energy"], [row["energy"] for row in rows], rtol=1e-4, atol=1e-5)


ENCODED = {"optim.epochs": 1, "curriculum.epochs": 2, "sgld.steps": 1, "sgld.buffer_size": 128}


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on the features of a small encoder, for images that it has to resize; not to be changed."""
    place = tmp_path_factory.mktemp("encoded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBPL_CACHE", str(place / "cache"))
        patch.chdir(place)
        name = small().info.name
        return ebpl.train(blobs(), preset="features", set=ENCODED, encoder=name, run=place / "run")


def test_an_encoder_is_in_the_file_and_takes_pixels_of_the_size_of_the_run(encoded: Run) -> None:
    path = export(encoded, "encoded.onnx")
    (images,) = onnx.load(path).graph.input
    assert [d.dim_param or d.dim_value for d in images.type.tensor_type.shape.dim] == ["batch", 8, 8, 1]
    test = blobs().test
    assert test is not None
    model, _ = encoded.load_model()
    for some in (test.pixels[:1], test.pixels[:7], test.pixels):
        expected = predict(model, some)
        probabilities, energies = computed(path, some)
        assert np.abs(probabilities - expected.probabilities).max() < 2e-4  # features are rounded to 16 bits
        assert energies == pytest.approx(expected.energies, rel=1e-3)
    assert len(np.unique(predict(model, test.pixels).labels)) == 3, "or else all probabilities may be the same"


def test_the_file_and_its_card_name_the_encoder_with_licence_and_source_but_no_folder(encoded: Run) -> None:
    path = export(encoded, "encoded.onnx")
    told = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    about, network = json.loads(told["encoder"]), json.loads(told["training"])["network"]
    assert (about["name"], about["source"], network) == ("mine.toml", "efficientnet-lite0-57934424.pth", "mine.toml")
    assert (about["licence"], about["size"], about["resizes"]) == ("not stated", 64, True)
    card = card_path(path).read_text(encoding="utf-8")
    assert "| source of the weights | efficientnet-lite0-57934424.pth |" in card
    assert "| licence of the weights | not stated |" in card
    assert f"on {exporting.COMPARED_ENCODED} random images" in card
    assert str(encoded.path.parent) not in card
    assert str(encoded.path.parent) not in path.read_bytes().decode("latin1")


@pytest.mark.parametrize("of", [pytest.param(lambda: blobs(), marks=pytest.mark.slow), lambda: in_color()])
def test_a_fine_tuned_encoder_is_in_the_file_with_what_it_learned(of: Callable[[], ImageSet]) -> None:
    few = {"model.components": 8, "optim.updates_per_epoch": 1, "optim.batch_size": 4, "sgld.buffer_size": 64}
    how = {"fine_tune": "last", "encoder": small(size=32).info.name, "epochs": 1}
    run = ebpl.train(of(), run="run", set={**ENCODED, **few}, **how)
    Path("mine.toml").unlink()  # what it learned is in the run
    path, test, (model, _) = export(run, "tuned.onnx"), of().test, run.load_model()
    assert test is not None
    expected = predict(model, test.pixels)
    probabilities, energies = computed(path, test.pixels)
    assert np.abs(probabilities - expected.probabilities).max() < 2e-4
    assert energies == pytest.approx(expected.energies, rel=1e-3)
    about = json.loads({entry.key: entry.value for entry in onnx.load(path).metadata_props}["encoder"])
    assert (about["fine_tuned"], about["name"], about["licence"]) == (True, "mine.toml", "not stated")
    card = card_path(path).read_text(encoding="utf-8")
    assert "a pretrained encoder that was fine-tuned" in card
    assert "has learned more from these" in card
    assert str(Path.cwd()) not in card + path.read_bytes().decode("latin1")


def in_color() -> ImageSet:
    """`blobs` at the size of the encoder, with three channels."""
    gray = blobs()
    assert gray.test is not None
    larger = [np.kron(part.pixels, np.ones((1, 4, 4, 3), np.uint8)) for part in (gray.train, gray.test)]
    return from_arrays(larger[0], gray.train.labels, test_images=larger[1], test_labels=gray.test.labels)


def test_the_documentation_states_how_files_are_compared() -> None:
    (line,) = [line for line in text_of("how-to/export.md").splitlines() if "rounded to 16 bits" in line]
    found = [float(number) for number in re.findall(r"(?<!\w)0\.0\d*|\d+(?= random)|\d+(?=, since)", line)]
    assert found == [
        exporting.LARGEST_ENCODED_DIFFERENCE,
        exporting.LARGEST_DIFFERENCE,
        exporting.COMPARED_ENCODED,
        exporting.COMPARED,
    ]


def one_view(self: Preparation, pixels: torch.Tensor) -> torch.Tensor:
    images = self.resize(pixels) / 255
    return self.network((images - self.mean) / self.std)


def black(self: Preparation, pixels: torch.Tensor) -> torch.Tensor:
    images = self.resize(pixels)
    return self.network(images.clamp(max=0).expand(-1, 3, -1, -1))


@pytest.mark.parametrize("wrong", [one_view, black])
def test_a_file_in_which_images_are_prepared_otherwise_is_not_written(
    encoded: Run, monkeypatch: pytest.MonkeyPatch, wrong: object
) -> None:
    monkeypatch.setattr(Preparation, "forward", wrong)
    with pytest.raises(RunError, match="does not compute what the run's does"):
        export(encoded, "encoded.onnx")
    assert not Path("encoded.onnx").exists()


def test_a_network_that_onnx_does_not_know_is_a_message(encoded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = lambda self, pixels: torch.special.i0(one_view(self, pixels))  # noqa: E731
    monkeypatch.setattr(Preparation, "forward", unknown)
    with pytest.raises(UsageError, match=r"cannot be written as ONNX, opset 17.*i0"):
        export(encoded, "encoded.onnx")


def test_an_encoder_that_is_itself_onnx_cannot_be_exported(capsys: pytest.CaptureFixture[str]) -> None:
    ebpl.train(blobs(), preset="features", set=ENCODED, encoder=tiny().info.name, run="run")
    assert main(["export", "run"]) == UsageError.exit_code
    assert "is an ONNX model" in " ".join(capsys.readouterr().err.split())
    assert not Path("run/model.onnx").exists()


def test_an_encoder_that_has_changed_is_not_exported(encoded: Run) -> None:
    toml = encoded.path.parent / "mine.toml"
    before = toml.read_text()
    try:
        toml.write_text(before.replace("size = 64", "size = 96"))
        with pytest.raises(RunError, match="another encoder"):
            export(encoded, "encoded.onnx")
    finally:
        toml.write_text(before)
