"""The benchmark: every case of a plan, one after the other, as a record."""

from __future__ import annotations

import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Loop, MatrixProduct, in_turns, peak_memory, wait, warm_up
from benchmarks.operations import operations
from benchmarks.plan import CHANNELS, CLASSES, Case, plan_for
from benchmarks.record import Record, Row, describe_machine
from benchmarks.reference import Reference
from benchmarks.training import Training
from ebpl.config.presets import preset
from ebpl.devices import choose_device, choose_dtype
from ebpl.models.predictions import predict
from ebpl.terminal import Progress, Silent
from ebpl.training.train_state import TrainState

PREDICTED = {"cuda": 8192, "cpu": 512}
"""So many images are predicted at a time."""
LATE = "not measured: the time limit was reached"


def benchmark(
    device: str = "auto", time_limit: float = float("inf"), progress: Progress | None = None, **options: Any
) -> Record:
    """Measure every case of the plan that `options` make; one that fails becomes a row with the reason."""
    progress = progress or Silent()
    settings = preset("standard", device=device)
    where = choose_device(settings.runtime)
    plan = plan_for(where.type == "cuda", **options)
    cases = plan.cases()
    if max(options.get("seeds") or (1,)) > max(plan.seeds):
        progress.say("several seeds at once are measured on a GPU only")
    deadline = time.monotonic() + time_limit
    torch.backends.cudnn.benchmark = where.type == "cuda"  # as the trainer and the public code have it
    machine = describe_machine(settings.runtime)
    product = MatrixProduct(where)
    rows: list[Row] = []
    stopped = False
    progress.begin(len(cases), 0)
    try:
        product.measure()
        for case in cases:
            progress.advance(0, str(case), {})
            progress.say(str(case))
            product.measure()
            for row in _rows(case, where, plan.rounds, deadline):
                rows.append(row)
                progress.say(f"    {in_words(row)}")
            progress.advance(1, str(case), {})
    except KeyboardInterrupt:
        stopped = True
        progress.say("stopped; what is measured is kept")
    finally:
        progress.end()
    rate = product.described()
    return {
        "stopped": stopped,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "options": dataclasses.asdict(plan),
        "matrix_rate": rate,
        "rows": [row | _rates(row, rate["tflops"]) for row in rows],
    }


def in_words(row: Row) -> str:
    """What was measured and what came out, in a line."""
    seeds = f", {row['seeds']} seeds at once" if row["seeds"] > 1 else ""
    found = row["failed"] or f"{row['milliseconds']:.4g} ms"
    faster = f", {row['speedup']:.2f} times as fast as the reference" if row["speedup"] else ""
    return f"{row['loop']}{seeds}: {found}{faster}"


def _rows(case: Case, device: torch.device, rounds: int, deadline: float) -> Iterator[Row]:
    """A row for each loop of a case, all measured in turns; for a network, prediction too."""
    yield from _measured(_training(case, device), device, rounds, deadline)
    if case.varied == "network":
        yield from _measured(_prediction(case, device), device, rounds, deadline)


Offer = tuple[Row, Callable[[], Loop]]
"""What a row says before it is measured, and how to make its loop."""


