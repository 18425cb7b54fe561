# SPDX-License-Identifier: GPL-2.0-only
from pathlib import Path

import pytest

from conftest import Capture, fails
from guests import Patch
from quell import build, cli, disks, user_command
from quell.errors import UsageError
from quell.paths import Cache


def test_file_systems_that_a_comparison_needs() -> None:
    def only_ext4(*options: str, attached: bool = False) -> bool:
        data = [disks.parse_data(f"/etc{option}") for option in options]
        return user_command.needs_only_ext4(data, [disks.Disk(Path("/x"))] if attached else [])

    assert only_ext4() and only_ext4("", ":ext4")
    assert not only_ext4("", ":xfs") and not only_ext4(attached=True)


def test_environment_of_the_users_command(monkeypatch: Patch) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("PYTHONPATH", "lab")
    monkeypatch.setenv("DISPLAY", ":0")
    env = user_command.job(["x"], Cache()).env
    assert env["MINE"] == "1" and env["PATH"]
    assert "PYTHONPATH" not in env and "DISPLAY" not in env


def test_a_command_that_is_not_there(tmp_path: Path, monkeypatch: Patch, capsys: Capture, cache: Cache) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "for_sides", lambda *a, **k: pytest.fail("built"))
    (tmp_path / "text").write_text("")
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o755)
    for command in ("compare", "run"):
        for name in ("nosuch", "./nosuch", "./text", str(tmp_path)):
            assert cli.main([command, "--", name]) == 2
            assert capsys.readouterr().err == f"quell: the command {name} does not exist or cannot be run\n"
    user_command.check(["./mine"])
    user_command.check(["sh"])
    fails(UsageError, r"did you mean \./mine\?$", user_command.check, ["mine"])
