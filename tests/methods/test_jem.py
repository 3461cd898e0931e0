import numpy as np
import pytest
import torch

import ebpl
from ebpl.config.presets import preset
from ebpl.errors import UsageError
from ebpl.methods import get_method
from ebpl.methods.jem import ScoreDensity
from tests.helpers import blobs, quick
from tests.methods.steps import prepared

SCORES = {"energy.penalty": 0.0, "energy.center": 0.0, "sgld.chains": 8}


def test_the_energy_is_that_of_the_classifiers_scores_and_there_is_no_other_head() -> None:
    training, step = prepared("jem", **SCORES)
    model = training.state.model
    assert model.gaussian is None
    images = step.training_set.take(torch.arange(6))
    scores, energies = (each.detach().double().numpy() for each in model(images))
    np.testing.assert_allclose(energies, -np.log(np.exp(scores).sum(1)), rtol=1e-5)


def test_the_loss_is_the_cross_entropy_and_the_difference_of_energies_of_images_and_samples() -> None:
    _, step = prepared("jem", **SCORES)
    (term,) = (term for term in step.terms if isinstance(term, ScoreDensity))
    gathered = [each.views(step) for each in step.terms]
    density = gathered[step.terms.index(term)]
    with torch.no_grad():
        (scores, _), (_, images), (_, samples) = (
            step.state.model(batch) for batch in (gathered[0].inputs[0], *density.inputs)
        )
    assert gathered[0].targets is not None
    supervised = -(gathered[0].targets * scores.log_softmax(1)).sum(1).mean()
    expected = supervised + images.mean() - samples.mean()
    _, again = prepared("jem", **SCORES)
    again()
    assert again.sums[0].item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_density_is_of_all_images_and_chains_are_images() -> None:
    training, step = prepared("jem", **SCORES)
    assert step.batch_sizes == {"labeled": 8, "all": 8}
    assert training.state.buffer is not None
    assert training.state.buffer.samples.shape[1:] == (1, 8, 8)
    before = training.state.buffer.samples.clone()
    step()
    changed = (training.state.buffer.samples != before).flatten(1).any(1)
    assert changed.sum() == 8


def test_with_the_preset_paper_it_has_the_settings_of_its_own_paper() -> None:
    settings = preset("paper", method="jem", pseudo_labels="none")
    _, density = get_method("jem").terms(settings)
    assert isinstance(density, ScoreDensity)
    assert (density.weight, density.penalty, settings.model.network) == (1.0, 0.0, "WRN-28-10")
    sgld = settings.sgld
    assert (sgld.steps, sgld.step_size, sgld.noise, sgld.buffer_size) == (20, 1.0, 0.01, 10_000)


def test_a_run_knows_the_energies_of_its_training_images_and_has_samples() -> None:
    assert get_method("jem").density
    run = ebpl.train(blobs(), quick(method="jem", epochs=1), run="run")
    rows = ebpl.predict(run, blobs().train.pixels[:4])
    assert all(np.isfinite(row["energy"]) for row in rows)
    assert any(row["outlier"] is not None for row in rows)
    page = ebpl.report(run, data=blobs()).read_text()
    assert "JEM" in page


def test_an_encoder_has_no_images_to_sample() -> None:
    with pytest.raises(UsageError, match="jem samples images"):
        get_method("jem").terms(preset("fine-tuned", method="jem"))
