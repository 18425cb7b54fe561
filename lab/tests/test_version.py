# SPDX-License-Identifier: GPL-2.0-only
import re

from conftest import Capture
from quell import cli, source, tree, version
from quell.paths import Cache, repo_root


def test_version_option(capsys: Capture, cache: Cache) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"quell {version.RELEASE} (Linux 6.12.y, 7.3.y)\n"
    assert not cache.root.exists()


def test_versions_of_linux_are_those_with_hooks() -> None:
    assert sorted(source.VERSIONS) == sorted(path.name for path in (tree.kernel_dir() / "hooks").iterdir())
    assert all(source.linux_of(release) == linux for linux, release in source.MADE_WITH.items())


def test_documents_name_this_release() -> None:
    changes = (repo_root() / "CHANGELOG.md").read_text()
    first = re.search(r"^## \[(.+?)\]", changes, re.M)
    assert first and first[1] == version.RELEASE
    for name in ("CHANGELOG.md", "SECURITY.md"):
        text = (repo_root() / name).read_text()
        for linux in source.VERSIONS:
            assert f"{linux}.y" in text, name
