from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import ebpl
from ebpl import models
from ebpl.config.presets import preset
from ebpl.errors import UsageError
from ebpl.models import Architecture, Backbone, GaussianHead, backbones, build_backbone, register_backbone
from ebpl.models.predictions import predict
from ebpl.models.wide_resnet import WideResNet
from ebpl.runs import Run
from ebpl.terminal import Silent
from tests.helpers import architecture, blobs, quick, result, trainer_of

PRECISIONS = ["identity", "diagonal", "full"]


def test_the_heads_start_in_agreement() -> None:
    for precision in PRECISIONS:
        model = architecture(precision, classes=5).build().initialise(torch.Generator().manual_seed(3))
        assert model.coupling().item() == 0
        images = torch.rand(4, 1, 8, 8) * 2 - 1
        scores, energies = model(images)
        features = model.features(images)
        assert model.gaussian is not None
        torch.testing.assert_close(torch.softmax(scores, 1), model.gaussian.posterior(features))
        torch.testing.assert_close(energies, model.gaussian.energy(features))


def test_initialisation_is_a_function_of_the_generator_alone() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.rand(seed)  # whatever happened to the global generator before
        model = architecture("full").build().initialise(torch.Generator().manual_seed(5))
        return model.state_dict()

    first, second = weights(1), weights(2)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_classifier_alone_has_no_gaussian_parameters_and_no_coupling() -> None:
    model = architecture(None, shape=(3, 8, 8), classes=4).build().initialise(torch.Generator().manual_seed(0))
    assert not [name for name, _ in model.named_parameters() if "gaussian" in name]
    scores, energies = model(torch.zeros(2, 3, 8, 8))
    assert model.coupling().item() == 0
    torch.testing.assert_close(energies, -torch.logsumexp(scores, 1))


def random_head(precision: str, classes: int, dimension: int, seed: int) -> GaussianHead:
    torch.manual_seed(seed)
    head = GaussianHead(dimension, classes, precision).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return head


def precision_matrix(head: GaussianHead) -> np.ndarray:
    """The precision matrix written out, independently of the head's own arithmetic."""
    dimension = head.means.shape[1]
    if head.precision == "diagonal":
        return np.diag(np.exp(head.log_precision.detach().numpy()))
    if head.precision == "full":
        lower = np.tril(head.factor.detach().numpy())
        return lower @ lower.T
    return np.eye(dimension)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_class_energies_are_the_quadratic_form_written_out(precision: str) -> None:
    head = random_head(precision, 3, 5, seed=1)
    features = torch.randn(7, 5, dtype=torch.float64)
    matrix, means = precision_matrix(head), head.means.detach().numpy()
    expected = [[0.5 * (f - m) @ matrix @ (f - m) for m in means] for f in features.numpy()]
    np.testing.assert_allclose(head.class_energies(features).detach().numpy(), expected)
    total = -np.log(np.exp(-np.array(expected)).sum(1))
    np.testing.assert_allclose(head.energy(features).detach().numpy(), total)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_energy_gradient_is_what_autograd_finds(precision: str) -> None:
    head = random_head(precision, 4, 5, seed=2)
    features = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(head.energy(features).sum(), features)
    torch.testing.assert_close(head.energy_gradient()(features), expected)


def test_energy_gradient_of_scores_is_what_autograd_finds_with_a_class_mix_too() -> None:
    model = architecture(None).build().initialise(torch.Generator().manual_seed(3))
    model.set_mix([0.5, -0.5, 0.1])
    features = torch.randn(7, model.features.dimension, requires_grad=True)
    (expected,) = torch.autograd.grad(model.heads(features)[1].sum(), features)
    torch.testing.assert_close(model.energy_head.energy_gradient()(features.detach()), expected)


def test_the_gaussian_head_makes_the_energies_where_there_is_one() -> None:
    model = architecture("diagonal").build()
    assert model.energy_head is model.gaussian


