"""Hooks that mkdocs runs while it builds the site: pages generated from the code and from results, and links.

The pages in docs/ are also read on GitHub and in editors. So they link to files of the repository by relative paths,
and mark blocks that tests run (`sh run`). Here such files become pages of the site, and the marks are removed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "website"), str(ROOT / "benchmarks")]

import api  # noqa: E402
import commands  # noqa: E402
import notebooks  # noqa: E402
import repository  # noqa: E402
import results  # noqa: E402

FENCE = re.compile(r"^(?P<fence>```\w+) +(?:run|hosts|(?:file|hosts)=(?P<file>\S+)) *$", re.MULTILINE)
NAMES = re.compile(r"<td><code>([^<\s]{1,30})</code>")
# Placeholders in mkdocs.yml that are filled in, such as the list of all commands.
PLACES = {"COMMANDS": commands.navigation, "API": api.navigation}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _filled(config.nav)
    return config


def _filled(nav: object) -> object:
    if isinstance(nav, list):
        return [_filled(one) for one in nav]
    if isinstance(nav, dict):
        return {title: _filled(one) for title, one in nav.items()}
    return PLACES[nav]() if isinstance(nav, str) and nav in PLACES else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for module in (api, commands, notebooks, results):
        for place, text in module.pages().items():
            files.append(File.generated(config, place, content=text))
    for place, content in repository.files(files).items():
        if place.endswith(".md") and place not in repository.IN_NAVIGATION:
            files.append(File.generated(config, place, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
        else:
            files.append(File.generated(config, place, content=content))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names in the first column of a table stay in one piece on a narrow page."""
    return NAMES.sub(r'<td><code class="word">\1</code>', html)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    plain = FENCE.sub(lambda m: m["fence"] + (f' title="{m["file"]}"' if m["file"] else ""), markdown)
    return repository.linked(plain, page.file.src_uri)
