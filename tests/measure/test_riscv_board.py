"""A board over SSH: a real server on a loopback address, behind which qemu stands for the board's processor."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import needs
from deepgen import targets
from deepgen.build import build_once
from deepgen.cli.main import main
from deepgen.measure import Policy, Task
from deepgen.measure.riscv import board
from deepgen.measure.riscv.runner import RiscvRunner
from deepgen.operators import gemm
from deepgen.targets import Riscv
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

NAME = "riscv:rv64gcv_zvl128b"
HERE = needs.qemu(NAME)
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
OPERATOR = gemm(6, 5, 7)
LOOPS = """
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            float sum = 0;
            for (long k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }
"""
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
SetEnv PATH={folder}/bin:/usr/bin:/bin XDG_CACHE_HOME={folder}/cache
"""
SSH = """#!/bin/sh
exec {ssh} -F none -i {folder}/user -o UserKnownHostsFile={folder}/known -o GlobalKnownHostsFile=/dev/null "$@"
"""
# What a board has, and this machine has not: its name, and a processor that runs its programs.
UNAME = "#!/bin/sh\necho riscv64\n"
# As perf would, of a kernel whose calls take 50 cycles each.
PERF = """#!/bin/sh
calls=$(awk '/^time/{print $2}' request)
echo "$((1000 + 50 * calls));;cycles:u;100;100.00;;" >perf.csv
echo "<not supported>;;cache-misses:u;0;100.00;;" >>perf.csv
"""
TIMEOUT = """#!/bin/sh
[ -e {folder}/before ] && sh {folder}/before
[ "$4" = perf ] && shift 3 && exec "$@"
exec /usr/bin/timeout "$1" "$2" "$3" {qemu} -cpu rv64,v=true,vlen=128,elen=64,vext_spec=v1.0 "$4" "$5"
"""


