import os

import pytest
import torch

from ebpl import devices
from ebpl.config.presets import preset
from ebpl.devices import choose_device, choose_dtype, describe_environment, device_and_dtype, free_threads, threads
from ebpl.errors import UsageError


def test_the_cpu_computes_in_float32_and_a_gpu_in_bfloat16() -> None:
    settings = preset("standard")
    assert choose_dtype(settings.runtime, torch.device("cpu")) == torch.float32
    assert choose_dtype(settings.runtime, torch.device("cuda")) == torch.bfloat16
    assert choose_dtype(settings.changed(runtime__dtype="float32").runtime, torch.device("cuda")) == torch.float32
    assert choose_dtype(settings.changed(runtime__dtype="bfloat16").runtime, torch.device("cpu")) == torch.bfloat16


def test_the_device_asked_for_is_taken_or_refused() -> None:
    assert choose_device(preset("standard", device="cpu").runtime).type == "cpu"
    if torch.cuda.is_available():
        assert choose_device(preset("standard").runtime).type == "cuda"
    else:
        assert choose_device(preset("standard").runtime).type == "cpu"
        with pytest.raises(UsageError, match="no GPU here"):
            choose_device(preset("standard", device="cuda").runtime)


def test_a_gpu_run_predicts_on_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runtime = preset("standard", device="cuda").runtime
    assert device_and_dtype(runtime) == (torch.device("cpu"), torch.float32)
    wanted = preset("standard", device="cuda", runtime__dtype="bfloat16").runtime
    assert device_and_dtype(wanted) == (torch.device("cpu"), torch.bfloat16)


def test_a_process_that_parted_from_others_uses_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    for own in (1, 2, None):  # there is no third GPU
        monkeypatch.setattr(devices, "own_gpu", lambda own=own: own)
        assert choose_device(preset("standard").runtime) == torch.device("cuda")
    assert used == [1]


def test_the_environment_names_what_a_result_depends_on() -> None:
    described = describe_environment(preset("quick", device="cpu").runtime)
    assert described.keys() >= {
        "ebpl",
        "python",
        "torch",
        "numpy",
        "platform",
        "gpu",
        "threads",
        "device",
        "dtype",
    }


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_commit_of_the_code_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, told in (("abc", "abc-dirty"), (f"abc:{devices.source_digest()}", "abc"), ("abc:123", "abc-dirty")):
        monkeypatch.setenv("EBPL_COMMIT", given)
        devices._commit.cache_clear()
        assert describe_environment(preset("quick").runtime)["commit"] == told
    monkeypatch.delenv("EBPL_COMMIT")
    devices._commit.cache_clear()
    found = describe_environment(preset("quick").runtime)["commit"]
    assert found is None or len(found) >= 7


def test_threads_are_those_that_others_leave_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for load, free in ((0.2, 8), (3.1, 5), (7.9, 1), (50.0, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert free_threads() == free
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert free_threads() == 8
