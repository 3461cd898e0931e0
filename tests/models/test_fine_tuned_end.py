"""An encoder whose end learns: what is kept of images, which weights learn, and what a run with it keeps."""

from pathlib import Path

import pytest
import torch

import ebpl
from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.encoders import Encoder
from ebpl.encoders.weights import build_network
from ebpl.errors import UsageError
from ebpl.models import Architecture, build_backbone, fine_tuned_encoder
from ebpl.models.encoder import PrincipalComponents
from ebpl.models.fine_tuned_encoder import STRONG, WEAK, FineTunedEnd, blocks, options_for
from ebpl.recommendation import settings_for
from ebpl.rng import generator
from tests.encoders.helpers import PUBLISHED, crops, small, tiny_network
from tests.helpers import trainer_of
from tests.models.test_fine_tuned_encoder import (
    SHORT,
    SIZE,
    check_that_an_interrupted_run_ends_with_the_same_bits,
    pieces,
)


def settings_of(encoder: Encoder, **changes: object) -> Settings:
    """A few updates of the end of a small encoder."""
    return preset("fine-tuned-end", {"model.encoder": encoder.info.name, **SHORT}).changed(changes)


def backbone(encoder: Encoder, **changes: object) -> tuple[FineTunedEnd, torch.Tensor]:
    """The backbone, and what it keeps of pieces of photographs, to which it is fitted."""
    settings = settings_of(encoder, **changes)
    built = build_backbone("fine_tuned_encoder", options_for(settings.model), (3, SIZE, SIZE))
    assert isinstance(built, FineTunedEnd)
    kept = built.prepare_training(crops(12, SIZE), settings.data)
    built.fit(kept)
    return built, kept


@pytest.fixture
def encoder() -> Encoder:
    return small(size=SIZE)


# --- the backbone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_a_network_that_is_cut_before_its_last_block_computes_the_same(architecture: str) -> None:
    network = small(architecture, SIZE).network()
    images = torch.randn(2, 3, SIZE, SIZE, generator=generator(0, "images"))
    before = []
    last = list(blocks(network))[-network.ending]
    last.register_forward_hook(lambda _, inputs, __: before.append(inputs[0]))
    with torch.no_grad():
        whole = network(images)
        cut = network.before_last(images)
        torch.testing.assert_close(network.from_last(cut), whole)
    assert torch.equal(before[0], cut)


@pytest.mark.parametrize("architecture", ["efficientnet_lite0", "mobilenet_v2"])
def test_what_learns_is_the_last_block_and_the_last_convolution(architecture: str) -> None:
    network, _ = build_network(architecture)
    learned = sum(p.numel() for part in list(blocks(network))[-network.ending :] for p in part.parameters())
    assert learned == {"efficientnet_lite0": 1_017_600, "mobilenet_v2": 886_080}[architecture]


