"""Fake profilers for machines without a GPU: programs with the real command lines, which write tables like theirs."""

from __future__ import annotations

import sys
from pathlib import Path

_NCU = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.1.0.0 (build 1)")
    sys.exit()
options, flags = {{}}, ("--csv",)
while words[0].startswith("--"):
    name = words.pop(0)
    options[name] = True if name in flags else words.pop(0)
assert options["--profile-from-start"] == "off" and options["--csv"], options
metrics = options["--metrics"].split(",")
log = open(options["--log-file"], "w")
unknown = [name for name in metrics if name.startswith("fake__")]
if unknown:
    for name in unknown:
        log.write("==ERROR== Failed to find metric regex:^" + name.replace(".", "\\\\.") + "(\\\\.|$)\\n")
    sys.exit(1)
counts = options["--log-file"] + ".launches"
code = subprocess.run(words, env={{**os.environ, "FAKE_PROFILE": counts}}).returncode
log.write("==PROF== Connected to process 7 (python3)\\n")
if {forbidden}:
    log.write("==ERROR== ERR_NVGPUCTRPERM - no permission for the counters of the target device\\n")
    sys.exit(1)
if code or not os.path.exists(counts):
    log.write("==WARNING== No kernels were profiled.\\n")
    sys.exit(code)
quoted = lambda row: ",".join('"' + word + '"' for word in row) + "\\n"
log.write(quoted(["ID", "Process ID", "Kernel Name", "Block Size", *metrics]))
log.write(quoted(["", "", "", "", *("unit" for _ in metrics)]))
values = {{"gpu__time_duration.sum": "2,048", "sm__warps_active.avg.pct_of_peak_sustained_active": "n/a"}}
for number in range(int(open(counts).read())):
    log.write(quoted([str(number), "7", "entry", "(32, 1, 1)", *(values.get(m, "1,000.5") for m in metrics)]))
"""


def fake_ncu(folder: Path, *, forbidden: bool = False) -> Path:
    """An ncu that reports the same number for every metric, one n/a, and rejects metrics that begin with fake__."""
    path = folder / ("ncu-forbidden" if forbidden else "ncu")
    path.write_text(_NCU.format(python=sys.executable, forbidden=forbidden))
    path.chmod(0o755)
    return path


_ROCPROF = """#!{python}
import subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("version: 1.0.0")
    sys.exit()
start = words.index("--")
events = words[words.index("--pmc") + 1 : words.index("--output-format")]
folder, name = words[words.index("-d") + 1], words[words.index("-o") + 1]
subprocess.run(words[start + 1 :])
with open(folder + "/" + name + "_counter_collection.csv", "w") as out:
    out.write('"Dispatch_Id","Kernel_Name","Counter_Name","Counter_Value"\\n')
    for dispatch, kernel in enumerate(("dg_judge", "entry.kd", "dg_judge", "entry.kd")):
        for event in events:
            out.write('%d,"%s","%s",%d\\n' % (dispatch, kernel, event, 10 * dispatch))
"""


def fake_rocprof(folder: Path) -> Path:
    path = folder / "rocprofv3"
    path.write_text(_ROCPROF.format(python=sys.executable))
    path.chmod(0o755)
    return path
