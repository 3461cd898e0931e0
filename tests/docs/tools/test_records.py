import json
import re
from pathlib import Path

from docs.tools.records import RECORD, example, record, shortened

ROOT = Path(__file__).parents[3]


def test_the_example_is_a_record_of_ours_with_lists_cut_short() -> None:
    text = example(ROOT)
    [name] = re.findall(r"`(results/\S+\.json)`", text)
    shown = json.loads(re.findall(r"```json\n(.*)```", text, re.DOTALL)[0])
    stored = json.loads((ROOT / name).read_text(encoding="utf-8"))
    assert shown == shortened(stored)
    assert set(shown) <= set(RECORD)
    assert len(text) < 10_000


def test_no_records_are_no_error() -> None:
    assert "no record" in example(Path())


def test_all_entries_are_named() -> None:
    assert all(f"`{name}`" in record() for name in RECORD)
