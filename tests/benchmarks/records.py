"""A record as a benchmark writes it, small."""

from typing import Any


def row(loop: str, milliseconds: float | None, **changes: Any) -> dict[str, Any]:
    """A row; without a time it failed."""
    made: dict[str, Any] = {"varied": "base", "network": "16-4", "loop": loop, "seeds": 1, "dtype": "bfloat16"}
    made |= {"sgld_steps": 20, "batch_size": 64, "image_size": 32, "images": 10_000, "operations": 2_000_000_000_000}
    made |= {"failed": "out of memory", "times": None, "milliseconds": None, "speedup": None, "peak_memory": None}
    made |= {"images_per_second": None, "tflops": None, "share": None}
    if milliseconds:
        tflops = 2000 / milliseconds
        made |= {"failed": None, "milliseconds": milliseconds, "tflops": tflops, "share": tflops / 200}
        made |= {"times": [0.95 * milliseconds, milliseconds, 1.05 * milliseconds]}
        made |= {"images_per_second": 64_000 / milliseconds, "speedup": None if loop == "reference" else 5.0}
    return made | changes


def record() -> dict[str, Any]:
    """Of a GPU, with one failure."""
    rows = [
        row("reference", 100, varied="network", peak_memory=2 * 2**30),
        row("ebpl", 20, varied="network", peak_memory=2**30),
        row("ebpl", None, varied="network", seeds=5),
        row("prediction from host", 20, varied="prediction", images=512),
        row("reference", 100),
        row("ebpl", 20),
    ]
    for name, values in {"sgld_steps": (10, 40), "batch_size": (32,), "image_size": (16,), "images": (1000,)}.items():
        for value in values:
            rows += [row("reference", value, varied=name, **{name: value})]
            rows += [row("ebpl", value / 5, varied=name, **{name: value})]
    rows += [row("reference", 200, varied="batch_size", batch_size=128)]
    rows += [row("ebpl", None, varied="batch_size", batch_size=128)]
    return {
        "date": "2030-01-02T03:04:05Z",
        "machine": {"name": "GPU Z", "gpu": "GPU Z", "threads": 2, "torch": "2.0", "ebpl": "1", "dtype": "bfloat16"},
        "options": {"sgld_steps": 20, "batch_size": 64, "image_size": 32, "rounds": 3, "scaling": "16-4"},
        "matrix_rate": {"tflops": 200.0, "dtype": "bfloat16"},
        "rows": rows,
    }
