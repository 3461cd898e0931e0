import pytest

from benchmarks.plan import network, plan_for
from ebpl.config.presets import preset
from ebpl.errors import UsageError


def test_a_cpu_gets_a_small_plan_without_several_seeds() -> None:
    (case,) = plan_for(on_gpu=False, seeds=[1, 5], networks=None).cases()
    assert (case.network, case.seeds, case.image_size) == ("10-1", (1,), 28)


def test_a_gpu_gets_each_network_with_each_number_of_seeds() -> None:
    cases = plan_for(on_gpu=True, networks=["16-2"], seeds=[5, 1]).cases()
    assert [(case.network, case.seeds) for case in cases] == [("16-2", (1, 5))]


def test_scaling_varies_one_thing_at_a_time_around_a_base() -> None:
    base, *others = plan_for(on_gpu=True, networks=[], scaling="default").cases()
    assert (base.network, base.varied) == ("16-4", "base")
    names = ("sgld_steps", "batch_size", "image_size", "images")
    for case in others:
        different = [name for name in names if getattr(case, name) != getattr(base, name)]
        assert different == [case.varied]
    tried = {name: [getattr(case, name) for case in others if case.varied == name] for name in names}
    assert tried == {
        "sgld_steps": [5, 10, 40],
        "batch_size": [16, 32, 128, 256],
        "image_size": [16, 64],
        "images": [1_000, 100_000, 1_000_000],
    }


def test_what_is_not_a_network_is_told_before_anything_is_measured() -> None:
    assert network("28-10") == (28, 10)
    with pytest.raises(UsageError, match="such as 28-10"):
        network("wrn-28")
    with pytest.raises(UsageError, match="Nearest: 10 or 16"):
        plan_for(on_gpu=False, networks=["12-1"]).cases()
    with pytest.raises(UsageError, match="width"):
        plan_for(on_gpu=False, scaling="10-0").cases()


def test_three_parts_of_the_batch_have_one_size() -> None:
    (case,) = plan_for(on_gpu=False, batch_size=20_000).cases()
    settings = case.settings("cpu")
    assert settings.sgld.chains == settings.optim.batch_size == 20_000 <= settings.sgld.buffer_size


def test_the_update_of_best_is_that_of_the_preset_in_the_size_of_the_case() -> None:
    (case,) = [case for case in plan_for(on_gpu=True).cases() if case.varied == "best"]
    settings, best = case.settings("cpu"), preset("best")
    assert case.network == "16-4"
    same = ("sgld.steps", "sgld.chains", "optim.batch_size", "consistency.batch_size", "consistency.weight")
    assert all(settings[name] == best[name] for name in same)
    assert settings.data.mixup_probability == best.data.mixup_probability
    assert [case.network for case in plan_for(on_gpu=False, best=["10-1"]).cases()] == ["10-1", "10-1"]
