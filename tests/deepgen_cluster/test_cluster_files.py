"""Task files: the older tool's unchanged, ours with better names; every error is reported with its place."""

from __future__ import annotations

import copy
import getpass
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepgen.settings import Settings
from deepgen.targets import resolve
from deepgen.vocabulary import BadInput
from deepgen_cluster import task_file
from deepgen_cluster.folder import Definition
from deepgen_cluster.model import Cluster, password_variable
from deepgen_cluster.nodes import wanted
from deepgen_cluster.tasks import Fetched, requests_of
from deepgen_formats.older.files import to_space_file, tuning_space

DATA = Path(__file__).parents[2] / "data/deepgen"
OLDER = sorted((DATA / "ClusterTaskConfigs").glob("*.json"))


@pytest.mark.parametrize("path", [*OLDER, DATA / "startup_config.json"], ids=lambda path: path.name)
def test_every_file_of_the_older_tool_is_read_as_it_is(path: Path) -> None:
    cluster = task_file.read(path)
    data = json.loads(path.read_text())["workgroups"]
    assert [group.name for group in cluster.groups] == [f"wg{i}" for i in range(len(data))]
    for group, entry in zip(cluster.groups, data, strict=True):
        compiler, tester = entry["compiler"], entry["perf_tester"]
        assert group.target == "cuda:sm_80"
        assert group.builder.address == compiler["ip_addr"] and group.builder.user == getpass.getuser()
        assert (group.tester.port, group.tester.user) == (2133, "xushilong")
        assert group.devices == tuple(tester["devids"]) and group.keep_top == 100 and group.samples == 10
        assert [t.config for t in group.tasks] == compiler["tuning_config_relative_paths"]
        assert [t.space for t in group.tasks] == compiler["tuning_space_relative_paths"]
        assert [t.results for t in group.tasks] == compiler["perflog_prefix_list"]
        assert group.jobs == compiler["max_process_count"]
    assert any("contains the password" in note for note in cluster.notes)
    assert any("master_port" in note for note in cluster.notes) == (path.name == "startup_config.json")


