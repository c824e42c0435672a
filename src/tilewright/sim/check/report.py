"""Findings as JSON, and as SARIF for editors and code hosts.

May import `base` and `sim.check.kinds`. The same findings give the same bytes. SARIF is the
OASIS standard "Static Analysis Results Interchange Format", version 2.1.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.base.findings import Finding
from tilewright.base.locations import Location
from tilewright.sim.check.kinds import BY_NAME, KINDS

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_FORMAT = 1  # of the JSON; a change that readers notice counts it up


def as_json(findings: Sequence[Finding], calls: int, version: str) -> str:
    """Write findings as JSON: one object, with a list of findings and how many calls there were."""
    errors = sum(each.severity == "error" for each in findings)
    report = {
        "format": _FORMAT,
        "tool": {"name": "tilewright", "version": version},
        "calls": calls,
        "errors": errors,
        "warnings": len(findings) - errors,
        "findings": [_entry(each) for each in findings],
    }
    return _text(report)


def _entry(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "message": finding.message,
        "location": _place(finding.location),
        "actor": finding.actor,
        "other": {
            "location": _place(finding.other_location),
            "actor": finding.other_actor,
            "later": finding.other_is_later,
        },
        "memory": finding.memory,
        "missing": finding.missing,
        "hint": finding.hint,
        "notes": list(finding.notes),
        "kernel": finding.kernel,
        "cta": list(finding.cta),
        "warp": finding.warp,
        "lanes": [lane for lane in range(32) if finding.lanes >> lane & 1],
        "count": finding.count,
        "ctas": finding.ctas,
        "launches": finding.launches,
        "schedule": finding.schedule,
    }


def _place(location: Location | None) -> dict[str, Any] | None:
    if location is None:
        return None
    return {
        "file": location.file,
        "line": location.line,
        "column": location.column + 1,
        "end_line": location.end_line or location.line,
        "end_column": location.end_column + 1,
        "called_from": _place(location.inlined_at),
    }


def _text(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------------------- SARIF


def as_sarif(findings: Sequence[Finding], version: str, folder: Path) -> str:
    """Write findings as a SARIF log of one run; files below `folder` are named from there."""
    rules = [each for each in KINDS if any(each.name == found.kind for found in findings)]
    numbers = {each.name: number for number, each in enumerate(rules)}
    driver = {
        "name": "tilewright",
        "version": version,
        "rules": [_rule(each.name) for each in rules],
    }
    results = [_result(each, numbers[each.kind], folder) for each in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return _text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(name: str) -> dict[str, Any]:
    kind = BY_NAME[name]
    return {
        "id": name,
        "shortDescription": {"text": kind.title},
        "help": {"text": f"{kind.mend}. Without it, on a GPU: {kind.effect}."},
        "defaultConfiguration": {"level": kind.severity},
    }


def _result(finding: Finding, number: int, folder: Path) -> dict[str, Any]:
    facts = [f"{label}: {text}" for label, text in finding.facts() if text]
    result: dict[str, Any] = {
        "ruleId": finding.kind,
        "ruleIndex": number,
        "level": finding.severity,
        "message": {"text": "\n".join([finding.message, *facts, *finding.notes])},
    }
    if finding.location is not None:
        result["locations"] = [_sarif_location(finding.location, folder)]
    related = [
        *_related(finding.other_location, f"{finding.relation} this", folder),
        *(
            entry
            for each in _callers(finding.location)
            for entry in _related(each, "called from here", folder)
        ),
    ]
    if related:
        result["relatedLocations"] = related
    result["properties"] = {
        "kernel": finding.kernel,
        "cta": list(finding.cta),
        "count": finding.count,
    }
    return result


def _callers(location: Location | None) -> tuple[Location, ...]:
    return () if location is None else location.chain()[1:]


def _related(location: Location | None, text: str, folder: Path) -> list[dict[str, Any]]:
    if location is None:
        return []
    return [{**_sarif_location(location, folder), "message": {"text": text}}]


def _sarif_location(location: Location, folder: Path) -> dict[str, Any]:
    # Columns count from 1, and the end is the one after the last.
    region = {
        "startLine": location.line,
        "startColumn": location.column + 1,
        "endLine": location.end_line or location.line,
        "endColumn": location.end_column + 1,
    }
    place = {"artifactLocation": {"uri": _uri(location.file, folder)}, "region": region}
    return {"physicalLocation": place}


def _uri(file: str, folder: Path) -> str:
    path = Path(file)
    if not path.is_absolute():
        path = folder / path
    inside = path.is_relative_to(folder)
    return _quoted(path.relative_to(folder)) if inside else path.as_uri()


def _quoted(path: Path) -> str:
    """Escape a relative path as a URI asks for."""
    return (Path("/") / path).as_uri().removeprefix("file:///")