@given(
    precision=st.sampled_from(PRECISIONS),
    classes=st.integers(2, 6),
    dimension=st.integers(1, 8),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_zero_coupling_makes_the_softmax_posterior_the_gaussian_posterior(
    precision: str, classes: int, dimension: int, seed: int
) -> None:
    # the identity of the paper's appendix
    head = random_head(precision, classes, dimension, seed)
    weight, bias = head.natural_weight(), head.natural_bias()
    assert head.coupling(weight, bias).item() == 0
    features = torch.randn(5, dimension, dtype=torch.float64)
    softmax = torch.softmax(features @ weight.T + bias, 1)
    torch.testing.assert_close(softmax, head.posterior(features))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_coupling_is_the_papers_third_term(precision: str) -> None:
    head = random_head(precision, 4, 3, seed=2)
    weight, bias = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    matrix, means = precision_matrix(head), head.means.detach().numpy()
    expected = sum(
        np.sum((w - matrix @ m) ** 2) + (b + 0.5 * m @ matrix @ m) ** 2
        for w, b, m in zip(weight.numpy(), bias.numpy(), means, strict=True)
    )
    assert head.coupling(weight, bias).item() == pytest.approx(expected)
    assert expected > 0


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="spherical"):
        GaussianHead(2, 2, "spherical")


# --- backbones -------------------------------------------------------------------------------------------------------


def test_the_backbone_of_the_settings_is_built_with_its_options() -> None:
    made = Architecture.of(preset("quick").model, (1, 8, 8), 3, density=True)
    assert made == Architecture("wide_resnet", (1, 8, 8), 3, "diagonal", {"depth": 10, "width": 1, "stages": 3})
    assert Architecture.of(preset("quick").model, (1, 8, 8), 3, density=False).precision_matrix is None
    network = build_backbone("wide_resnet", {"depth": 16, "width": 2}, (3, 32, 32))
    assert isinstance(network, WideResNet)
    assert (network.dimension, network.stem.in_channels, len(network.blocks)) == (128, 3, 6)
    assert network.takes_images


def test_pixels_are_kept_as_bytes_and_scaled_to_minus_one_to_one() -> None:
    network = build_backbone("wide_resnet", {"depth": 10, "width": 1}, (3, 4, 5))
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    kept = network.prepare(pixels)
    assert (kept.dtype, kept.shape) == (torch.uint8, (6, 3, 4, 5))
    np.testing.assert_array_equal(kept.permute(0, 2, 3, 1).numpy(), pixels)
    np.testing.assert_allclose(network.scale(kept).numpy(), pixels.transpose(0, 3, 1, 2) / 255 * 2 - 1, atol=1e-6)


def test_an_unknown_backbone_suggests_a_known_one() -> None:
    assert backbones() == ["encoder", "fine_tuned_encoder", "rows", "wide_resnet"]
    with pytest.raises(UsageError, match=r"There is no backbone 'wide_resnt'\. Did you mean wide_resnet"):
        build_backbone("wide_resnt", {}, (1, 8, 8))
    with pytest.raises(UsageError, match="Did you mean wide_resnet"):
        ebpl.train(blobs(), quick(model__backbone="wide_resnt"), run="run")
    for module in ("weights", "predictions", "outliers"):  # files of the package that are no backbones
        with pytest.raises(UsageError, match="There is no backbone"):
            build_backbone(module, {}, (1, 8, 8))


