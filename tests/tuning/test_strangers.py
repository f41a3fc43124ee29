"""Another user's study can be inspected, and its winner loaded: no planted code runs."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_code
import pytest
import strangers_study

import deepgen as dg
from deepgen.frontends.cli.main import main
from deepgen.frontends.cli.requests import from_study
from deepgen.kernels.own.family import KernelFamily
from deepgen.toolchains.base import require_plain
from deepgen.tuning import Study
from deepgen.tuning.request import plan
from deepgen.tuning.study import trust
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, LaunchPlan, Source


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that hostile code would leave behind."""
    return tmp_path / "it-ran"


@pytest.fixture
def as_somebody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """From now on a different user from the one who wrote the study, with another key."""
    return lambda: monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))


def _flags(marker: Path) -> Callable[[Kernel], Kernel]:
    return lambda kernel: replace(kernel, flags=(*kernel.flags, "-wrapper", f"/bin/sh,-c,touch {marker}; exit 1"))


def _source(marker: Path) -> Callable[[Kernel], Kernel]:
    text = f'#include "/etc/passwd"\n__asm__(".incbin \\"/etc/passwd\\"");\n#pragma GCC plugin "{marker}"\n'
    return lambda kernel: replace(kernel, sources=(Source("evil.c", text), *kernel.sources))


