import numpy as np
import torch

from ebpl.data.sklearn_input import packed
from ebpl.models import Architecture, build_backbone
from ebpl.models.predictions import predict


def test_the_numbers_of_rows_arrive_unchanged() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    built = build_backbone("rows", {}, (1, 5, 4))
    assert (built.prepare(packed(rows)).numpy() == rows).all()
    assert not built.takes_images


def test_the_options_limit_the_number_of_components() -> None:
    dimensions = [build_backbone("rows", options, (1, 5, 300)).dimension for options in ({}, {"components": 20})]
    assert dimensions == [128, 20]


def test_a_model_predicts_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    model = Architecture("rows", (1, 5, 4), 3, "diagonal", {"components": 2}).build()
    model.initialise(torch.Generator().manual_seed(0))
    model.features.fit(model.features.prepare(packed(rows)))
    found = predict(model, packed(rows))
    scores, _ = model(model.features.scale(torch.from_numpy(rows)))
    np.testing.assert_allclose(found.probabilities, scores.softmax(1).detach().numpy(), atol=1e-6)
    assert len(np.unique(found.energies)) == 50
