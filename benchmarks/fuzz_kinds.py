"""The kinds of files that come from outside: a valid example of each, how it is changed, and what reads it."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import random
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from deepgen import gemm, library, settings, targets
from deepgen.frontends import formats
from deepgen.frontends.cli import options, requests
from deepgen.frontends.cli.main import main
from deepgen.run.measure.base import Policy
from deepgen.toolchains import Cache
from deepgen.tuning import Study, costs
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles import runner as bundle_runner
from deepgen.tuning.search import recorded
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.rows import Proposal
from deepgen.vocabulary import DeepgenError, Measurement, Trial, Verdict, digest
from deepgen_cluster import task_file as cluster_files
from deepgen_cluster.folder import Definition, RunFolder, RunProgress
from fuzz_changes import changed_bytes, changed_json, changed_toml, changed_value
from fuzz_examples import CLUSTER, ENTRY, HERON, OLDER, RATES, RECORDED, RESULT, SETTINGS, TUNING, WORK

DATA = Path(__file__).parents[1] / "data"
_WORDS = ("gemm", "MNK=64", "--target", "sim", "--seed", "1")
_NO_OPTIONS = dict.fromkeys(("target", "space_strategy", *options.OF_A_RUN))


@dataclass(frozen=True)
class Kind:
    """`prepare` creates what all cases share; `attempt` writes one case into its folder and reads it."""

    prepare: Callable[[Path], Any]
    attempt: Callable[[Any, Path, random.Random], None]


def command(*words: str | Path) -> None:
    """A command line in this process that raises its errors."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        main(["--debug", *map(str, words)])
    assert not set("\x1b\x07\x9b\u202e") & set(said.getvalue()), "control characters reach the terminal"


def _nothing(folder: Path) -> None:
    return None


# Files of one text ----------------------------------------------------------------------------------------------


def _settings(shared: None, folder: Path, rng: random.Random) -> None:
    (folder / settings.FILE_NAME).write_bytes(changed_toml(SETTINGS, rng))
    results = settings.load(folder)
    results.values(), results.build_limits(), results.programs()


def _tuning(shared: None, folder: Path, rng: random.Random) -> None:
    if rng.random() < 0.5:
        path = folder / "t.toml"
        path.write_bytes(changed_toml(TUNING, rng))
    else:
        example = rng.choice(sorted((DATA / "deepgen").glob("Tuning*/*.json")))
        path = folder / "t.json"
        path.write_bytes(changed_json(example.read_text(), rng))
    wanted = requests.from_words([str(path)], {**_NO_OPTIONS, "target": "sim"}, settings.Settings(), Policy())
    for request in wanted.requests:
        request.operator.describe(), request.budget()


def _cluster(shared: None, folder: Path, rng: random.Random) -> None:
    if rng.random() < 0.5:
        path = folder / "c.toml"
        path.write_bytes(changed_toml(CLUSTER, rng))
    else:
        example = rng.choice(sorted((DATA / "deepgen" / "ClusterTaskConfigs").glob("*.json")))
        path = folder / "c.json"
        path.write_bytes(changed_json(example.read_text(), rng))
    run = RunFolder(folder / "run")
    run.define(Definition(cluster_files.read(path)))
    run.definition()


def _run_folder(shared: None, folder: Path, rng: random.Random) -> None:
    (folder / "c.toml").write_text(CLUSTER)
    run = RunFolder(folder / "run")
    run.define(Definition(cluster_files.read(folder / "c.toml")))
    run.tell(RunProgress("running", "a note"))
    for name in ("cluster.json", "progress.json"):
        path = run.path / name
        path.write_bytes(changed_json(path.read_text(), rng))
    command("cluster", "stop", run.path)


def _space(shared: None, folder: Path, rng: random.Random) -> None:
    spaces = [*(DATA / "recorded").glob("*.T1.json"), *(DATA / "deepgen").glob("Tuning*/*.json")]
    path = folder / "space.json"
    path.write_bytes(changed_json(rng.choice(sorted(spaces)).read_text(), rng))
    command("space", "show", path)


