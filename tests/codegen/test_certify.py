"""Every declared form is one that the assembler knows, on the oldest target said to have it."""

from __future__ import annotations

import pytest
from lowered import require_nvrtc

from tilewright.base.errors import CompilerBug, TargetError
from tilewright.base.targets import Availability, only, since, target
from tilewright.codegen import generate
from tilewright.codegen.certify import batches, certification_program, oldest_target, sampled
from tilewright.isa import memory
from tilewright.isa.declaration import Declaration, Form, families
from tilewright.runtime import nvrtc

DECLARATIONS = [each for family in families().values() for each in family]
MOST = 64


def certify(forms: tuple[Form, ...], arch: str) -> None:
    found = target(arch)
    nvrtc.build(generate(certification_program(forms), found).text, found, "certify")


def name(declaration: Declaration) -> str:
    index = families()[declaration.family].index(declaration)
    return f"{declaration.family}-{index}"


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=name)
def test_the_assembler_takes_every_form(declaration: Declaration) -> None:
    require_nvrtc()
    found = batches([declaration], MOST)
    assert found
    for where, forms in found.items():
        try:
            certify(forms, where.arch)
        except (CompilerBug, TargetError):
            # Name the form at fault.
            for form in forms:
                try:
                    certify((form,), where.arch)
                except (CompilerBug, TargetError) as error:
                    pytest.fail(f"{form.text} on {where}: {error}")
            raise


def test_a_sample_has_every_token() -> None:
    forms = sampled(memory.ld, 16)
    assert len(forms) < 100
    every = {pair for form in memory.ld.forms() for pair in form.modifiers}
    assert {pair for form in forms for pair in form.modifiers} == every


@pytest.mark.parametrize(
    ("available", "arch"),
    [
        (since(80), "sm_80"),
        (only("sm_100a", families=(100,)), "sm_100a"),
        (only("sm_90a"), "sm_90a"),
    ],
)
def test_the_oldest_target(available: Availability, arch: str) -> None:
    assert oldest_target(available) == target(arch)