@pytest.mark.parametrize("change", [_flags, _source])
def test_showing_a_strangers_winner_builds_nothing_of_it(
    tmp_path: Path,
    marker: Path,
    as_somebody_else: Callable[[], None],
    change: Callable[[Path], Callable[[Kernel], Kernel]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = strangers_study.write(tmp_path / "study", kernel=change(marker))
    as_somebody_else()
    for words in (["--asm"], ["--source"], ["--asm", "--trial", "0"]):
        assert main(["show", str(folder), *words]) == 1
        told = capfd.readouterr()
        assert told.out == "" and str(folder) in told.err and "did not write" in told.err
    with pytest.raises(trust.Untrusted, match="study contains a winner that this user's deepgen did not write"):
        strangers_study.best(folder).load()
    assert not marker.exists()


def test_showing_a_trusted_winner_disassembles_and_builds_nothing(
    tmp_path: Path, marker: Path, as_somebody_else: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = strangers_study.write(tmp_path / "study", kernel=_flags(marker))
    as_somebody_else()
    assert main(["show", str(folder), "--asm", "--trust"]) == 0
    assert "Disassembly of section .text" in capfd.readouterr().out
    assert not marker.exists()


def test_trust_does_not_hand_a_files_flags_to_the_compiler(
    tmp_path: Path, marker: Path, as_somebody_else: Callable[[], None]
) -> None:
    folder = strangers_study.write(tmp_path / "study", kernel=_flags(marker))
    as_somebody_else()
    next((folder / "winner").glob("kernel.so")).unlink()  # so that it would have to be built
    with pytest.raises(BadInput, match="passes the compiler '-wrapper'"):
        strangers_study.best(folder, trust=True).load()
    assert not marker.exists()


def test_a_strangers_own_kernel_is_not_built(
    tmp_path: Path, marker: Path, as_somebody_else: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its study contains the source, while studies of deepgen's families only contain a config."""
    text = (
        "#include <fcntl.h>\n__attribute__((constructor)) static void run(void)"
        f'{{ open("{marker}", O_CREAT | O_WRONLY, 0600); }}\n'
        "void k(const float *A, const float *B, float *C) {}\n"
    )
    described = dg.kernel(text, language="c", entry="k", arguments=[dg.inout("C", "M", "f32")], sizes={"M": 32})
    recipe = KernelFamily(replace(described.description, sources=(Source("k.c", text),))).recipe
    changed = {"generator": "own kernel", "recipe": recipe}
    folder = strangers_study.write(
        tmp_path / "study", config={"ONLY": 0}, definition=lambda told: {**told, **changed}, winner=False
    )
    as_somebody_else()
    with pytest.raises(trust.Untrusted, match="study contains a kernel's source that this user's deepgen did not"):
        strangers_study.best(folder).load()
    assert main(["show", str(folder), "--asm", "--trial", "0"]) == 1
    assert "did not write" in capfd.readouterr().err and not marker.exists()


def test_a_triton_kernel_out_of_a_file_is_never_built() -> None:
    kernel = Kernel("k", "triton", (Source("k.py", "print('it ran')"),), (), LaunchPlan(()))
    with pytest.raises(BadInput, match="is in Triton: building it would run its code"):
        require_plain(kernel, "a study")


def test_a_binary_with_a_hash_of_its_own_beside_it_is_not_loaded(tmp_path: Path, marker: Path) -> None:
    folder = strangers_study.write(tmp_path / "study")
    source = tmp_path / "evil.c"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void run(void)"
        f'{{ open("{marker}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    binary = folder / "winner" / "kernel.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(binary), str(source)], check=True)
    (folder / "winner" / "binary.sha256").write_text(f"{hashlib.sha256(binary.read_bytes()).hexdigest()}  kernel.so\n")
    ones = np.ones((32, 32), np.float32)
    assert strangers_study.best(folder).load()(ones, ones)[0, 0] == 32.0, "emitted and built again here"
    assert not marker.exists()


@pytest.mark.parametrize("value", ["4\n#include </etc/passwd>", "4)(system(0)", [4], 4.5, True, None])
def test_a_config_brings_no_text_into_a_kernel(tmp_path: Path, value: Any) -> None:
    folder = strangers_study.write(tmp_path / "study", config={"MR": value, "NR": 4, "KC": 64}, winner=False)
    assert main(["show", str(folder)]) == 0
    assert main(["show", str(folder), "--asm"]) == 2
    study = Study.open(folder)
    goes_on = from_study(study, {})
    for emit in (study.best().load, lambda: plan(goes_on).emit(goes_on, study.best().trial.config)):
        with pytest.raises(BadInput, match=r"its config has 'MR' = .*not in the space"):
            emit()


@pytest.mark.parametrize(
    "change",
    [
        {"code": {"operator": {"by": "module", "ref": "this:s"}}},
        {"code": {"generator": {"by": "file", "ref": "../../evil.py:Family", "sha256": "0" * 64}}},
    ],
)
def test_code_that_a_definition_names_is_not_imported(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = strangers_study.write(
        tmp_path / "study", definition=lambda told: {**told, **change}, kernel=_flags(tmp_path), winner=False
    )
    sys.modules.pop("this", None)
    study = Study.open(folder)
    with pytest.raises(trust.Untrusted, match=f"{folder}.* that this user's deepgen did not write"):
        study.kernel(study.best().trial)
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("key", "value"),
    [("isa", ["asimd", 3]), ("cores", "1); evil("), ("l1d_bytes", 1.5), ("model", "a\nb"), ("name", "cpu; rm -rf /")],
)
def test_a_targets_facts_are_numbers_and_words(tmp_path: Path, key: str, value: Any) -> None:
    def change(told: dict[str, Any]) -> dict[str, Any]:
        return {**told, "target": {**told["target"], key: value}}

    folder = strangers_study.write(tmp_path / "study", definition=change, winner=False)
    with pytest.raises(BadInput, match=r"target"):
        Study.open(folder)


def test_bytecode_beside_signed_code_is_not_executed(tmp_path: Path, marker: Path) -> None:
    own_code.write(tmp_path)
    script = own_code.RUN.format(folder=str(tmp_path), trials=4, out=str(tmp_path / "studies"), more="")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    code = Path(done.stdout.strip()) / "code"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(marker)!r}, 'w').close()\n")
    cache = code / "__pycache__" / f"own.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(evil), cfile=str(cache), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert Study.open(code.parent).operator.to_json() == {"name": "twice", "n": 1000}
    assert not marker.exists()


@pytest.mark.parametrize("what", ["fifo", "folder", "link to nowhere", "huge", "deep", "not an object"])
def test_a_winner_that_is_no_winner_is_emitted_again(tmp_path: Path, what: str) -> None:
    folder = strangers_study.write(tmp_path / "study", winner=False)
    file = folder / "winner" / "kernel.json"
    file.parent.mkdir()
    if what == "fifo":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    elif what == "link to nowhere":
        file.symlink_to("/nowhere/at/all")
    else:
        file.write_text({"huge": "1" * 9999, "deep": "[" * 99_999, "not an object": "[1]"}[what])
    ones = np.ones((32, 32), np.float32)
    assert strangers_study.best(folder).load()(ones, ones)[0, 0] == 32.0


def test_a_pipe_for_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    folder = strangers_study.write(tmp_path / "study", winner=False)
    (folder / "lock").unlink()
    os.mkfifo(folder / "lock")
    assert main(["status", str(folder)]) == 0


GOOD = {
    "c": ["-O3", "-O", "-std=gnu11", "-pthread", "-mavx512f", "-mno-fma", "-march=armv8.2-a+fp16", "-ffast-math",
          "-fno-math-errno", "-ffp-contract=fast", "-DX", "-DX=1 + (2)", "-lm"],
    "cuda": ["-std=c++17", "--std=c++17", "-DTYPE=float4", "--use_fast_math", "-maxrregcount=128", "--fmad=false"],
    "hip": ["-std=c++17", "-DX=1", "-mcumode", "-munsafe-fp-atomics", "--gpu-max-threads-per-block=256"],
}  # fmt: skip
BAD = {
    "c": ["-wrapper", "/bin/sh,-c,id", "-B/tmp", "-fplugin=/tmp/x.so", "-fpass-plugin=x", "-Xclang", "-load", "@/etc/x",
          "-specs=/tmp/x", "-include/etc/passwd", "-I/etc", "-L/tmp", "-lc", "-o/tmp/x", "-Wl,-rpath,/tmp", "-mllvm",
          "-fdump-tree-all=/tmp/x", "-fuse-ld=/tmp/ld", "-fprofile-use=/x", "-dumpdir", "x.c", "-DX=1\n", "-D1", "-",
          "-MF/tmp/x", "-save-temps", "-T/tmp/x", "--sysroot=/tmp", "-fopenmp=libevil", "-gsplit-dwarf", ""],
    "cuda": ["--include-path=/etc", "-I/etc", "--pre-include=/etc/passwd", "@file", "--ptxas-options=-v", "-dlto",
             "--create-pch=/tmp/x", "--pch-dir=/tmp"],
    "hip": ["-Xlinker", "--offload-arch=gfx90a", "-fplugin=x", "--rocm-path=/tmp", "-include", "-mllvm"],
    "sim": ["-O3"],
}  # fmt: skip


@pytest.mark.parametrize(("language", "flag"), [(lang, flag) for lang, flags in GOOD.items() for flag in flags])
def test_plain_flags_of_a_file_reach_a_compiler(language: str, flag: str) -> None:
    try:
        require_plain(Kernel("k", language, (), (flag,), LaunchPlan(())), "their study")
    except BadInput as error:
        pytest.fail(str(error))


@pytest.mark.parametrize(("language", "flag"), [(lang, flag) for lang, flags in BAD.items() for flag in flags])
def test_no_other_flag_of_a_file_does(language: str, flag: str) -> None:
    with pytest.raises(BadInput, match="their study: its kernel 'k' passes the compiler"):
        require_plain(Kernel("k", language, (), (flag,), LaunchPlan(())), "their study")


def test_every_flag_of_our_own_kernels_is_plain() -> None:
    """Golden files contain kernels of every family with their flags."""
    texts = [json.loads(path.read_text()) for path in (Path(__file__).parents[1] / "golden").rglob("*.json")]
    kernels = [text for text in texts if isinstance(text, dict) and "flags" in text]
    assert len(kernels) > 10
    for kernel in kernels:
        for language in ("c",) if "-std=gnu11" in kernel["flags"] else ("cuda", "hip"):
            require_plain(Kernel("golden", language, (), tuple(kernel["flags"]), LaunchPlan(())), "golden")


def test_an_unsigned_cluster_run_is_not_gone_on_with(tmp_path: Path, as_somebody_else: Callable[[], None]) -> None:
    from deepgen_cluster import run as cluster_run
    from deepgen_cluster.folder import Definition, RunFolder
    from deepgen_cluster.model import Cluster

    folder = RunFolder(tmp_path / "run")
    folder.define(Definition(Cluster(str(tmp_path / "tasks.toml"), ())))
    folder.require_own(trusted=False)
    as_somebody_else()
    with pytest.raises(DeepgenError, match="contains a cluster run, its hosts and programs, that this user's"):
        cluster_run.attach(folder, trust=False, as_json=True)
