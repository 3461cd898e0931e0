from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.special import softmax

from ebpl.calibration import CalibrationCheck
from ebpl.calibration.class_mix import ClassMix, estimate_mix
from ebpl.errors import RunError
from ebpl.models.predictions import predict
from ebpl.models.weights import LOG_MIX
from ebpl.training.distributed import Ranks
from ebpl.training.train_state import Progress, TrainState, refresh, sampling_copy
from tests.helpers import architecture, quick, random_images

CPU = torch.device("cpu")


def made(precision: str | None = "diagonal", **changes: object) -> TrainState:
    state = TrainState(architecture(precision), quick(**changes), CPU)
    state.targets = torch.zeros(20, 3)
    if precision:
        state.create_buffer((1, 8, 8))
    state.initialise("start")
    state.restart_chains("start")
    return state


def one_step(state: TrainState) -> None:
    loss = state.model(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))[0].square().sum()
    loss.backward()
    state.optimizer.step()
    state.optimizer.zero_grad()


def test_a_restored_state_trains_on_as_if_nothing_had_happened() -> None:
    first, second = made(), made()
    one_step(first)
    saved = first.tensors_copy()
    one_step(first)
    second.load_tensors(saved)
    one_step(second)
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def test_a_snapshot_is_a_copy() -> None:
    state = made()
    state.progress.history.append({"loss": 1.0})
    saved = state.snapshot()
    before = {name: tensor.clone() for name, tensor in saved["tensors"].items()}
    one_step(state)
    state.restart_chains("again")
    state.progress.history.append({"loss": 2.0})
    state.targets.fill_(7)
    assert all(torch.equal(before[name], tensor) for name, tensor in saved["tensors"].items())
    assert not torch.equal(state.tensors()["buffer"], saved["tensors"]["buffer"])
    assert saved["history"] == [{"loss": 1.0}]
    assert saved["targets"].abs().sum() == 0


def test_a_snapshot_brings_back_all_progress_in_place() -> None:
    state = made()
    check = CalibrationCheck(102, 0.931, 0.845, 5.8, 0.62)
    state.progress = Progress(2, 1, [3, 4], [5], 0.5, check, [{"loss": 1.0}], {"score": 1.0})
    state.targets[3, 1] = 1.0
    state.next_ema_weight()
    stored, tensors, targets = state.snapshot(), state.tensors(), state.targets
    assert stored["check"] == asdict(check), "a checkpoint holds plain values"
    other = TrainState(architecture(), quick(), CPU)
    other.targets = torch.zeros(20, 3)
    other.create_buffer((1, 8, 8))
    for each in (other, state):
        one_step(each)
        each.targets.zero_()
        each.progress = Progress()
        each.restore(stored)
        assert each.progress == Progress(2, 1, [3, 4], [5], 0.5, check, [{"loss": 1.0}], {"score": 1.0})
        assert each.ema_updates == 1
        assert each.targets[3, 1] == 1
        assert all(torch.equal(tensor, each.tensors()[name]) for name, tensor in stored["tensors"].items())
    assert state.targets is targets, "captured GPU graphs read from these tensors"
    assert all(state.tensors()[name].data_ptr() == tensor.data_ptr() for name, tensor in tensors.items())


def test_a_class_mix_is_in_both_models_in_a_snapshot_and_in_the_weights_to_keep() -> None:
    state, mix = made(), ClassMix((0.6, 0.3, 0.1), (0.5, -0.2, -1.0), ((0.5, 0.7), (0.2, 0.4), (0.0, 0.2)))
    state.progress.best = {"weights": state.predictor.state_dict()}
    assert LOG_MIX not in state.kept_weights()
    state.set_class_mix(mix)
    for model in (state.model, state.average, state.kept_model()):
        assert model is not None
        assert model.gaussian is not None
        np.testing.assert_allclose(model.log_mix, mix.log_ratio)
        np.testing.assert_allclose(model.gaussian.log_mix, mix.log_ratio)
    np.testing.assert_allclose(state.kept_weights()[LOG_MIX], mix.log_ratio)
    other = made()
    other.restore(state.snapshot())
    assert other.progress.class_mix == mix
    np.testing.assert_allclose(other.model.log_mix, mix.log_ratio)
    older = {name: value for name, value in state.snapshot().items() if name != "class_mix"}
    other.restore(older)
    assert other.progress.class_mix is None
    assert not other.model.log_mix.any()


def test_the_temperature_divides_scores_and_not_the_class_mix() -> None:
    state, scores = made(), np.random.default_rng(0).normal(size=(5, 3))
    ratio = np.log([3.0, 1.0, 0.2])
    state.set_class_mix(ClassMix((0.7, 0.2, 0.1), tuple(ratio)))
    state.progress.check = CalibrationCheck(100, 0.9, 0.8, 5.0, 0.5)
    np.testing.assert_allclose(state.tempered(softmax(scores + ratio, 1)), softmax(scores / 0.5 + ratio, 1))


