from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from ebpl.config import Settings
from ebpl.kernels import FastNetwork
from ebpl.methods import get_method
from ebpl.models import HybridModel
from ebpl.training.distributed import ALONE, Ranks
from ebpl.training.losses import Consistency, CrossEntropy, Density, Loss, LossTerm, Outputs, Views
from ebpl.training.train_state import TrainState, sampling_copy
from ebpl.training.train_step import TrainStep, runner, stream_size
from ebpl.training.training_set import ALL, LABELED, UNLABELED, TrainingSet
from tests.helpers import architecture, blobs, quick

CPU = torch.device("cpu")
T = TypeVar("T", bound=LossTerm)
CONSISTENCY = {
    "consistency__weight": 1.0,
    "consistency__batch_size": 16,
    "consistency__confidence_threshold": 0.0,
    "consistency__temperature": 1.0,
}


def random_set(state: TrainState, count: int = 40, labeled: int = 20) -> TrainingSet:
    """Random images, with a label each."""
    numbers = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=numbers, dtype=torch.uint8)
    targets = torch.eye(3)[torch.arange(count) % 3]
    hidden = np.arange(labeled, count)
    return TrainingSet(blobs(), pixels, targets, labeled, 0, hidden, None, None, state.model.features)


def step_of(
    settings: Settings,
    terms: Sequence[LossTerm] | None = None,
    augmentation: str = "none",
    dtype: torch.dtype = torch.float32,
    ranks: Ranks = ALONE,
) -> TrainStep:
    terms = get_method(settings.method).terms(settings) if terms is None else terms
    density = any(term.density for term in terms)
    state = TrainState(architecture("diagonal" if density else None), settings, CPU, ranks)
    if density:
        state.create_buffer((1, 8, 8))
    state.initialise("start")
    state.restart_chains("start")
    step = TrainStep(state, random_set(state), terms, settings, augmentation, dtype, ranks)
    step.generator.manual_seed(1)
    starts = {LABELED: 0, ALL: 20, UNLABELED: 24}
    for stream, place in step.positions.items():
        place.copy_(torch.arange(starts[stream], starts[stream] + len(place)))
    return step


def made(method: str = "ebpl", dtype: torch.dtype = torch.float32, **changes: object) -> TrainStep:
    return step_of(quick(method=method, batch_size=8, sgld__chains=8, **changes), dtype=dtype)


def logged(step: TrainStep, name: str) -> float:
    return step.sums[step.names.index(name)].item()


def term_of(step: TrainStep, kind: type[T]) -> T:
    (found,) = (term for term in step.terms if isinstance(term, kind))
    return found


# --- one pass for all ------------------------------------------------------------------------------------------------


