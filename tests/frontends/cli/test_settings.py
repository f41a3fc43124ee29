"""One settings file: the project's before the user's, each value with its origin, every mistake reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deepgen
from deepgen import settings
from deepgen.run.measure.base import Policy
from deepgen.vocabulary import BadInput

OPERATOR = deepgen.gemm(64, 64, 64)


def _user(text: str) -> Path:
    path = settings.user_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_files_every_value_is_a_default(project: Path) -> None:
    file = settings.user_file()
    assert file is not None
    file.unlink()
    found = settings.load()
    assert found == settings.Settings()
    assert {found.source(key) for key in found.values()} == {"default"}
    assert found.studies == project / "deepgen-studies"


def test_project_file_wins_key_by_key(project: Path) -> None:
    user = _user('target = "sim"\n[limits]\njobs = 7\nbuild_seconds = 30\n[toolchains]\ngcc = "/opt/gcc"\n')
    ours = project / "deepgen.toml"
    ours.write_text('cache = "fast"\n[limits]\njobs = 2\n[toolchains]\nclang = "tools/clang"\n')
    settings.allow(ours)
    found = settings.load()
    assert (found.target, found.limits.jobs, found.limits.build_seconds) == ("sim", 2, 30.0)
    assert found.cache == project / "fast"  # relative to the file
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
        ("cache = 3", "cache is 3", "a folder's path"),
        ("target = ''", "target is ''", "x86:native"),
        ("limits = 4", "limits is 4", "[limits]"),
        ("[limits]\njobs = 0", "limits.jobs is 0", "at least 1"),
        ("[limits]\njobs = true", "limits.jobs is True", "at least 1"),
        ("[limits]\nbuild_seconds = '9'", "limits.build_seconds is '9'", "a positive number"),
        ("[limits]\nbuild_memory_gb = inf", "limits.build_memory_gb is inf", "a positive number"),
        ("[limits]\nrun_seconds = nan", "limits.run_seconds is nan", "a positive number"),
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
    settings.allow(project / "deepgen.toml")
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


def _of_somebody_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root may give files away; for everyone else, the test pretends to be another user."""
    if os.getuid() == 0:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    else:
        other = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: other)


def _names_a_program(path: Path) -> Path:
    """A settings file whose compiler would leave a mark."""
    program = path.parent / "evil-gcc"
    program.write_text(f"#!/bin/sh\ntouch {path.parent}/it-ran\necho gcc 12.2.0 GCC\n")
    program.chmod(0o755)
    path.write_text('[toolchains]\ngcc = "evil-gcc"\n')
    return path


def test_programs_of_somebody_elses_file_are_not_run(
    project: Path, deepgen: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _names_a_program(project / "deepgen.toml")
    _of_somebody_else(path, monkeypatch)
    for words in (("doctor",), ("tune", "gemm", "MNK=64"), ("build", "gemm", "MNK=64", "-o", "built"), ("clean",)):
        said = deepgen(*words)
        assert said.code == 2 and said.out == ""
        assert f"{path}: names programs to run and is ignored: it belongs to user" in said.err
        assert f"DEEPGEN_SETTINGS={path}" in said.err
    assert not (project / "it-ran").exists() and not (project / "built").exists()


def test_programs_of_a_file_that_came_with_a_clone_are_not_run(project: Path, deepgen: Callable[..., Any]) -> None:
    path = _names_a_program(project / "deepgen.toml")
    with path.open("a") as file:
        file.write("[limits]\njobs = 3\n")
    settings._reported.clear()
    for words in (("doctor",), ("build", "gemm", "MNK=8", "--target", "cpu", "-o", "built")):
        said = deepgen(*words)
        assert ("toolchains.gcc ignored" in said.err and "deepgen allow" in said.err) == (words == ("doctor",)), "once"
    loaded = settings.load()
    assert loaded.toolchains == {} and loaded.limits.jobs == 3, "what runs nothing counts"
    assert not (project / "it-ran").exists()
    allowed = deepgen("allow")
    assert allowed.code == 0 and f"toolchains.gcc = {project}/evil-gcc" in allowed.out
    deepgen("doctor")
    assert (project / "it-ran").exists()
    path.write_text(path.read_text() + "run_seconds = 3\n")
    assert settings.load().toolchains == {}, "another file than the one that was allowed"
    deepgen("allow")
    assert settings.load().toolchains
    assert deepgen("allow", "--revoke", "--json").json()["allowed"] is False
    assert settings.load().toolchains == {}


def test_a_cache_that_came_with_a_clone_is_not_used(project: Path) -> None:
    """Its binaries would be loaded."""
    (project / "deepgen.toml").write_text('cache = "theirs"\ntarget = "riscv:spacemit_k1,host=me@there"\n')
    assert settings.load().cache != project / "theirs" and settings.load().target is None
    settings.allow(project / "deepgen.toml")
    assert settings.load().cache == project / "theirs"


def test_only_a_project_with_settings_can_be_allowed(project: Path, deepgen: Callable[..., Any]) -> None:
    said = deepgen("allow")
    assert said.code == 2 and "has no deepgen.toml" in said.err


def test_a_file_that_is_named_is_used_whoever_owns_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _names_a_program(project / "deepgen.toml")
    _of_somebody_else(path, monkeypatch)
    monkeypatch.setenv("DEEPGEN_SETTINGS", str(path))
    assert settings.load().toolchains == {"gcc": project / "evil-gcc"}
    assert settings.read(path).source("toolchains.gcc") == str(path)
    monkeypatch.setenv("DEEPGEN_SETTINGS", os.devnull)
    assert settings.load().toolchains == {}


def test_a_link_of_somebody_else_is_not_followed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would be ours, but its relative paths would be theirs."""
    (project / "mine").mkdir()
    ours = project / "mine" / "deepgen.toml"
    ours.write_text('[toolchains]\ngcc = "evil-gcc"\n')
    (project / "deepgen.toml").symlink_to(ours)
    settings.allow(project / "deepgen.toml")
    assert settings.load().toolchains
    _of_somebody_else(project / "deepgen.toml", monkeypatch)
    with pytest.raises(BadInput, match="it belongs to user"):
        settings.load()


@pytest.mark.parametrize(
    ("file", "folder", "why"), [(0o666, 0o755, "it is world-writable"), (0o644, 0o777, "its folder is world-writable")]
)
def test_a_file_that_anyone_may_write_is_not_used(project: Path, file: int, folder: int, why: str) -> None:
    path = project / "deepgen.toml"
    path.write_text('target = "sim"\n')
    assert settings.load().target == "sim"
    path.chmod(file)
    project.chmod(folder)
    with pytest.raises(BadInput, match=f"ignored: {why}"):
        settings.load()


def test_ones_own_file_in_a_sticky_folder_is_used(project: Path) -> None:
    (project / "deepgen.toml").write_text('target = "sim"\n')
    project.chmod(0o1777)
    assert settings.load().target == "sim"


def test_the_users_own_file_is_looked_at_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    _of_somebody_else(_user('target = "sim"\n'), monkeypatch)
    with pytest.raises(BadInput, match="it belongs to user"):
        settings.load()


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 5000,
        "[limits]\nbuild_seconds = 0x" + "f" * 9999,
        "[limits]\njobs = 1" + "0" * 5000,
        "a" * (2 << 20),
    ],
)
def test_a_file_that_would_break_its_parser_is_refused(project: Path, text: str) -> None:
    (project / "deepgen.toml").write_text(text)
    with pytest.raises(BadInput, match=r"deepgen\.toml: (is not TOML|is nested|holds a number|is too large)"):
        settings.load()
