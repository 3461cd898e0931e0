"""Seeds that learn from the same labels, alone and together."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import ensemble
from tests.helpers import blobs, quick


def test_members_and_their_mean_are_measured_on_the_test_images(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = quick(epochs=1, pseudo_labels="none", labels_per_class=4, validation_fraction=0.0)
    monkeypatch.setattr(ensemble, "datasets", lambda _: iter([(blobs(unlabeled=False), settings)]))
    arguments = ["--seeds", "0,2", "--results", "found"]
    assert ensemble.main(arguments) == 0
    record = json.loads(Path("found/blobs-labels3.json").read_text())
    assert set(record["members"]) == {"0", "2"}
    assert {each["images"] for each in (*record["members"].values(), record["ensemble"])} == {30}
    assert record["ensemble"]["brier"] <= np.mean([each["brier"] for each in record["members"].values()]) + 1e-9
    assert capsys.readouterr().out.startswith("blobs-labels3 ")
    assert ensemble.main(arguments) == 0
    assert capsys.readouterr().out == ""
