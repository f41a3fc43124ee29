"""Small harmful changes to files: in the structure of their content, in their text, in their bytes."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

# Values that readers tend to overlook.
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**63), 10**299, -(10**299), 0.0, -0.5, 1e-300, 1e308, "", " ", "x",
    "../../evil", "/etc/passwd", "a\0b", "a\nb", "\u202e\x1b[2J", "x" * 5000, "-wrapper", "@/etc/passwd", "gemm", "sim",
    [], {}, [[]], [None], {"": None}, [1, "a", None], {"name": "gemm"}, list(range(200)), "1" * 400, "nan", "1e999",
)  # fmt: skip
# Texts that are not JSON, or excessive JSON.
TEXTS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000, "-" + "9" * 4400, "[" * 100_000, '{"a":' * 5000,
    "[" * 500 + "]" * 500, '"\\ud800"', '"\\udc00\\ud800"', '{"a": 1, "a": 2}', '"\\u0000"', "'single'", "0x10", "01",
    "[1,]", "/* */ 1", "\ufeff", "True", "[" + "0," * 200_000 + "0]", "[" + "[]," * 1_400_000 + "[]]",
    '"' + "\\u00e4" * 50_000 + '"',
)  # fmt: skip


def changed_value(value: Any, rng: random.Random) -> Any:
    """A copy with one to three changes at random places."""
    out = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        out = _changed_once(out, rng)
    return out


def _changed_once(value: Any, rng: random.Random) -> Any:
    places = list(_places(value))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(ODD))
    holder, key = rng.choice(places)
    here = holder[key]
    action = rng.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[f"{key}x" if rng.random() < 0.5 else str(rng.choice(ODD))[:50]] = holder.pop(key)
    elif action == 2:
        holder[key] = copy.deepcopy(rng.choice([h[k] for h, k in places]))
    elif action == 3:
        holder[key] = [here] if rng.random() < 0.5 else {"a": here}
    elif action == 4 and isinstance(here, list):
        holder[key] = here * rng.choice((0, 2, 50))
    elif action == 5 and isinstance(here, (int, float, str)):
        holder[key] = str(here) if not isinstance(here, str) else len(here)
    elif action == 6 and isinstance(here, str) and here:
        at = rng.randrange(len(here))
        holder[key] = here[:at] + rng.choice(("\0", "\n", "/", "..", '"', "é", "]", "(", "**9**9", "")) + here[at:]
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    return value


def _places(value: Any) -> Any:
    """Every value inside, as its container and its key."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, (dict, list)):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                yield holder, key
                waiting.append(holder[key])


def changed_json(text: str, rng: random.Random) -> bytes:
    """A JSON text with changes of any kind; most of them still leave valid JSON."""
    if rng.random() < 0.7:
        return json.dumps(changed_value(json.loads(text), rng)).encode()
    if rng.random() < 0.5:
        marks = [i for i, letter in enumerate(text) if letter in ":[,"]
        at = rng.choice(marks or [0]) + 1
        odd = rng.choice(TEXTS)
        ends = [i for i in range(at, len(text)) if text[i] in ",]}"]
        return (text[:at] + odd + text[ends[0] if ends else at :]).encode("utf-8", "surrogatepass")
    return changed_bytes(text.encode(), rng)


def changed_toml(text: str, rng: random.Random) -> bytes:
    """A TOML text with one line changed, or noise in it."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    odd = rng.choice(
        (
            "[" * 3000, "x = " + "[" * 3000, "0x" + "f" * 9000, "inf", "nan", "1979-05-27", "'''", '"\\ud800"',
            "a." * 2000 + "b", "1" * 5000, "-1", "''", "{ a = { b = 1 } }", "true", "[1, [2, 'x']]", '"../../evil"',
            '"a\\u0000b"', "1e999", "[[x]]", "[limits]", "9" * 300,
        )
    )  # fmt: skip
    action = rng.randrange(5)
    if action == 0:
        del lines[at]
    elif action == 1:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif action == 2:
        lines[at] = lines[at].partition("=")[0] + "= " + odd
    elif action == 3:
        lines.insert(at, odd)
    else:
        return changed_bytes(text.encode(), rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, removed, inserted or repeated."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(out) + 1)
        action = rng.randrange(5)
        if action == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            del out[at : at + rng.choice((1, 8, 512))]
        elif action == 2:
            out[at:at] = rng.randbytes(rng.choice((1, 8, 64)))
        elif action == 3:
            out[at:at] = out[at : at + 64]
        elif action == 4 and rng.random() < 0.3:
            del out[at:]
    return bytes(out)