class Quarters(Backbone):
    """The mean and the spread of each quarter of an image, as feature rows, through a small network."""

    takes_images = False
    dimension = 12

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8 * channels, 24), nn.Tanh(), nn.Linear(24, self.dimension))

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        values = pixels.astype(np.float32) / 127.5 - 1
        height, width = values.shape[1] // 2, values.shape[2] // 2
        quarters = [values[:, y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
        rows = [part for each in quarters for part in (each.mean((1, 2)), each.std((1, 2)))]
        return torch.from_numpy(np.concatenate(rows, 1))

    def scale(self, prepared: Tensor) -> Tensor:
        return prepared

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.zero_()


@pytest.fixture
def _quarters() -> Iterator[None]:
    register_backbone("quarters", lambda options, shape: Quarters(shape[0]))
    yield
    del models._registered["quarters"]


ON_ROWS = {"model.backbone": "quarters", "model.depth": 17, "epochs": 12, "learning_rate": 0.02, "curriculum.steps": 2}


@pytest.mark.usefixtures("_quarters")
def test_a_backbone_on_feature_rows_is_trained_by_the_same_trainer() -> None:
    training = trainer_of(quick(**ON_ROWS))
    images = training.training_set
    assert (images.inputs.dtype, images.inputs.shape) == (torch.float32, (120, 8))
    state = training.state
    assert state.buffer is not None
    assert state.buffer.samples.shape == (128, 8), "SGLD samples what the network takes"
    next(training.work())
    rows = images.take(torch.arange(5))
    assert torch.equal(training.step.weak(rows), rows), "rows cannot be shifted"
    assert torch.equal(training.step.strong(rows), rows)
    training.train()
    history = state.progress.history
    assert history[-1]["cross_entropy"] < 0.8 * history[0]["cross_entropy"]
    assert all(np.isfinite(row["energy_gap"]) for row in history)
    assert state.buffer.samples.abs().max() <= 1
    assert all(parameter.grad is not None for parameter in state.model.parameters())


@pytest.mark.usefixtures("_quarters")
@pytest.mark.parametrize("more", [{}, {"consistency.weight": 1.0, "consistency.confidence_threshold": 0.0,
                                       "data.mixup_probability": 0.5, "curriculum.reject_outliers": 0.99}])  # fmt: skip
def test_a_run_with_a_backbone_of_ones_own_is_saved_loaded_resumed_and_reported(more: dict[str, object]) -> None:
    class Stop(Silent):
        left = 4

        def epoch(self, line: str) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    data, chosen = blobs(), quick(**ON_ROWS, **more)
    whole = ebpl.train(data, chosen, run="whole")
    with pytest.raises(KeyboardInterrupt):
        ebpl.train(data, chosen, run="cut", progress=Stop())
    assert result(ebpl.resume("cut", data=data).path) == result(whole.path)
    model, description = Run("whole").load_model()
    assert isinstance(model.features, Quarters)
    assert description["architecture"]["backbone"] == "quarters"
    assert data.test is not None
    found = predict(model, data.test.pixels)
    rows = model.features.prepare(data.test.pixels)
    with torch.no_grad():
        scores, energies = model(rows)
    np.testing.assert_allclose(found.probabilities, scores.softmax(1).numpy(), atol=1e-6)
    np.testing.assert_allclose(found.energies, energies.numpy(), rtol=1e-4, atol=1e-5)
    if not more:
        assert whole.metrics()["metrics"]["accuracy"] > 0.8, "the quarters tell the classes of blobs apart"
    assert ebpl.evaluate(whole, data) == pytest.approx(whole.metrics()["metrics"], abs=1e-6)
    answers = [row["label"] for row in ebpl.predict(whole, data.test.pixels)]
    assert answers == [data.classes[label] for label in found.labels]
    assert "quarters" in ebpl.report(whole, data=data).read_text()


def test_weights_of_a_backbone_that_is_not_registered_are_refused_by_name() -> None:
    register_backbone("quarters", lambda options, shape: Quarters(shape[0]))
    run = ebpl.train(blobs(), quick(**{**ON_ROWS, "epochs": 1, "pseudo_labels": "none"}), run="run")
    del models._registered["quarters"]
    with pytest.raises(ebpl.RunError, match="backbone is 'quarters'"):
        run.load_model()


def test_an_architecture_is_told_in_plain_values() -> None:
    told = asdict(architecture())
    assert Architecture(**told) == architecture()


def test_a_class_mix_is_the_prior_of_the_classifier_and_of_the_density() -> None:
    model = architecture().build().initialise(torch.Generator().manual_seed(0))
    features = torch.randn(5, model.features.dimension, generator=torch.Generator().manual_seed(1))
    assert model.gaussian is not None
    plain, energy = model.heads(features)
    ratio = torch.tensor([1.0, 0.0, -2.0])
    model.set_mix(ratio)
    scores, mixed = model.heads(features)
    torch.testing.assert_close(scores, plain + ratio)
    torch.testing.assert_close(mixed, -torch.logsumexp(ratio - model.gaussian.class_energies(features), 1))
    torch.testing.assert_close(model.gaussian.posterior(features), scores.softmax(1))
    points = features.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model.gaussian.energy(points).sum(), points)
    torch.testing.assert_close(model.gaussian.energy_gradient()(features), expected)
    model.set_mix([0.0, 0.0, 0.0])
    assert torch.equal(model.heads(features)[0], plain)
    assert torch.equal(model.heads(features)[1], energy)
    assert "log_mix" not in model.state_dict(), "weights of other versions fit"