@dataclass(frozen=True)
class Server:
    """The board, as the runner and its owner see it."""

    folder: Path
    port: int

    @property
    def target(self) -> Riscv:
        found = targets.resolve(f"{NAME},host={getpass.getuser()}@127.0.0.1:{self.port}")
        assert isinstance(found, Riscv)
        return found

    def runner(self) -> RiscvRunner:
        policy = Policy(min_samples=3, max_samples=3, timeout_seconds=60.0)
        return RiscvRunner(Task(OPERATOR, self.target, policy=policy))

    def left(self) -> list[str]:
        """What lies on the board."""
        return [str(path) for path in self.folder.glob("cache/deepgen-board/*")]

    def script(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def before(self, script: str) -> None:
        """What happens on the board before the next programs run."""
        (self.folder / "before").write_text(script)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    ssh, keygen = shutil.which("ssh"), shutil.which("ssh-keygen")
    if not Path(SSHD).exists() or ssh is None or keygen is None:
        pytest.skip("OpenSSH is missing")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    places = {"folder": tmp_path, "ssh": ssh, "qemu": shutil.which("qemu-riscv64")}
    for name, text in (("bin/uname", UNAME), ("bin/timeout", TIMEOUT), ("client/ssh", SSH)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.format(**places) if "{" in text else text)
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'client'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(board, "_PAUSE", 0.0)
    # A port that is free now may be taken by the time the server binds it.
    process, port = next(found for _ in range(5) if (found := _serving(tmp_path)))
    made = Server(tmp_path, port)
    accept(made, "host")
    yield made
    process.terminate()
    process.wait()


def _serving(folder: Path) -> tuple[subprocess.Popen[bytes], int] | None:
    """A server that answers, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "sshd").write_text(CONFIG.format(port=port, folder=folder))
    with (folder / "sshd.log").open("wb") as log:
        argv = [SSHD, "-D", "-e", "-f", str(folder / "sshd")]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log)
    deadline = time.monotonic() + 60
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process, port
        except OSError:
            assert time.monotonic() < deadline, (folder / "sshd.log").read_text()
            time.sleep(0.05)
    return None


def accept(server: Server, key: str) -> None:
    public = (server.folder / f"{key}.pub").read_text()
    (server.folder / "known").write_text(f"[127.0.0.1]:{server.port} {public}")


def built(body: str) -> tuple[Kernel, Artifact]:
    args = (TensorArg("A"), TensorArg("B"), TensorArg("C"), *(ScalarArg("i64", size) for size in "MNK"))
    text = f"void f(const float *A, const float *B, float *C, long M, long N, long K) {{ {body} }}"
    kernel = Kernel("own", "c", (Source("own.c", text),), ("-O1",), LaunchPlan((Step("f", args),)))
    return kernel, build_once(kernel, HERE)


def test_kernels_are_verified_and_timed_there_and_nothing_stays(server: Server) -> None:
    assert server.target.proxy == ""
    runner = server.runner()
    measured = runner.measure(*built(LOOPS))
    assert measured.ok and len(measured.samples) == 3 and min(measured.samples) > 0.0, measured
    assert measured.conditions["host"] == server.target.host and "proxy" not in measured.conditions
    wrong = runner.measure(*built(LOOPS + "C[M * N] = 1;"))
    assert "wrote past the end of C" in wrong.detail
    assert runner.count(*built(LOOPS), ["cycles"]).missing == {"cycles": "the board has no perf that works"}
    server.script("bin/perf", PERF)
    counted = runner.count(*built(LOOPS), ["cycles", "cache-misses"])
    assert counted.values == {"cycles": 50.0} and "no such event" in counted.missing["cache-misses"]
    runner.close()
    assert server.left() == []


def test_a_machine_that_is_a_board_needs_no_ssh(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{server.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    local = targets.resolve(f"{NAME},host=local")
    runner = RiscvRunner(Task(OPERATOR, local, policy=Policy(min_samples=3, max_samples=3, timeout_seconds=60.0)))
    assert len(runner.measure(*built(LOOPS)).samples) == 3
    runner.close()


def test_a_killed_program_is_started_again(server: Server) -> None:
    once = server.folder / "once"
    once.touch()
    server.before(f"[ -e {once} ] && rm {once} && kill -KILL $PPID\n")
    runner = server.runner()
    assert runner.measure(*built(LOOPS)).ok and not once.exists()
    runner.close()


def test_a_dropped_connection_is_made_again_or_told(server: Server) -> None:
    runner = server.runner()
    once = server.folder / "once"
    once.touch()
    # The server's process for this connection is the parent of the shell that runs the script.
    drop = "kill -KILL $(awk '{print $4}' /proc/$(awk '{print $4}' /proc/$PPID/stat)/stat)\n"
    server.before(f"[ -e {once} ] && rm {once} && {drop}")
    assert runner.measure(*built(LOOPS)).ok and not once.exists()
    server.before(drop)
    with pytest.raises(DeepgenError, match=r"the connection was lost .*what was measured is kept.*again to go on"):
        runner.measure(*built(LOOPS))
    (server.folder / "before").unlink()
    assert runner.measure(*built(LOOPS)).ok
    runner.close()
    assert server.left() == []


def test_a_full_disk_is_told(server: Server) -> None:
    runner = server.runner()
    tar = server.folder / "bin/tar"
    tar.write_text("#!/bin/sh\necho 'tar: program: Cannot write: No space left on device' >&2\nexit 2\n")
    tar.chmod(0o755)
    with pytest.raises(DeepgenError, match=r"its disk is full .*No space left.*free space there"):
        runner.measure(*built(LOOPS))
    tar.unlink()
    assert runner.measure(*built(LOOPS)).ok
    runner.close()


def test_a_wrong_host_key_is_not_trusted(server: Server) -> None:
    accept(server, "user")
    with pytest.raises(DeepgenError, match="host key is another one"):
        server.runner()
    (server.folder / "known").write_text("")
    with pytest.raises(DeepgenError, match="host key is not among your known hosts"):
        server.runner()


def test_a_machine_of_another_kind_and_a_strange_name_are_refused(server: Server) -> None:
    (server.folder / "bin/uname").unlink()
    with pytest.raises(BadInput, match="a riscv64 board"):
        server.runner()
    strange = targets.resolve(f"{NAME},host=-oProxyCommand=x")
    with pytest.raises(BadInput, match="USER@HOST"):
        RiscvRunner(Task(OPERATOR, strange))


def test_a_study_on_a_board_stops_in_words_and_goes_on(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = server.target.host
    words = ["tune", "gemm", "M=6", "N=5", "K=7", "--target", NAME, "--host", host, "--trials", "1", "--keep-top", "1"]
    argv = [*words, "--out", str(tmp_path / "studies")]
    server.before("kill -KILL $(awk '{print $4}' /proc/$(awk '{print $4}' /proc/$PPID/stat)/stat)\n")
    assert main(argv) == 1
    assert "what was measured is kept" in " ".join(capsys.readouterr().err.split())
    assert main(["tune", "gemm", "MNK=8", "--target", "sim", "--host", host]) == 2
    if "DEEPGEN_BOARD_STUDY" in os.environ:  # to its end, which takes some 40 connections
        (server.folder / "before").unlink()
        assert main(argv) == 0
        said = capsys.readouterr().out
        assert host in said and "not times" not in said
    assert server.left() == []
