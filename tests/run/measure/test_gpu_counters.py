"""Counting on GPUs: what the profilers are asked, what they answer, and the messages where they cannot count."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import kernel
from fake_profilers import fake_ncu, fake_rocprof

from deepgen.run.counters import Refused
from deepgen.run.counters import profiler as profilers
from deepgen.run.counters.profiler import Profiler
from deepgen.run.measure.runners import Counting
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import LaunchPlan, Step

DRAM, OCCUPANCY = "dram__bytes_read.sum", "sm__warps_active.avg.pct_of_peak_sustained_active"
LONG = """==PROF== Profiling "gemm": 0%....100% - 3 passes
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","gemm","Command line profiler metrics","dram__bytes_read.sum","byte","1,048,576"
"0","7","gemm","Command line profiler metrics","gpu__time_duration.sum","nsecond","3,000"
"0","7","gemm","Command line profiler metrics","lts__t_sector_hit_rate.pct","%","80"
"1","7","fixup","Command line profiler metrics","dram__bytes_read.sum","byte","1024"
"1","7","fixup","Command line profiler metrics","gpu__time_duration.sum","nsecond","1,000"
"1","7","fixup","Command line profiler metrics","lts__t_sector_hit_rate.pct","%","40"
"""


def told(runner: Supervisor, tool: Path) -> Supervisor:
    """The same runner with this program as ncu: starting another runner takes seconds."""
    runner._profiler = Profiler(runner.task, tool.parent, {"ncu": str(tool)})
    return runner


def test_only_the_run_itself_is_profiled_and_what_is_no_number_is_missing(runner: Supervisor, folder: Path) -> None:
    counted = told(runner, fake_ncu(folder)).count(*kernel(folder, "right"), [DRAM, OCCUPANCY])
    assert counted.values == {DRAM: 1000.5}, "one launch: neither verifying runs nor our own kernels"
    assert counted.missing == {OCCUPANCY: "ncu reports no value for it"}


def test_an_unknown_metric_does_not_cost_the_others(runner: Supervisor, folder: Path) -> None:
    counted = told(runner, fake_ncu(folder)).count(*kernel(folder, "right"), [DRAM, "fake__cycles.sum"])
    assert counted.values == {DRAM: 1000.5}
    assert counted.missing == {"fake__cycles.sum": "ncu has no such metric for this GPU"}


def test_a_kernel_that_is_wrong_under_the_profiler_has_no_counters(runner: Supervisor, folder: Path) -> None:
    counted = told(runner, fake_ncu(folder)).count(*kernel(folder, "little", "C[7] *= 1.01f;"), [DRAM])
    assert not counted.values
    assert "counting failed: wrong, C[0, 7]" in counted.missing[DRAM]


def test_without_permission_or_program_the_reason_is_told(runner: Supervisor, folder: Path) -> None:
    right = kernel(folder, "right")
    told(runner, fake_ncu(folder, forbidden=True))
    for _ in range(2):  # the second time without retrying
        assert "NVreg_RestrictProfilingToAdminUsers=0" in runner.count(*right, [DRAM]).missing[DRAM]
    counted = told(runner, folder / "nowhere").count(*right, [DRAM])
    assert "hardware events cannot be counted on this GPU" in counted.missing[DRAM]
    assert runner.measure(*right).ok


def test_the_theoretical_occupancy_also_where_the_plan_has_expressions(runner: Supervisor, folder: Path) -> None:
    counting = Counting(runner, replace(runner.task, counters=("occupancy",)), None)
    made, built = kernel(folder, "right", block=("8 * K", 1, 1), shared_bytes="1024 * K")  # K is 16
    facts = {"registers": 128, "shared_bytes": 64}
    counted = counting.count(made, replace(built, facts=facts), ["occupancy"])
    assert counted.values == {"occupancy": 0.25}, "four blocks of four warps have all registers of 64 warps"
    assert counting.count(made, built, ["occupancy"]).missing == {"occupancy": "the compiler reports no register count"}


def test_both_of_ncus_tables_are_read() -> None:
    events = [DRAM, "lts__t_sector_hit_rate.pct"]
    counted = profilers.combine_ncu(profilers.parse_ncu(LONG), events)
    assert counted.values == {DRAM: 1049600.0, "lts__t_sector_hit_rate.pct": 70.0}
    wide = '"ID","Kernel Name","dram__bytes_read.sum","launch__registers_per_thread"\n"","","byte","register/thread"\n'
    assert profilers.parse_ncu(wide + '"0","gemm","2,000","168"\n') == [
        {DRAM: 2000.0, "launch__registers_per_thread": 168.0}
    ]
    assert profilers.parse_ncu("==PROF== Disconnected\n") == []


def test_ncu_flushes_caches_where_times_are_cold(tmp_path: Path) -> None:
    for cold, word in ((True, "all"), (False, "none")):
        words = profilers.ncu_command("ncu", [DRAM], tmp_path, cold=cold)
        assert words[words.index("--cache-control") + 1] == word
        assert words[words.index("--metrics") + 1] == f"{DRAM},gpu__time_duration.sum"


def test_rocprof_counts_the_last_launches_of_the_plan(tmp_path: Path) -> None:
    plan = LaunchPlan((Step("entry", ()),))
    entries = [step.entry for step in plan.steps]
    program = fake_rocprof(tmp_path)
    words = profilers.rocprof_command(str(program), ["SQ_WAVES"], tmp_path, cold=True)
    subprocess.run([*words, sys.executable, "-c", ""], check=True)
    assert profilers.rocprof_collected(tmp_path, ["SQ_WAVES", "TCC_HIT_sum"], entries).values == {"SQ_WAVES": 30.0}
    with pytest.raises(Refused, match="wrote no counters"):
        profilers.rocprof_collected(tmp_path, ["SQ_WAVES"], ["other"])


def test_the_older_rocprof_has_a_row_a_launch(tmp_path: Path) -> None:
    words = profilers.rocprof_command("/opt/rocm/bin/rocprof", ["SQ_WAVES", "GRBM_COUNT"], tmp_path, cold=True)
    assert Path(words[2]).read_text() == "pmc : SQ_WAVES GRBM_COUNT\n"
    Path(words[4]).write_text('Index,KernelName,SQ_WAVES,GRBM_COUNT\n0,"entry.kd",4,100\n1,"fixup.kd",2,\n')
    counted = profilers.rocprof_collected(tmp_path, ["SQ_WAVES", "GRBM_COUNT"], ["entry", "fixup"])
    assert counted.values == {"SQ_WAVES": 6.0}
    assert list(counted.missing) == ["GRBM_COUNT"]