def _measured(offers: list[Offer], device: torch.device, rounds: int, deadline: float) -> list[Row]:
    rows = {str(i): {**row, "failed": None} for i, (row, _) in enumerate(offers)}
    loops: dict[str, Loop] = {}
    times: dict[str, list[float]] = {}
    for (name, row), (_, make) in zip(rows.items(), offers, strict=True):
        if time.monotonic() > deadline:
            row["failed"] = LATE
            continue
        try:
            with peak_memory(device) as peak:
                loops[name] = make()
                warm_up(loops[name], device)
            row["peak_memory"] = peak[0] if peak else None
        except (MemoryError, RuntimeError) as error:
            loops.pop(name, None)
            row["failed"] = _reason(error)
    try:
        times = in_turns(loops, device, rounds, deadline)
    except (MemoryError, RuntimeError) as error:
        for name in loops:
            rows[name]["failed"] = _reason(error)
    loops.clear()
    gc.collect()
    if device.type == "cuda":
        wait(device)
        torch.cuda.empty_cache()  # what captured graphs held is not for others to use until then
    first = times.get("0") if offers[0][0]["loop"] == "reference" else None
    return [_timed(row, times.get(name), first if name != "0" else None) for name, row in rows.items()]


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _timed(row: Row, times: list[float] | None, reference: list[float] | None) -> Row:
    """The row with its times, for one seed, and how many times as fast as the reference it was in the same rounds."""
    row = {"peak_memory": None, **row, "times": None, "milliseconds": None, "speedup": None}
    if times is None:
        return row
    times = [1000 * seconds / row["seeds"] for seconds in times]
    speedup = None
    if reference:
        speedup = statistics.median(1000 * theirs / ours for theirs, ours in zip(reference, times, strict=True))
    return {**row, "times": times, "milliseconds": statistics.median(times), "speedup": speedup}


def _rates(row: Row, device_tflops: float) -> Row:
    """Images a second, operations a second, and their share of what the device can do."""
    if row["milliseconds"] is None:
        return {"images_per_second": None, "tflops": None, "share": None}
    seconds = row["milliseconds"] / 1000
    tflops = row["operations"] / seconds / 1e12
    return {"images_per_second": row["counted"] / seconds, "tflops": tflops, "share": tflops / device_tflops}


def _training(case: Case, device: torch.device) -> list[Offer]:
    """The reference, and EBPL with each number of seeds at once."""
    settings = case.settings(device.type)
    dtype = choose_dtype(settings.runtime, device)
    architecture = case.architecture
    needed = operations(architecture).update(settings)
    described = _described(case) | {"operations": needed, "counted": case.batch_size}
    data = functools.cache(lambda: _images(case))  # made when a loop is, so that want of memory is that loop's failure

    def reference() -> Loop:
        return Reference(architecture, *data(), settings, device)

    def ours(seeds: int) -> Callable[[], Loop]:
        def make() -> Loop:
            images, targets = data()
            return Training(architecture, images.to(device), targets.to(device), settings, dtype, seeds)

        return make

    rows: list[Offer] = []
    if case.varied != "best":  # for which there is no public loop
        rows.append((described | {"loop": "reference", "seeds": 1, "dtype": "float32"}, reference))
    for seeds in case.seeds:
        rows.append((described | {"loop": "ebpl", "seeds": seeds, "dtype": _name(dtype)}, ours(seeds)))
    return rows


def _prediction(case: Case, device: torch.device) -> list[Offer]:
    """Prediction for images on the device and for an array on the host."""
    settings = case.settings(device.type)
    dtype = choose_dtype(settings.runtime, device)
    count = PREDICTED[device.type]
    needed = count * operations(case.architecture).prediction
    described = _described(case) | {"varied": "prediction", "images": count, "operations": needed, "counted": count}
    described |= {"seeds": 1, "dtype": _name(dtype)}
    images = _images(case)[0][torch.arange(count) % case.images]

    def made(on_device: bool) -> Callable[[], Loop]:
        def make() -> Loop:
            state = TrainState(case.architecture, settings, device)
            state.initialise("start")
            given = images.to(device) if on_device else images.permute(0, 2, 3, 1).contiguous().numpy()
            return lambda: predict(state.predictor, given, dtype)

        return make

    return [
        (described | {"loop": "prediction from device"}, made(True)),
        (described | {"loop": "prediction from host"}, made(False)),
    ]


def _described(case: Case) -> Row:
    names = ("varied", "network", "sgld_steps", "batch_size", "image_size", "images")
    return {name: getattr(case, name) for name in names}


def _images(case: Case) -> tuple[Tensor, Tensor]:
    """A thousand random images as often as needed, on the host, each with a class."""
    few = torch.randint(0, 256, (1000, CHANNELS, case.image_size, case.image_size), dtype=torch.uint8)
    index = torch.arange(case.images)
    return few[index % len(few)], torch.eye(CLASSES)[index % CLASSES]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
