"""What all tests share: golden files, and folders that no test shares with another or with the user."""

from __future__ import annotations

import os

# The threads of numpy's BLAS spin while they wait for each other: a model of a search takes three times the processor
# time to fit. Said before numpy is imported; measuring workers set their own numbers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import itertools
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from difflib import unified_diff
from math import inf
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from deepgen.baselines import torch_cpu
from deepgen.run.measure import base, conditions, spawn
from deepgen.targets.host import usable_cores
from deepgen.toolchains import group
from deepgen.tuning.finals import bursts, crowning
from deepgen.tuning.study import pages
from forked_guards import Guards
from forked_workers import Forks
from quiet_machine import pytest_runtest_makereport, pytest_runtest_setup  # noqa: F401
from side_by_side import SideBySide

TESTS = Path(__file__).parent
FORKS, GUARDS = Forks(), Guards()
GOLDEN = TESTS / "golden"
# These start Ray and find its processes by their names: in sequence, beside the others. Ray's processes give each other
# up after fixed times, so these tests have priority.
RAY = "on Ray"
ON_RAY = ("deepgen_cluster", "conformance/test_engines.py", "chaos/test_disturbed_studies.py")
# These import torch's compiler, which takes seconds: one process is enough.
ON_TORCH = ("frontends/deepgen_torch",)
# Their studies race numpy alone, whatever is installed: torch as a baseline has tests of its own.
ON_NUMPY = ("chaos", "deepgen_cluster", "deepgen_formats", "examples", "faults", "frontends/cli", "kernels/own",
            "libraries", "report", "tuning")  # fmt: skip
# Their subject is a process beside ours, a measuring worker or a compiler's guard: it is started as users' are.
STARTED = ("chaos", "conformance", "faults/test_disk.py", "faults/test_kills.py", "faults/test_process_faults.py",
           "faults/test_worker_surroundings.py", "frontends/cli/test_start.py", "run/measure/test_measure_outside.py",
           "run/measure/test_worker_ahead.py", "toolchains")  # fmt: skip
# The longest files, of half a minute each; other files of their folders are short, and come late.
LONG = ("conformance/test_generators.py", "emissions", "operators/test_reference_kernels.py",
        "kernels/test_x86_gemm_results.py", "kernels/test_amx_results.py", "kernels/test_dot_gemm_results.py",
        "kernels/test_simt_emulated.py", "kernels/test_c_gemm.py")  # fmt: skip
# As long as many files, and its tests share nothing but a process that starts quickly.
PARTED, PARTS = ("docs/test_docs_commands.py",), 3
# What takes long: begun last, it would be waited for. In this order.
FIRST = (*ON_RAY, *LONG, "docs", "tuning", "chaos", *ON_TORCH, "run/measure/test_riscv_board.py", "baselines", "faults",
         "examples", "run", "kernels", "compiler", "operators", "report", "libraries", "conformance", "frontends",
         "deepgen_triton_cpu", "toolchains")  # fmt: skip

# Tests run beside each other, so the machine is never calm, and races of real kernels would go on for long; those of
# waiting say how long. Commands in processes of their own read it in their settings.
base.CALM_SECONDS, base.RACE_SECONDS, base.CALLS_SECONDS = 0.0, 0.05, 0.02
# Starting a process for each winner would take minutes in all; the pool of faults and the judge have it done.
crowning.LAST_CALLS = False
# For the same reason whatever is timed in tests may enter a library, after two rounds of bursts; `noticing` has the
# limits that users have.
NOISE = {(conditions, name): getattr(conditions, name) for name in ("WAITED", "MUCH", "CROWDED")}
NOISE |= {(bursts, name): getattr(bursts, name) for name in ("SLOWER", "QUICKER", "WIDE", "FEWEST", "SECONDS")}
for module, name in NOISE:
    setattr(module, name, {"QUICKER": 0.0, "FEWEST": 2, "SECONDS": 0.0}.get(name, inf))
SETTINGS = "[limits]\ncalm_seconds = 0.0\nrace_seconds = 0.05\ncalls_seconds = 0.02\n"

# Journals of studies in this process: thousands of commits would each wait for the disk, while nothing computes. What
# was committed outlives a killed process all the same, and no test cuts the power.
pages.SYNCHRONOUS = "OFF"

# Python starts quicker in processes that tests begin, those of pytest's workers among them: see the file there.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS / "quick"), os.environ.get("PYTHONPATH"))))

# Hundreds of processes import the same modules: without bytecode files each would compile all of them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ray starts a process for each core before anything asks for one; each imports Ray, and tests need one or two.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

# The collected tests and the modules that they import are hundreds of thousands of objects that live to the end.
# Looking through them for garbage again and again took a fifth of collecting; of running tests, nothing that shows.
gc.set_threshold(50_000, 20, 20)

