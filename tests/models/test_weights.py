import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from ebpl.errors import RunError
from ebpl.models import Architecture, HybridModel
from ebpl.models.predictions import predict
from ebpl.models.weights import LOG_MIX, describe_model, load_model, packed_model
from ebpl.runs import Run
from ebpl.runs.reader import WEIGHTS
from tests.helpers import architecture, blobs, quick

Tensors = dict[str, torch.Tensor]
CHOSEN = {"phase": "initial", "epoch": 1, "by": "last epoch"}


def small(precision: str | None = "diagonal") -> HybridModel:
    """A model for `blobs`, as small as they come."""
    return architecture(precision).build().initialise(torch.Generator().manual_seed(0))


TENSORS = small().state_dict()
DESCRIPTION = json.loads(json.dumps({**describe_model(small(), blobs()), "chosen": CHOSEN}))
OLD_ARCHITECTURE = {"depth": 10, "width": 1, "channels": 1, "classes": 3, "precision": "diagonal"}


def described(**changes: Any) -> dict[str, Any]:
    """What the file of `small` says, but for some entries, of the network or of all."""
    said = copy.deepcopy(DESCRIPTION)
    network = said["architecture"]
    for name, value in changes.items():
        where = {"depth": "options", "width": "options", "precision_matrix": "network", "backbone": "network"}
        part = {"options": network["options"], "network": network}.get(where.get(name, ""), said)
        part[name] = value
    return said


def written(description: object, tensors: Tensors | None = None) -> Path:
    """A file as a stranger may have made it."""
    path = Path("run") / WEIGHTS
    path.parent.mkdir(exist_ok=True)
    text = description if isinstance(description, str) else json.dumps(description)
    save_file(TENSORS if tensors is None else tensors, path, {"ebpl": text})
    return path


def refused(path: Path, reason: str = "") -> str:
    """The one line that a file is refused with; it names the file and says what to do."""
    with pytest.raises(RunError) as raised:
        load_model(path)
    told = str(raised.value)
    assert told.startswith(f"{path} is damaged or was not written by ebpl: ")
    assert told.endswith(f"ebpl resume {path.parent}")
    assert len(told.splitlines()) == 1
    assert len(told) < 500
    assert reason in told
    return told


