"""Studies in the browser: who gets access, what viewers are sent, and that none of it disturbs a study."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hostile_text import HOSTILE
from served import PATIENCE, Served, Writer, run, serving, started, watching

import deepgen as dg
from deepgen.frontends.cli.main import main
from deepgen.report.serve import app, hub, looks, places, server
from deepgen.report.serve.app import GateRules
from deepgen.tuning.study.journal import FILE
from deepgen.vocabulary import Verdict
from deepgen_cluster.folder import Definition, GroupProgress, RunFolder, RunProgress
from deepgen_cluster.model import Cluster, GroupTask, Host, WorkGroup


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study."""
    out = tmp_path_factory.mktemp("tuned")
    return dg.tune(dg.gemm(64, 64, 64), target="sim", trials=4, out=out, progress=False).folder


@pytest.fixture
def studies(tuned: Path, tmp_path: Path) -> Path:
    """A folder with that study, and another study next to the folder."""
    shutil.copytree(tuned, tmp_path / "studies/one")
    shutil.copytree(tuned, tmp_path / "secret")
    (tmp_path / "studies/link").symlink_to(tmp_path / "secret")
    return tmp_path / "studies"


@pytest.fixture
def served(studies: Path) -> Iterator[Served]:
    with serving(studies) as found:
        yield found


# Access


def test_a_token_is_exchanged_for_a_cookie(served: Served) -> None:
    assert served.ask("/", cookie="").status == 403
    wrong = served.ask(f"/?token={'0' * 64}", cookie="")
    assert wrong.status == 403 and "set-cookie" not in wrong.headers
    right = served.ask(f"/?token={served.rules.token}", cookie="")
    assert right.status == 200 and served.rules.token not in right.text
    cookie = right.headers["set-cookie"].lower()
    assert served.cookie in cookie and "httponly" in cookie and "samesite=strict" in cookie
    assert served.rules.token not in cookie
    assert served.ask("/").status == 200


def test_nothing_is_shown_without_the_token(served: Served) -> None:
    for path in ("/", "/events", "/events/one", "/study/one", "/static/list.js"):
        for cookie in ("", "deepgen=1", served.cookie[:-1], served.cookie.replace("=", "=x")):
            assert served.ask(path, cookie=cookie).status == 403, (path, cookie)


