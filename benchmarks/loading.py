"""How long a model takes to load: the first time, and once its weights are in the cache.

    python benchmarks/loading.py MODEL.gguf [--times 3]

Each load is a process of its own, and the first one has an empty cache, in a temporary folder. It prints seconds by the
clock and seconds of all cores, because other work on the machine adds to the first alone. `attach` is what a memory of
the model takes to open after that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

_ONE = """
import json, sys, time
clock, cpu = time.perf_counter, time.process_time
import transformers
import everlong
from everlong.models import load
found = {}
def timed(name, made):
    at, used = clock(), cpu()
    result = made()
    found[name] = [round(clock() - at, 1), round(cpu() - used, 1)]
    return result
pair = timed("load", lambda: load(sys.argv[1]))
timed("attach", lambda: everlong.MemoryModel(*pair)).close()
print(json.dumps({**found, "dtype": str(pair[0].dtype)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    print("| load | s | CPU s | attach, s | CPU s | dtype | load average |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="everlong-") as cache:
        for number in range(given.times):
            command = [sys.executable, "-c", _ONE, given.model]
            environment = {**os.environ, "EVERLONG_CACHE": cache}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            (load_s, load_cpu), (attach_s, attach_cpu) = found["load"], found["attach"]
            name, dtype = "later" if number else "first", found["dtype"].removeprefix("torch.")
            busy = f"{os.getloadavg()[0]:.1f}"
            print(f"| {name} | {load_s} | {load_cpu} | {attach_s} | {attach_cpu} | {dtype} | {busy} |", flush=True)


if __name__ == "__main__":
    main()
