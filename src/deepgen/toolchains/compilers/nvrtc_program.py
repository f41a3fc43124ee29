"""Calls NVRTC in a separate process, so that a crash or hang costs only a verdict. Run by nvrtc.py.

It calls the library through ctypes and is started without site-packages. Starting it and loading the library takes 30
ms, a tenth of a kernel's compilation, so it stays for further kernels (`resident.py`). Modules that few builds need are
imported lazily, and exiting skips all cleanup: either takes as long as compiling a few hundred lines.
"""

from __future__ import annotations

import ctypes
import os
import sys

_OUT_OF_MEMORY = 1
NAME = "--deepgen-name="  # prefix of a C++ name whose symbol is wanted; not an option of NVRTC
NAMES = "names.json"
STAY = "--stay"


def describe(library: ctypes.CDLL) -> str:
    """NVRTC's version and supported compute capabilities."""
    import json

    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(archs)
    return json.dumps({"version": f"{major.value}.{minor.value}", "archs": list(archs)})


def build(library: ctypes.CDLL, source: str, what: str, output: str, options: list[str]) -> int:
    """Compile to `what`, CUBIN or PTX; the compiler's log goes to stdout."""
    program = ctypes.c_void_p()
    with open(source, "rb") as file:  # noqa: PTH123 (pathlib takes a while to import)
        text = file.read()
    library.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None)
    names = [option[len(NAME) :] for option in options if option.startswith(NAME)]
    options = [option for option in options if not option.startswith(NAME)]
    for name in names:
        library.nvrtcAddNameExpression(program, name.encode())
    words = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    code = library.nvrtcCompileProgram(program, len(options), words)
    sys.stdout.buffer.write(_text(library, "ProgramLog", program))
    sys.stdout.flush()
    if code == _OUT_OF_MEMORY:
        print("NVRTC: out of memory")
    elif code != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        print("NVRTC: " + library.nvrtcGetErrorString(code).decode())
    else:
        with open(output, "wb") as file:  # noqa: PTH123
            file.write(_text(library, what, program))
        if names:
            import json

            with open(NAMES, "w") as file:  # noqa: PTH123
                json.dump({name: _symbol(library, program, name) for name in names}, file)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return int(code)


def stay(library: ctypes.CDLL) -> None:
    """Serve requests on stdin: a line with the number of bytes, then a folder and words, separated by NUL bytes."""
    while size := sys.stdin.buffer.readline():
        folder, source, what, output, *options = sys.stdin.buffer.read(int(size)).decode().split("\0")
        os.environ["TMPDIR"] = folder
        os.chdir(folder)
        code = 1 if build(library, source, what, output, options) else 0
        os.chdir("/")
        used = os.times()
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\0%d %f\n" % (code, used.user + used.system))
        sys.stdout.flush()


def _symbol(library: ctypes.CDLL, program: ctypes.c_void_p, name: str) -> str | None:
    """The symbol of a C++ name."""
    symbol = ctypes.c_char_p()
    code = library.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(symbol))
    return None if code or symbol.value is None else symbol.value.decode()


def _text(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    library[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    library[f"nvrtcGet{what}"](program, buffer)
    return buffer.raw if what == "CUBIN" else buffer.value  # text ends in at least one NUL byte


def main() -> int:
    library = ctypes.CDLL(sys.argv[1])
    if len(sys.argv) == 2:
        print(describe(library))
        return 0
    if sys.argv[2] == STAY:
        stay(library)
        return 0
    source, what, output, *options = sys.argv[2:]
    return 1 if build(library, source, what, output, options) else 0


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    os._exit(ended)
