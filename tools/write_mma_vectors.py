"""Write `tests/data/mma_vectors.npz`: products as `mmasim`, a model of the chips, computes them.

It needs `mmasim` 2.1.1 and PyTorch, which nothing else here does; the tests replay what it writes.

    python tools/write_mma_vectors.py

For each form, named by its instruction, shape and types, the file has stacks of A (m × k), B
(n × k) and C (m × n), and of D as the targets in its name have it: bits, as unsigned integers.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
PATH = Path(__file__).parent.parent / "tests" / "data" / "mma_vectors.npz"
MOST_BYTES = 300_000
# mmasim's name of a generation, and a target of it.
GENERATIONS = {
    "Turing": "sm_75",
    "Ampere": "sm_80",
    "Ada Lovelace": "sm_89",
    "Hopper": "sm_90a",
    "Blackwell": "sm_100a",
    "RTX Blackwell": "sm_120a",
}
FORMATS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f32": np.float32,
}
FIRST_EXPONENT = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126}
LAST_EXPONENT = {"f16": 15, "bf16": 127, "tf32": 127, "f32": 127}
# Name: mmasim's class and its name of the form, the shape, the types of A and B and of D, repeats.
FORMS: dict[str, tuple[str, str, tuple[int, int, int], str, str, int]] = {
    f"mma {shape} {kind} f32": (
        *("MMA", f"{shape}.f32.{kind}.{kind}.f32"),
        *((16, 8, int(shape[6:])), kind, "f32", 3),
    )
    for shape in ("m16n8k8", "m16n8k16")
    for kind in ("f16", "bf16")
} | {
    f"tcgen05 m64n8k{k} {kind} {result}": (
        *("TCGen05MMA", f"m64n8k{k}.kind::{family}.{result}.{kind}.{kind}"),
        *((64, 8, k), kind, result, 1),
    )
    for k, family, kind, result in (
        (16, "f16", "f16", "f32"),
        (16, "f16", "f16", "f16"),
        (16, "f16", "bf16", "f32"),
        (8, "tf32", "tf32", "f32"),
    )
}


# ---------------------------------------------------------------------------- inputs


def numbers(random: np.random.Generator, kind: str, shape: Any, low: int, high: int) -> Array:
    """Draw numbers of random signs, significands, and exponents from `low` to `high`."""
    exponents = random.integers(low, high + 1, shape)
    values = np.ldexp(random.uniform(1, 2, shape), exponents) * random.choice([-1, 1], shape)
    with np.errstate(over="ignore"):
        return values.astype(FORMATS[kind])


def normal(random: np.random.Generator, kind: str, result: str, a: Any, b: Any, c: Any) -> Any:
    """Draw numbers as programs have them."""
    return (
        random.standard_normal(a).astype(FORMATS[kind]),
        random.standard_normal(b).astype(FORMATS[kind]),
        random.standard_normal(c).astype(FORMATS[result]),
    )


def wide(random: np.random.Generator, kind: str, result: str, a: Any, b: Any, c: Any) -> Any:
    """Draw exponents from the whole range of the formats."""
    first, last = FIRST_EXPONENT[kind], LAST_EXPONENT[kind]
    low, high = FIRST_EXPONENT[result], LAST_EXPONENT[result]
    x, y = (numbers(random, kind, each, first - 3, last) for each in (a, b))
    z = numbers(random, result, c, low - 3, high)
    # Rows and columns that are near in size, so that more than one term counts.
    for i in range(a[0]):
        centre = int(random.integers(first, last - 12))
        x[i] = numbers(random, kind, a[1], centre, centre + 12)
    y[: b[0] // 2] = numbers(random, kind, (b[0] // 2, b[1]), -6, 6)
    return x, y, z


def subnormal(random: np.random.Generator, kind: str, result: str, a: Any, b: Any, c: Any) -> Any:
    """Draw subnormal numbers and such that are nearly, against others and one another."""
    first = FIRST_EXPONENT[kind]
    x = numbers(random, kind, a, first - 8, first + 2)
    y = numbers(random, kind, b, first - 8, first + 2)
    y[::2] = numbers(random, kind, y[::2].shape, -2, 2)
    z = numbers(random, result, c, max(2 * first, -142), max(first, -136) + 16)
    z[random.random(c) < 0.3] = 0
    return x, y, z


def cancelling(random: np.random.Generator, kind: str, result: str, a: Any, b: Any, c: Any) -> Any:
    """Draw products that cancel one another and C, but for what is left out."""
    x, y, _ = normal(random, kind, result, a, b, c)
    half = a[1] // 2
    x[:, half:], y[:, half:] = -x[:, :half], y[:, :half]
    noise = random.random(a) < 0.25
    x[noise] = (x[noise].astype(np.float64) * (1 + 2.0**-6)).astype(x.dtype)
    total = x.astype(np.float64) @ y.astype(np.float64).T
    return x, y, (-total * random.choice([0, 1, 1 + 2.0**-12], c)).astype(FORMATS[result])


def special(random: np.random.Generator, kind: str, result: str, a: Any, b: Any, c: Any) -> Any:
    """Draw zeros, infinities, NaNs and the largest numbers among others."""
    found = list(normal(random, kind, result, a, b, c))
    for each, type in zip(found, (kind, kind, result), strict=True):
        most = np.finfo(FORMATS[type]).max if type == "f16" else 3e38
        chosen = [0.0, -0.0, 0.0, np.inf, -np.inf, np.nan, most, -most]
        drawn = random.choice(np.array(chosen), each.shape).astype(each.dtype)
        each[:] = np.where(random.random(each.shape) < 1 / 24, drawn, each)
    found[0][: a[0] // 4] = 0
    found[2][:, ::3] = random.choice([0.0, -0.0], found[2][:, ::3].shape)
    return found


KINDS = (normal, wide, subnormal, cancelling, special)


# ---------------------------------------------------------------------------- results


def bits(values: Array) -> Array:
    """Give the bits of numbers."""
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")


def product(form: Any, a: Array, b: Array, c: Array) -> Array:
    """Multiply as mmasim does."""
    torch: Any = importlib.import_module("torch")

    def tensor(values: Array) -> Any:
        if values.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)

    return bits(form(tensor(a), tensor(b).T, tensor(c)).numpy())


def main() -> None:
    """Write the file."""
    mmasim: Any = importlib.import_module("mmasim.nv_ptx")
    arrays: dict[str, Array] = {}
    for number, (name, row) in enumerate(FORMS.items()):
        type, text, (m, n, k), kind, result, repeats = row
        random = np.random.default_rng(number)
        drawn = [
            each(random, kind, result, (m, k), (n, k), (m, n))
            for each in KINDS
            for _ in range(repeats)
        ]
        for letter, stack in zip("ABC", zip(*drawn, strict=True), strict=True):
            arrays[f"{name}/{letter}"] = np.stack([bits(each) for each in stack])
        groups: dict[bytes, list[str]] = {}
        for generation, target in GENERATIONS.items():
            try:
                form = getattr(mmasim, type)(generation, text)
            except AssertionError:  # that generation has no such form
                continue
            found = np.stack([product(form, *each) for each in drawn])
            groups.setdefault(found.tobytes(), []).append(target)
            arrays[f"{name}/D {' '.join(groups[found.tobytes()])}"] = found
            arrays.pop(f"{name}/D {' '.join(groups[found.tobytes()][:-1])}", None)
    np.savez_compressed(PATH, **arrays)  # pyright: ignore[reportArgumentType] its stubs are wrong
    size = PATH.stat().st_size
    assert size < MOST_BYTES, f"{size} bytes are too many"
    print(f"{PATH}: {size} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
