import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ebpl
from ebpl.config.presets import preset
from ebpl.methods import get_method
from ebpl.models import GaussianHead, HybridModel
from ebpl.sampling import Langevin
from ebpl.training.losses import (
    Consistency,
    Coupling,
    CrossEntropy,
    Density,
    Loss,
    LossTerm,
    Outputs,
    Views,
    classifier_terms,
    energy_terms,
)
from ebpl.training.training_set import ALL, LABELED, UNLABELED
from tests.helpers import architecture, quick, trainer_of
from tests.methods.steps import in_two, random_scores, softmax


def judged(model: nn.Module, term: LossTerm, *inputs: Tensor, targets: Tensor | None = None) -> Loss:
    """The loss of one term on these inputs."""
    return term.loss(model, [Outputs(*model(each)) for each in inputs], Views(list(inputs), targets))  # type: ignore[arg-type]


class TinyModel(nn.Module):
    """A hybrid model on single numbers, so that its density can be normalised numerically."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.gaussian = GaussianHead(3, 2, "diagonal").double()
        self.classifier = nn.Linear(3, 2).double()
        with torch.no_grad():
            self.gaussian.means.normal_()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.features(x)
        # the quadratic term makes the density integrable over the whole line
        return self.classifier(features), self.gaussian.energy(features) + 0.5 * x[:, 0] ** 2

    def coupling(self) -> torch.Tensor:
        return self.gaussian.coupling(self.classifier.weight, self.classifier.bias)


def gradients(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def exact_samples(model: TinyModel, grid: torch.Tensor) -> torch.Tensor:
    """Samples from the model's own density by the inverse of its distribution function on a grid."""
    density = torch.softmax(-model(grid)[1].detach(), 0)
    uniform = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    return grid[torch.searchsorted(density.cumsum(0), uniform).clamp(max=len(grid) - 1)]


def langevin_samples(model: TinyModel, grid: torch.Tensor) -> torch.Tensor:
    step = 0.02
    start = torch.randn(50_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Langevin(600, step, math.sqrt(2 * step))(lambda x: model(x)[1], start, torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("samples_of", "tolerance"), [(exact_samples, 1e-2), (langevin_samples, 5e-2)])
def test_density_gradient_is_the_exact_gradient_of_the_normalised_log_likelihood(samples_of, tolerance) -> None:
    model = TinyModel()
    grid = torch.linspace(-9, 9, 6001, dtype=torch.float64)[:, None]
    data = torch.tensor([[-1.2], [0.3], [0.9], [2.0]], dtype=torch.float64)

    # exact: -log p(x) = E(x) + log Z with Z as a sum over the grid
    log_z = torch.logsumexp(-model(grid)[1], 0) + torch.log(grid[1, 0] - grid[0, 0])
    exact = gradients(model(data)[1].mean() + log_z, model)
    ours = gradients(judged(model, Density(), data, samples_of(model, grid)).value, model)

    assert exact.norm() > 0.1
    assert (ours - exact).norm() / exact.norm() < tolerance


def network(precision: str = "diagonal") -> HybridModel:
    return architecture(precision).build().initialise(torch.Generator().manual_seed(0))


def images(count: int) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(count))


def softmax_targets(count: int, seed: int = 8) -> Tensor:
    return torch.softmax(torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)), 1)


def test_cross_entropy_is_minus_the_mean_log_probability_of_the_targets() -> None:
    model, x, targets = network(), images(5), softmax_targets(5)
    found = judged(model, CrossEntropy(), x, targets=targets)
    log_p = torch.log(torch.softmax(model(x)[0], 1))
    torch.testing.assert_close(found.value, -(targets * log_p).sum() / 5)
    assert found.logs == {"cross_entropy": found.value}