def _own_space(shared: Path, folder: Path, rng: random.Random) -> None:
    path = folder / "space.json"
    if rng.random() < 0.5:
        path.write_bytes(changed_json((shared / "space.json").read_text(), rng))
    else:  # by an attacker who knows that a space has a fingerprint
        body = json.loads((shared / "space.json").read_text())
        del body["fingerprint"]
        body = changed_value(body, rng)
        path.write_text(json.dumps({**body, "fingerprint": digest(body)} if isinstance(body, dict) else body))
    command("space", "show", path)


def _own_space_example(folder: Path) -> Path:
    command("space", "gemm", "MNK=64", "--target", "sim", "-o", folder / "space.json")
    return folder


def _bomb(folder: Path) -> bytes:
    """A third of a megabyte that unpacks to a third of a gigabyte."""
    return gzip.compress(bytes(1 << 20)) * 340


def _recorded(bomb: bytes, folder: Path, rng: random.Random) -> None:
    data = changed_json(json.dumps(RECORDED), rng)
    packed = rng.random() < 0.3
    path = folder / ("r.json.gz" if packed else "r.json")
    path.write_bytes(changed_bytes(gzip.compress(data), rng) if packed and rng.random() < 0.5 else data)
    if rng.random() < 0.02:
        path.write_bytes(gzip.compress(b"[") + bomb)
    recorded.read(path)
    command("import", path, "--as-study", "--target", "sim", "-o", folder / "studies")
    command("replay", path, "--learn-from", path, "--strategy", "random", "--budget", "4", "--repeats", "2")


def _older_results(shared: None, folder: Path, rng: random.Random) -> None:
    rows = [{**RESULT, "config": OLDER}, {**RESULT, "correct": False, "kcgMs": None, "config": OLDER}]
    path = folder / "results.json"
    path.write_bytes(changed_json(json.dumps({"results": rows}), rng))
    command("import", path, "-o", folder / "out.json", *(["--as-space"] if rng.random() < 0.5 else []))


def _other_tools(shared: None, folder: Path, rng: random.Random) -> None:
    """Files of T1 kernels, of Heron, of recorded work."""
    shutil.copytree(DATA.parent / "examples" / "t1", folder / "t1")
    texts = [HERON, WORK, *(path.read_text() for path in sorted((folder / "t1").glob("*.json")))]
    path = folder / "t1" / "f.json"
    path.write_bytes(changed_json(rng.choice(texts), rng))
    file = formats.read(path)
    for operator in file.operators:
        operator.describe(), operator.work()
    if file.kernel is not None:
        operator, target = file.kernel.operator(), targets.resolve("cuda:sm_90a")
        file.kernel.family.emit(operator, target, file.kernel.family.default(operator, target))


# Libraries, and deepgen's own small files -------------------------------------------------------------------------


def _library_example(folder: Path) -> Path:
    command("tune", "gemm", "MNK=32", "--target", "cpu", "--trials", "1", "--out", folder / "studies")
    command("library", "add", folder / "studies", "--noisy", "--library", folder / "library")
    return folder / "library"


def _library(shared: Path, folder: Path, rng: random.Random) -> None:
    place = shutil.copytree(shared, folder / "library")
    rng.choice((_changed_file, _changed_file, _changed_file, _changed_files))(place, rng)
    for words in (("list",), ("prune", "--dry-run"), ("why", "gemm", "MNK=32", "--target", "cpu")):
        command("library", *words, "--library", place)
    library(place).choose(gemm(32, 32, 32), "cpu").load()


