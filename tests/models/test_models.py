import torch

from ebpl.models import Architecture


def test_the_heads_start_in_agreement() -> None:
    for precision in ("identity", "diagonal", "full"):
        model = Architecture(10, 1, 1, 5, precision).build().initialise(torch.Generator().manual_seed(3))
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
        model = Architecture(10, 1, 1, 3, "full").build().initialise(torch.Generator().manual_seed(5))
        return model.state_dict()

    first, second = weights(1), weights(2)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_classifier_alone_has_no_gaussian_parameters_and_no_coupling() -> None:
    model = Architecture(10, 1, 3, 4, None).build().initialise(torch.Generator().manual_seed(0))
    assert not [name for name, _ in model.named_parameters() if "gaussian" in name]
    scores, energies = model(torch.zeros(2, 3, 8, 8))
    assert model.coupling().item() == 0
    torch.testing.assert_close(energies, -torch.logsumexp(scores, 1))
