import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ebpl.config import Settings
from ebpl.encoders import Encoder
from ebpl.errors import RunError, UsageError
from ebpl.models import build_backbone
from ebpl.models.encoder import EncodedImages, Preparation, options_of, resizing_matrix
from tests.encoders.helpers import crops, small, tiny
from tests.helpers import random_images

LAST_DIGIT = 2**-10
"""Of a feature of 16 bits, relative to its size."""


@pytest.fixture
def encoder() -> Encoder:
    return small()


def backbone(encoder: Encoder, components: int = 8) -> EncodedImages:
    """The features of an encoder, as a model has them."""
    built = build_backbone("encoder", options_of(encoder.info.name, components), (3, 64, 64))
    assert isinstance(built, EncodedImages)
    return built


def test_images_become_the_features_of_the_encoder() -> None:
    encoder = tiny()
    images = crops(4)
    assert (backbone(encoder).prepare(images).numpy() == encoder.encode(images)).all()


def test_the_components_are_uncorrelated_sorted_by_variance_and_of_mean_square_one() -> None:
    features = torch.rand(200, 5, generator=torch.Generator().manual_seed(0)) ** 2
    built = backbone(tiny(5), components=3)
    built.fit(features)
    rows = built(built.scale(features)).double()
    moments = rows.T @ rows / len(rows)
    variances = moments.diagonal().clone()
    assert rows.shape == (200, 3)
    assert moments.fill_diagonal_(0).abs().max() < 1e-5
    assert (variances.diff() < 0).all()
    assert float(variances.mean()) == pytest.approx(1, abs=1e-5)


def test_the_reconstruction_error_is_what_the_components_leave_out() -> None:
    features = torch.rand(200, 5, generator=torch.Generator().manual_seed(0)) ** 2
    built = backbone(tiny(5), components=3)
    built.fit(features)
    centered = built._centered(features).double()
    basis = F.normalize(built.directions.double(), dim=0)
    expected = (centered - centered @ basis @ basis.T).square().sum(1)
    found = built.reconstruction_error(built.scale(features))
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    whole = backbone(tiny(5), components=5)
    whole.fit(features)
    assert whole.reconstruction_error(whole.scale(features)) is None


def test_the_length_of_features_does_not_matter() -> None:
    features = torch.rand(50, 5, generator=torch.Generator().manual_seed(0))
    built = backbone(tiny(5))
    built.fit(features)
    torch.testing.assert_close(built.scale(features * 7), built.scale(features))


def with_choice(components: int = 3) -> EncodedImages:
    options = options_of(tiny(5).info.name, components) | Settings().model.feature_options
    built = build_backbone("encoder", options, (3, 64, 64))
    assert isinstance(built, EncodedImages)
    return built


def test_square_roots_of_features_are_prepared_as_those_numbers_would_be() -> None:
    features = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    features[0, 0] = 0
    built, plain = with_choice(), backbone(tiny(5), components=3)
    roots = torch.from_numpy(np.sign(features.numpy()) * np.sqrt(np.abs(features.numpy())))
    for square_root, same in ((True, roots), (False, features)):
        built.fit(features, square_root)
        plain.fit(same)
        assert built.takes_square_root == square_root
        torch.testing.assert_close(built.scale(features), plain.scale(same), rtol=0, atol=1e-5)
        torch.testing.assert_close(built.directions, plain.directions, rtol=0, atol=1e-5)


def test_what_was_chosen_is_part_of_the_weights_and_models_of_before_have_no_choice() -> None:
    features = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    built, loaded, before = with_choice(), with_choice(), backbone(tiny(5), components=3)
    built.fit(features, square_root=True)
    loaded.load_state_dict(built.state_dict())
    assert torch.equal(loaded.scale(features), built.scale(features))
    assert set(before.state_dict()) == {"center", "directions"}
    assert set(built.state_dict()) == {"center", "directions", "power"}


def test_another_encoder_of_the_same_name_is_refused() -> None:
    built = backbone(tiny(5))
    tiny(6)  # the same file, with other weights
    with pytest.raises(RunError, match="another encoder than"):
        built.prepare(crops(1))
    with pytest.raises(RunError, match="another encoder than"):
        built.load()


@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 64), (64, 33), (500, 7)])
def test_resizing_by_matrices_is_that_of_the_encoder(height: int, width: int) -> None:
    images = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    resized = resizing_matrix(height, 32) @ images @ resizing_matrix(width, 32).T
    expected = F.interpolate(images, (32, 32), mode="bilinear", antialias=True)
    torch.testing.assert_close(resized, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 64, 3), (64, 64, 1), (8, 8, 1), (20, 90, 3), (150, 150, 3)])
def test_the_network_to_export_gives_the_features_that_the_encoder_gives(
    encoder: Encoder, shape: tuple[int, int, int]
) -> None:
    images = crops(5, 64) if shape == (64, 64, 3) else random_images(5, *shape)
    with torch.inference_mode():
        features = Preparation(encoder, *shape[:2])(torch.from_numpy(images)).numpy()
    expected = encoder.encode(images)
    assert np.abs(features - expected).max() <= LAST_DIGIT * np.abs(expected).max()
    assert (features == expected).mean() > 0.9
    assert (features == features.astype(np.float16)).all()


def test_an_encoder_without_a_network_cannot_be_exported() -> None:
    with pytest.raises(UsageError, match=r"is an ONNX model.*Predict with `ebpl predict`"):
        Preparation(tiny(), 32, 32)
