import json
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.errors import DataError
from experiments import ledger
from tests.helpers import ROOT, blobs, quick


def test_a_record_holds_result_settings_and_environment(tmp_path: Path) -> None:
    run = ebpl.train(blobs(), quick(method="curriculum-labeling", pseudo_labels="none"), run="run")
    path = ledger.save(ledger.record_of(run), tmp_path / "results")
    (record,) = ledger.load(tmp_path / "results")
    assert record["result"] == run.metrics()
    assert record["settings"]["method"] == "curriculum-labeling"
    assert record["environment"]["torch"]
    assert path.name.startswith("blobs-curriculum-labeling-none-wrn-10-1-seed0-")
    assert str(tmp_path) not in json.dumps(record)


def record(**changes: object) -> ledger.Record:
    return {"data": {"name": "x", "fingerprint": "abc"}, "settings": quick(**changes).to_dict()}


def test_other_settings_are_another_record_but_not_how_it_was_written() -> None:
    names = {
        ledger.name_of(record(**c)) for c in ({}, {"seed": 1}, {"sgld_noise": 0.02}, {"method": "curriculum-labeling"})
    }
    assert len(names) == 4
    assert ledger.name_of(record(checkpoint_seconds=1.0, tensorboard=True)) == ledger.name_of(record())


def test_a_name_stays_as_new_settings_come() -> None:
    older = record()
    del older["settings"]["warm_up"], older["settings"]["consistency"]
    assert ledger.name_of(older) == ledger.name_of(record())


def test_how_pseudo_labels_would_be_made_is_of_no_effect_where_there_are_none() -> None:
    assert ledger.name_of(record(pseudo_labels="none", sharpening=0.5)) == ledger.name_of(record(pseudo_labels="none"))
    assert ledger.name_of(record(pseudo_labels="soft", sharpening=0.5)) != ledger.name_of(record(pseudo_labels="soft"))


def test_every_record_of_the_repository_has_its_own_name() -> None:
    for path in (ROOT / "results").glob("*.json"):
        assert path.stem == ledger.name_of(json.loads(path.read_text())), path.name


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(DataError, match=r"bad\.json"):
        ledger.load(tmp_path)


def test_the_first_seed_carries_what_single_images_are_drawn_from() -> None:
    first = ebpl.train("digits", run="first", **TINY)
    arrays = ledger.details(ledger.record_of(first))
    test = ebpl.load("digits").test
    assert test is not None
    model, _ = first.load_model()
    predictions = ebpl.predict(model, test.pixels)
    np.testing.assert_array_equal(arrays["test_labels"], predictions.labels)
    np.testing.assert_allclose(arrays["test_confidences"], predictions.confidences, atol=1e-3)
    assert arrays["samples"].shape == (25, 8, 8, 1)
    assert len(arrays["selected"]) == len(arrays["selected_labels"]) == 395
    other = ebpl.train("digits", run="other", seed=1, **TINY)
    assert ledger.details(ledger.record_of(other)) == {}
    with pytest.raises(DataError, match="damaged"):
        ledger.details({**ledger.record_of(first), "details": "bm8="})


TINY = {"preset": "quick", "epochs": 1, "steps": 2, "step_epochs": 1, "sgld_steps": 1}


def test_a_digest_changes_with_every_result_and_with_nothing_else() -> None:
    def record(seed: int, accuracy: float) -> dict[str, object]:
        return {"data": {"name": "x"}, "settings": {"seed": seed}, "result": {"accuracy": accuracy}, "environment": {}}

    both = [record(0, 0.5), record(1, 0.6)]
    elsewhere = [{**each, "environment": {"gpu": "x"}} for each in both]
    assert ledger.digest(both) == ledger.digest(both[::-1]) == ledger.digest(elsewhere)
    others = [both, both[:1], [record(0, 0.5), record(1, 0.7)]]
    assert len({ledger.digest(each) for each in others}) == 3
