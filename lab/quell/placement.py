# SPDX-License-Identifier: GPL-2.0-only
"""The places of the hooks' hunks in a Linux tree: as expected, moved, or failed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Lines that git takes for a function's name, after @@: in C, and elsewhere.
_C_FUNCTION = re.compile(r"(?!\s*[A-Za-z_]\w*:\s*(?:$|/[/*]))(?:::\s*)?[A-Za-z_].*$")
_FUNCTION = re.compile(r"[A-Za-z_$].*$")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
_AROUND = 4


@dataclass(frozen=True)
class Hunk:
    """One hunk of a patch.

    ``line`` is its expected place in the file after the earlier hooks, ``context``
    the text after @@, ``lines`` the hunk without its first line.
    """

    line: int
    context: str
    lines: tuple[str, ...]

    @property
    def old(self) -> list[str]:
        """The lines that the file has to have."""
        return [line[1:] for line in self.lines if line[:1] in (" ", "-")]

    @property
    def added(self) -> list[str]:
        """The lines that it adds, without indentation."""
        return [line[1:].strip() for line in self.lines if line.startswith("+")]

    @property
    def function(self) -> str:
        """The function that encloses or precedes it; its name, if it has one."""
        return function_name(self.context)


@dataclass(frozen=True)
class Placed:
    """A hunk's place: line ``at``, in or behind ``function``; None: it does not apply.

    ``around`` are the file's lines there before the hook, with their numbers.
    """

    hook: str
    path: str
    hunk: Hunk
    at: int | None
    function: str
    around: tuple[str, ...] = ()

    @property
    def moved(self) -> int:
        """The distance in lines; 0 if it does not apply."""
        return 0 if self.at is None else self.at - self.hunk.line

    @property
    def strayed(self) -> bool:
        """Whether it applied in another function than the patch names."""
        return self.at is not None and self.moved != 0 and self.function != self.hunk.function


def hunks(section: str) -> list[Hunk]:
    """The hunks of a patch's section about one file."""
    found: list[Hunk] = []
    head: re.Match[str] | None = None
    body: list[str] = []

    def close() -> None:
        if head is not None:
            # git applies a hunk with nothing before it behind line 0.
            found.append(Hunk(max(1, int(head[2])), head[3].strip(), tuple(body)))

    for line in section.splitlines():
        match = _HUNK.match(line)
        if match:
            close()
            head, body = match, []
        elif head is not None:
            body.append(line)
    close()
    return found


def function_name(context: str) -> str:
    """The name in a line that git prints after @@: a function's, else the line itself."""
    match = re.search(r"(\w+)\s*\(", context)
    return match[1] if match else context.strip()


def enclosing(lines: Sequence[str], at: int, path: str) -> str:
    """The name of the function that git would print after @@ for a hunk at line ``at``."""
    pattern = _C_FUNCTION if path.endswith((".c", ".h", ".S")) else _FUNCTION
    for line in reversed(lines[: at - 1]):
        if pattern.match(line):
            return function_name(line[:80])
    return ""


def place(hook: str, sections: Mapping[str, str], before: Mapping[str, str], output: str) -> list[Placed]:
    """The result of ``git apply --verbose --reject`` for a hook, hunk by hunk.

    ``before`` has the text of each existing file.
    """
    said = _by_file(output)
    placed = []
    for path, section in sections.items():
        text = before.get(path)
        lines = text.splitlines() if text is not None else []
        messages = said.get(path, [])
        rejected = {int(number) for m in messages for number in re.findall(r"^Rejected hunk #(\d+)", m)}
        at = {
            int(match[1]): int(match[2])
            for message in messages
            if (match := re.match(r"Hunk #(\d+) succeeded at (\d+) ", message))
        }
        # Earlier hunks of the file shift its lines.
        shift = 0
        for number, hunk in enumerate(hunks(section), 1):
            creates = section.startswith("--- /dev/null")
            if number in rejected or (text is None and not creates):
                placed.append(_failed(hook, path, hunk, lines, text is None))
            else:
                line = at.get(number, hunk.line)
                old = max(1, line - shift)
                around = tuple(_numbered(lines, old, old + len(hunk.old)))
                placed.append(Placed(hook, path, hunk, line, enclosing(lines, old, path), around))
                shift += len([1 for entry in hunk.lines if entry.startswith("+")])
                shift -= len([1 for entry in hunk.lines if entry.startswith("-")])
    return placed


def _by_file(output: str) -> dict[str, list[str]]:
    """git's messages by file."""
    found: dict[str, list[str]] = {}
    path = ""
    for line in output.splitlines():
        start = re.match(r"(?:Checking|Applying) patch (.+?)(?:\.\.\.| with \d+ rejects?\.\.\.)$", line)
        if start:
            path = start[1]
        found.setdefault(path, []).append(line)
    return found


def _failed(hook: str, path: str, hunk: Hunk, lines: Sequence[str], missing: bool) -> Placed:
    if missing:
        return Placed(hook, path, hunk, None, "")
    old = hunk.old
    # The best anchor: a line of the hunk that the file has exactly once.
    alone = [lines.index(line) - i for i, line in enumerate(old) if len(line.strip()) > 3 and lines.count(line) == 1]
    start = alone[0] + 1 if alone else hunk.line
    around = tuple(_numbered(lines, max(1, start), start + len(old)))
    return Placed(hook, path, hunk, None, "", around)


def _numbered(lines: Sequence[str], first: int, end: int) -> list[str]:
    low, high = max(1, first - _AROUND), min(len(lines), end + _AROUND)
    return [f"    {number:6} {lines[number - 1]}" for number in range(low, high + 1)]


def report(placed: Sequence[Placed]) -> list[str]:
    """A report: numbers of hunks, each moved hunk, each failed hunk with the lines of the file."""
    lines = []
    for name in dict.fromkeys(entry.hook for entry in placed):
        own = [entry for entry in placed if entry.hook == name]
        failed = sum(entry.at is None for entry in own)
        moved = sum(entry.moved != 0 for entry in own)
        lines.append(
            f"{name}: {len(own)} hunk{'s' * (len(own) != 1)}: {len(own) - failed - moved} where expected, "
            f"{moved} moved, {failed} failed"
        )
        for entry in own:
            if entry.strayed:
                lines += _strayed(entry)
            elif entry.moved:
                where = f", {entry.function}" if entry.function else ""
                lines.append(f"  {entry.path}:{entry.at}: moved by {entry.moved:+d}{where}")
            elif entry.at is None:
                lines += _complaint(entry)
    return lines


def _strayed(entry: Placed) -> list[str]:
    wanted, there = entry.hunk.function or "the head", entry.function or "the head"
    return [
        f"  {entry.path}:{entry.at}: moved by {entry.moved:+d}, and into another place: "
        f"near {there}, not {wanted}. Check whether it belongs there:",
        *(f"    {line}" for line in entry.hunk.lines),
        f"  {entry.path} has there:",
        *entry.around,
    ]


def _complaint(entry: Placed) -> list[str]:
    return [
        f"  {entry.path}: the hook wants, at line {entry.hunk.line}"
        + (f" ({entry.hunk.function}):" if entry.hunk.function else ":"),
        *(f"    {line}" for line in entry.hunk.lines),
        f"  {entry.path}: {'the tree has there:' if entry.around else 'there is no such file'}",
        *entry.around,
    ]
