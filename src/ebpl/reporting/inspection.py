"""What `ebpl inspect` found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ebpl.data.contents import PARTS
from ebpl.reporting.progress import duration
from ebpl.reporting.text import harmless

if TYPE_CHECKING:
    from ebpl.data.duplicates import Group
    from ebpl.inspecting import Inspection

SHOWN = 10
"""So many of a long list are shown; JSON has all of them."""
MOST_CLASSES = 40


def show_inspection(found: Inspection, title: str) -> None:
    """Print tables of what there is, then what is wrong, then what to type."""
    from rich.console import Console
    from rich.text import Text

    console = Console(emoji=False)  # a name with :cat: in it is that name
    console.print(_counts(found, title))
    for line in _facts(found):
        console.print(_line(line), markup=False, highlight=False)
    for problem in found.problems:
        mark = ("Serious: ", "bold red") if problem.serious else ("Note: ", "bold yellow")
        console.print()
        console.print(Text.assemble(mark, _line(problem.text)), highlight=False)
        for line in _details(found, problem.kind):
            console.print(f"  {_line(line)}", markup=False, highlight=False)
    console.print()
    for line in _advice(found):
        console.print(_line(line), markup=False, highlight=False, soft_wrap=True)


def _line(text: str) -> str:
    """Somebody's text on one line: no name in it can make another that looks like ours."""
    return harmless(text).replace("\n", r"\n")


def _counts(found: Inspection, title: str) -> Any:
    """Images of each class and part."""
    from rich.table import Table
    from rich.text import Text

    data = found.contents
    counts = {part: by_label for part in PARTS if any((by_label := data.counts(part)).values())}
    hidden = found.used != {label: counts.get("train", {}).get(label, 0) for label in data.classes}
    table = Table(title=Text(_line(title)), title_justify="left")
    table.add_column("class")
    for name in [*counts, *(["labels used"] if hidden else [])]:
        table.add_column(name, justify="right")
    shown = data.classes if len(data.classes) <= MOST_CLASSES else data.classes[: MOST_CLASSES - 1]
    for label in shown:
        used = [str(found.used[label])] if hidden else []
        table.add_row(Text(_line(label)), *(str(by_label[label]) for by_label in counts.values()), *used)
    if rest := data.classes[len(shown) :]:
        used = [str(sum(found.used[label] for label in rest))] if hidden else []
        sums = [str(sum(by_label[label] for label in rest)) for by_label in counts.values()]
        table.add_row(f"{len(rest)} more classes", *sums, *used, style="dim")
    table.add_section()
    table.add_row("unlabelled", *(str(by_label[""]) for by_label in counts.values()), style="dim")
    table.add_row("all", *(str(sum(by_label.values())) for by_label in counts.values()))
    return table


def _facts(found: Inspection) -> list[str]:
    data = found.contents
    sizes = [f"{height} x {width} ({count})" for (height, width), count in data.sizes.items()]
    more = f" and {len(sizes) - SHOWN} other sizes" if len(sizes) > SHOWN else ""
    lines = [f"sizes (height x width): {', '.join(sizes[:SHOWN]) or 'none'}{more}"]
    lines.append("modes: " + (", ".join(f"{kind} {count}" for kind, count in data.kinds.items()) or "none"))
    if data.shape:
        lines.append("training takes them as {2} x {1} x {0} (width x height x channels)".format(*data.shape))
    if found.imbalance is not None:
        lines.append(f"largest to smallest class: {found.imbalance:.3g} to 1 in labels")
    lines.append(f"exact duplicates: {found.duplicates.extra}")
    return [*lines, *data.notes]


def _details(found: Inspection, kind: str) -> list[str]:
    """The first of what a problem is about."""
    if kind == "unreadable":
        items = [f"{name}: {reason}" for name, reason in found.contents.unreadable]
    elif kind in ("conflicting_labels", "leak"):
        groups = found.duplicates.conflicting if kind == "conflicting_labels" else found.duplicates.leaking
        items = [_copies(group) for group in groups]
    else:
        return []
    more = [f"... and {len(items) - SHOWN} more (--json lists all)"] if len(items) > SHOWN else []
    return items[:SHOWN] + more


def _copies(group: Group) -> str:
    """Where copies of an image are, with one of each part and label among the first."""
    first = {(entry.part, entry.label): entry for entry in reversed(group)}
    told = sorted(group, key=lambda entry: entry is not first[entry.part, entry.label])[:SHOWN]
    more = f" and {len(group) - SHOWN} more (--json lists all)" if len(group) > SHOWN else ""
    return ", ".join(f"{entry.name} ({entry.part}, {entry.label or 'unlabelled'})" for entry in told) + more


def _advice(found: Inspection) -> list[str]:
    suggestion = found.suggestion
    if suggestion is None:
        return ["It cannot be trained on as it is."]
    lines = ["Train with:", f"  {suggestion.command}"]
    if timing := suggestion.timing:
        lines.append(
            f"It will take about {duration(timing.seconds)} here ({suggestion.device}): {timing.updates} updates of "
            f"{1000 * timing.update:.3g} ms, by {timing.timed} that were tried."
        )
    return lines
