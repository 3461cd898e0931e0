import json
from pathlib import Path

import numpy as np
import pytest

import ebpl
from ebpl.errors import DataError
from ebpl.inference.evaluate import SAMPLES
from ebpl.metrics import METRICS
from ebpl.models.predictions import predict
from experiments import results_store
from experiments.results_store import Record, in_doubt, load, modern_record, name_of, recovered, save
from tests.helpers import ROOT, blobs, quick

TINY = {"preset": "quick", "epochs": 1, "curriculum__steps": 2, "curriculum__epochs": 1, "sgld__steps": 1}


def test_a_record_holds_result_settings_and_environment(tmp_path: Path) -> None:
    run = ebpl.train(blobs(), quick(method="curriculum-labeling", pseudo_labels="none"), run="run")
    path = save(results_store.record_of(run), tmp_path / "results")
    (record,) = load(tmp_path / "results")
    assert record["result"] == run.metrics()
    assert record["settings"] == run.settings.to_dict()
    assert record["environment"]["torch"]
    assert path.name.startswith("blobs-curriculum-labeling-none-wrn-10-1-seed0-")
    assert str(tmp_path) not in path.read_text()


def record(**changes: object) -> Record:
    return {"data": {"name": "x", "fingerprint": "abc"}, "settings": quick(**changes).to_dict()}


def test_other_settings_are_another_record_but_not_how_it_was_written() -> None:
    others: list[dict[str, object]] = [{}, {"seed": 1}, {"sgld__noise": 0.02}, {"method": "curriculum-labeling"}]
    assert len({name_of(record(**changes)) for changes in others}) == 4
    assert name_of(record(runtime__checkpoint_seconds=1.0, runtime__tensorboard=True)) == name_of(record())


def test_every_setting_that_changes_a_result_changes_the_name() -> None:
    plain, names = quick(), set()
    for name, value in plain.to_dict().items():
        changed = {**plain.to_dict(), name: "another" if isinstance(value, str) or value is None else (value or 0) + 1}
        names.add(name_of({**record(), "settings": changed}))
    incidental = len(results_store.INCIDENTAL)
    assert len(names) == len(plain.to_dict()) - incidental + 1  # all of those give the name of the plain one


def test_settings_that_are_gone_are_part_of_the_name() -> None:
    for gone in ({"mixed": "labeled"}, {"strong": 0.5}, {"mixed": "labeled", "strong": 0.5}):
        assert name_of({**record(), "settings": {**quick().to_dict(), **gone}}) != name_of(record())


def test_a_name_stays_as_new_settings_come() -> None:
    older = record()
    del older["settings"]["optim.warmup_updates"], older["settings"]["consistency.weight"]
    assert name_of(older) == name_of(record())


def test_how_pseudo_labels_would_be_made_is_without_effect_where_there_are_none() -> None:
    sharp = {"curriculum__pseudo_label_temperature": 0.5}
    assert name_of(record(pseudo_labels="none", **sharp)) == name_of(record(pseudo_labels="none"))
    assert name_of(record(pseudo_labels="soft", **sharp)) != name_of(record(pseudo_labels="soft"))


def test_every_record_of_the_repository_has_its_own_name() -> None:
    paths = sorted((ROOT / "results").glob("*.json"))
    assert len(paths) > 250
    for path, record in zip(paths, load(ROOT / "results"), strict=True):
        assert path.stem == name_of(record), path.name
        assert all("." in name or name in ("method", "seed", "mixed", "strong") for name in record["settings"])


def test_reading_and_writing_a_record_of_version_0_1_leaves_it_as_it_is() -> None:
    stored = {
        "data": {"name": "x", "fingerprint": "f"},
        "settings": {"method": "ebpl", "seed": 0, "pseudo_labels": "soft", "gate": 0.5, "strong": 0.0},
        "environment": {},
        "result": {"metrics": {"accuracy": 0.5}, "last": {"metrics": {"ece": 0.1}}, "curves": {"gap": [1.0]}},
        "details": "eA==",
    }
    Path("results").mkdir()
    path = Path("results/old.json")
    path.write_text(json.dumps(stored))
    (record,) = load(Path("results"))
    assert record["settings"]["consistency.confidence_threshold"] == 0.5
    assert "strong" not in record["settings"]
    assert record["result"]["curves"] == {"energy_gap": [1.0]}
    assert json.loads(save(record, Path("again")).read_text()) == stored
    small = results_store.without_details(record)
    assert "details" not in json.loads(save(small, Path("small")).read_text())