def every(change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    return {name: change(tensor) for name, tensor in TENSORS.items()}


@pytest.mark.parametrize("precision", [None, "identity", "diagonal", "full"])
def test_what_is_saved_is_loaded_bit_by_bit(precision: str | None) -> None:
    model, data = small(precision), blobs()
    odd = torch.tensor([-0.0, 1e-45, -1e-39, torch.finfo(torch.float32).max, 0.1])
    with torch.no_grad():
        for parameter in model.parameters():  # numbers that a detour through text or half precision would lose
            flat = parameter.view(-1)
            flat[: len(odd)] = odd[: len(flat)]
    run = Run.create("run", quick(), data, {})
    description = {**describe_model(model, data), "chosen": CHOSEN, "classes": ["Katze 🐈", "犬", '"\\']}
    run.save_model(model.state_dict(), description)
    loaded, told = load_model(run.path / WEIGHTS)
    assert told == json.loads(json.dumps(description))
    assert loaded.architecture == model.architecture
    assert not loaded.training
    before, after = ({name: t.numpy().tobytes() for name, t in m.state_dict().items()} for m in (model, loaded))
    assert after == before
    assert list(run.path.glob(".*")) == []


def test_the_file_alone_tells_a_stranger_how_to_use_it(run: Run) -> None:
    with safe_open(run.path / WEIGHTS, "pt") as file:
        told = json.loads(file.metadata()["ebpl"])
    assert told["classes"] == ["0", "1", "2"]
    assert told["image_shape"] == [1, 8, 8]
    assert told["pixels"] == "uint8 / 127.5 - 1"
    assert told["chosen"] == run.metrics()["chosen"]
    built = told["architecture"]
    model = HybridModel(Architecture(**{**built, "image_shape": tuple(built["image_shape"])}))
    model.load_state_dict(load_file(run.path / WEIGHTS))
    pixels = blobs().train.pixels[:7]
    with torch.no_grad():
        scores, energies = model(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1)
    expected = predict(load_model(run.path / WEIGHTS)[0], pixels)
    assert torch.softmax(scores, 1).numpy() == pytest.approx(expected.probabilities, abs=1e-6)
    assert energies.numpy() == pytest.approx(expected.energies, rel=1e-4, abs=1e-5)


def test_a_run_without_weights_says_how_to_get_them() -> None:
    with pytest.raises(RunError, match=r"run/best\.safetensors does not exist: .* ebpl resume run$"):
        load_model(Path("run") / WEIGHTS)


@pytest.mark.parametrize("content", [b"", b"\x80\x04]\x94.", b"{}" * 100, struct.pack("<Q", 2**60) + b"{}"])
def test_a_file_of_another_kind_is_refused(content: bytes) -> None:
    path = written(described())
    path.write_bytes(content)
    refused(path)


def test_a_file_that_was_cut_is_refused_wherever_it_ends() -> None:
    path = written(described())
    whole = path.read_bytes()
    for length in (4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_tensors_without_a_description_are_refused(metadata: dict[str, str] | None) -> None:
    path = written(described())
    save_file(TENSORS, path, metadata)
    refused(path, "it does not say what its tensors are")


@pytest.mark.parametrize(
    "description",
    [
        "no JSON",
        "[" * 100_000,
        [1],
        {},
        {name: value for name, value in DESCRIPTION.items() if name != "chosen"},
        described(architecture=None),
        described(architecture={"depth": 10}),
        described(architecture={**DESCRIPTION["architecture"], "more": 1}),
        described(depth=-2),
        described(depth=10.0),
        described(width=True),
        described(precision_matrix="low"),
        described(precision_matrix=["full"]),
        described(backbone="tall_resnet"),
        described(backbone=["wide_resnet"]),
        described(architecture={**DESCRIPTION["architecture"], "options": {}}),
        described(architecture={**DESCRIPTION["architecture"], "options": {"depth": 10}}),
        described(architecture={**DESCRIPTION["architecture"], "options": [10, 1]}),
        described(architecture={**DESCRIPTION["architecture"], "image_shape": [3, 8, 8]}),
        described(architecture={**OLD_ARCHITECTURE, "width": 2}),
        described(architecture={**OLD_ARCHITECTURE, "classes": 4}),
        described(architecture={"depth": 10, "width": 1, "channels": 1, "precision": "diagonal"}),
        described(classes="012"),
        described(classes=["a", "b"]),
        described(classes=["a", "b", 3]),
        described(classes=["a", "b", "half a character \ud83d"]),
        described(image_shape=[1, 8]),
        described(image_shape=[3, 8, 8]),
        described(image_shape=[1, 0, 8]),
        described(image_shape=[1, 8, 10**6]),
        described(chosen=["the last"]),
        described(chosen="x" * 10_000),
    ],
    ids=lambda description: description[:9] if isinstance(description, str) else None,
)
def test_a_description_of_something_else_is_refused(description: object) -> None:
    refused(written(description))


def test_the_reason_says_what_is_wrong() -> None:
    refused(written(described(width="wide")), "options is {'depth': 10, 'width': 'wide'}")
    refused(written(described(precision_matrix=""), small(None).state_dict()), "precision_matrix is ''")
    wide = {**DESCRIPTION["architecture"], "image_shape": [1, 8, 5000]}
    refused(written(described(image_shape=[1, 8, 5000], architecture=wide)), "image_shape is [1, 8, 5000]")
    bare = {**DESCRIPTION["architecture"], "options": {"width": 1}}
    refused(written(described(architecture=bare)), "options have no 'depth'")
    for stages in (6, 10**10):
        tall = {**DESCRIPTION["architecture"], "options": {"depth": 10, "width": 1, "stages": stages}}
        refused(written(described(architecture=tall)), f"it has {stages} stages")
    refused(written(described(classes=["a"])), "classes or image_shape are not those of the network")


@pytest.mark.parametrize("side", ["depth", "width"])
@pytest.mark.parametrize("size", [100_000, 10**10, 10**19, 10**300])
def test_a_size_that_is_only_claimed_is_refused_before_memory_is_taken(side: str, size: int) -> None:
    told = refused(written(described(**{side: size})))
    assert (f"tensors for a depth of {size}" in told) == (side == "depth")


@pytest.mark.parametrize(
    "tensors",
    [
        every(lambda tensor: torch.zeros(3)),
        every(lambda tensor: tensor[None]),
        {**TENSORS, "more": torch.zeros(1)},
        dict(list(TENSORS.items())[1:]),
        small("full").state_dict(),
        small(None).state_dict(),
    ],
    ids=["shapes", "dimensions", "more", "fewer", "another head", "no head"],
)
def test_tensors_of_another_network_are_refused(tensors: Tensors) -> None:
    refused(written(described(), tensors), "its tensors are not those of the network that it describes")


def test_foreign_tensors_are_refused_with_a_description_of_ours() -> None:
    refused(written(described(), {"a": torch.zeros(3)}), "it has 1 tensors for a depth of 10")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_one_number_that_is_not_finite_is_enough_to_refuse(value: float) -> None:
    tensors = every(torch.Tensor.double)  # the model has float32, in which 1e300 is infinite
    load_model(written(described(), tensors))
    tensors["gaussian.means"][2, 5] = value
    refused(written(described(), tensors), "weights that are not finite numbers")


def test_too_little_memory_is_not_called_damage_but_words_about_it_are(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(written(described(chosen="out of memory")), "chosen is 'out of memory'")
    path = written(described())

    def full(_: Architecture) -> HybridModel:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Architecture, "build", full)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        load_model(path)


def used_or_refused(content: bytes) -> None:
    """Whatever is in a file, it gives a model that computes, or an error that names the file."""
    Path(WEIGHTS).write_bytes(content)
    try:
        model, description = load_model(Path(WEIGHTS))
    except RunError as error:
        told = str(error)
    else:
        scores, _ = model(torch.zeros(1, description["image_shape"][0], 8, 8))
        assert scores.shape == (1, len(description["classes"]))
        told = WEIGHTS
    assert WEIGHTS in told


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=3))
def test_any_bytes_are_a_model_or_a_clear_error(changes: list[tuple[int, int]]) -> None:
    content = bytearray(save(TENSORS, {"ebpl": json.dumps(DESCRIPTION)}))
    assert 2000 < struct.unpack("<Q", content[:8])[0] < 4000, "the description and some of the weights are changed"
    for position, value in changes:
        content[position] = value
    used_or_refused(bytes(content))


