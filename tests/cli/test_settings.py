"""One settings file: the project's before the user's, each value with its origin, every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

import deepgen
from deepgen import settings
from deepgen.measure.base import Policy
from deepgen.vocabulary import BadInput

OPERATOR = deepgen.gemm(64, 64, 64)


def _user(text: str) -> Path:
    path = settings.user_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_files_every_value_is_a_default(project: Path) -> None:
    found = settings.load()
    assert found == settings.Settings()
    assert {found.source(key) for key in found.values()} == {"default"}
    assert found.studies == project / "deepgen-studies"


def test_project_file_wins_key_by_key(project: Path) -> None:
    user = _user('target = "sim"\n[limits]\njobs = 7\nbuild_seconds = 30\n[toolchains]\ngcc = "/opt/gcc"\n')
    ours = project / "deepgen.toml"
    ours.write_text('cache = "fast"\n[limits]\njobs = 2\n[toolchains]\nclang = "tools/clang"\n')
    found = settings.load()
    assert (found.target, found.limits.jobs, found.limits.build_seconds) == ("sim", 2, 30.0)
    assert found.cache == project / "fast"  # relative to the file that names it
    assert found.toolchains == {"gcc": Path("/opt/gcc"), "clang": project / "tools/clang"}
    assert found.source("target") == found.source("limits.build_seconds") == found.source("toolchains.gcc") == str(user)
    assert found.source("limits.jobs") == found.source("cache") == str(ours)
    assert found.source("studies") == "default"


def test_project_file_is_found_up_to_the_repository_root(project: Path) -> None:
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (project / ".git").mkdir()
    (project / "deepgen.toml").write_text('target = "sim"\n')
    (project.parent / "deepgen.toml").write_text('target = "outside"\n')
    assert settings.load(inner).target == "sim"
    (project / "a" / "deepgen.toml").write_text('target = "sim:seed=1"\n')
    assert settings.load(inner).target == "sim:seed=1"


def test_parents_outside_a_repository_are_not_trusted(project: Path) -> None:
    (project.parent / "deepgen.toml").write_text('[toolchains]\ngcc = "/tmp/not-mine"\n')
    assert settings.load().toolchains == {}


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("colour = 1", "colour", "cache, studies, target"),
        ("[limits]\njob = 1", "limits.job", "limits.jobs"),
        ("[toolchains]\ncl = '/x'", "toolchains.cl", "toolchains.gcc"),
        ("cache = 3", "cache is 3", "path of a folder"),
        ("target = ''", "target is ''", "x86:native"),
        ("limits = 4", "limits is 4", "[limits]"),
        ("[limits]\njobs = 0", "limits.jobs is 0", "from 1 up"),
        ("[limits]\njobs = true", "limits.jobs is True", "from 1 up"),
        ("[limits]\nbuild_seconds = '9'", "limits.build_seconds is '9'", "above 0"),
        ("[limits]\nbuild_memory_gb = inf", "limits.build_memory_gb is inf", "above 0"),
        ("[limits]\nrun_seconds = nan", "limits.run_seconds is nan", "above 0"),
    ],
)
def test_mistakes_name_file_key_and_what_is_allowed(project: Path, text: str, key: str, allowed: str) -> None:
    (project / "deepgen.toml").write_text(text)
    with pytest.raises(BadInput) as caught:
        settings.load()
    assert str(project / "deepgen.toml") in str(caught.value)
    assert key in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe"])
def test_a_malformed_file_is_bad_input(project: Path, content: bytes) -> None:
    (project / "deepgen.toml").write_bytes(content)
    with pytest.raises(BadInput, match=r"deepgen\.toml"):
        settings.load()


def test_one_file_can_be_read_by_itself(project: Path) -> None:
    _user('target = "sim"\n')
    (project / "there").mkdir()
    (project / "there" / "mine.toml").write_text('cache = "fast"\n[toolchains]\ngcc = "/opt/gcc"\n')
    found = settings.read("there/mine.toml")
    assert found.cache == project / "there" / "fast" and found.programs() == {"gcc": "/opt/gcc"}
    assert found.target is None, "the user's own file is not asked"
    with pytest.raises(BadInput, match=r"none\.toml: cannot be read"):
        settings.read("none.toml")


def test_a_call_from_python_goes_by_the_settings_it_is_handed_and_by_no_others(project: Path) -> None:
    (project / "deepgen.toml").write_text('target = "x86:none-such"\nstudies = "elsewhere"\n')
    alone = deepgen.tune(OPERATOR, target="sim", trials=3)
    assert alone.folder.parent.name == "deepgen-studies" and not (project / "elsewhere").exists()

    text = 'target = "sim"\nstudies = "kept"\ncache = "built"\n[limits]\njobs = 1\nrun_seconds = 9\n'
    (project / "deepgen.toml").write_text(text)
    handed = deepgen.tune(OPERATOR, trials=3, settings=settings.load())
    assert (
        handed.folder.parent == project / "kept" and handed.target.name == "sim" and any((project / "built").iterdir())
    )
    assert handed.definition["policy"]["timeout_seconds"] == 9

    said = deepgen.tune(
        OPERATOR, target="sim:seed=1", out="said", policy=Policy(cold=False), trials=3, settings=settings.load()
    )
    assert said.folder.parent == Path("said") and said.target.name == "sim:seed=1", "arguments come before settings"
    assert said.definition["policy"]["timeout_seconds"] is None
    with pytest.raises(BadInput, match=r"settings is 'deepgen\.toml'"):
        deepgen.tune(OPERATOR, settings="deepgen.toml")  # type: ignore[arg-type]
