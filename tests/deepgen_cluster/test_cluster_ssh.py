"""SSH: quoting, keys, passwords that stay where they belong, and errors that say what to do."""

from __future__ import annotations

import asyncio
import errno
import json
import platform
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh", reason="hosts cannot be reached without asyncssh: pip install -e '.[cluster]'")

from password_server import PasswordServer

from deepgen.frontends.cli.main import main
from deepgen_cluster import agent, ssh
from deepgen_cluster.check import basic_problems, ray_version
from deepgen_cluster.machines import Remote, on_each, raise_errors, reach
from deepgen_cluster.model import Host, Secret, password_variable
from deepgen_cluster.ssh import HostError

NO_PASSWORD = ssh.passwords({}, prompt=False)
WORD = "correct-horse-7731"


def ask(host: Host, do: str, password: ssh.Ask = NO_PASSWORD, **request: Any) -> Any:
    async def call() -> Any:
        async with reach(host, password) as machine:
            return await machine.call(do, **request)

    return asyncio.run(call())


@pytest.mark.parametrize("name", ["with space", 'it\'s "quoted" $HOME `id` ; true', "-ünïcode"])
def test_folders_with_odd_names(servers, name: str) -> None:
    host = servers.host("127.0.0.2", name)

    async def work(machine: Remote) -> None:
        facts = await machine.call("facts")
        assert facts["folder"] == host.folder
        assert basic_problems(facts) == []
        await machine.call("write", path="a b/it's.txt", content="aGk=")
        assert await machine.call("read", path="a b/it's.txt") == "aGk="
        assert await machine.call("read", path="missing") is None

    raise_errors(asyncio.run(on_each([host], NO_PASSWORD, work)))
    assert (Path(host.folder) / "a b/it's.txt").read_bytes() == b"hi"


def test_a_file_in_the_folder_is_not_taken_for_a_module(servers) -> None:
    host = servers.host("127.0.0.2", "trap")
    (Path(host.folder) / "json.py").write_text("raise SystemExit('imported from the working folder')")
    assert ask(host, "facts")["folder"] == host.folder


def test_errors_say_what_to_do(servers, tmp_path: Path) -> None:
    good = servers.host("127.0.0.2", "good")
    stranger = servers.host("127.0.0.3", "stranger", known=False)
    cases = {
        good: "",
        Host("127.0.0.2", str(tmp_path / "nowhere"), good.user, good.port): "mkdir -p",
        Host("127.0.0.2", good.folder, good.user, good.port, python="/no/python"): "no Python in",
        Host("127.0.0.9", good.folder, good.user, 1): "cannot be reached on port 1",
        Host("no-such-host.invalid", good.folder, good.user): "cannot be reached",
        stranger: f"ssh-keyscan -p {stranger.port} 127.0.0.3 >> ~/.ssh/known_hosts",
        Host(good.address, good.folder, "nobody-here", good.port): password_variable(good),
    }

    async def facts(machine: Remote) -> Any:
        return await machine.call("facts")

    outcomes = asyncio.run(on_each(list(cases), NO_PASSWORD, facts))
    for host, words in cases.items():
        assert words in str(outcomes[host]), str(outcomes[host])
        assert isinstance(outcomes[host], HostError) == bool(words)


def test_a_changed_host_key_is_refused(servers) -> None:
    host = servers.host("127.0.0.2", "one", known=False)
    other = servers.host("127.0.0.3", "two", known=False)
    known, key = servers.home / ".ssh/known_hosts", servers.folder / "key-127.0.0.3.pub"
    known.write_text(f"[{host.address}]:{host.port} {key.read_text()}")
    with pytest.raises(HostError, match="host key"):
        ask(host, "facts")
    assert not (Path(other.folder) / ".deepgen").exists()