def test_views_are_kept_as_what_goes_into_the_last_block(encoder: Encoder) -> None:
    built, kept = backbone(encoder)
    assert (kept.dtype, kept.shape[:2]) == (torch.float16, (12, WEAK + STRONG))
    mean, std = (torch.tensor(values)[:, None, None] for values in (encoder.info.mean, encoder.info.std))
    images = (torch.from_numpy(crops(12, SIZE)).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        expected = [encoder.network().before_last(each) for each in (images, images.flip(3))]
    torch.testing.assert_close(kept[:, :WEAK].float(), torch.stack(expected, 1), atol=0.02, rtol=0.02)
    assert not torch.equal(kept[:, WEAK], kept[:, 0])
    assert torch.equal(built.prepare_training(crops(12, SIZE), settings_of(encoder).data), kept), "the same every time"


def test_fitting_to_features_or_their_square_roots_encodes_views_once(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, kept = backbone(encoder)
    features, counted = built._all_encoded(kept), list[int]()
    monkeypatch.setattr(built, "_all_encoded", lambda some: counted.append(len(some)) or features)
    fit = built.fitting(kept)
    for square_root in (True, False, True):
        fit(square_root)
        expected = PrincipalComponents(*built.components.directions.shape, choice=True)
        expected.fit(features, square_root)
        assert built.components.takes_square_root == square_root
        torch.testing.assert_close(built.components.directions, expected.directions)
    assert counted == [12]


def test_features_from_what_is_kept_are_those_of_the_images(encoder: Encoder) -> None:
    built, kept = backbone(encoder)
    with torch.no_grad():
        from_images = built(built.scale(built.prepare(crops(12, SIZE))))
        torch.testing.assert_close(built.points(kept), from_images, atol=0.05, rtol=0.05)


def test_weak_views_are_the_image_or_its_mirror_image_and_strong_ones_the_others(encoder: Encoder) -> None:
    built, _ = backbone(encoder)
    views = torch.arange(WEAK + STRONG).view(1, -1, 1, 1, 1).expand(200, -1, 2, 3, 3).half()
    for strong, expected in ((False, {0, 1}), (True, {2, 3})):
        found = built.view(views, strong, generator(0, "views"))
        assert found.shape == (200, 2, 3, 3)
        assert set(found[:, 0, 0, 0].int().tolist()) == expected


def test_only_the_end_learns_from_views_and_statistics_stay(encoder: Encoder) -> None:
    built, kept = backbone(encoder)
    built(built.view(kept, True, generator(0, "views"))).square().sum().backward()
    learned = [parameter.grad is not None for parameter in built.network.parameters()]
    assert learned == sorted(learned), "the first do not, the last do"
    assert learned == [parameter.requires_grad for parameter in built.network.parameters()]
    assert not any(buffer.requires_grad for buffer in built.buffers())


@pytest.mark.parametrize("square_root", [False, True])
def test_gradients_are_finite_where_features_are_zero(encoder: Encoder, square_root: bool) -> None:
    built, kept = backbone(encoder)
    built.fit(kept, square_root=square_root)
    assert built.notes() == (["the square roots of the features are learned from"] if square_root else [])
    built(torch.zeros_like(kept)).square().sum().backward()
    gradients = [parameter.grad for parameter in built.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_networks_whose_last_block_is_not_known_are_refused_before_training(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "network", lambda self: tiny_network())
    with pytest.raises(UsageError, match=r"where the last block .* with --fine-tune last"):
        options_for(settings_of(encoder).model)


def test_options_of_an_unknown_kind_of_fine_tuning_are_refused(encoder: Encoder) -> None:
    options = {**options_for(settings_of(encoder).model), "fine_tune": "start"}
    with pytest.raises(ValueError, match="is no encoder that can be fine-tuned"):
        build_backbone("fine_tuned_encoder", options, (3, SIZE, SIZE))


# --- training --------------------------------------------------------------------------------------------------------


def test_training_changes_the_end_alone(encoder: Encoder) -> None:
    trainer = trainer_of(settings_of(encoder), pieces())
    work = trainer.work()
    next(work)
    features = trainer.state.model.features
    before = {name: tensor.clone() for name, tensor in features.state_dict().items()}
    next(work)
    learned = {name for name, parameter in features.named_parameters() if parameter.requires_grad}
    assert learned
    assert all(torch.equal(tensor, before[name]) == (name not in learned) for name, tensor in
               features.state_dict().items())  # fmt: skip


def test_pseudo_labels_are_spread_as_on_features_that_stay(encoder: Encoder) -> None:
    trainer = trainer_of(settings_of(encoder), pieces())
    next(trainer.work())
    assert trainer.state.progress.spreading > 0
    assert trainer.state.progress.check is None


def test_a_run_that_was_interrupted_ends_with_the_same_bits(encoder: Encoder) -> None:
    check_that_an_interrupted_run_ends_with_the_same_bits(settings_of(encoder))


def test_a_trained_model_predicts_and_is_exported_without_a_file_of_the_encoder(encoder: Encoder) -> None:
    pytest.importorskip("onnxruntime")
    run = ebpl.train(pieces(), settings_of(encoder), run="run")
    before = ebpl.predict(run, crops(3, SIZE))
    Path(encoder.info.name).unlink()
    assert ebpl.predict("run", crops(3, SIZE)) == before
    assert ebpl.export("run").is_file()


def test_it_has_a_preset_of_its_own(encoder: Encoder) -> None:
    assert settings_for("photos", changes={"model.fine_tune": "end"})[0] == preset("fine-tuned-end")
    assert Architecture.of(settings_of(encoder).model, (3, SIZE, SIZE), 2, True).backbone == "fine_tuned_encoder"


def test_views_depend_on_the_image_alone_and_are_computed_once_for_several_seeds(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, settings = backbone(encoder)[0], settings_of(encoder)
    pixels, counts = crops(12, SIZE), list[int]()
    computed: list[int] = []
    whole = type(built.network).before_last
    monkeypatch.setattr(type(built.network), "before_last", lambda self, x: computed.append(len(x)) or whole(self, x))
    monkeypatch.setattr(fine_tuned_encoder, "REMEMBERED", fine_tuned_encoder.Remembered())
    first = built.prepare_training(pixels, settings.data, counts.append)
    assert sum(counts) == 12
    assert sum(computed) == 12 * (WEAK + STRONG)
    again = built.prepare_training(pixels[::-1].copy(), settings.data, counts.append)
    assert torch.equal(again, first.flip(0))
    assert sum(counts) == 24
    assert sum(computed) == 12 * (WEAK + STRONG), "nothing is computed twice"
    other = built.prepare_training(pixels, settings_of(encoder, data__color_jitter=0.0).data)
    assert not torch.equal(other[:, WEAK:], first[:, WEAK:])
    assert torch.equal(other[:, :WEAK], first[:, :WEAK])


def test_views_beyond_what_is_remembered_are_computed_all_the_same(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, kept = backbone(encoder)
    monkeypatch.setattr(fine_tuned_encoder, "REMEMBERED", fine_tuned_encoder.Remembered())
    monkeypatch.setattr(fine_tuned_encoder, "MOST_REMEMBERED", 3 * kept[0].nbytes)
    for _ in range(2):
        assert torch.equal(built.prepare_training(crops(12, SIZE), settings_of(encoder).data), kept)
        assert len(fine_tuned_encoder.REMEMBERED.views) == 3