def test_soft_targets_that_are_one_hot_give_the_usual_cross_entropy() -> None:
    model, x, labels = network(), images(5), torch.tensor([0, 2, 1, 1, 0])
    found = judged(model, CrossEntropy(), x, targets=F.one_hot(labels, 3).float())
    torch.testing.assert_close(found.value, F.cross_entropy(model(x)[0], labels))


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_density_is_the_weighted_gap_and_the_penalty_on_both_sides_distance_from_the_centre(penalty: float) -> None:
    model, y, z = network(), images(5), images(6)
    found = judged(model, Density(0.2, penalty, 0.7), y, z)
    of_images, of_samples = model(y)[1], model(z)[1]
    gap = of_images.mean() - of_samples.mean()
    away = ((of_images - 0.7) ** 2).mean() + ((of_samples - 0.7) ** 2).mean()
    torch.testing.assert_close(found.value, 0.2 * gap + penalty * away)
    torch.testing.assert_close(found.logs["energy_images"], of_images.mean())
    torch.testing.assert_close(found.logs["energy_samples"], of_samples.mean())
    torch.testing.assert_close(found.logs["energy_gap"], gap)


def test_coupling_is_the_papers_distance_of_the_heads_and_is_logged_without_its_weight() -> None:
    model = network()
    assert judged(model, Coupling(0.5)).value == 0
    with torch.no_grad():
        model.classifier.weight.add_(0.1)
        model.classifier.bias.sub_(0.2)
    found = judged(model, Coupling(0.5))
    expected = 0.01 * model.classifier.weight.numel() + 0.04 * model.classifier.bias.numel()
    assert found.value.item() == pytest.approx(0.5 * expected, rel=1e-4)
    assert found.logs["coupling"].item() == pytest.approx(expected, rel=1e-4)


def test_consistency_is_asked_only_where_the_teacher_was_sure() -> None:
    model, views = network(), images(7)
    targets = torch.zeros(7, 3)
    targets[2], targets[5] = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.2, 0.3, 0.5])
    found = judged(model, Consistency(0.5), views, targets=targets)
    log_p = torch.log_softmax(model(views)[0], 1)
    torch.testing.assert_close(found.logs["consistency"], -(targets * log_p).sum() / 7)
    torch.testing.assert_close(found.value, 0.5 * found.logs["consistency"])
    torch.testing.assert_close(found.logs["mask_rate"], torch.tensor(2 / 7))
    nobody = judged(model, Consistency(0.5), views, targets=torch.zeros(7, 3))
    assert nobody.value == nobody.logs["mask_rate"] == 0


def test_all_terms_together_are_the_objective_of_version_0_1() -> None:
    model = network()
    with torch.no_grad():
        model.classifier.weight.add_(0.1)
    x, y, z, strong = (images(count) for count in (4, 5, 6, 7))
    targets, agreed = softmax_targets(4), torch.zeros(7, 3)
    agreed[2], agreed[5] = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.2, 0.3, 0.5])
    losses = [
        judged(model, CrossEntropy(), x, targets=targets),
        judged(model, Density(0.5, 0.1, 0.7), y, z),
        judged(model, Coupling(0.01)),
        judged(model, Consistency(0.5), strong, targets=agreed),
    ]
    logs = {name: value.item() for loss in losses for name, value in loss.logs.items()}
    # what ebpl 0.1.0 gives for these tensors
    expected = {
        "cross_entropy": 1.09447598,
        "energy_images": -0.542495608,
        "energy_samples": -0.499149114,
        "energy_gap": -0.542495608 + 0.499149114,
        "coupling": 1.92000008,
        "consistency": 0.312748373,
        "mask_rate": 0.285714298,
    }
    assert logs == pytest.approx(expected, rel=1e-5)
    assert sum(loss.value.item() for loss in losses) == pytest.approx(1.54763174, rel=1e-5)


@pytest.mark.parametrize("precision", ["identity", "diagonal", "full"])
def test_every_parameter_learns(precision: str) -> None:
    model, x = network(precision), images(4)
    losses = [
        judged(model, CrossEntropy(), x, targets=torch.full((4, 3), 1 / 3)),
        judged(model, Density(), x + 1, x - 1),
        judged(model, Coupling()),
    ]
    torch.stack([loss.value for loss in losses]).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def kinds(terms: Sequence[LossTerm]) -> list[type[LossTerm]]:
    return [type(term) for term in terms]


