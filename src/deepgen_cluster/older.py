"""The older tool's cluster task files, unchanged."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import Any

from deepgen.vocabulary import BadInput
from deepgen_cluster import keys
from deepgen_cluster.keys import Kind, Table
from deepgen_cluster.model import Cluster, GroupTask, Host, Secret, WorkGroup

_PREFIX = {"CUDA": "cuda:sm_", "HIP": "hip:gfx"}
_SSH = {"ip_addr": keys.WORD, "ssh_port": keys.PORT, "cwd": keys.FOLDER, "user_name": keys.WORD, "password": keys.WORD}
_COMPILER: Mapping[str, Kind] = {
    **_SSH,
    "tuning_config_relative_paths": keys.WORDS,
    "tuning_space_relative_paths": keys.WORDS,
    "perflog_prefix_list": keys.WORDS,
    "max_process_count": keys.COUNT,
    "tuning_space_generate_strategy": keys.STRATEGY,
    "backendType": Kind(lambda v: v.upper() if isinstance(v, str) and v.upper() in _PREFIX else None, "CUDA or HIP"),
    "arch": Kind(
        lambda v: str(v) if type(v) is int or (isinstance(v, str) and v.isalnum()) else None,
        'what follows sm_ or gfx, such as "80" or "906"',
    ),
}
_TESTER: Mapping[str, Kind] = {
    **_SSH,
    "devids": keys.DEVICES,
    "benchmark_count": keys.COUNT,
    "warmup_count": keys.COUNT0,
    "keep_top": keys.COUNT,
}
_PORT_NOTE = "master_port is not needed and ignored: Ray finds its ports itself"


def cluster_of(data: Mapping[str, Any], name: str, file: str) -> Cluster:
    """The cluster that a file's content describes; `name` is the file's name in messages."""
    top = Table(name, data, {"workgroups": keys.TABLES, "master_port": keys.PORT})
    passwords: dict[Host, Secret] = {}
    groups = [_group(i, entry, name, passwords) for i, entry in enumerate(top.need("workgroups"))]
    notes = (_PORT_NOTE,) if top.get("master_port") is not None else ()
    return Cluster(file, tuple(groups), notes=notes, passwords=passwords)


def _group(number: int, entry: Mapping[str, Any], name: str, passwords: dict[Host, Secret]) -> WorkGroup:
    where = f"{name}: workgroups[{number}]"
    both = Table(where, entry, {"compiler": keys.TABLE, "perf_tester": keys.TABLE})
    compiler = Table(f"{where}.compiler", both.need("compiler"), _COMPILER)
    tester = Table(f"{where}.perf_tester", both.need("perf_tester"), _TESTER)
    return WorkGroup(
        name=f"wg{number}",
        target=_PREFIX[compiler.need("backendType")] + compiler.need("arch"),
        builder=_host(compiler, passwords),
        tester=_host(tester, passwords),
        tasks=_tasks(compiler),
        jobs=compiler.get("max_process_count", 1),
        devices=tester.need("devids"),
        space_strategy=compiler.get("tuning_space_generate_strategy", 1),
        samples=tester.get("benchmark_count"),
        keep_top=tester.get("keep_top", 100),
    )


def _host(table: Table, passwords: dict[Host, Secret]) -> Host:
    host = Host(
        address=table.need("ip_addr"),
        folder=table.need("cwd"),
        user=table.get("user_name") or getpass.getuser(),
        port=table.get("ssh_port", 22),
    )
    if (password := table.get("password")) is not None:
        passwords[host] = Secret(password)
    return host


def _tasks(compiler: Table) -> tuple[GroupTask, ...]:
    """Entries at the same index of the three lists describe one task."""
    configs = compiler.need("tuning_config_relative_paths")
    prefixes = compiler.need("perflog_prefix_list")
    spaces = compiler.get("tuning_space_relative_paths") or (None,) * len(configs)
    if not len(configs) == len(prefixes) == len(spaces):
        counts = {"tuning_config_relative_paths": configs, "tuning_space_relative_paths": spaces}
        said = ", ".join(f"{len(v)} in {k}" for k, v in {**counts, "perflog_prefix_list": prefixes}.items())
        raise BadInput(f"the lists of tasks differ in length: {said}", where=compiler.where, allowed="one a task")
    return tuple(GroupTask(c, p, s) for c, p, s in zip(configs, prefixes, spaces, strict=True))