def test_a_metric_that_came_after_a_record_is_null_in_it() -> None:
    settings = {"method": "ebpl", "seed": 0}
    old = {"data": {"name": "x"}, "settings": settings, "result": {"metrics": {"accuracy": 0.5}, "last": None}}
    assert modern_record(old)["result"]["metrics"] == {**dict.fromkeys(METRICS), "accuracy": 0.5}
    assert old["result"] == {"metrics": {"accuracy": 0.5}, "last": None}  # what was read is left alone
    assert modern_record({**old, "result": {"metrics": None}})["result"]["metrics"] is None


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"settings": {}}', '{"settings": [], "result": {}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DataError, match=r"bad\.json is not a record"):
            load(tmp_path)


def test_the_first_seed_carries_what_single_images_are_drawn_from() -> None:
    first = ebpl.train("digits", run="first", **TINY)
    arrays = results_store.details(results_store.record_of(first))
    test = ebpl.load("digits").test
    assert test is not None
    model, _ = first.load_model()
    predictions = predict(model, test.pixels)
    assert "training_digests" not in arrays  # they are large, and no figure needs them
    np.testing.assert_array_equal(arrays["test_labels"], predictions.labels)
    np.testing.assert_allclose(arrays["test_confidences"], predictions.confidences, atol=1e-3)
    assert arrays["samples"].shape == (SAMPLES, 8, 8, 1)
    assert 395 <= len(arrays["selected"]) == len(arrays["selected_labels"]) <= 400  # half of each class, rounded up
    other = ebpl.train("digits", run="other", seed=1, **TINY)
    assert results_store.details(results_store.record_of(other)) == {}
    with pytest.raises(DataError, match="damaged"):
        results_store.details({**results_store.record_of(first), "details": "bm8="})


def test_a_digest_changes_with_every_result_and_with_nothing_else() -> None:
    def record(seed: int, accuracy: float) -> dict[str, object]:
        return {"data": {"name": "x"}, "settings": {"seed": seed}, "result": {"accuracy": accuracy}, "environment": {}}

    both = [record(0, 0.5), record(1, 0.6)]
    elsewhere = [{**each, "environment": {"gpu": "x"}} for each in both]
    assert results_store.digest(both) == results_store.digest(both[::-1]) == results_store.digest(elsewhere)
    assert results_store.digest([modern_record(each) for each in both]) == results_store.digest(both)
    others = [both, both[:1], [record(0, 0.5), record(1, 0.7)]]
    assert len({results_store.digest(each) for each in others}) == 3


def test_a_record_whose_code_is_not_known_is_in_doubt() -> None:
    known = [{"environment": {"commit": commit}} for commit in ("abc", "abc-dirty", None)]
    assert [in_doubt(each) for each in (*known, {})] == [None, "uncommitted changes", "no commit", "no commit"]


def test_a_run_that_recovered_from_divergence_is_told_from_its_record() -> None:
    assert recovered({"result": {"healed_divergences": [{"epoch": 3}]}})
    assert not recovered({"result": {"healed_divergences": []}})
    assert not recovered({})
    there = [path.name for path in (ROOT / "results").glob("*.json") if recovered(json.loads(path.read_text()))]
    assert sorted(there) == [
        "blood-ebpl-hard-wrn-16-4-seed6-65af19fa.json",
        "blood-ebpl-hard-wrn-16-4-seed7-0398d383.json",
        "blood-ebpl-none-wrn-16-4-seed3-6ec2ffe9.json",
        "blood-ebpl-none-wrn-16-4-seed5-f91c1fa2.json",
        "blood-ebpl-soft-wrn-16-4-seed5-e191701b.json",
        "blood-ebpl-soft-wrn-16-4-seed7-05d92186.json",
    ]