def test_the_settings_choose_the_terms_and_their_weights() -> None:
    assert kinds(classifier_terms(quick())) == [CrossEntropy]
    chosen = preset("best")
    cross_entropy, consistency = classifier_terms(chosen)
    assert isinstance(cross_entropy, CrossEntropy)
    assert isinstance(consistency, Consistency)
    assert cross_entropy.mixup_probability == chosen.data.mixup_probability == 0.5
    assert (consistency.weight, consistency.threshold, consistency.temperature) == (3.0, 0.0, 1.0)
    density, coupling = energy_terms(chosen)
    assert isinstance(density, Density)
    assert isinstance(coupling, Coupling)
    assert (density.weight, density.penalty, density.center, density.augmented) == (0.2, 0.1, 1.0, False)
    assert coupling.weight == 0.001
    (rejecting, _) = energy_terms(chosen.changed(curriculum__reject_outliers=0.99))
    assert isinstance(rejecting, Density)
    assert rejecting.augmented


def test_each_term_says_which_images_it_draws_and_what_it_logs() -> None:
    terms = {type(term): term for term in get_method("ebpl").terms(preset("best"))}
    assert {kind: term.stream for kind, term in terms.items()} == {
        CrossEntropy: LABELED,
        Density: ALL,
        Coupling: None,
        Consistency: UNLABELED,
    }
    assert [kind for kind, term in terms.items() if term.density] == [Density]
    model, x = network(), images(3)
    for kind, term in terms.items():
        inputs = {Density: [x, x], Coupling: []}.get(kind, [x])
        found = judged(model, term, *inputs, targets=softmax_targets(3))
        assert tuple(found.logs) == term.logs


def test_noisy_images_of_the_density_batch_are_clamped_where_that_is_asked_for() -> None:
    black = ebpl.from_arrays(np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2, name="black")

    def density_batch(clamped: bool) -> torch.Tensor:
        training = trainer_of(quick(data__pixel_noise=0.5, energy__clamp_images=clamped), black)
        next(training.work())
        density = next(term for term in training.step.terms if isinstance(term, Density))
        return density.views(training.step).inputs[0]

    assert density_batch(False).min() < -1.5
    inside = density_batch(True)
    assert (inside.min(), inside.max() > -0.5) == (-1, True)


def test_true_labels_are_learned_with_their_own_class_mix_and_pseudo_labels_with_that_of_their_images() -> None:
    training = trainer_of(quick())
    training._start(None)
    step, images, model = training.step, training.training_set, training.state.model
    ratio = torch.tensor([1.0, 0.0, -2.0])
    model.set_mix(ratio)
    images.set_pseudo_labels(np.arange(4), np.eye(3)[[0, 1, 2, 0]])
    step.positions[LABELED].copy_(torch.arange(len(step.positions[LABELED])) % (images.labeled + 4))
    for mixup in (0.0, 1.0):
        term = CrossEntropy(mixup)
        views = term.finish(step, term.views(step))
        true = (step.positions[LABELED] < images.labeled).float()[:, None]
        if mixup:
            assert views.log_mix is not None
            assert views.log_mix.min() >= -2
            assert ((views.log_mix != 0).any(1) >= true[:, 0].bool()).all(), "a mixed image has some of each mix"
            continue
        scores = model(views.inputs[0])[0]
        plain = scores - ratio
        expected = F.cross_entropy(torch.where(true.bool(), plain, scores), images.targets[step.positions[LABELED]])
        torch.testing.assert_close(term.loss(model, [Outputs(*model(views.inputs[0]))], views).value, expected)


