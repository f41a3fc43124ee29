"""No install command of this repository names `deepgen` on PyPI, which is someone else's package."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from deepgen.vocabulary.errors import DISTRIBUTION, install_extra

ROOT = Path(__file__).parents[2]
# `deepgen`, with or without extras, as the name of a package to install; paths and longer names are fine.
FOREIGN = re.compile(r"\bpip3? install\b[^\n`]*?[\s'\"]deepgen(?![\w./-])")


def texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.suffix in (".py", ".md", ".toml", ".yml", ".cff", "") and path.is_file()]


def test_no_command_installs_the_other_package() -> None:
    here = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        if path.resolve() != here
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert not found, f"these would install someone else's package; the distribution is {DISTRIBUTION}:\n" + "\n".join(
        found
    )


@pytest.mark.parametrize(
    ("line", "foreign"),
    [
        ("pip install deepgen", True),
        ("pip install 'deepgen[cluster]'", True),
        ("pip install -U deepgen==0.1", True),
        ("uv pip install deepgen", True),
        ("pip install deepgen-kernels", False),
        ("pip install 'deepgen-kernels[cluster]'", False),
        ("pip install -e '.[cluster]'", False),
        ("pip install ./deepgen", False),
    ],
)
def test_what_counts_as_the_other_package(line: str, foreign: bool) -> None:
    assert bool(FOREIGN.search(line)) is foreign


def test_an_extra_is_installed_from_a_checkout_or_from_pypi() -> None:
    text = install_extra("cluster")
    assert "pip install -e '.[cluster]'" in text
    assert "pip install 'deepgen-kernels[cluster]'" in text


def test_the_distribution_has_the_name_that_messages_use() -> None:
    assert f'\nname = "{DISTRIBUTION}"\n' in (ROOT / "pyproject.toml").read_text()


def test_doctor_knows_every_extra_and_what_it_brings() -> None:
    from test_test_command import EXTRAS, packages

    from deepgen.frontends.cli import doctor

    known = {extra.name: {*extra.packages} for extra in doctor.EXTRAS}
    assert known == {name: packages(name) for name in EXTRAS if name not in ("all", "dev")}


def test_a_source_distribution_has_docs_examples_and_tests() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text().split("\n")
    assert {"graft docs", "graft examples", "graft tests", "include Makefile"} <= {*manifest}


def test_every_extra_that_a_message_names_exists() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for path in texts():
        if path.suffix == ".py":
            for extra in re.findall(r"install_extra\(['\"](\w+)['\"]\)", path.read_text()):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), (path, extra)