# The same examples on every machine, however slow it is just now. As they are always the same ones, many more of them
# would find little more; `pytest --hypothesis-profile many` draws them, also always the same.
slow = [HealthCheck.too_slow]  # a busy machine may stop a worker for a minute while it draws
settings.register_profile(
    "deepgen", deadline=None, derandomize=True, database=None, max_examples=15, suppress_health_check=slow
)
settings.register_profile("many", settings.get_profile("deepgen"), max_examples=400)
settings.load_profile("deepgen")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew instead of comparing")
    parser.addoption("--workers", metavar="N", help="run tests in N processes side by side, or as many as fit: auto")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only what needs a quiet machine is asked for, no other file is imported."""
    asked = config.option.markexpr == "quiet" and collection_path.match("test_*.py")
    return True if asked and "mark.quiet" not in collection_path.read_text() else None


def pytest_configure(config: pytest.Config) -> None:
    if asked := config.getoption("--workers"):
        # Said before torch is imported: beside each other, the threads of one mostly wait for those of another.
        for library in ("OMP", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")
        config.pluginmanager.register(SideBySide(_workers() if asked == "auto" else int(asked), _place, RAY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (_turn(item.nodeid), item.path))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Folders of tests come last, and once: forty before the others make each process of ours import more slowly."""
    ours = {path for path in sys.path if Path(path).is_relative_to(TESTS)}
    sys.path[:] = dict.fromkeys(sorted(sys.path, key=lambda path: path in ours))
    if session.config.getoption("--workers") and not session.config.option.collectonly:
        path, env = spawn.surroundings(usable_cores())
        for numpy_alone in ({}, {"TESTS_WITHOUT": "torch"}):
            FORKS.ahead(path, {**env, "TESTS_HURRY": "1", **numpy_alone})
    gc.collect()
    gc.freeze()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Before anything that a test needs is set up, what several tests share included."""
    as_users_do = _among(STARTED, nodeid)
    vars(spawn)["subprocess"] = subprocess if as_users_do else FORKS
    vars(group)["subprocess"] = subprocess if as_users_do else GUARDS
    os.environ["TESTS_HURRY"] = "" if as_users_do else "1"  # read by the file in tests/quick


def _workers() -> int:
    """Four times as many as there are cores, as tests wait for processes, disks, and for what is timed: five on two
    cores left these idle for a quarter of the time. A fork takes up to half a gigabyte.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(4 * usable_cores(), memory >> 30, 16))


def _place(nodeid: str) -> str:
    """A file goes to one worker, and so do all files that start Ray or use torch's compiler."""
    for places, name in ((ON_RAY, RAY), (ON_TORCH, "on torch")):
        if _among(places, nodeid):
            return name
    file = nodeid.partition("::")[0]
    return f"{file} {crc32(nodeid.encode()) % PARTS}" if _among(PARTED, nodeid) else file


def _turn(nodeid: str) -> int:
    """The place in FIRST; whatever has none comes last."""
    return next((i for i, place in enumerate(FIRST) if _among((place,), nodeid)), len(FIRST))


def _among(places: tuple[str, ...], nodeid: str) -> bool:
    return nodeid.removeprefix("tests/").startswith(places)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """How a text differs from tests/golden/NAME, empty where it does not; `pytest --update-golden` writes the file."""

    def difference(name: str, text: str) -> str:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if not path.exists():
            return f"no golden file {name}: run pytest --update-golden and look at what it writes"
        lines = [*unified_diff(path.read_text().splitlines(), text.splitlines(), name, "now", lineterm="")]
        return "\n".join(["if that is meant, pytest --update-golden:", *lines]) if path.read_text() != text else ""

    return difference


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders. pytest's own numbers are found by reading the names of all that there are: for each test, twice."""
    base = tmp_path_factory.mktemp("homes")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(scope="session")
def settings_text() -> str:
    """Of processes in tests, for users that a test makes up."""
    return SETTINGS


@pytest.fixture(autouse=True)
def own_home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings, studies and references of the user stay out of tests, and theirs out of the user's folders."""
    home = next(homes)
    home.mkdir(mode=0o700)
    for variable, folder in (("XDG_CONFIG_HOME", "config"), ("XDG_DATA_HOME", "data")):
        monkeypatch.setenv(variable, str(home / folder))
    (home / "config" / "deepgen").mkdir(mode=0o700, parents=True)
    (home / "config" / "deepgen" / "deepgen.toml").write_text(SETTINGS)
    return home


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios that a busy machine makes up are noticed, as they are where users tune."""
    for (module, name), value in NOISE.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No baseline, here and in processes that are started: it is one wherever it is installed, and a worker takes ten
    times as long to start with it.
    """
    monkeypatch.setattr(torch_cpu, "find_spec", lambda name: None)
    monkeypatch.setenv("TESTS_WITHOUT", "torch")


@pytest.fixture(autouse=True)
def on_numpy(request: pytest.FixtureRequest) -> None:
    if _among(ON_NUMPY, request.node.nodeid):
        request.getfixturevalue("without_torch")


@pytest.fixture(autouse=True)
def own_cores(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves its process on fewer cores would change what every later one sees of this machine."""
    before = os.sched_getaffinity(0)
    yield
    if os.sched_getaffinity(0) != before:
        os.sched_setaffinity(0, before)
        warnings.warn(f"{request.node.nodeid} left this process on other cores", stacklevel=1)


@pytest.fixture(autouse=True, scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for the whole run: the same kernel is compiled once, whichever tests use it.

    CI names a folder in $TESTS_CACHE, for all parts of its run.
    """
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if base.name.startswith("worker") else base) / "cache"
    if named := os.environ.get("TESTS_CACHE"):
        cache = Path(named)
    cache.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    return cache
