# SPDX-License-Identifier: GPL-2.0-only
"""The workload llm: the file of weights, and the program's verdicts."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import Capture
from guests import compiled, execute
from quell import counters
from quell.paths import repo_root

FOLDER = repo_root() / "workloads" / "llm"
F32, Q8_0 = 0, 8
LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
OUTER = 2 * 512 * 1024 + 1024


@pytest.fixture(scope="module")
def weights() -> Any:
    """The module weights.py."""
    pytest.importorskip("gguf")
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "weights.py")))


def read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys and the tensors of a GGUF file, by name."""
    gguf = pytest.importorskip("gguf").GGUFReader(file)
    return {k: field.contents() for k, field in gguf.fields.items()}, {one.name: one for one in gguf.tensors}


@pytest.mark.parametrize(("kind", "number", "bits"), [("F32", F32, 32), ("Q8_0", Q8_0, 8.5)])
def test_weights_file(weights: Any, tmp_path: Path, kind: str, number: int, bits: float) -> None:
    file = tmp_path / "w.gguf"
    limit = int((2.5 * LAYER + OUTER) * bits / 8)
    assert weights.main(["weights.py", str(file), str(limit), kind]) == 0
    keys, tensors = read(file)
    assert keys["GGUF.version"] == 3
    assert (keys["general.architecture"], keys["llama.block_count"]) == ("llama", 2)
    words = keys["tokenizer.ggml.tokens"]
    assert len(words) == len(set(words)) == keys["llama.vocab_size"] == 512
    assert len(tensors) == 3 + 2 * 9
    last = tensors["blk.1.ffn_down.weight"]
    assert (last.shape.tolist(), last.tensor_type) == ([4096, 1024], number)
    norm = tensors["blk.1.ffn_norm.weight"]
    assert (norm.shape.tolist(), norm.tensor_type) == ([1024], F32)
    # As large as the weights, and at most as large as requested.
    expected = (2 * LAYER + OUTER) * bits / 8
    assert expected <= file.stat().st_size <= min(limit, expected * 1.01)
    assert last.data_offset + 4096 * 1024 * bits / 8 == file.stat().st_size


def test_weights_differ_from_layer_to_layer_and_are_the_same_each_time(weights: Any, tmp_path: Path) -> None:
    size = (2 * LAYER + OUTER) * 4 + (1 << 17)
    for name in "ab":
        assert weights.main(["weights.py", str(tmp_path / name), str(size)]) == 0
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "b").read_bytes()
    starts = [one.data_offset for one in read(tmp_path / "a")[1].values() if len(one.shape) > 1]
    assert len({data[start:][:4096] for start in starts}) == 2 + 2 * 7


def test_weights_say_what_is_wrong(weights: Any, tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "w")
    assert weights.main(["weights.py", file, "1000"]) == 1
    assert "1000 bytes are too few for one layer" in capsys.readouterr().err
    assert weights.main(["weights.py", file, "300000000", "F99"]) == 1
    assert weights.main(["weights.py", file]) == 2
    assert weights.main(["weights.py", str(tmp_path / "no" / "w"), "300000000"]) == 1


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(FOLDER / "llm.c", tmp_path_factory.mktemp("llm"), "-O1")


def test_processes_that_agree(program: Path) -> None:
    script = 'printf "7:00ff\\n8:\\001\\n"'
    result = execute(program, "--processes", "3", "--tokens", "2", "/bin/sh", "-c", script)
    assert result.returncode == 0, result.stderr
    said = counters.parse_same(result.stdout)
    assert list(said) == ["output"] and re.fullmatch(r"11 bytes, .*: 7:00ff 8:\?", said["output"])
    rate = counters.parse_figures(result.stdout)["tokens_per_s"]
    assert rate.value > 0 and rate.higher_is_better and rate.unit == "tokens/s"
    # Output that is not shown is compared as well.
    other = execute(program, "/bin/sh", "-c", script.replace("001", "002"))
    assert counters.parse_same(other.stdout) != said


@pytest.mark.parametrize(("script", "says"), [
    ("echo $$", "Process 2 says something else than process 1."),
    ("exit 3", "Process 1 failed with exit code 3."),
    ("kill -ILL $$", "Process 1 was ended by signal 4 (Illegal instruction)."),
    ("exec true", "says nothing."),
    ("exec yes", "says more than 65536 bytes."),
])  # fmt: skip
def test_processes_that_fail(program: Path, script: str, says: str) -> None:
    result = execute(program, "/bin/sh", "-c", script)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith(says)
    assert "same" not in result.stdout


def test_usage(program: Path) -> None:
    assert "usage: llm" in execute(program).stderr
    assert "--processes must be a number from" in execute(program, "--processes", "0", "x").stderr
    assert "Cannot run /nonexistent" in execute(program, "/nonexistent").stderr
