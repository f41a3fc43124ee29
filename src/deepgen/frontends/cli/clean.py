"""`deepgen clean`: free the disk space of builds and studies, and what killed runs left behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepgen.frontends.cli import options

if TYPE_CHECKING:
    from deepgen.settings import Settings

Doomed = Annotated[list[str] | None, typer.Argument(metavar="[STUDY]...", help="Studies to delete.", show_default=False)]
OfCache = Annotated[bool, typer.Option("--cache", help="Delete the build cache.")]
OfStudies = Annotated[bool, typer.Option("--studies", help="Delete all studies in the studies folder.")]
Yes = Annotated[bool, typer.Option("--yes", help="Delete. Without this option, only show what would be freed.")]


def clean(
    names: Doomed = None,
    cache: OfCache = False,
    studies: OfStudies = False,
    yes: Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Free disk space: build cache, leftovers of killed runs, or studies."""
    from deepgen import settings
    from deepgen.frontends.cli.output import bytes_text, print_json, shown

    current = settings.load()
    items = _items(names or [], cache, studies, current)
    if yes:
        for item in items:
            _delete(item)
    total = sum(item["bytes"] for item in items)
    if as_json:
        print_json({"items": items, "bytes": total, "deleted": yes})
        return
    for item in items:
        print(f"{bytes_text(item['bytes']):>10}  {item['kind']}  {shown(item['path'])}")
    if not items:
        print("there is nothing to delete")
    elif yes:
        print(f"{bytes_text(total)} freed")
    else:
        print(f"{bytes_text(total)} would be freed; nothing was deleted (--yes deletes)")


def _items(names: list[str], cache: bool, all_studies: bool, current: Settings) -> list[dict[str, Any]]:
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import shown
    from deepgen.toolchains import Cache
    from deepgen.tuning.study.journal import holder
    from deepgen.vocabulary import scratch
    from deepgen.vocabulary.errors import DeepgenError

    folders = [studies.find(name, current) for name in names]
    if all_studies:
        folders += [folder for folder in studies.studies_in(current.studies) if folder not in folders]
    for folder in folders:
        if (pid := holder(folder)) is not None:
            hint = f"stop it first with: deepgen stop {shown(folder)}"
            raise DeepgenError(f"{shown(folder)} is being tuned by process {pid}; {hint}")
    items = [{"kind": "study", "path": str(folder), "bytes": _size(folder)} for folder in folders]
    anything = not (names or cache or all_studies)
    if (cache or anything) and (size := Cache(current.cache).size()):
        items.append({"kind": "cache", "path": str(current.cache), "bytes": size})
    if anything:
        items += [{"kind": "leftover", "path": str(f), "bytes": _size(f)} for f in scratch.left_behind()]
    return items


def _delete(item: dict[str, Any]) -> None:
    from deepgen.toolchains import Cache
    from deepgen.vocabulary import scratch

    if item["kind"] == "leftover":
        scratch.remove(Path(item["path"]))
    elif item["kind"] == "cache":
        # Entry by entry: whatever else lies in the folder that the user named stays.
        Cache(item["path"]).clear()
    else:
        folder = Path(item["path"])
        shutil.rmtree(folder.resolve())
        folder.unlink(missing_ok=True)  # where it was a link


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
