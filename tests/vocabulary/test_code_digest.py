"""The digest of a function's behaviour depends on its code and the values that it uses, and nothing else."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepgen.vocabulary.code_digest import code_digest

PLAIN = "def f(x):\n    return x + 1\n"


def digest_of(text: str) -> str:
    space: dict[str, Any] = {"__name__": "users_own", "np": np, "functools": functools}
    exec(compile(text, "users_own.py", "exec"), space)
    return code_digest(space["f"], space.get("Owner"))


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\n\n" + PLAIN,
        'def f(x):\n    "What it computes."\n    return x + 1\n',
        "unused = 3\n" + PLAIN,
        "def f(x): return (x + 1)\n",
    ],
)
def test_comments_and_what_is_not_used_do_not_count(same: str) -> None:
    assert digest_of(same) == digest_of(PLAIN)


CASES = {
    "a constant": ("def f(x): return x + C", "C = 1\n", "C = 2\n"),
    "the sign of zero": ("def f(x): return x * C", "C = 0.0\n", "C = -0.0\n"),
    "a helper": ("def f(x): return g(x)\n", "def g(x): return x\n", "def g(x): return -x\n"),
    "a default": ("", "def f(x, c=1): return x + c", "def f(x, c=2): return x + c"),
    "a closure": (
        "f = h(C)\n",
        "C = 1\ndef h(c): return lambda x: x + c\n",
        "C = 2\ndef h(c): return lambda x: x + c\n",
    ),
    "an array": ("def f(x): return x + A\n", "A = np.arange(3)\n", "A = np.arange(3)[::-1]\n"),
    "a partial": ("def g(x, c): return x + c\n", "f = functools.partial(g, c=1)\n", "f = functools.partial(g, c=2)\n"),
    "a library's function": ("", "def f(x): return np.exp(x)", "def f(x): return np.exp2(x)"),
    "a constant within": ("", "def f(x): return [i + 1 for i in x]", "def f(x): return [i + 2 for i in x]"),
    "a cached helper": (
        "def f(x): return g(x)\n",
        "@functools.lru_cache(None)\ndef g(x): return x\n",
        "@functools.lru_cache(None)\ndef g(x): return -x\n",
    ),
    "a method of its class": (
        "f = Owner.f\n",
        "class Owner:\n  def f(self): return self.g()\n  def g(self): return 1\n",
        "class Owner:\n  def f(self): return self.g()\n  def g(self): return 2\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_changes_the_result_counts(case: str) -> None:
    after, one, other = CASES[case]
    both = [text + after if case != "a partial" else after + text for text in (one, other)]
    assert digest_of(both[0]) == digest_of(both[0])
    assert digest_of(both[0]) != digest_of(both[1])


def test_functions_that_call_themselves_have_one() -> None:
    assert digest_of("def f(x): return g(x)\ndef g(x): return f(x)\n")


def test_another_process_and_a_compiled_file_give_the_same(tmp_path: Path) -> None:
    text = (
        "import numpy as np\nNAMES = {'a', 'b', ('c', 'd')}\ndef f(x): return x in NAMES or x in {'p', 'q', (1, 2)}\n"
    )
    (tmp_path / "users_file.py").write_text(text)
    ask = "from users_file import f; from deepgen.vocabulary.code_digest import code_digest; print(code_digest(f))"
    runs = [[sys.executable, "-c", ask] for _ in range(3)]
    answers = {subprocess.run(r, cwd=tmp_path, capture_output=True, text=True, check=True).stdout for r in runs}
    assert len(answers) == 1
