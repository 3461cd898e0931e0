import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.sampling import LARGEST, FittedGaussian, Langevin, ReplayBuffer, affordable, as_pixels
from tests.helpers import random_images

CPU = torch.device("cpu")


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


def test_a_fitted_gaussian_has_the_mean_and_the_covariance_of_what_it_was_fitted_to() -> None:
    inputs = torch.randn(30, 6, generator=torch.Generator().manual_seed(3)) @ torch.randn(6, 6) + torch.arange(6.0)
    draws = FittedGaussian(inputs.view(30, 1, 2, 3))(200_000, torch.Generator().manual_seed(4))
    assert draws.shape == (200_000, 1, 2, 3)
    expected = torch.cov(inputs.T, correction=0)
    torch.testing.assert_close(draws.flatten(1).mean(0), inputs.mean(0), atol=0.05, rtol=0.02)
    torch.testing.assert_close(torch.cov(draws.flatten(1).T), expected, atol=0.02 * float(expected.max()), rtol=0.02)


def test_chains_restart_from_the_gaussian_that_the_buffer_is_given() -> None:
    start = FittedGaussian(torch.full((5, 1, 2, 2), 7.0))
    buffer = ReplayBuffer(50, (1, 2, 2), 0.5, CPU, start)
    buffer.restart(torch.Generator().manual_seed(0))
    assert bool((buffer.samples == 7).all())
    buffer.samples.zero_()
    _, drawn = buffer.draw(50, torch.Generator().manual_seed(1))
    assert set(drawn.flatten().tolist()) == {0.0, 7.0}


def filled(size: int, restart_probability: float) -> ReplayBuffer:
    buffer = ReplayBuffer(size, (1, 2, 2), restart_probability, CPU)
    buffer.samples.copy_(torch.arange(size).view(-1, 1, 1, 1).float().expand(size, 1, 2, 2) + 10)
    return buffer


@given(size=st.integers(1, 300), chains=st.integers(1, 300), seed=st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_no_sample_is_drawn_twice_at_once(size: int, chains: int, seed: int) -> None:
    if chains > size:
        return
    index, start = filled(size, 0.0).draw(chains, torch.Generator().manual_seed(seed))
    assert len(set(index.tolist())) == chains
    assert index.min() >= 0
    assert index.max() < size
    assert torch.equal(start[:, 0, 0, 0], index.float() + 10)


def test_every_part_of_the_buffer_is_used() -> None:
    buffer, generator = filled(20, 0.0), torch.Generator().manual_seed(0)
    seen = {i for _ in range(200) for i in buffer.draw(5, generator)[0].tolist()}
    assert seen == set(range(20))


def test_the_asked_for_share_of_chains_restarts_from_uniform_noise() -> None:
    _, start = filled(10_000, 0.05).draw(10_000, torch.Generator().manual_seed(0))
    fresh = start[:, 0, 0, 0] < 10
    assert abs(fresh.float().mean() - 0.05) < 0.01
    noise = start[fresh]
    assert noise.min() >= -1
    assert noise.max() <= 1
    assert abs(noise.var() - 1 / 3) < 0.03


def test_stored_chains_are_found_again() -> None:
    buffer, generator = filled(50, 0.0), torch.Generator().manual_seed(0)
    index, start = buffer.draw(10, generator)
    buffer.store(index, start + 1000)
    assert torch.equal(buffer.samples[index], start + 1000)
    untouched = torch.ones(50, dtype=torch.bool)
    untouched[index] = False
    assert torch.equal(buffer.samples[untouched], filled(50, 0.0).samples[untouched])


def test_a_restarted_buffer_is_noise() -> None:
    buffer = filled(1000, 0.0)
    buffer.restart(torch.Generator().manual_seed(0))
    assert buffer.samples.abs().max() <= 1


def test_the_parts_of_a_split_buffer_start_as_the_whole_would() -> None:
    def noise(size: int, *part: int) -> torch.Tensor:
        buffer = ReplayBuffer(size, (1, 2, 2), 0.0, CPU)
        buffer.restart(torch.Generator().manual_seed(0), *part)
        return buffer.samples

    assert torch.equal(torch.cat([noise(4, 3, part) for part in range(3)]), noise(12))


def test_chains_that_blew_up_are_counted() -> None:
    buffer = ReplayBuffer(4, (1, 2, 2), 0.0, CPU)
    buffer.samples.fill_(0.5)
    buffer.samples[1, 0, 0, 0], buffer.samples[3] = float("nan"), float("inf")
    buffer.samples[0, 0, 0, 0] = -7.0
    assert buffer.described() == "2 of 4 chains are not finite, the others reach 7"


def test_inputs_become_pixels_again() -> None:
    pixels = random_images(5, 4, 4, 3)
    inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    assert np.array_equal(as_pixels(inputs), pixels)


@given(st.integers(1, 20_000), st.integers(1, 200), st.sampled_from([(3, 32, 32), (3, 128, 128), (1, 4096, 4096)]))
def test_a_replay_buffer_is_as_large_as_wanted_or_as_memory_allows(more: int, chains: int, shape: tuple) -> None:
    wanted = chains + more
    size = affordable(wanted, shape, chains)
    assert chains <= size <= wanted
    if size < wanted:
        assert wanted * math.prod(shape) > LARGEST
        assert size % chains == 0  # so that it can be shared by as many processes as the chains
        assert size == chains or size * math.prod(shape) <= LARGEST < (size + chains) * math.prod(shape)
