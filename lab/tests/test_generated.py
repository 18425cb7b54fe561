# SPDX-License-Identifier: GPL-2.0-only
"""Completion and the manual page have every command, and shells and groff take them."""

import shutil
from pathlib import Path

import pytest

from conftest import Capture
from guests import Patch, execute
from quell import cli, generated, presets, workload
from quell.paths import Cache


def complete(*words: str) -> set[str]:
    """Bash's completions of the last word."""
    script = (
        f"{generated.completion('bash')}\ncomplete -p quell >/dev/null || exit 9;"
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); $(complete -p quell | sed "s/.*-F //; s/ .*//");'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = execute("bash", "-c", script, "bash", *words)
    assert done.returncode == 0
    return {line.strip() for line in done.stdout.splitlines()}


def test_bash() -> None:
    assert complete("./quell", "comp") == {"compare", "completion"}
    assert complete("./quell", "explain", "rm") == {"rmap_batch"}
    assert complete("quell", "compare", "--det") == {"--deterministic"}
    assert complete("quell", "build", "de") == {"debug"}
    assert complete("quell", "test", "--only", "ex") | complete("quell", "--ver") == {"export", "--version"}


def test_bash_offers_names(tmp_path: Path, cache: Cache, monkeypatch: Patch) -> None:
    for command in ("compare", "ladder", "figures"):
        assert complete("quell", command, "-w", "") == set(workload.known())
    assert complete("quell", "compare", "--workload", "fa") == {"fault"}
    figures = [complete("quell", "figures", *words) for words in (["luf-256M", "shoot"], [""])]
    assert figures == [{"shootdown", "shootdown-alone"}, set(presets.group_names())]
    lists = [complete("quell", *words) for words in (["compare", "-w", "zap,fa"], ["export", "--only", "quell,zap"])]
    assert lists == [{"zap,fault"}, {"quell,zap_batch"}]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept here").mkdir()
    (cache.root / "results/kept-too").mkdir(parents=True)
    assert complete("quell", "report", "ke") == {"kept here", "kept-too"}


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_parses() -> None:
    assert execute("zsh", "-n", input=generated.completion("zsh")).returncode == 0


def test_manual_has_every_command_and_example() -> None:
    text = generated.manual()
    for name in cli.COMMANDS:
        assert f".SS \\fBquell {name}\\fR" in text
        assert f"\\&./quell {name}" in text


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
def test_manual_is_right_roff() -> None:
    done = execute("groff", "-man", "-ww", "-Tutf8", "-P-c", input=generated.manual())
    assert (done.returncode, done.stderr) == (0, "") and "./quell compare" in done.stdout


def test_commands(capsys: Capture, cache: Cache) -> None:
    for argv, start in (
        (["completion", "bash"], "# AUTOMATICALLY GENERATED"),
        (["completion", "zsh"], "#compdef quell"),
        (["man"], '.\\" SPDX'),
    ):
        assert cli.main(argv) == 0
        assert capsys.readouterr().out.startswith(start)
    assert [cli.main(["completion", *words]) for words in ([], ["tcsh"])] == [2, 2]
    assert not cache.root.exists()