def test_groups_that_share_a_test_host_have_nodes_with_their_own_cards() -> None:
    cluster = task_file.read(DATA / "ClusterTaskConfigs/task_config_sample2.json")
    assert len(cluster.hosts) == 3  # two folders on one compile host, one test host
    nodes = wanted(cluster, cluster.groups[0].tester)
    assert [node.variables()["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["7", "6"]
    assert nodes[1].resources == {"measure": 1.0, "measure:wg1": 1.0}
    (builder,) = wanted(cluster, cluster.groups[1].builder)
    assert builder.resources == {"build": 20.0, "build:wg1": 20.0} and builder.variables() == {}


def older(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data = json.loads((DATA / "ClusterTaskConfigs/task_config_sample2.json").read_text())
    change(data)
    return data


def first(data: dict[str, Any], part: str) -> dict[str, Any]:
    return data["workgroups"][0][part]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda d: first(d, "compiler").update(ip_adr="x"),
            ["workgroups[0].compiler", "'ip_adr'", "ip_addr, "],
        ),
        (lambda d: d.update(port=1), ["unknown key 'port'", "workgroups, master_port"]),
        (lambda d: first(d, "perf_tester").pop("devids"), ["workgroups[0].perf_tester", "'devids' is missing"]),
        (lambda d: first(d, "perf_tester").update(devids=[1, 1]), ["[1, 1]", "each once"]),
        (lambda d: first(d, "compiler").update(backendType="METAL"), ["'METAL'", "CUDA or HIP"]),
        (lambda d: first(d, "compiler").update(cwd="here"), ["'here'", "absolute path"]),
        (lambda d: first(d, "compiler").update(ssh_port="22"), ["'22'", "1 to 65535"]),
        (lambda d: first(d, "compiler").update(perflog_prefix_list=["a", "b"]), ["differ in length", "2 in perflog"]),
        (lambda d: d.update(workgroups=[]), ["'workgroups'"]),
        (
            lambda d: d["workgroups"][1]["compiler"].update(cwd=first(d, "compiler")["cwd"]),
            ["wg0 and wg1 share the compiler 10.18.95.15 /home/xushilong/DeepGenRun"],
        ),
        (lambda d: d["workgroups"][1]["perf_tester"].update(devids=[7]), ["wg0 and wg1 share the tester", "devices 7"]),
        (lambda d: d["workgroups"][1]["perf_tester"].update(ssh_port=22), ["reachable in two ways", "same user, port"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(change: Any, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(older(change)))
    with pytest.raises(BadInput) as error:
        task_file.read(path)
    assert all(word in str(error.value) for word in ["tasks.json", *words]), str(error.value)
    assert error.value.exit_code == 2


def test_a_wrong_password_key_does_not_show_the_password(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(older(lambda d: first(d, "perf_tester").update(password=["hunter22"]))))
    with pytest.raises(BadInput) as error:
        task_file.read(path)
    assert "'password'" in str(error.value) and "hunter22" not in str(error.value)


OWN = """
head = "10.0.0.1"
[hosts.builder]
address = "10.18.95.15"
folder = "/home/me/deepgen"
[hosts.gpus]
address = "gpu.example"
port = 2133
user = "tester"
folder = "/data/deepgen/"
python = "/opt/python/bin/python3"
[[groups]]
name = "a100"
target = "cuda:sm_80"
build_host = "builder"
measure_host = "gpus"
jobs = 100
devices = [6, 7]
space_strategy = 0
samples = 10
keep_top = 50
trials = 500
tasks = [{ config = "a.json", results = "log_a", space = "ts_a.json" }]
"""


def test_our_own_form(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    cluster = task_file.read(path)
    (group,) = cluster.groups
    assert (group.tester.folder, group.tester.python) == ("/data/deepgen", "/opt/python/bin/python3")
    assert (group.jobs, group.devices, group.samples, group.tuning) == (100, (6, 7), 10, {"trials": 500})
    assert cluster.notes == ()
    assert Cluster.from_json(json.loads(json.dumps(cluster.to_json()))) == cluster
    definition = Definition(cluster, {"seed": 3})
    assert Definition.from_json(json.loads(json.dumps(definition.to_json()))) == definition
    assert password_variable(group.tester) == "DEEPGEN_SSH_PASSWORD_GPU_EXAMPLE"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("jobs = 100", "job = 100", ["groups[0]", "'job'", "jobs"]),
        ('build_host = "builder"', 'build_host = "x"', ["'x'", "builder, gpus"]),
        ('"cuda:sm_80"', '"metal:m1"', ["metal:m1", "cuda"]),
        ('results = "log_a"', 'prefix = "log_a"', ["tasks[0]", "'prefix'", "results"]),
        ("port = 2133", "prot = 2133", ["hosts.gpus", "'prot'", "port"]),
    ],
)
def test_mistakes_in_our_own_form(old: str, new: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(BadInput) as error:
        task_file.read(path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.toml or \.json"):
        task_file.read(tmp_path / "cluster.yaml")


def test_a_space_file_that_exists_is_the_space(tmp_path: Path) -> None:
    """As in the older tool, which then skips generating one; keep_top limits result files, samples the timing."""
    (group,) = task_file.read(DATA / "ClusterTaskConfigs/task_config.json").groups
    config = json.loads((DATA / "TuningConfigs/GEMM_configs_2.json").read_text())
    points = [tuning_space(config).at(rank) for rank in (0, 3, 5)]
    space = json.dumps(to_space_file(config, points)).encode()
    target = resolve(group.target)
    for content, count in ((space, 3), (None, 18)):
        fetched = Fetched("GEMM_configs_2.json", json.dumps(config).encode(), content, target)
        (request,) = requests_of(group, fetched, tmp_path, {"trials": 7}, Settings())
        assert request.generator is not None
        assert request.generator.space(request.operator, target).count() == count
        assert (request.trials, request.keep_top, request.policy.max_samples) == (7, 8, 10)
    other = copy.deepcopy(config)
    other["M_SIZE"] = [2 * other["M_SIZE"][0]]
    with pytest.raises(BadInput, match="but the config is of"):
        wrong = Fetched("c.json", json.dumps(other).encode(), space, target)
        requests_of(group, wrong, tmp_path, {}, Settings())
