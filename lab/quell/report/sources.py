# SPDX-License-Identifier: GPL-2.0-only
"""The kept results that a report is made of: found, read, and checked whole.

What the page and its charts rely on is checked here once, with a schema; what
is wrong becomes one sentence that names the place.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quell import results
from quell.errors import UsageError
from quell.ladder.document import FILE as LADDER_FILE
from quell.ladder.document import SCHEMA as LADDER_SCHEMA
from quell.paths import Cache


@dataclass(frozen=True)
class _Kind:
    """A form of kept results: its file, what results.read() wants to know, and its schema below."""

    file: str
    what: str
    schema: str
    command: str
    parts: tuple[str, ...]


_RESULT = _Kind("result.json", "result", results.SCHEMA, "compare", ("comparisons",))
_LADDER = _Kind(
    LADDER_FILE, "ladder", LADDER_SCHEMA, "ladder", ("rungs", "cells", "published", "absent")
)
_KINDS = (_RESULT, _LADDER)

_Schema = Mapping[str, Any]
_TEXT: _Schema = {"type": "string"}
_FLAG: _Schema = {"type": "boolean"}
# No infinities: what is too large for a float is read as one.
_NUMBER: _Schema = {"type": "number", "minimum": -1e300, "maximum": 1e300}
_COUNT: _Schema = {"type": "integer", "minimum": 1, "maximum": 1 << 53}


def _object(*optional: str, **keys: _Schema) -> _Schema:
    """An object that has all of ``keys``, but need not have the ``optional`` ones."""
    return {
        "type": "object",
        "properties": keys,
        "required": [key for key in keys if key not in optional],
    }


def _list(of: _Schema, least: int = 0) -> _Schema:
    return {"type": "array", "items": of, "minItems": least}


def _map(of: _Schema) -> _Schema:
    return {"type": "object", "additionalProperties": of}


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_SIDE = _object(median=_NUMBER, min=_NUMBER, max=_NUMBER, runs=_list(_NUMBER, 1))
_FIGURE = {
    "stock": _or_null(_SIDE),
    "quell": _or_null(_SIDE),
    "ratio": _or_null(_NUMBER),
    "verdict": _or_null(_TEXT),
}
_ENVIRONMENT = _object(
    date=_TEXT,
    quell=_TEXT,
    series_hash=_TEXT,
    kernel_source=_TEXT,
    kernels=_map(
        _object(release=_TEXT, config_hash=_TEXT, key=_TEXT, boot_parameters=_list(_TEXT))
    ),
    accelerator=_object(name=_TEXT, reason=_TEXT, times=_TEXT),
    deterministic=_FLAG,
    runs=_COUNT,
    workloads=_map(
        _object(version=_or_null(_NUMBER), cpus=_COUNT, memory_kb=_COUNT, command=_list(_TEXT))
    ),
    qemu=_TEXT,
    compiler=_TEXT,
    host=_object(cpu=_TEXT, cpus=_COUNT, kernel=_TEXT, memory_kb=_COUNT),
)
_RESULT_SCHEMA = _object(
    environment=_ENVIRONMENT,
    comparisons=_list(
        _object(
            workload=_TEXT,
            metrics=_map(_object(**_FIGURE)),
            extras=_map(_object(**_FIGURE)),
            figures=_map(_object(**_FIGURE, unit=_TEXT, better={"enum": ["lower", "higher"]})),
            matters=_list(_TEXT),
            exit_codes=_object(stock=_list(_NUMBER), quell=_list(_NUMBER)),
        ),
        1,
    ),
)
_ENDS = {"from": _or_null(_NUMBER), "to": _or_null(_NUMBER), "ratio": _or_null(_NUMBER)}
_LADDER_SCHEMA = _object(
    quell=_TEXT,
    started=_TEXT,
    environment=_ENVIRONMENT,
    deterministic=_FLAG,
    runs=_COUNT,
    rungs=_list(_object(name=_TEXT, title=_TEXT, kernel=_TEXT, args=_TEXT), 1),
    cells=_list(
        _object(
            workload=_TEXT,
            cpus=_COUNT,
            rung=_TEXT,
            figures=_map(
                _object(
                    unit=_TEXT,
                    better={"enum": ["less", "more"]},
                    values=_list(_NUMBER, 1),
                    median=_NUMBER,
                    min=_NUMBER,
                    max=_NUMBER,
                )
            ),
        ),
        1,
    ),
    published=_list(
        _object(
            id=_TEXT,
            work=_TEXT,
            source=_TEXT,
            conditions=_TEXT,
            workload=_TEXT,
            cpus=_COUNT,
            figure=_TEXT,
            **{"from": _TEXT},
            to=_TEXT,
            theirs=_object(**_ENDS),
            ours=_object(**_ENDS),
            direction={"enum": ["agrees", "opposite", "none"]},
            size={"enum": ["agrees", "smaller", "larger", "-"]},
            why=_TEXT,
        )
    ),
    absent=_list(_TEXT),
)


@functools.cache
def _checker(kind: _Kind) -> Callable[[object], object]:
    import fastjsonschema

    compiled: Callable[[object], object] = fastjsonschema.compile(
        dict(_RESULT_SCHEMA if kind is _RESULT else _LADDER_SCHEMA)
    )
    return compiled


def _load(file: Path, kind: _Kind) -> dict[str, Any]:
    """The result in a file, if nothing in it is missing or of another type; else ResultError."""
    import fastjsonschema

    parts = {"environment": dict, **{part: list for part in kind.parts}}
    try:
        document = results.read(file, kind.what, kind.schema, f"quell {kind.command}", parts)
        json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise results.ResultError(f"{file} is no JSON: {error}") from error
    try:
        _checker(kind)(document)
    except fastjsonschema.JsonSchemaValueException as error:
        where = ".".join(map(str, error.path[1:]))
        text = error.message.removeprefix(error.name or "").strip()
        raise results.ResultError(
            f"{file} is damaged: {where or 'it'} {text}".replace("\n", " ")
        ) from error
    if kind is _RESULT:
        known = document["environment"]["workloads"]
        unknown = [c["workload"] for c in document["comparisons"] if c["workload"] not in known]
        sides = {"stock", "quell"} - set(document["environment"]["kernels"])
        if unknown or sides:
            raise results.ResultError(
                f"{file} is damaged: its environment does not tell of "
                f"{(unknown or sorted(sides))[0]!r}"
            )
    else:
        rungs = [rung["name"] for rung in document["rungs"]]
        cells = [(c["workload"], c["cpus"], c["rung"]) for c in document["cells"]]
        strange = [rung for _, _, rung in cells if rung not in rungs]
        if strange:
            raise results.ResultError(f"{file} is damaged: it has no rung {strange[0]!r}")
        if len(set(rungs)) < len(rungs) or len(set(cells)) < len(cells):
            raise results.ResultError(f"{file} is damaged: something is in it twice")
    return document


@dataclass(frozen=True)
class Sources:
    """What a report shows: result objects as they are kept, in the order they were named."""

    comparisons: list[dict[str, Any]] = field(default_factory=list)
    ladders: list[dict[str, Any]] = field(default_factory=list)


def is_scale(ladder: Mapping[str, Any]) -> bool:
    """Whether a ladder was measured with more than one number of vCPUs."""
    return len({cell["cpus"] for cell in ladder["cells"]}) > 1


def named(names: Sequence[str], cache: Cache) -> Sources:
    """The results in these files or folders, or of these names among the kept ones.

    UsageError when there is none of the name, ResultError when one cannot be read.
    """
    found = Sources()
    for name in names:
        path = Path(name)
        if not path.exists() and "/" not in name and (cache.root / "results" / name).exists():
            path = cache.results / name
        if not path.exists():
            raise UsageError(
                f"there is no result {name}: neither a file or folder, nor a name in {cache.results}"
            )
        _add(found, path)
    return found


def _add(found: Sources, path: Path) -> None:
    """Read the result in a file or folder, whichever it is."""
    if path.is_dir():
        kinds = [kind for kind in _KINDS if (path / kind.file).exists()]
        if not kinds:
            wanted = " nor ".join(kind.file for kind in _KINDS)
            raise results.ResultError(f"{path} has neither {wanted}: it is no complete result")
        file = path / kinds[0].file
    else:
        file, kinds = path, [kind for kind in _KINDS if _name(path) == _name_of(kind.schema)]
        if not kinds:
            raise results.ResultError(f"{file} is no result of quell compare or quell ladder")
    target = found.comparisons if kinds[0] is _RESULT else found.ladders
    target.append(_load(file, kinds[0]))


def _name_of(schema: object) -> str:
    return schema.partition("/")[0] if isinstance(schema, str) else ""


def _name(file: Path) -> str:
    """The name of a file's schema; of a comparison's, which then says why, if it cannot be read."""
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return _name_of(results.SCHEMA)
    return _name_of(document.get("schema")) if isinstance(document, dict) else ""


def _folders(cache: Cache, kind: _Kind) -> list[Path]:
    """The folders with a complete result of this kind, the newest first."""
    return sorted((path.parent for path in cache.results.glob(f"*/{kind.file}")), reverse=True)


def latest(cache: Cache) -> Sources:
    """The newest comparison, the newest ladder with one number of vCPUs, the newest with several.

    UsageError when there is nothing at all.
    """
    found = Sources()
    for folder in _folders(cache, _RESULT)[:1]:
        found.comparisons.append(_load(folder / _RESULT.file, _RESULT))
    for folder in _folders(cache, _LADDER):
        ladder = _load(folder / _LADDER.file, _LADDER)
        if is_scale(ladder) not in map(is_scale, found.ladders):
            found.ladders.append(ladder)
        if len(found.ladders) == 2:
            break
    found.ladders.sort(key=is_scale)
    if not found.comparisons and not found.ladders:
        raise UsageError("there are no results yet; ./quell compare makes them")
    return found