def _small_files(shared: Path, folder: Path, rng: random.Random) -> None:
    """Locks held by others, allowed settings, stored rates, cache entries."""
    study = shutil.copytree(shared, folder / "study")
    text = f"{rng.choice((1, os.getppid(), 2, 0, 2**40))} {rng.choice(('-', '1', 'x'))} - - host".encode()
    with (study / "lock").open("wb", buffering=0) as file, suppress(DeepgenError):
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(text if rng.random() < 0.5 else changed_bytes(text, rng))
        command("status", study)
        command("stop", study, "--grace", "0")
    examples = {"allowed.json": {str(folder / settings.FILE_NAME): "0" * 64}, "rates.json": RATES, "entry.json": ENTRY}
    places = {"allowed.json": Path(os.environ["XDG_CONFIG_HOME"], "deepgen"), "entry.json": folder / "cache/ab/abc"}
    for name, data in examples.items():
        place = places.get(name, folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(changed_json(json.dumps(data), rng))
    (folder / settings.FILE_NAME).write_text(SETTINGS)
    Cache(folder / "cache").get("abc"), costs._rows(folder), settings.load(folder)


# Bundles and their results --------------------------------------------------------------------------------------


def _bundle_example(folder: Path) -> Path:
    """A bundle, its study, and the results of measuring it."""
    command("bundle", "pack", *_WORDS, "--trials", "6", "--out", folder / "studies", "-o", folder / "b.tar.gz")
    unpacked = bundle_archive.unpack(folder / "b.tar.gz", folder)
    with redirect_stderr(io.StringIO()):
        bundle_runner.main(str(unpacked), ["-o", str(folder / "r.jsonl")])
    return folder


def _bundle(shared: Path, folder: Path, rng: random.Random) -> None:
    path = folder / "b.tar.gz"
    packed = (shared / "b.tar.gz").read_bytes()
    if rng.random() < 0.2:
        path.write_bytes(changed_bytes(packed, rng))
    else:
        path.write_bytes(gzip.compress(_changed_tar(gzip.decompress(packed), rng), 1))
    (folder / "unpacked").mkdir()
    unpacked = bundle_archive.unpack(path, folder / "unpacked")
    bundle_runner.read(unpacked)
    command("bundle", "run", path, "-o", folder / "r.jsonl")


def _changed_tar(data: bytes, rng: random.Random) -> bytes:
    """The archive repacked with its manifest or its members changed, or with noise in its blocks."""
    if rng.random() < 0.2:
        return changed_bytes(data, rng)
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
        members = [(member, old.extractfile(member).read()) for member in old]  # type: ignore[union-attr]
        manifest, text = members[0]
        if rng.random() < 0.75:
            text = changed_json(text.decode(), rng)
        manifest.size = len(text)
        members[0] = (manifest, text)
        if rng.random() < 0.3:
            member, content = rng.choice(members)
            member.name = rng.choice((member.name, "../evil", "/evil", "b/../../evil", "b/\0", "x" * 300, "b/é"))
            member.type = rng.choice((tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"L", b"x"))
            member.linkname = rng.choice(("", "/etc/passwd", "../../evil"))
        for member, content in members:
            new.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return out.getvalue()


def _results(shared: Path, folder: Path, rng: random.Random) -> None:
    lines = (shared / "r.jsonl").read_text().splitlines()
    for at in rng.sample(range(len(lines)), rng.choice((1, 1, 2))):
        lines[at] = changed_json(lines[at], rng).decode("utf-8", "replace")
    path = folder / "r.jsonl"
    path.write_text("\n".join(lines) + "\n" * rng.randrange(2), encoding="utf-8", errors="surrogatepass")
    study = shutil.copytree(next((shared / "studies").iterdir()), folder / "study")
    try:
        command("bundle", "merge", study, path)
    finally:
        command("show", study)  # whatever was merged, the study must be readable
        command("status", study)


# Studies --------------------------------------------------------------------------------------------------------


def _study_example(folder: Path) -> Path:
    command("tune", *_WORDS, "--trials", "8", "--out", folder / "studies")
    (study,) = (folder / "studies").iterdir()
    with closing(sqlite3.connect(study / "journal.sqlite")) as journal:
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        journal.execute("PRAGMA journal_mode = DELETE")
    return study


def _study(shared: Path, folder: Path, rng: random.Random) -> None:
    study = shutil.copytree(shared, folder / "study")
    rng.choice((_forged_journal, _forged_journal, _changed_file, _changed_files))(study, rng)
    looks = (
        "status", "top", "show", "show --json", "show --trial 0", "show --source --asm", "analyze", "report --markdown",
        f"report -o {folder}/report.html", f"export --as-space -o {folder}/space.json",
        f"export --as-config -o {folder}/config.json", "replay --strategy random --budget 3 --repeats 2",
    )  # fmt: skip
    errors: list[Exception] = []
    for look in rng.sample(looks, 4):
        try:
            name, *others = look.split()
            command(name, study, *others)
        except Exception as error:
            errors.append(error)
    try:
        results = Study.open(study)
        results.kernel(results.best().trial)
    except Exception as error:
        errors.append(error)
    if errors:
        raise next((e for e in errors if not spoken(e)), errors[0])


def _forged_journal(study: Path, rng: random.Random) -> None:
    """A journal with other content, forged by an attacker who knows the format."""
    with Journal(study) as journal:
        summary: dict[str, Any] = {
            "definition": journal.definition(),
            "run": journal.run(),
            "time": journal.times(),
            "history": journal.history(),
            "notes": ["a note"],
            "finals": finals.to_json() if (finals := journal.finals()) is not None else None,
            "trials": [_row(t) for t in journal.trials()],
        }
        space = journal.space()
    part = rng.choice(sorted(summary))
    summary[part] = changed_value(json.loads(json.dumps(summary[part])), rng)
    for file in study.glob("journal.sqlite*"):
        file.unlink()
    void = (KeyError, TypeError, AttributeError, ValueError, OverflowError, sqlite3.Error)
    with suppress(*void), Journal(study, write=True) as journal:
        journal.define(summary["definition"])
        if space is not None and rng.random() < 0.8:
            journal.keep_space(space)
        journal.begin_run(summary["run"])
        for key in ("time", "history"):
            journal._keep(key, summary[key])
        for text in summary["notes"]:
            journal.note(text)
        rows = summary["trials"]
        journal.ask(0, len(rows), [Proposal(i, row["rank"], row["config"]) for i, row in enumerate(rows)])
        journal.finish([_trial(i, row) for i, row in enumerate(rows)])
        journal.add_finals(cast(Finals, SimpleNamespace(to_json=lambda: summary["finals"])))  # whatever it contains


def _row(trial: Trial) -> dict[str, Any]:
    own = {"rank": trial.rank, "config": trial.config, "kernel": trial.kernel_id, "facts": trial.build_facts}
    return {**own, **trial.measurement.to_json()}


def _trial(number: int, row: dict[str, Any]) -> Trial:
    names = ("detail", "samples", "error", "counters", "conditions")
    measured = Measurement(Verdict(row["verdict"]), **{name: row[name] for name in names})
    return Trial(number, row["rank"], row["config"], row["kernel"], measured, row["facts"])


def _changed_file(folder: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    if path.suffix == ".json" and path.read_text().strip().startswith("{"):
        path.write_bytes(changed_json(path.read_text(), rng))
    else:
        path.write_bytes(changed_bytes(path.read_bytes(), rng))


def _changed_files(study: Path, rng: random.Random) -> None:
    """Files swapped, links that lead outside, pipes."""
    path = rng.choice(sorted(path for path in study.rglob("*") if path.is_file()))
    path.unlink()
    action = rng.randrange(4)
    if action == 0:
        path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", "../../evil", "/nowhere", path.name)))
    elif action == 1:
        path.mkdir()
    elif action == 2 and path.suffix != ".sqlite":
        os.mkfifo(path)


def spoken(error: BaseException) -> bool:
    """Whether the command line has a sentence for the error; anything else is a traceback."""
    summary = isinstance(error, DeepgenError) and error.exit_code in (1, 2)
    return summary or hasattr(error, "format_message") or (isinstance(error, OSError) and bool(error.strerror))


KINDS: Mapping[str, Kind] = {
    "bundles": Kind(_bundle_example, _bundle), "results of bundles": Kind(_bundle_example, _results),
    "studies": Kind(_study_example, _study), "settings": Kind(_nothing, _settings),
    "tuning configs": Kind(_nothing, _tuning), "cluster files": Kind(_nothing, _cluster),
    "cluster runs": Kind(_nothing, _run_folder), "T1 and older spaces": Kind(_nothing, _space),
    "space files": Kind(_own_space_example, _own_space), "recorded spaces (T4)": Kind(_bomb, _recorded),
    "older results": Kind(_nothing, _older_results),
    "T1 kernels, Heron's and work files": Kind(_nothing, _other_tools), "libraries": Kind(_library_example, _library),
    "locks, permissions, rates, caches": Kind(_study_example, _small_files),
}  # fmt: skip
