"""Files of the repository outside docs/ that pages link to: they become part of the site, which needs no network."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
# Pages in the repository's root, and their paths in the site.
ROOTS = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
IN_NAVIGATION = frozenset(ROOTS.values())
LANGUAGES = {".py": "python", ".c": "c", ".cu": "cuda", ".hip": "cuda", ".toml": "toml"}


def files(docs: Files) -> dict[str, str]:
    """All linked files, by their path in the site."""
    sources = {page.src_uri: page.content_string for page in docs.documentation_pages()}
    sources |= {place: (ROOT / name).read_text() for name, place in ROOTS.items()}
    found: dict[str, str] = {}
    waiting = list(sources.items())
    while waiting:
        page, text = waiting.pop()
        if page in IN_NAVIGATION:
            found[page] = text
        for match in LINK.finditer(CODE.sub("", text)):
            path = _outside(page, match["path"])
            if path is not None and (place := _place(path)) not in found and place not in IN_NAVIGATION:
                found[place] = _content(path)
                waiting.append((place, found[place]))
    return found


def linked(markdown: str, page: str) -> str:
    """The text of a page with links rewritten to paths in the site."""

    def within(match: re.Match[str]) -> str:
        path = _outside(page, match["path"])
        return match[0] if path is None else _relative(_place(path), page) + (match["anchor"] or "")

    parts = []
    end = 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(within, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(within, markdown[end:])])


def _outside(page: str, link: str) -> Path | None:
    """The file of the repository that a page's link points to; None if it is a page of docs/ or generated here."""
    origin = {place: name for name, place in ROOTS.items()}.get(page)
    if origin is None and page.startswith("files/"):
        return ROOT / os.path.normpath(PurePosixPath(page.removeprefix("files/")).parent / link)
    path = Path(os.path.normpath((ROOT / origin).parent / link if origin else (ROOT / "docs" / page).parent / link))
    if path.is_relative_to(ROOT / "docs") and not origin:
        return None
    return path if path.exists() else None


def _place(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name in ROOTS:
        return ROOTS[name]
    if path.is_dir():
        return f"files/{name}/index.md"
    return f"files/{name}" + (".md" if path.suffix in LANGUAGES else "")


def _content(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        listed = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("__"))
        return f"# {name}\n\n" + "\n".join(f"- [{one.name}]({one.name})" for one in listed) + "\n"
    text = path.read_text()
    if path.suffix not in LANGUAGES:
        return text
    return f"# {path.name}\n\n`{name}`\n\n````{LANGUAGES[path.suffix]}\n{text.rstrip()}\n````\n"


def _relative(place: str, page: str) -> str:
    return PurePosixPath(os.path.relpath(place, PurePosixPath(page).parent)).as_posix()
