"""Placed on the hosts' Python path as `sitecustomize`: records every measurement that a simulated device starts.

It counts at the device, independently of the engine, the driver and the journal. While a file `slow` is next to it,
each measurement takes longer, so that a test's actions hit the middle of a run.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

LOG = Path(__file__).with_name("measured.jsonl")
MODULE = "deepgen.run.measure.sim"


class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            measure = module.SimRunner.measure

            def counted(self, kernel, artifact, *, beat=None):
                what = [self.task.target.name, self.task.operator.to_json(), module._config(kernel)]
                line = json.dumps({"at": time.time(), "pid": os.getpid(), "what": what}, sort_keys=True)
                with LOG.open("a") as file:
                    file.write(line + "\n")
                if LOG.with_name("slow").exists():
                    time.sleep(0.25)
                return measure(self, kernel, artifact, beat=beat)

            module.SimRunner.measure = counted

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Hook())