def consistency_step(fraction: float, prior: Sequence[float] = (), mix: Sequence[float] = (0.0, 0.0, 0.0)) -> Any:
    """As much of a step as the targets of consistency need."""
    targets = torch.tensor([prior], dtype=torch.float64) if prior else torch.zeros(0, 3)
    return SimpleNamespace(
        fraction=torch.tensor(fraction, dtype=torch.float64),
        memory={"mean_prediction": torch.full((3,), 1 / 3, dtype=torch.float64)},
        mean_of_all=lambda value: value,
        training_set=SimpleNamespace(targets=targets, labeled=len(targets)),
        state=SimpleNamespace(model=SimpleNamespace(log_mix=torch.tensor(mix, dtype=torch.float64))),
    )


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_threshold_and_temperature_change_in_a_line(fraction: float) -> None:
    scores = random_scores(40, 3)
    term = Consistency(1.0, 0.9, 1.0, final_threshold=0.3, final_temperature=0.2)
    threshold, temperature = 0.9 - 0.6 * fraction, 1.0 - 0.8 * fraction
    sure = softmax(scores.numpy()).max(1) >= threshold
    expected = softmax(scores.numpy() / temperature) * sure[:, None]
    assert 0 < sure.sum() < (40 if fraction < 1 else 41)
    np.testing.assert_allclose(term.targets(consistency_step(fraction), scores), expected)


def test_soft_targets_may_end_as_hard_ones() -> None:
    scores = random_scores(40, 3)
    step = consistency_step(1.0)
    hard = Consistency(1.0, 0.0, 1.0, final_temperature=0.0).targets(step, scores)
    np.testing.assert_allclose(hard.numpy(), np.eye(3)[scores.argmax(1)], atol=1e-3)
    soft = Consistency(1.0, 0.0, 1.0, final_temperature=0.0).targets(consistency_step(0.0), scores)
    torch.testing.assert_close(soft, Consistency(1.0, 0.0, 1.0).targets(step, scores))


def test_aligned_targets_have_the_class_mix_of_the_labels_in_the_long_run() -> None:
    prior, mix = np.array([0.5, 0.3, 0.2]), np.array([0.0, 0.4, -0.3])
    term = Consistency(1.0, 0.0, 1.0, aligned=True)
    step = consistency_step(0.0, prior.tolist(), mix.tolist())
    assert term.memory(3)["mean_prediction"].tolist() == pytest.approx([1 / 3] * 3)
    mean = np.full(3, 1 / 3)
    for seed in range(3):
        scores = random_scores(50, 3, seed)
        said = softmax(scores.numpy())
        mean = 0.999 * mean + 0.001 * said.mean(0)
        expected = said * prior * np.exp(mix) / mean
        expected /= expected.sum(1, keepdims=True)
        np.testing.assert_allclose(term.targets(step, scores), expected)
        np.testing.assert_allclose(step.memory["mean_prediction"], mean)
    assert Consistency().memory(3) == {}


def test_two_processes_align_alike() -> None:
    term, scores = Consistency(1.0, 0.5, aligned=True), random_scores(20, 3)
    single = term.targets(consistency_step(0.0, [0.6, 0.2, 0.2]), scores)

    def half(step: Any, index: int) -> torch.Tensor:
        more = consistency_step(0.0, [0.6, 0.2, 0.2])
        step.training_set, step.state, step.fraction = more.training_set, more.state, more.fraction
        return term.targets(step, scores[10 * index : 10 * index + 10])

    both = in_two(term, half, 3)
    torch.testing.assert_close(torch.cat([targets for _, targets in both]), single)


def test_the_settings_of_consistency_reach_its_term() -> None:
    names = ("final_threshold", "final_temperature", "distribution_alignment")
    changes = dict(zip((f"consistency.{name}" for name in names), (0.2, 0.4, True), strict=True))
    *_, term = classifier_terms(preset("best", changes))
    assert isinstance(term, Consistency)
    assert (term.final_threshold, term.final_temperature, term.aligned) == (0.2, 0.4, True)
