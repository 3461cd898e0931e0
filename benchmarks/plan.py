"""What to measure: the cases, from the options and, where they are left open, from the device."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ebpl.config import Settings
from ebpl.config.presets import preset
from ebpl.errors import UsageError
from ebpl.models import Architecture

CHANNELS, CLASSES, IMAGES = 3, 10, 10_000
CONSISTENCY = 4
"""Unlabelled images in the preset `best` for each image of the classified batch: 256 for 64."""
FACTORS = {"sgld_steps": (0.25, 0.5, 2), "batch_size": (0.25, 0.5, 2, 4), "image_size": (0.5, 2)}


@dataclass(frozen=True)
class Case:
    """A network and everything that its cost depends on."""

    depth: int
    width: int
    sgld_steps: int
    batch_size: int
    image_size: int
    images: int = IMAGES
    seeds: tuple[int, ...] = (1,)
    varied: str = "network"
    """What this case is there to vary; `base`: the one that all sweeps begin from; `best`: the update of the preset."""

    @property
    def network(self) -> str:
        """Depth and width as people write them."""
        return f"{self.depth}-{self.width}"

    @property
    def architecture(self) -> Architecture:
        """The network with both heads."""
        shape = (CHANNELS, self.image_size, self.image_size)
        return Architecture.of(self.settings("auto").model, shape, CLASSES, density=True)

    def settings(self, device: str) -> Settings:
        """The paper's sampling and losses with our averaged weights, or those of `best`, in this case's size.

        A step costs the same at any learning rate; a low one keeps the numbers finite.
        """
        base = preset("best") if self.varied == "best" else Settings()
        return base.changed(
            depth=self.depth,
            width=self.width,
            model__stages=3,  # the same network at every size
            sgld__steps=self.sgld_steps,
            batch_size=self.batch_size,
            sgld__chains=self.batch_size,
            sgld__buffer_size=max(10_000, self.batch_size),
            consistency__batch_size=CONSISTENCY * self.batch_size,
            learning_rate=1e-6,
            device=device,
        )

    def __str__(self) -> str:
        what = "update of best, " if self.varied == "best" else ""
        return (
            f"{what}WRN-{self.network}, K = {self.sgld_steps}, batch {self.batch_size}, "
            f"{self.image_size} x {self.image_size}, {self.images:,} images"
        )


@dataclass(frozen=True)
class Plan:
    """What a benchmark goes through."""

    networks: Sequence[str]
    seeds: Sequence[int]
    sgld_steps: int
    batch_size: int
    image_size: int
    images: Sequence[int]
    """The numbers of training images whose cost is followed."""
    rounds: int = 5
    best: Sequence[str] = ()
    """The networks with which the update of the preset `best` is measured."""
    scaling: str | None = None
    """The network whose cost is followed over K, batch, image size and number of images."""

    def cases(self) -> list[Case]:
        """The networks first, then what follows the cost."""
        common = (self.sgld_steps, self.batch_size, self.image_size)
        seeds = tuple(sorted(set(self.seeds)))
        cases = [Case(*network(name), *common, seeds=seeds) for name in self.networks]
        steps = preset("best").sgld.steps
        cases += [Case(*network(name), steps, *common[1:], seeds=seeds, varied="best") for name in self.best]
        if self.scaling:
            base = Case(*network(self.scaling), *common, varied="base")
            cases += [base, *_sweeps(base, self.images)]
        for case in cases:
            case.settings("auto")  # a value that does not fit is found before anything is measured
        return cases


ON_GPU = Plan(("28-10", "28-2", "16-4"), (1, 5), 20, 64, 32, (1_000, 100_000, 1_000_000), best=("16-4",))
ON_CPU = Plan(("10-1",), (1,), 5, 16, 28, (1_000, 100_000))


def plan_for(on_gpu: bool, **options: Any) -> Plan:
    """The plan with these options; those left open (None) are the device's, on a CPU small enough for a minute.

    `scaling="default"` takes the last network of the device's own list.
    """
    base = ON_GPU if on_gpu else ON_CPU
    given = {name: value for name, value in options.items() if value is not None}
    if "networks" in given:
        given.setdefault("best", ())
    if given.get("scaling") == "default":
        given["scaling"] = base.networks[-1]
    if not on_gpu:
        given["seeds"] = (1,)  # several at once would only compete for the same cores
    return dataclasses.replace(base, **given)


def _sweeps(base: Case, images: Sequence[int]) -> list[Case]:
    cases = []
    for name, factors in FACTORS.items():
        value = getattr(base, name)
        values = sorted({max(1, int(value * factor)) for factor in factors} - {value})
        for changed in values:
            change: dict[str, Any] = {name: changed}
            cases.append(dataclasses.replace(base, varied=name, **change))
    return cases + [dataclasses.replace(base, varied="images", images=count) for count in images]


def network(name: str) -> tuple[int, int]:
    """Depth and width from a name such as 28-10."""
    if not (found := re.fullmatch(r"(\d+)-(\d+)", name)):
        raise UsageError(f"{name!r} is not a network. Give depth and width, such as 28-10 or 16-4.")
    return int(found[1]), int(found[2])
