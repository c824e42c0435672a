"""NVIDIA's assembler, through NVRTC: it takes every form on its first target, and not before."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from tilewright.isa.declaration import Declaration, Form, Operand, families

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

DECLARATIONS = [each for group in families().values() for each in group]
ARCHES = (75, 80, 90, 100)
# PTX type: the constraint letter of inline assembly and a C type of that width.
_C_TYPES = {
    "8": ("h", "unsigned short"),
    "16": ("h", "unsigned short"),
    "32": ("r", "unsigned"),
    "64": ("l", "unsigned long long"),
    "f32": ("f", "float"),
    "f64": ("d", "double"),
    "pred": ("r", "unsigned"),
}


def c_type(type: str) -> tuple[str, str]:
    return _C_TYPES.get(type) or _C_TYPES[type.lstrip("bsuf")]


def statement(form: Form, operands: list[Operand]) -> str:
    """Write a statement of inline assembly with operands that mean nothing."""
    slots = [(each, i) for each in operands for i in range(each.count)]
    slots.sort(key=lambda slot: slot[0].role == "in")
    number = {(each.name, i): place for place, (each, i) in enumerate(slots)}
    before, after, declared, outputs, inputs = "", "", "", [], []
    texts: dict[str, str] = {}
    for place, (each, _) in enumerate(slots):
        letter, kind = c_type(each.type)
        if each.role != "in":
            declared += f"{kind} v{place} = 0; "
            outputs.append(f'"={letter}"(v{place})')
        elif each.kind == "immediate":
            allowed = (1,) if each.values is None else each.values
            inputs.append(f'"n"({1 if 1 in allowed else allowed[0]})')
        else:
            inputs.append(f'"{letter}"(({kind})s)')
    for each in operands:
        names = [f"%{number[each.name, i]}" for i in range(each.count)]
        text = "{" + ", ".join(names) + "}" if each.grouped else names[0]
        if each.kind == "predicate":
            before += f".reg .pred P{each.name}; "
            if each.role == "out":
                after += f" selp.b32 {text}, 1, 0, P{each.name};"
            else:
                before += f"setp.ne.b32 P{each.name}, {text}, 0; "
            text = f"P{each.name}"
        texts[each.name] = text
    listed = form.declaration.asm or ", ".join(
        f"[{{{each.name}}}]" if each.kind == "address" else f"{{{each.name}}}" for each in operands
    )
    # What a form of a declaration does not have is not listed.
    names = "|".join(texts)
    listed = re.sub(rf", \[?{{(?!(?:{names})}})\w+}}\]?", "", listed)
    for name, text in texts.items():
        listed = listed.replace(f"{{{name}}}", text)
    asm = f"{{ {before}{form.text} {listed};{after} }}"
    lists = f"{', '.join(outputs)} : {', '.join(inputs)}"
    return f'{{ {declared}asm volatile("{asm}" : {lists} : "memory"); }}'


def statements(form: Form) -> Iterator[str]:
    yield statement(form, list(form.operands))
    if any(each.optional for each in form.operands):
        yield statement(form, [each for each in form.operands if not each.optional])


def assemble(body: list[str], capability: int | str) -> str:
    """Compile a kernel of these statements; give the log if that fails, else nothing."""
    source = 'extern "C" __global__ void k(unsigned long long s) {\n' + "\n".join(body) + "\n}\n"
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    options = [f"--gpu-architecture=sm_{capability}".encode(), b"-default-device"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return log.decode().rstrip("\0\n") or f"status {status}" if int(status) else ""


def name_of(declaration: Declaration) -> str:
    return f"{declaration.family}-{families()[declaration.family].index(declaration)}"


def by_target(declaration: Declaration, most: int) -> dict[int, list[Form]]:
    found: dict[int, list[Form]] = {}
    for form in declaration.forms():
        if not form.targets.arches:
            found.setdefault(form.targets.since, []).append(form)
    return {
        since: forms if len(forms) <= most else random.Random(since).sample(forms, most)
        for since, forms in found.items()
    }


GENERAL = [each for each in DECLARATIONS if by_target(each, 1)]
SPECIFIC = [each for each in DECLARATIONS if any(f.targets.arches for f in each.forms())]


@pytest.mark.parametrize("declaration", SPECIFIC, ids=name_of)
def test_every_form_of_an_architecture_assembles_there_only(declaration: Declaration) -> None:
    forms = [form for form in declaration.forms() if form.targets.arches]
    forms = forms if len(forms) <= 120 else random.Random(0).sample(forms, 120)
    body = [text for form in forms for text in statements(form)]
    for arch in forms[0].targets.arches:
        assert not assemble(body, arch.removeprefix("sm_"))
    for form in forms[:3]:
        assert assemble([statement(form, list(form.operands))], "90a"), form.text


@pytest.mark.parametrize("declaration", GENERAL, ids=name_of)
def test_every_form_assembles(declaration: Declaration) -> None:
    for since, forms in by_target(declaration, 200).items():
        body = [text for form in forms for text in statements(form)]
        assert not assemble(body, since)


NEWER = [each for each in DECLARATIONS if any(since > ARCHES[0] for since in by_target(each, 1))]


@pytest.mark.parametrize("declaration", NEWER, ids=name_of)
def test_no_form_assembles_for_an_older_target(declaration: Declaration) -> None:
    for since, forms in by_target(declaration, 5).items():
        if since > ARCHES[0]:
            older = ARCHES[ARCHES.index(since) - 1]
            for form in forms:
                assert assemble([statement(form, list(form.operands))], older), form.text