def test_the_class_mix_of_unlabelled_images_is_estimated_at_the_temperature() -> None:
    state, random = made(), np.random.default_rng(0)
    truth = random.choice(3, 3000, p=[0.8, 0.15, 0.05])
    scores = 3 * np.eye(3)[truth] + random.gumbel(size=(3000, 3))
    state.progress.check = CalibrationCheck(100, 0.9, 0.8, 5.0, 0.5)
    told = state.estimate_mix(softmax(scores, 1), np.full(3, 50), ["cat", "dog", "emu"])
    expected = estimate_mix(softmax(scores / 0.5, 1), np.full(3, 50))
    assert state.progress.class_mix == expected
    assert told == expected.in_words(["cat", "dog", "emu"])
    assert told.startswith("the unlabelled images seem to be cat ")


def test_the_state_of_a_network_of_another_shape_is_refused() -> None:
    stored = made().snapshot()
    with pytest.raises(RunError, match="a model of another shape: were the settings of the run edited"):
        made("full").restore(stored)


def test_initialising_again_forgets_the_optimiser_and_the_average() -> None:
    state = made()
    one_step(state)
    state.next_ema_weight()
    state.initialise("start")
    fresh = made()
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, fresh.tensors()[name]), name
    assert state.ema_updates == 0


def test_the_average_follows_closely_at_first_and_slowly_later() -> None:
    state = made(optim__ema_decay=0.99)
    weights = [state.next_ema_weight() for _ in range(5000)]
    assert weights[0] > 0.8
    assert abs(weights[-1] - 0.01) < 1e-9
    assert weights == sorted(weights, reverse=True)


def test_with_an_average_it_predicts_and_without_one_the_model_itself() -> None:
    state = made()
    assert state.predictor is state.average
    without = made(optim__ema_decay=0.0)
    assert without.predictor is without.model
    assert not [name for name in without.tensors() if name.startswith("average")]


def test_a_classifier_has_no_chains() -> None:
    state = made(None)
    assert state.buffer is None
    assert "buffer" not in state.tensors()


def test_what_is_kept_has_the_temperature_in_it() -> None:
    state, pixels = made(), random_images(6, 8, 8)
    state.progress.best = {"weights": {name: tensor.clone() for name, tensor in state.predictor.state_dict().items()}}
    plain = predict(state.kept_model(), pixels)
    assert (plain.probabilities == predict(state.predictor, pixels).probabilities).all()
    state.progress.check = CalibrationCheck(102, 0.931, 0.845, 5.8, 0.5)
    squared = plain.probabilities**2
    kept = predict(state.kept_model(), pixels)
    assert kept.probabilities == pytest.approx(squared / squared.sum(1, keepdims=True), rel=1e-4)
    assert (kept.energies == plain.energies).all()


def test_weights_that_are_not_finite_are_noticed_in_the_model_and_in_its_average() -> None:
    for part in ("model", "average"):
        state = made()
        assert state.is_finite()
        with torch.no_grad():
            getattr(state, part).classifier.bias[1] = float("nan")
        assert not state.is_finite(), part


def test_a_checkpoint_holds_the_chains_of_all_processes_and_each_takes_its_own() -> None:
    whole = made()
    assert whole.buffer is not None
    stored = {**whole.snapshot(), "last_good": whole.snapshot()}
    for index in (0, 1):
        state = TrainState(architecture(), quick(), CPU, Ranks(2, index, CPU))
        own = state.with_own_chains(stored)
        half = whole.buffer.samples[64 * index : 64 * index + 64]
        assert torch.equal(own["tensors"]["buffer"], half)
        assert torch.equal(own["last_good"]["tensors"]["buffer"], half)
        assert torch.equal(own["tensors"]["model.classifier.bias"], stored["tensors"]["model.classifier.bias"])


def test_chains_beyond_what_the_buffer_holds_today_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made()
    assert whole.buffer is not None
    stored = whole.snapshot()
    monkeypatch.setattr("ebpl.sampling.LARGEST", 100 * 8 * 8)
    state = made()
    assert state.buffer is not None
    assert len(state.buffer.samples) == 64  # the chains of an update
    state.restore(state.with_own_chains(stored))
    assert torch.equal(state.buffer.samples, whole.buffer.samples[:64])


def test_the_sampling_copy_follows_the_model_and_takes_no_gradient() -> None:
    state = made()
    twin = sampling_copy(state.model, torch.bfloat16)
    one_step(state)
    refresh(twin, state.model)
    assert twin.features.stem.weight.dtype == torch.bfloat16
    assert twin.classifier.weight.dtype == torch.float32
    torch.testing.assert_close(
        twin.features.stem.weight.float(), state.model.features.stem.weight, atol=0.01, rtol=0.01
    )
    assert not any(p.requires_grad for p in twin.parameters())
