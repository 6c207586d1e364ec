"""Groups of copies as records: CSV, JSON, or lines of text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from patchreorder.untrusted import quoted

from .duplicates import Found, Member
from .query import Answer

COLUMNS = ("group", "path", "relation", "keep", "of", "why", "width", "height", "bytes", "modified")


def records(found: Found, root: Path) -> Iterator[dict[str, Any]]:
    """One record a file of a group, in the order of COLUMNS; paths are absolute."""
    for number, group in enumerate(found.groups, 1):
        for member in group:
            yield {
                "group": number,
                "path": str(member.path),
                "relation": member.words,
                "keep": "yes" if member.keep else "no",
                "of": str(root / member.of) if member.of else "",
                "why": member.why,
                "width": member.file.width,
                "height": member.file.height,
                "bytes": member.file.size,
                "modified": modified(member),
            }


def modified(member: Member) -> str:
    """When a file was changed last, in UTC; "" if it is gone."""
    try:
        return datetime.fromtimestamp(member.path.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    except OSError:
        return ""


def csv_text(found: Found, root: Path) -> str:
    """A header and one line per file of a group; names are `quoted`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in records(found, root):
        writer.writerow(record | {"path": quoted(record["path"]), "of": quoted(record["of"])})
    return text.getvalue()


def json_text(found: Found, root: Path, *, similar: bool = False) -> str:
    """One document; `similar` only if it was asked for."""
    groups: dict[int, list[dict[str, Any]]] = {}
    members = [member for group in found.groups for member in group]
    for record, member in zip(records(found, root), members, strict=True):
        values = member.relation.values() if member.relation else None
        groups.setdefault(record.pop("group"), []).append(record | {"keep": member.keep, "details": values})
    document: dict[str, Any] = {"groups": [{"group": number, "files": files} for number, files in groups.items()]}
    if similar:
        document["similar"] = [
            {
                "relation": relation.kind,
                "first": str(root / first),
                "second": str(root / second),
                "details": relation.values(),
            }
            for relation, first, second in found.similar
        ]
    return json.dumps(document, indent=1) + "\n"


def plain_lines(found: Found, *, similar: bool = False) -> Iterator[str]:
    """One line a file: group, keep or copy, relation, name; separated by tabs, names `quoted`."""
    for number, group in enumerate(found.groups, 1):
        for member in group:
            words = member.words if member.relation else f"kept: {member.why}" if member.why else "kept"
            yield "\t".join((str(number), "keep" if member.keep else "copy", words, quoted(member.file.name)))
    if similar:
        for relation, first, second in found.similar:
            yield "\t".join(("similar", relation.kind, quoted(first), quoted(second)))


def answer_cells(answers: Sequence[Answer], *, many: bool, poses: bool) -> Iterator[list[str]]:
    """Of each hit: the query if there are many, rank, distance, name, relation, the query's pose if it was searched."""
    for answer in answers:
        for rank, hit in enumerate(answer.hits, 1):
            query, pose = [quoted(answer.query)] * many, [hit.pose or "upright"] * poses
            yield [*query, str(rank), f"{hit.distance:.3f}", quoted(hit.name), hit.relation, *pose]


def answers_json(answers: Sequence[Answer], root: Path) -> str:
    """Answers of a search as one document."""
    document = [
        {
            "query": answer.query,
            "hits": [
                {
                    "path": str(root / hit.name),
                    "distance": round(hit.distance, 6),
                    "relation": hit.relation or None,
                    "pose": hit.pose or None,
                }
                for hit in answer.hits
            ],
        }
        for answer in answers
    ]
    return json.dumps(document, indent=1) + "\n"
