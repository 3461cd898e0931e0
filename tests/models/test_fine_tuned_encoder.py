"""An encoder that learns: what its features are, which of its weights learn, and what a run with it keeps."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ebpl
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.data.dataset import ImageSet, from_arrays
from ebpl.encoders import Encoder
from ebpl.encoders.weights import build_network
from ebpl.errors import DataError, RunError, UsageError
from ebpl.models import Architecture, build_backbone
from ebpl.models.encoder import PrincipalComponents
from ebpl.models.fine_tuned_encoder import FineTunedEncoder, Pixels, blocks, build, last_blocks, options_for
from ebpl.models.weights import load_model
from ebpl.recommendation import settings_for
from ebpl.rng import generator
from ebpl.terminal import Silent
from ebpl.training.callbacks import Callback
from ebpl.training.losses import Outputs
from tests.encoders.helpers import PUBLISHED, crops, small, tiny
from tests.helpers import random_images, result, trainer_of

SIZE = 32
SHORT = {
    "model.components": 8,
    "optim.epochs": 2,
    "optim.updates_per_epoch": 2,
    "optim.batch_size": 4,
    "optim.warmup_updates": 1,
    "curriculum.steps": 1,
    "curriculum.epochs": 1,
    "consistency.batch_size": 4,
    "consistency.confidence_threshold": 0.0,
    "sgld.chains": 4,
    "sgld.buffer_size": 16,
    "runtime.checkpoint_seconds": 0.0,
}


def pieces(count: int = 30) -> ImageSet:
    """Pieces of a palace and of a flower, the first ten with labels and the last six for testing."""
    pixels, labels = crops(count, SIZE), np.arange(count) % 2
    given = np.where(np.arange(count) < 10, labels, -1)
    kept = count - 6
    return from_arrays(pixels[:kept], given[:kept], test_images=pixels[kept:], test_labels=labels[kept:], name="pieces")


def settings_of(encoder: Encoder, **changes: object) -> Settings:
    """A few updates of a small encoder."""
    return preset("fine-tuned", {"model.encoder": encoder.info.name, **SHORT}).changed(changes)


def backbone(encoder: Encoder, fine_tune: str = "all", **changes: object) -> FineTunedEncoder:
    """The backbone with the encoder's weights, fitted to pieces of photographs."""
    chosen = settings_of(encoder, fine_tune=fine_tune).changed(changes).model
    built = build_backbone("fine_tuned_encoder", options_for(chosen), (3, SIZE, SIZE))
    assert isinstance(built, FineTunedEncoder)
    built.fit(built.prepare(crops(12, SIZE)))
    return built


@pytest.fixture
def encoder() -> Encoder:
    return small(size=SIZE)


# --- the backbone ----------------------------------------------------------------------------------------------------


def test_its_features_are_those_of_the_network_on_principal_components(encoder: Encoder) -> None:
    images, built = crops(12, SIZE), backbone(encoder)
    mean, std = (torch.tensor(values)[:, None, None] for values in (encoder.info.mean, encoder.info.std))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        features = encoder.network()((pixels - mean) / std)
        found = built(built.scale(built.prepare(images)))
    components = PrincipalComponents(1280, 8)
    components.fit(features)
    torch.testing.assert_close(found, components.scale(features), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found, built.points(built.prepare(images)))


def test_errors_of_training_images_are_those_of_new_features_by_components_of_old_ones_of_others(
    encoder: Encoder,
) -> None:
    built = backbone(encoder)
    assert built.discards_components
    prepared = built.prepare(crops(20, SIZE))
    old = built._all_encoded(prepared)
    unlearned = built.cross_validated_errors(prepared)
    torch.testing.assert_close(unlearned, built.components.cross_validated_errors(old))
    with torch.no_grad():
        next(built.network.parameters()).mul_(1.5)
    new, found, expected = built._all_encoded(prepared), built.cross_validated_errors(prepared), torch.ones(20).double()
    order = np.random.default_rng(0).permutation(20)
    for fold in range(5):
        others = PrincipalComponents(1280, 8)
        others.fit(old[np.setdiff1d(order, order[fold::5])])
        errors = others.reconstruction_error(others.scale(new[order[fold::5]]))
        assert errors is not None
        expected[order[fold::5]] = errors
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, unlearned)
    assert torch.equal(built._all_encoded(prepared), new), "what it has learned is kept"


@pytest.mark.parametrize("shape", [(SIZE, SIZE, 3), (SIZE, SIZE, 1), (20, 50, 3), (70, 70, 1)])
def test_images_of_any_size_are_kept_as_bytes_at_that_of_the_encoder(
    encoder: Encoder, shape: tuple[int, int, int]
) -> None:
    images = random_images(70, *shape)
    kept = backbone(encoder).prepare(images)
    assert (kept.dtype, kept.shape) == (torch.uint8, (70, 3, SIZE, SIZE))
    if shape[2] == 1:
        assert (kept[:, 0] == kept[:, 2]).all()
    if shape[:2] == (SIZE, SIZE):
        assert (kept.permute(0, 2, 3, 1).numpy() == images).all()
    assert (Pixels(*shape[:2], SIZE)(torch.from_numpy(images)) == kept).all()