def test_a_name_that_was_made_to_lead_here_is_refused(served: Served) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.0.2.1", "@", "[", ""):
        assert 400 <= served.ask("/", host=host).status < 500, host


def test_a_tunnel_or_another_name_of_this_machine_is_fine(served: Served) -> None:
    for host in ("localhost:9999", "127.0.0.1:1", "[::1]:8765", "LOCALHOST"):
        assert served.ask("/", host=host).status == 200


def test_a_page_of_another_site_stops_nothing(served: Served, studies: Path) -> None:
    with Writer(studies / "one"):
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", ""):
            assert served.ask("/stop/study/one", "POST", origin=origin).status == 403, origin
            assert not origin or served.ask("/events", origin=origin).status == 403, origin


def test_nothing_outside_the_folder_is_shown(served: Served) -> None:
    for path in (
        "/study/../secret",
        "/study/..%2fsecret",
        "/study/%2e%2e/secret",
        "/study//etc/passwd",
        "/study/link",
        "/study/one/../../secret",
        "/study/one%00",
        "/events/../secret",
        "/static/..%2fapp.py",
        "/static/../app.py",
        "/nothing",
    ):
        assert served.ask(path).status == 404, path


def test_pages_run_only_our_scripts_and_stand_in_no_frame(served: Served) -> None:
    for path in ("/", "/study/one", "/nothing"):
        headers = served.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe-eval" not in policy and "script-src 'unsafe-inline'" not in policy
        assert headers["referrer-policy"] == "no-referrer"


def test_read_only_has_another_token_and_no_button(studies: Path, served: Served) -> None:
    with serving(studies, may_stop=False) as reading, Writer(studies / "one"):
        assert reading.rules.token != served.rules.token
        assert reading.ask("/stop/study/one", "POST").status == 404
        assert 'data-stop=""' in reading.ask("/").text and "data-stop=" not in reading.ask("/study/one").text
        assert 'data-stop="/stop/study/one"' in served.ask("/study/one").text


# What viewers are sent


def test_hostile_texts_stay_texts(served: Served, studies: Path) -> None:
    with Writer(studies / "one") as writer:
        writer.end(1, Verdict.BUILD_FAILED, HOSTILE, host=HOSTILE)
        writer.journal.note(HOSTILE)
        page = served.ask("/study/one").text
    assert "alert(1)" in page and HOSTILE not in page and "<img src=x" not in page

    async def seen() -> None:
        async with watching(served, "/events/one") as viewer:
            data = await viewer.next("trials")
            assert data["trials"][-1]["detail"] == HOSTILE

    run(seen())


def test_fifty_viewers_get_everything_and_are_read_for_once(
    served: Served, studies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []
    read = looks.look

    def counted(*args: object, **options: object) -> looks.Seen:
        reads.append(time.monotonic())
        return read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(looks, "look", counted)

    async def all_of_it() -> list[list[int]]:
        async with AsyncExitStack() as stack:
            viewers = [await stack.enter_async_context(watching(served, "/events/one")) for _ in range(50)]
            await asyncio.gather(*(viewer.until_trials(4) for viewer in viewers))
            with Writer(studies / "one") as writer:
                for count in range(5, 13):
                    await asyncio.to_thread(writer.end)
                    await asyncio.gather(*(viewer.until_trials(count) for viewer in viewers))
            return [viewer.trials for viewer in viewers]

    began = time.monotonic()
    trials = run(all_of_it())
    assert [sorted(one) for one in trials] == [list(range(12))] * 50
    # As often as for a single viewer: never two within one pause, except the first read of its trials.
    assert len(reads) <= (time.monotonic() - began) / hub.PAUSE + 3


def test_a_row_that_is_seen_long_after_it_was_written_is_a_change(tmp_path: Path) -> None:
    """A commit waits for the disk in between, and its completion changes no file's time or size."""
    log, late = tmp_path / f"{FILE}-wal", time.time() + 60
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    db.executescript("PRAGMA journal_mode = WAL; CREATE TABLE rows (row)")
    before = places.study_mark(tmp_path, lambda: late)
    assert before == places.study_mark(tmp_path, lambda: late), "nothing happened"
    about = log.stat()
    db.execute("INSERT INTO rows VALUES (1)")
    with log.open("r+b") as file:  # as if its rows had been there before
        file.truncate(about.st_size)
    os.utime(log, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert places.changed(before, places.study_mark(tmp_path, lambda: late))
    db.close()


def test_who_comes_back_is_sent_what_is_new(served: Served, studies: Path) -> None:
    async def seen() -> None:
        async with watching(served, "/events/one") as viewer:
            await viewer.until_trials(4)
        with Writer(studies / "one") as writer:
            writer.end(2)
        async with watching(served, "/events/one", viewer.last or "") as back:
            data = await back.next("trials")
            assert not data["again"]
            await back.until_trials(2)  # what is new may come in two parts
            assert back.trials == [4, 5]
        async with watching(served, "/events/one", "another-3") as stranger:
            data = await stranger.next("trials")
            assert len(data["trials"]) == 6 and data["again"]

    run(seen())


def test_the_same_address_serves_after_a_restart(studies: Path) -> None:
    with serving(studies) as first:
        pass
    with serving(studies, port=first.port) as again:
        assert again.cookie == first.cookie
        assert first.ask("/").status == 200


def test_the_list_tells_states_devices_runs_and_bundles(served: Served, studies: Path) -> None:
    shutil.copytree(studies / "one", studies / "harmed")
    with sqlite3.connect(studies / "harmed" / FILE) as db:
        db.execute("UPDATE trials SET done_at = done_at + 1 WHERE id = 2")
    db.close()
    (studies / "broken <b>").mkdir()
    (studies / "broken <b>" / FILE).write_text("no journal")
    host = Host("192.0.2.10", "/home/me/deepgen", "me")
    folder = RunFolder(studies / "run")
    group = WorkGroup("a100", "sim", host, host, (GroupTask("a.toml", "a"),), devices=(0, 3))
    folder.define(Definition(Cluster("/cluster.toml", (group,))))
    folder.tell(RunProgress("running", "1 group", {"a100": GroupProgress(1, 1, "gemm", "searching: 3/9 trials")}))
    shutil.copytree(studies / "one", studies / "run/a100/inner")
    (studies / "b.results.jsonl").write_text('{"bundle": "b", "study": "one", "device": "d"}\n{"trial": 1}\n{"tri')

    async def seen() -> None:
        async with watching(served, "/events") as viewer:
            data = await viewer.next("all")
            states = {row["name"]: row["state"] for row in data["studies"]}
            (told,) = data["runs"]
            assert told["state"] == "stopped"  # its driver is not running
            (group,) = told["groups"]
            assert (group["builder"], group["devices"]) == ("me@192.0.2.10", [0, 3])
            assert group["line"] == "searching: 3/9 trials"
            (bundle,) = data["bundles"]
            assert (bundle["done"], bundle["finals"]) == (1, False)
            # Damage is searched for when there is nothing else to do.
            while states.get("harmed") != "damaged":
                data = await viewer.next("some")
                states |= {row["name"]: row["state"] for row in data["studies"]}
            assert states == {
                "one": "finished",
                "harmed": "damaged",
                "broken <b>": "unreadable",
                "run/a100/inner": "finished",
            }
            with Writer(studies / "one") as writer:
                writer.end(1, host="gpu-1", card="7")
                ended: list[dict[str, object]] = []
                while not ended:
                    data = await viewer.next("some")
                    ended += data["trials"]
            (row,) = data["studies"]
            assert row["state"] == "running" and row["done"] == 5
            assert ("gpu-1", "card 7") in [(one["host"], one["device"]) for one in row["devices"]]
            shutil.rmtree(studies / "harmed")
            while "harmed" not in data["studies_gone"]:
                data = await viewer.next("some")

    run(seen())
    assert served.ask("/stop/study/run/a100/inner", "POST").status == 409  # a run can only be stopped as a whole


DRIVER = """
import signal, sys
from pathlib import Path
from deepgen.tuning.study import lock
held = lock.take(Path(sys.argv[1]) / "driver.lock")
print("ready", flush=True)
signal.pause()
"""


def test_a_cluster_run_is_stopped_as_a_whole(served: Served, studies: Path) -> None:
    RunFolder(studies / "run").define(Definition(Cluster("/cluster.toml", ())))
    driver = [sys.executable, "-c", DRIVER, str(studies / "run")]
    with subprocess.Popen(driver, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        answer = served.ask("/stop/run/run", "POST")
        assert (answer.status, process.wait(PATIENCE)) == (200, -signal.SIGTERM)
    assert "deepgen cluster attach" in answer.text
    assert served.ask("/stop/run/run", "POST").status == 409  # it is not running
    assert served.ask("/stop/run/none", "POST").status == 404


def test_a_study_that_was_begun_anew_is_sent_anew(served: Served, studies: Path, tuned: Path) -> None:
    async def seen() -> int:
        async with watching(served, "/events/one") as viewer:
            with Writer(studies / "one") as writer:
                writer.end(3)
            await viewer.until_trials(7)
            shutil.copy(tuned / FILE, studies / "new")
            # If the server was reading when the writer closed, the old journal's log was left behind.
            for log in (studies / "one").glob(f"{FILE}-*"):
                log.unlink()
            (studies / "new").replace(studies / "one" / FILE)
            while len(viewer.trials) > 4:
                await viewer.event()
            return len(viewer.trials)

    assert run(seen()) == 4


def test_slow_connections_starve_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a request on each of 1,100 connections, with one more byte now and then: others must still be answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    begun = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    place = ("127.0.0.1", served.port)
    slow: list[socket.socket] = []
    try:
        for _ in range(1100):
            slow.append(socket.create_connection(place, timeout=PATIENCE))
            slow[-1].sendall(begun)
        assert served.ask("/").status == 200
        assert sum(map(_open, slow)) <= server.MOST_CONNECTIONS
        monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
        deadline = time.monotonic() + PATIENCE
        while any(map(_open, slow)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(_open, slow)), "who never ends a request is sent away"
        assert served.ask("/").status == 200
    finally:
        for one in slow:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open(connection: socket.socket) -> bool:
    """Whether the server still holds it; sends a byte, as a slow client would."""
    connection.setblocking(False)
    try:
        connection.send(b"a")
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_a_study_is_only_read(served: Served, studies: Path) -> None:
    before = {path: path.read_bytes() for path in (studies / "one").rglob("*") if path.is_file()}
    served.ask("/study/one")
    assert {path: path.read_bytes() for path in (studies / "one").rglob("*") if path.is_file()} == before


def test_an_unreadable_study_is_a_sentence(served: Served, studies: Path) -> None:
    (studies / "broken").mkdir()
    (studies / "broken" / FILE).write_text("no journal")
    answer = served.ask("/study/broken")
    assert answer.status == 422 and "not a readable journal" in answer.text


def test_a_bug_is_a_sentence_here_and_there(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "facts_of", lambda study: 1 / 0)
    answer = served.ask("/study/one")
    assert answer.status == 500 and "unexpected error" in answer.text and "Traceback" not in answer.text
    err = capfd.readouterr().err
    assert "/study/one: ZeroDivisionError" in err and "Traceback" not in err
    assert served.ask("/").status == 200


# The command


def test_what_cannot_be_served_is_a_sentence(
    studies: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*argv: str) -> tuple[int, str]:
        code = main(["serve", *argv])
        return code, capfd.readouterr().err

    code, said = told(str(tmp_path / "nothing"))
    assert code == 2 and "is not a folder" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = told(str(studies), "--port", str(port))
        assert code == 1 and f"port {port} of 127.0.0.1 is in use" in said
    code, said = told(str(studies), "--host", "192.0.2.1")
    assert code == 2 and "cannot listen" in said
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, said = told(str(studies))
    assert code == 1 and "starlette is missing" in said and "[view]" in said


def test_the_command_prints_its_address_and_ends_by_ctrl_c(studies: Path) -> None:
    with started("serve", str(studies), "--port", "0") as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        port, token = re.findall(r"^http://127\.0\.0\.1:(\d+)/\?token=(\w{64})$", address)[0]
        served = Served(int(port), GateRules(token))
        assert served.ask(f"/?token={token}", cookie="").status == 200

        async def watched() -> None:
            async with watching(served, "/events") as viewer:
                await viewer.next("all")
                process.send_signal(signal.SIGINT)
                await asyncio.wait_for(viewer.stream.read(), PATIENCE)  # the stream ends

        run(watched())
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (0, ""), (out, err)


def test_an_address_that_others_reach_is_warned_of(
    studies: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "serve", lambda root, means, rules, made, ready: ready())
    monkeypatch.setattr("os.nice", lambda more: 0)
    assert main(["serve", str(studies), "--port", "0", "--host", "0.0.0.0"]) == 0
    out, err = capfd.readouterr()
    assert "is reachable from other machines" in err and "?token=" in out
    assert main(["serve", str(studies), "--port", "0"]) == 0
    assert capfd.readouterr().err == ""
