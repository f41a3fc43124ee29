"""The process that a profiler observes: one kernel on the task's inputs. Run as a program, by profiler.py.

Arguments: the folder with the request, where the answer is written too, and the import path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

QUESTION, ANSWER = "question.json", "answer.json"


def main() -> None:
    folder = Path(sys.argv[1])
    sys.path[:] = sys.argv[2:]
    from deepgen.run.measure.channel import Pulse
    from deepgen.run.measure.gpu_worker import GpuWorker
    from deepgen.run.measure.referee import ContextLost
    from deepgen.vocabulary import DeepgenError, Measurement, Verdict

    asked = json.loads((folder / QUESTION).read_text())
    try:
        [measured] = GpuWorker(asked["opening"], Pulse.create()[0]).count(asked["request"])
    except ContextLost as lost:
        measured = Measurement(lost.verdict, lost.detail)
    except DeepgenError as error:
        measured = Measurement(Verdict.REFUSED, str(error))
    (folder / ANSWER).write_text(json.dumps(measured.to_json()))


if __name__ == "__main__":
    main()