def test_images_that_an_encoder_cannot_take_are_refused(encoder: Encoder) -> None:
    with pytest.raises(DataError, match="takes images as bytes"):
        backbone(encoder).prepare(random_images(2, SIZE, SIZE, 4))


def test_batch_normalisation_never_takes_statistics_of_a_batch(encoder: Encoder) -> None:
    built = backbone(encoder)
    images = built.scale(built.prepare(crops(6, SIZE)))
    before = {name: buffer.clone() for name, buffer in built.named_buffers()}
    together = built.train()(images)
    torch.testing.assert_close(together[:1], built(images[:1]), atol=1e-4, rtol=1e-4)
    assert all(torch.equal(buffer, before[name]) for name, buffer in built.named_buffers())


@pytest.mark.parametrize("architecture", ["efficientnet_lite0", "mobilenet_v2"])
def test_the_last_blocks_are_a_third_of_all_and_hold_the_output(architecture: str) -> None:
    network, _ = build_network(architecture)
    every, last = list(blocks(network)), last_blocks(network)
    assert (len(every), len(last)) in ((20, 7), (21, 7))
    assert sum(p.numel() for part in every for p in part.parameters()) == sum(p.numel() for p in network.parameters())
    assert next(reversed(list(network.parameters()))) in set(last[-1].parameters())


def test_where_only_the_last_blocks_learn_the_first_do_not(encoder: Encoder) -> None:
    built = backbone(encoder, "last")
    built(built.scale(built.prepare(crops(2, SIZE)))).square().sum().backward()
    learned = [parameter.grad is not None for parameter in built.network.parameters()]
    assert learned == sorted(learned), "the first do not, the last do"
    assert 0 < sum(learned) < len(learned)
    assert all(parameter.requires_grad for parameter in backbone(encoder, "all").network.parameters())


def test_an_onnx_model_cannot_be_fine_tuned_and_says_so_before_anything_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Encoder, "encode", None)
    with pytest.raises(UsageError, match="ONNX model, which has no network to train"):
        ebpl.train(pieces(), encoder=tiny().info.name, fine_tune="all", run="run")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"architecture": "vgg"}, "is no encoder that can be fine-tuned"),
        ({"size": 10**6}, "is no encoder that can be fine-tuned"),
        ({"fine_tune": "none"}, "is no encoder that can be fine-tuned"),
        ({"dimension": 7}, "does not have 7 features"),
    ],
)
def test_options_that_describe_no_such_network_are_refused(
    encoder: Encoder, wrong: dict[str, object], message: str
) -> None:
    options = {**options_for(settings_of(encoder).model), **wrong}
    with pytest.raises(ValueError, match=message):
        build_backbone("fine_tuned_encoder", options, (3, SIZE, SIZE))


# --- training --------------------------------------------------------------------------------------------------------


def test_training_starts_from_logistic_regression_on_the_features_of_the_pretrained_network(encoder: Encoder) -> None:
    trainer = trainer_of(settings_of(encoder), pieces())
    next(trainer.work())
    state, images = trainer.state, trainer.training_set
    pretrained = encoder.network().state_dict()
    mine = state.model.features.network.state_dict()
    assert all(torch.equal(value, pretrained[name]) for name, value in mine.items())
    found = trainer.predict(images.inputs[: images.labeled])
    assert (found.labels == images.labels).all()
    rows = images.backbone.points(images.inputs[: images.labeled])
    by_head = state.model.classifier(rows).softmax(1).detach().numpy()
    np.testing.assert_allclose(found.probabilities, by_head, atol=1e-5)
    assert state.buffer is not None
    assert state.buffer.samples.shape == (16, 8), "chains are features"
    assert state.buffer.samples.abs().max() > 0


def test_a_step_changes_the_network_its_average_follows_and_statistics_stay(encoder: Encoder) -> None:
    trainer = trainer_of(settings_of(encoder), pieces())
    work = trainer.work()
    next(work)
    before = {name: tensor.clone() for name, tensor in trainer.state.model.features.state_dict().items()}
    next(work)
    after, average = trainer.state.model.features.state_dict(), trainer.state.average
    learned = {name for name, _ in trainer.state.model.features.named_parameters()}
    assert all(torch.equal(after[name], before[name]) == (name not in learned) for name in before)
    assert average is not None
    assert all(not torch.equal(average.features.state_dict()[name], before[name]) for name in learned)


def test_the_density_does_not_reach_the_network(encoder: Encoder) -> None:
    trainer = trainer_of(settings_of(encoder), pieces())
    next(trainer.work())
    step = trainer.step
    (density,) = (term for term in step.terms if term.density)
    views = density.views(step)
    assert [each.shape for each in views.inputs] == [(4, 8), (4, 8)], "features of images, and samples"
    outputs = [Outputs(*trainer.state.model.heads(each)) for each in views.inputs]
    torch.autograd.backward(density.loss(trainer.state.model, outputs, views).value)
    assert all(parameter.grad is None for parameter in trainer.state.model.features.parameters())
    assert trainer.state.model.gaussian is not None
    assert trainer.state.model.gaussian.means.grad is not None