class Passes:
    """Counts the passes through a network, and how many images were in each."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.sizes: list[int] = []
        network.register_forward_hook(lambda _, inputs, __: self.sizes.append(len(inputs[0])))


def test_one_pass_through_the_network_serves_all_terms() -> None:
    step = made(**CONSISTENCY, data__mixup_probability=0.5)
    assert [type(term).__name__ for term in step.terms] == ["CrossEntropy", "Density", "Coupling", "Consistency"]
    assert step.state.average is not None
    network, teacher = Passes(step.state.model.features), Passes(step.state.average.features)
    step()
    assert network.sizes == [8 + 8 + 8 + 16]  # classified, density, samples and strong views
    assert teacher.sizes == [16]
    step()
    assert network.sizes == [40, 40]


def test_a_term_is_handed_what_the_network_says_of_its_own_views() -> None:
    class Marked(LossTerm):
        """Two batches of images of one brightness."""

        logs = ()

        def __init__(self, *values: float) -> None:
            self.brightness = values
            self.seen: list[tuple[Tensor, Tensor]] = []

        def views(self, step: TrainStep) -> Views:
            return Views([torch.full((2 + i, 1, 8, 8), value) for i, value in enumerate(self.brightness)])

        def loss(self, model: HybridModel, outputs: Sequence[Outputs], views: Views) -> Loss:
            self.seen = [(each.scores.detach(), each.energies.detach()) for each in outputs]
            return Loss(sum((each.scores.square().mean() for each in outputs), torch.zeros(())))

    terms = [Marked(-1.0, -0.5, 0.0), Marked(), Marked(0.5, 1.0)]
    step = step_of(quick(sgld__chains=8), terms)
    model = step.state.model
    expected = {value: model(torch.full((1, 1, 8, 8), value)) for term in terms for value in term.brightness}
    step()
    for term in terms:
        assert len(term.seen) == len(term.brightness)
        for i, (value, (scores, energies)) in enumerate(zip(term.brightness, term.seen, strict=True)):
            assert len(scores) == len(energies) == 2 + i
            torch.testing.assert_close(scores, expected[value][0].expand(2 + i, -1))
            torch.testing.assert_close(energies, expected[value][1].expand(2 + i))


def test_the_logged_loss_is_the_sum_of_the_terms_on_their_views() -> None:
    kept: list[tuple[LossTerm, Views]] = []

    def watch(term: LossTerm) -> LossTerm:
        finish = term.finish

        def keep(step: TrainStep, views: Views) -> Views:
            views = finish(step, views)
            kept.append((term, views))
            return views

        term.finish = keep  # type: ignore[method-assign]
        return term

    settings = quick(batch_size=8, sgld__chains=8, **CONSISTENCY, energy__weight=0.3)
    step = step_of(settings, [watch(term) for term in get_method("ebpl").terms(settings)])
    model = step.state.model
    with torch.no_grad():
        model.classifier.weight.add_(0.1)  # so that there is a coupling to pay for
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step()
    model.load_state_dict(before)
    total, logs = 0.0, {}
    for term, views in kept:
        loss = term.loss(model, [Outputs(*model(each)) for each in views.inputs], views)
        total += loss.value.item()
        logs |= {name: value.item() for name, value in loss.logs.items()}
    assert step.names == ("loss", *logs)
    assert logged(step, "loss") == pytest.approx(total, rel=1e-5)
    assert {name: logged(step, name) for name in logs} == pytest.approx(logs, rel=1e-4, abs=1e-6)


def test_each_stream_has_its_own_batch_and_only_those_that_a_term_draws_from_exist() -> None:
    settings = quick(batch_size=8, sgld__chains=8, **CONSISTENCY)
    assert step_of(settings).batch_sizes == {LABELED: 8, ALL: 8, UNLABELED: 16}
    assert step_of(settings.changed(method="curriculum-labeling")).batch_sizes == {LABELED: 8, UNLABELED: 16}
    assert made("curriculum-labeling").batch_sizes == {LABELED: 8}
    assert [stream_size(stream, settings) for stream in (LABELED, ALL, UNLABELED)] == [8, 8, 16]
    fixmatch = settings.changed(method="fixmatch", unlabeled__ratio=2)
    assert step_of(fixmatch).batch_sizes == {LABELED: 8, UNLABELED: 16}
    assert stream_size(UNLABELED, fixmatch, get_method("fixmatch").terms(fixmatch.changed(unlabeled__ratio=5))) == 40
    half = step_of(settings, ranks=Ranks(2, 0, CPU)).batch_sizes
    assert half == {LABELED: 4, ALL: 4, UNLABELED: 8}


# --- what a step changes ---------------------------------------------------------------------------------------------


def test_a_step_changes_the_weights_the_average_and_some_chains() -> None:
    step = made()
    before = step.state.tensors_copy()["tensors"]
    step.ema_weight.fill_(0.5)
    step()
    after = step.state.tensors()
    assert not torch.equal(before["model.features.stem.weight"], after["model.features.stem.weight"])
    middle = (before["model.features.stem.weight"] + after["model.features.stem.weight"]) / 2
    torch.testing.assert_close(after["average.features.stem.weight"], middle)
    changed = (before["buffer"] != after["buffer"]).flatten(1).any(1).sum()
    assert changed == 8


def test_a_step_is_adams_on_the_clipped_gradient_of_the_loss() -> None:
    step = made("curriculum-labeling", data__pixel_noise=0.0, optim__gradient_clip=0.01, learning_rate=1e-2)
    model = step.state.model
    twin = architecture(None).build()
    twin.load_state_dict(model.state_dict())
    adam = torch.optim.Adam(twin.parameters(), lr=1e-2)
    images = step.training_set
    for _ in range(3):
        step()
        adam.zero_grad()
        scores = twin(images.inputs[:8].float() / 127.5 - 1)[0]
        torch.nn.functional.cross_entropy(scores, images.targets[:8]).backward()
        assert torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01) > 0.01
        adam.step()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=name)


def test_the_same_random_numbers_give_the_same_step() -> None:
    first, second = made(), made()
    for step in (first, second):
        runner(step)()
    for name, tensor in first.state.tensors().items():
        assert torch.equal(tensor, second.state.tensors()[name]), name


def test_repeated_steps_learn_the_classes() -> None:
    step = made("curriculum-labeling", learning_rate=1e-2)
    step()
    first = logged(step, "cross_entropy")
    for _ in range(60):
        step.clear_sums()
        step()
    assert logged(step, "cross_entropy") < first / 5


def test_the_sums_hold_the_widest_gap_and_keep_nan() -> None:
    step = made()
    step()
    energies = logged(step, "energy_images") - logged(step, "energy_samples")
    torch.testing.assert_close(step.widest_gap, torch.tensor(abs(energies)))
    with torch.no_grad():
        step.state.model.features.stem.weight.fill_(float("nan"))
    step()
    assert step.widest_gap.isnan()
    *sums, widest = step.read()()
    assert np.isnan(widest)
    assert len(sums) == len(step.names)
    step.clear_sums()
    assert step.widest_gap == 0


def test_a_method_without_density_is_trained_without_sampling() -> None:
    step = made("curriculum-labeling")
    step()
    assert step.state.buffer is step.sampler is None
    assert step.names == ("loss", "cross_entropy")
    assert logged(step, "loss") == logged(step, "cross_entropy")


def test_samples_are_drawn_from_the_model_as_it_is_and_put_back() -> None:
    step = made(sgld__steps=3, sgld__noise=0.0, sgld__restart_probability=0.0, sgld__buffer_size=8, sgld__step_size=0.5)
    assert step.state.buffer is not None
    start = x = step.state.buffer.samples.clone()
    for _ in range(3):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(step.state.model(x)[1].sum(), x)
        x = (x - 0.5 * slope).clamp(-1, 1)
    samples = step.sample()
    torch.testing.assert_close(samples, x.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(step.state.buffer.samples, samples)
    assert not torch.equal(samples, start)


# --- views -----------------------------------------------------------------------------------------------------------


def test_noise_is_added_once_with_the_deviation_asked_for_to_all_that_is_trained_on() -> None:
    step = made(data__pixel_noise=0.2)
    for kind, where in ((CrossEntropy, slice(0, 8)), (Density, slice(20, 28))):
        term, plain = term_of(step, kind), step.training_set.take(torch.arange(40)[where])
        difference = [term.finish(step, term.views(step)).inputs[0] - plain for _ in range(200)]
        assert torch.stack(difference).std().item() == pytest.approx(0.2, rel=0.02)
    quiet = made(data__pixel_noise=0.0)
    term = term_of(quiet, CrossEntropy)
    torch.testing.assert_close(
        term.finish(quiet, term.views(quiet)).inputs[0], quiet.training_set.take(torch.arange(8)), rtol=0, atol=0
    )


def test_the_density_sees_images_as_they_are_unless_outliers_are_rejected() -> None:
    changes = {"data__pixel_noise": 0.0, "batch_size": 8, "sgld__chains": 8}
    for rejected in (0.0, 0.9):
        step = step_of(quick(**changes, curriculum__reject_outliers=rejected), augmentation="shift")
        images, _ = term_of(step, Density).views(step).inputs
        assert torch.equal(images, step.training_set.take(torch.arange(20, 28))) == (rejected == 0)


def test_strong_views_must_agree_with_confident_predictions_alone() -> None:
    def asked(threshold: float) -> TrainStep:
        how = {"consistency__confidence_threshold": threshold, "consistency__temperature": 0.0}
        step = made(**{**CONSISTENCY, **how})
        step()
        return step

    everyone, nobody = asked(0.0), asked(1.0)
    assert logged(everyone, "mask_rate") == 1
    assert logged(everyone, "consistency") > 0
    assert logged(nobody, "mask_rate") == logged(nobody, "consistency") == 0
    targets = term_of(everyone, Consistency).views(everyone).targets
    assert targets is not None
    assert targets.max(1).values.tolist() == targets.sum(1).tolist() == [1.0] * 16
    assert targets.argmax(1).tolist() == averaged_posterior(everyone).argmax(1).tolist()


def averaged_posterior(step: TrainStep) -> Tensor:
    """What the averaged weights say of the compared images, whose weak views are the images themselves here."""
    assert step.state.average is not None
    with torch.no_grad():
        return step.state.average(step.training_set.take(step.positions[UNLABELED]))[0].softmax(1)


def test_strong_views_may_be_asked_for_the_averaged_posterior_at_a_temperature() -> None:
    step = made(**CONSISTENCY)
    for _ in range(3):
        step()  # so that weights and their average are not the same
    posterior = averaged_posterior(step)
    targets = term_of(step, Consistency).views(step).targets
    torch.testing.assert_close(targets, posterior)
    raw = step.state.model(step.training_set.take(step.positions[UNLABELED]))[0].softmax(1)
    assert not torch.allclose(posterior, raw), "targets of the raw weights would not be told from these"

    sharper = Consistency(threshold=0.0, temperature=0.5).views(step).targets
    torch.testing.assert_close(sharper, posterior.square() / posterior.square().sum(1, keepdim=True))

    middle = posterior.max(1).values.median().item()
    some = Consistency(threshold=middle, temperature=0.5).views(step).targets
    assert some is not None
    assert some.sum(1).bool().tolist() == (posterior.max(1).values >= middle).tolist()


def test_agreement_teaches_in_bfloat16_too() -> None:
    """Weights that were cast while no gradient was wanted must not be reused where one is."""
    step = made(**CONSISTENCY, dtype=torch.bfloat16)
    step()
    assert all(parameter.grad is not None for parameter in step.state.model.parameters())


def test_mixed_images_have_the_mixed_labels_of_the_same_two() -> None:
    step = made(data__mixup_probability=1.0)
    index = step.positions[LABELED]
    plain, targets = step.training_set.take(index), step.training_set.targets[index]
    views = term_of(step, CrossEntropy).views(step)
    assert views.targets is not None
    for i, (view, target) in enumerate(zip(views.inputs[0], views.targets, strict=True)):
        other = 7 - i
        between = (plain[other] - plain[i]).flatten()
        share = ((view - plain[i]).flatten() @ between / between.square().sum()).item()
        assert 0 < share < 0.5  # more of the image itself
        torch.testing.assert_close(view, torch.lerp(plain[i], plain[other], share))
        torch.testing.assert_close(target, torch.lerp(targets[i], targets[other], share))


def test_the_asked_for_fraction_of_the_batch_is_mixed() -> None:
    changed = [0.0, 0.0]
    for i, probability in enumerate((0.25, 0.75)):
        step = made(data__mixup_probability=probability)
        plain = step.training_set.take(step.positions[LABELED])
        term = term_of(step, CrossEntropy)
        for _ in range(100):
            (views,) = term.views(step).inputs
            changed[i] += (views != plain).flatten(1).any(1).float().mean().item() / 100
    assert changed == pytest.approx([0.25, 0.75], abs=0.06)


# --- passes by hand --------------------------------------------------------------------------------------------------


def distance(one: TrainStep, other: TrainStep) -> float:
    """How far apart the first moments, which are sums of gradients, of two trainings are."""
    first, second = (
        torch.cat([tensor.flatten() for name, tensor in step.state.tensors().items() if name.endswith("exp_avg")])
        for step in (one, other)
    )
    return float((first - second).norm() / second.norm())


def by_hand(step: TrainStep, dtype: torch.dtype = torch.float32) -> TrainStep:
    """The same step with its passes by hand."""
    step.fast = FastNetwork(step.state.model.features, dtype)
    if UNLABELED in step.positions:
        step.fast_teacher = FastNetwork(step.state.predictor.features, dtype)
    return step


def test_the_passes_by_hand_give_the_steps_numbers() -> None:
    plain, fast = made(), by_hand(made())
    for step in (plain, fast):
        for _ in range(3):
            step()
    torch.testing.assert_close(fast.sums, plain.sums, rtol=1e-3, atol=1e-4)
    assert distance(fast, plain) < 0.01


def test_the_passes_by_hand_are_as_exact_in_bfloat16_as_autograd() -> None:
    exact, plain = made(), made(dtype=torch.bfloat16)
    fast = by_hand(made(dtype=torch.bfloat16), torch.bfloat16)
    for step in (exact, plain, fast):
        for _ in range(3):
            step()
    torch.testing.assert_close(fast.sums, exact.sums, rtol=2e-2, atol=2e-2)
    assert 0 < distance(fast, exact) < 1.5 * distance(plain, exact)


def test_the_teacher_of_views_goes_by_hand_too() -> None:
    settings = {**CONSISTENCY, "consistency__weight": 3.0}
    plain, fast = made(**settings), by_hand(made(**settings))
    assert fast.fast_teacher is not None
    for step in (plain, fast):
        for _ in range(3):
            step.ema_weight.fill_(0.3)
            step()
    torch.testing.assert_close(fast.sums, plain.sums, rtol=1e-3, atol=1e-4)
    assert distance(fast, plain) < 0.01


def test_a_classifier_alone_is_trained_by_hand_too() -> None:
    plain, fast = made("curriculum-labeling"), by_hand(made("curriculum-labeling"))
    for step in (plain, fast):
        step()
    torch.testing.assert_close(fast.sums, plain.sums)
    assert distance(fast, plain) < 1e-3


def test_the_sampler_of_a_step_computes_in_the_steps_own_numbers() -> None:
    step = made(dtype=torch.bfloat16)
    assert step.sampler is not None
    expected = sampling_copy(step.state.model, torch.bfloat16)
    assert [p.dtype for p in step.sampler.parameters()] == [p.dtype for p in expected.parameters()]
    assert step.sampler.features.stem.weight.dtype == torch.bfloat16