NAMES = st.sampled_from([*DESCRIPTION, *DESCRIPTION["architecture"], *OLD_ARCHITECTURE, "other"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=2), st.dictionaries(NAMES, VALUES, max_size=2))
def test_any_description_is_a_model_or_a_clear_error(changes: dict[str, Any], network: dict[str, Any]) -> None:
    said = {**DESCRIPTION, "architecture": {**DESCRIPTION["architecture"], **network}, **changes}
    used_or_refused(save(TENSORS, {"ebpl": json.dumps(said)}))


def test_a_file_of_version_0_1_gives_the_same_model() -> None:
    now, old = (load_model(written(each)) for each in (described(), described(architecture=OLD_ARCHITECTURE)))
    assert old[1] == now[1]
    assert old[0].architecture == now[0].architecture
    assert {name: t.numpy().tobytes() for name, t in old[0].state_dict().items()} == {
        name: t.numpy().tobytes() for name, t in now[0].state_dict().items()
    }


def test_every_flipped_bit_of_the_weights_is_noticed() -> None:
    path = Path(WEIGHTS)
    whole = packed_model(TENSORS, DESCRIPTION)
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    places = torch.randint(header, len(whole), (150,), generator=torch.Generator().manual_seed(0)).tolist()
    for number, place in enumerate(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << number % 8
        path.write_bytes(damaged)
        refused(path)
    path.write_bytes(whole)
    assert load_model(path)[1]["classes"] == DESCRIPTION["classes"]


def test_another_description_than_the_one_written_with_the_weights_is_noticed() -> None:
    path = Path(WEIGHTS)
    first, second = DESCRIPTION["classes"][:2]
    whole = packed_model(TENSORS, DESCRIPTION)
    old, new = (f'[\\"{a}\\", \\"{b}\\"'.encode() for a, b in ((first, second), (second, first)))
    assert old in whole
    path.write_bytes(whole.replace(old, new))
    assert "check sum" in refused(path)


def test_weights_written_without_a_check_sum_are_still_read() -> None:
    assert load_model(written(DESCRIPTION))[1]["classes"] == DESCRIPTION["classes"]


def test_a_file_may_hold_a_class_mix_and_one_without_is_that_of_the_labels(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "mixed.safetensors"
    ratio = torch.linspace(-1, 1, len(DESCRIPTION["classes"]))
    for tensors, expected in (({}, torch.zeros_like(ratio)), ({LOG_MIX: ratio}, ratio)):
        path.write_bytes(packed_model({**model.state_dict(), **tensors}, DESCRIPTION))
        loaded = load_model(path)[0]
        torch.testing.assert_close(loaded.log_mix, expected)
    for wrong in (torch.zeros(len(ratio) + 1), torch.full_like(ratio, torch.nan)):
        path.write_bytes(packed_model({**model.state_dict(), LOG_MIX: wrong}, DESCRIPTION))
        with pytest.raises(RunError, match=r"not those of the network|not finite"):
            load_model(path)
