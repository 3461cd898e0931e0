from hypothesis import given
from hypothesis import strategies as st

from ebpl.data.contents import Entry, find_duplicates

ENTRIES = st.lists(
    st.builds(
        Entry,
        st.text(max_size=3),
        st.sampled_from(["train", "test", "validation"]),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from([b"1", b"2", b"3"]),
    ),
    max_size=12,
)


@given(ENTRIES)
def test_groups_are_all_that_is_there_more_than_once(entries: list[Entry]) -> None:
    found = find_duplicates(entries)
    digests = [entry.digest for entry in entries]
    assert found.extra == len(digests) - len(set(digests))
    for group in found.groups:
        assert len({entry.digest for entry in group}) == 1
        assert len(group) == digests.count(group[0].digest) > 1


@given(ENTRIES)
def test_what_harms_is_what_two_of_the_same_picture_disagree_in(entries: list[Entry]) -> None:
    found = find_duplicates(entries)
    pairs = [(a, b) for i, a in enumerate(entries) for b in entries[i + 1 :] if a.digest == b.digest]
    conflicting = {a.digest for a, b in pairs if a.label and b.label and a.label != b.label}
    leaking = {a.digest for a, b in pairs if (a.part == "train") != (b.part == "train")}
    half = {a.digest for a, b in pairs if a.part == b.part == "train" and bool(a.label) != bool(b.label)}
    assert {group[0].digest for group in found.conflicting} == conflicting
    assert {group[0].digest for group in found.leaking} == leaking
    assert {group[0].digest for group in found.labeled_and_unlabeled} == half
    told = found.to_dict()
    assert told["conflicting"] == len(conflicting)
    assert sum(group["leaking"] for group in told["groups"]) == len(leaking)