def test_a_full_disk_is_called_that(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setitem(agent.OPERATIONS, "read", full)
    agent.answer({"do": "read", "path": "x"})
    assert "the disk is full" in capsys.readouterr().out


def test_other_versions_come_with_the_remedy() -> None:
    facts = {
        "python": "3.8.10",
        "executable": "/v/bin/python",
        "folder": "/f",
        "writable": False,
        "free_bytes": 5 << 20,
        "packages": {"ray": "1.0", "numpy": "2", "typer": "1", "rich": "1"},
    }
    told = "\n".join(basic_problems(facts))
    assert platform.python_version() in told and "cannot be written" in told and "5 MiB" in told
    assert f"/v/bin/python -m pip install ray=={ray_version()}" in told


# Passwords ------------------------------------------------------------------------------------------------------


def test_a_password_prints_as_stars_and_is_no_json() -> None:
    secret = Secret(WORD)
    assert WORD not in f"{secret} {secret!r} {[secret]}"
    with pytest.raises(TypeError):
        json.dumps(secret)


@pytest.mark.slow
def test_a_password_is_told_to_its_host_alone(
    servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It comes from the file or the environment; nothing that is written, printed or sent elsewhere contains it."""
    template = servers.host("127.0.0.2", "compiler")
    tester_folder = tmp_path / "hosts/tester"
    tester_folder.mkdir()
    (tester_folder / ".venv").symlink_to(Path(template.folder, ".venv"))
    key = servers.folder / "key-127.0.0.2"
    with PasswordServer("127.0.0.3", WORD, key) as right, PasswordServer("127.0.0.4", "other", key) as other:
        with (servers.home / ".ssh/known_hosts").open("a") as known:
            for server in (right, other):
                known.write(f"[{server.address}]:{server.port} {key.with_suffix('.2.pub').read_text()}")
        file = tmp_path / "tasks.json"
        task = {
            "tuning_config_relative_paths": ["a.json"],
            "perflog_prefix_list": ["a"],
            "backendType": "CUDA",
            "arch": "80",
        }
        compiler = {"ip_addr": "127.0.0.4", "ssh_port": other.port, "cwd": template.folder, **task}
        tester = {
            "ip_addr": "127.0.0.3",
            "ssh_port": right.port,
            "cwd": str(tester_folder),
            "user_name": "someone",
            "password": WORD,
            "devids": [0],
        }
        file.write_text(json.dumps({"workgroups": [{"compiler": compiler, "perf_tester": tester}]}))
        monkeypatch.chdir(tmp_path)
        assert main(["cluster", "status", str(file), "--json"]) == 1
        out, err = capfd.readouterr()
        _, compile_host, test_host = json.loads(out)["nodes"]
        assert test_host["problem"] is None  # the password was accepted
        assert "login was refused" in compile_host["problem"] and other.offered == []
        assert "contains the password of someone@127.0.0.3" in err
        said = out + err

        # The whole path through a background driver, which fails because the compile host is missing.
        assert main(["cluster", "run", str(file)]) == 1
        said += "".join(capfd.readouterr())
        monkeypatch.setenv(password_variable(Host("127.0.0.4", "", "")), "wrong")
        assert main(["cluster", "status", str(file), "--json"]) == 1
        said += "".join(capfd.readouterr())
        assert "with keys and with the password" in said
        assert set(right.offered) == {WORD} and set(other.offered) == {"wrong"}
        file.unlink()
        assert WORD not in said
        written = [p for root in (tmp_path, servers.home.parent) for p in root.rglob("*") if p.is_file()]
        holding = [p for p in written if ".venv" not in p.parts and WORD.encode() in p.read_bytes()]
        assert holding == []
        assert (tmp_path / "deepgen-studies/tasks/cluster.json").exists()


def test_a_node_that_a_busy_host_starts_too_slowly_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray waits half a minute for its own node, whatever the host is doing."""
    monkeypatch.chdir(tmp_path)
    scratches: list[str] = []

    def slow(words: list[str], variables: dict[str, str], record: dict[str, str], code: str | None) -> None:
        scratches.append(record["scratch"])
        if len(scratches) < 3:
            agent._end(record)
            raise agent._TooSlow("ray start failed: the current node timed out during startup")

    words = {"cluster": "c", "owner": "o", "label": "l", "words": [], "variables": {}, "ip": "127.0.0.1"}
    monkeypatch.setattr(agent, "_run_ray", slow)
    assert agent.start("one", token="secret", code=None, **words)  # type: ignore[arg-type]
    assert [Path(scratch).exists() for scratch in scratches] == [False, False, True]
    monkeypatch.setattr(agent, "_TRIES", 1)
    scratches.clear()
    with pytest.raises(agent.Refused, match="timed out during startup"):
        agent.start("two", token="secret", code=None, **words)  # type: ignore[arg-type]
    assert agent.stop("o", force=False)["ended"] == 0 and not agent.status()


def test_a_record_that_came_with_the_folder_removes_no_other_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (other := tmp_path / "deepgen-mine").mkdir()
    forged = {"name": "one", "owner": "o", "label": "l", "cluster": "c", "mark": "none", "since": 0.0}
    for name, record in (("one", {**forged, "scratch": str(other)}), ("two", forged), ("three", {}), ("four", [])):
        file = agent._file(name, ".json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record))
    assert agent.stop("o", force=True) == {"ended": 0, "others": []}
    assert other.is_dir() and not agent._file("one", ".json").exists()
