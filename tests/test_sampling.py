import math

import torch

from ebpl.sampling import Langevin


def sampled(energy, start: torch.Tensor, step_size: float, steps: int, seed: int = 0) -> torch.Tensor:
    langevin = Langevin(steps, step_size, noise=math.sqrt(2 * step_size))
    return langevin(energy, start, torch.Generator().manual_seed(seed))


def test_moments_of_a_gaussian() -> None:
    mean = torch.tensor([1.0, -2.0])
    variance = torch.tensor([0.25, 2.0])

    def energy(x: torch.Tensor) -> torch.Tensor:
        return ((x - mean) ** 2 / (2 * variance)).sum(1)

    x = sampled(energy, torch.zeros(20_000, 2), step_size=0.01, steps=800)
    torch.testing.assert_close(x.mean(0), mean, atol=0.05, rtol=0)
    # the discretised chain's own variance is v / (1 - step / (2 v))
    torch.testing.assert_close(x.var(0), variance / (1 - 0.01 / (2 * variance)), atol=0, rtol=0.04)


def test_moments_of_a_mixture() -> None:
    centers, weights = torch.tensor([-2.0, 1.5]), torch.tensor([0.3, 0.7])

    def energy(x: torch.Tensor) -> torch.Tensor:
        return -torch.logsumexp(torch.log(weights) - (x - centers) ** 2 / 2, 1)

    x = sampled(energy, torch.randn(20_000, 1, generator=torch.Generator().manual_seed(1)), 0.05, 1500)
    mean = (weights * centers).sum()
    variance = 1 + (weights * centers**2).sum() - mean**2
    assert abs(x.mean() - mean) < 0.08
    assert abs(x.var() / variance - 1) < 0.06
    assert abs((x < -0.25).float().mean() - 0.3 - 0.015) < 0.03  # the left mode keeps its share


def test_without_noise_it_descends_the_energy() -> None:
    x = Langevin(100, step_size=0.1, noise=0.0)(
        lambda x: 0.5 * (x**2).sum(1), torch.full((3, 4), 5.0), torch.Generator()
    )
    torch.testing.assert_close(x, torch.full((3, 4), 5.0 * 0.9**100))


def test_samples_stay_in_the_range_asked_for() -> None:
    langevin = Langevin(10, step_size=1.0, noise=1.0, clamp=(-1.0, 1.0))
    x = langevin(lambda x: -100 * x.sum(1), torch.zeros(50, 3), torch.Generator().manual_seed(0))
    assert x.min() >= -1
    assert x.max() <= 1


def test_gradient_clip_bounds_a_step() -> None:
    langevin = Langevin(1, step_size=2.0, noise=0.0, gradient_clip=0.5)
    x = langevin(lambda x: 1e6 * x.sum(1), torch.zeros(2, 3), torch.Generator())
    torch.testing.assert_close(x, torch.full((2, 3), -1.0))


def test_samples_carry_no_gradient_and_parameters_get_none() -> None:
    slope = torch.ones(3, requires_grad=True)
    x = Langevin(3, 0.1, 0.1)(lambda x: (slope * x).sum(1), torch.zeros(2, 3), torch.Generator())
    assert not x.requires_grad
    assert slope.grad is None


def test_following_a_known_gradient_gives_the_same_samples() -> None:
    langevin = Langevin(5, 0.3, 0.1, gradient_clip=0.7, clamp=(-1.0, 1.0))
    start = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    by_energy = langevin(lambda x: 0.5 * (x**2).sum(1), start, torch.Generator().manual_seed(2))
    by_gradient = langevin.follow(lambda x: x, start, torch.Generator().manual_seed(2))
    torch.testing.assert_close(by_energy, by_gradient)
