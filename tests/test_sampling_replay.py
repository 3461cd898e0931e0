import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.sampling import ReplayBuffer

CPU = torch.device("cpu")


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