def test_the_network_learns_at_a_fraction_of_the_rate_of_the_heads(encoder: Encoder) -> None:
    trainer = trainer_of(settings_of(encoder, encoder_lr_factor=0.25), pieces())
    trainer.state.set_learning_rate(0.5)
    heads, network = trainer.state.optimizer.param_groups
    assert (heads["lr"], network["lr"]) == (0.5, 0.125)
    assert set(network["params"]) == set(trainer.state.model.features.parameters())
    only_last = trainer_of(settings_of(encoder, fine_tune="last"), pieces()).state.optimizer.param_groups[1]["params"]
    assert 0 < len(only_last) < len(network["params"])


def test_it_says_how_long_it_takes_on_a_cpu(encoder: Encoder) -> None:
    said: list[str] = []

    class Listens(Callback):
        def message(self, text: str, warning: bool = False) -> None:
            said.append(text)

    next(trainer_of(settings_of(encoder), pieces(), Listens()).work())
    assert said[-1].startswith("fine-tuning will take about ")


def check_that_an_interrupted_run_ends_with_the_same_bits(settings: Settings) -> None:
    class StopError(Exception):
        pass

    class Stops(Silent):
        def epoch(self, text: str) -> None:
            if text.startswith("initial, epoch 2"):
                raise StopError

    data = pieces()
    whole = ebpl.train(data, settings, run="whole")
    with pytest.raises(StopError):
        ebpl.train(data, settings, run="parts", progress=Stops())
    assert result(ebpl.resume("parts", data=data).path) == result(whole.path)


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_with_the_same_bits(encoder: Encoder) -> None:
    check_that_an_interrupted_run_ends_with_the_same_bits(settings_of(encoder))


def test_a_trained_model_needs_no_file_of_the_encoder(encoder: Encoder) -> None:
    run = ebpl.train(pieces(), settings_of(encoder), run="run")
    before = ebpl.predict(run, crops(3, SIZE))
    Path(encoder.info.name).unlink()
    assert ebpl.predict("run", crops(3, SIZE)) == before
    model, _ = load_model(Path("run/best.safetensors"))
    assert model.features.options["licence"] == encoder.info.licence
    with pytest.raises(UsageError, match="There is no file"):
        Architecture.of(settings_of(encoder).model, (3, SIZE, SIZE), 2, True)


@pytest.mark.parametrize("name", ["fine-tuned", "fine-tuned-end"])
def test_outliers_are_told_by_what_the_principal_components_leave_out(encoder: Encoder, name: str) -> None:
    run = ebpl.train(pieces(36), preset(name, {"model.encoder": encoder.info.name, **SHORT}), run="run")
    known = run.metrics()["training_reconstruction_errors"]
    assert len(known) == 201
    assert 0 < known[0] < known[-1] <= 1
    rows = ebpl.predict(run, np.concatenate([crops(36, SIZE)[-6:], random_images(20, SIZE, SIZE, 3)]))
    errors = [row["reconstruction_error"] for row in rows]
    limit = float(np.quantile(known, 0.99))
    assert [row["outlier"] for row in rows] == [error > limit for error in errors]
    assert np.mean(errors[6:]) > np.mean(errors[:6]), "noise is no photograph"


def test_a_run_does_not_continue_with_another_encoder_of_the_same_name(encoder: Encoder) -> None:
    built = backbone(encoder)
    small(size=2 * SIZE)
    with pytest.raises(RunError, match="another encoder than"):
        built.fit(built.prepare(crops(2, SIZE)))


def test_an_encoder_is_needed_and_the_default_one_is_taken_where_no_preset_says_otherwise() -> None:
    with pytest.raises(UsageError, match="Only an encoder can be fine-tuned"):
        ebpl.train(pieces(), preset="quick", fine_tune="all", run="run")
    with pytest.raises(UsageError, match=r"The backbone fine_tuned_encoder needs model\.encoder"):
        ebpl.train(pieces(), backbone="fine_tuned_encoder", run="run")
    assert settings_for("photos", changes={"model.fine_tune": "last"})[0] == preset("fine-tuned", fine_tune="last")


@pytest.mark.parametrize("architecture", PUBLISHED)
@pytest.mark.parametrize("fine_tune", ["end", "all"])
def test_predictions_on_a_cpu_are_those_with_batch_normalisation(architecture: str, fine_tune: str) -> None:
    options = options_for(preset("fine-tuned-end", {"model.encoder": small(architecture, SIZE).info.name}).model)
    backbone = build({**options, "fine_tune": fine_tune}, (3, SIZE, SIZE))
    backbone.initialise(generator(0, "weights"))
    with torch.no_grad():
        for weight in backbone.network.parameters():  # as after some training
            weight.mul_(1.05)
    images = torch.rand(3, 3, SIZE, SIZE, generator=generator(0, "images")) * 2 - 1
    quick = backbone.for_prediction()
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in quick.modules())
    assert any(isinstance(part, torch.nn.BatchNorm2d) for part in backbone.modules())
    with torch.no_grad():
        expected = backbone.encoded(images)
        torch.testing.assert_close(quick.encoded(images), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
