"""A report as one self-contained page that loads no other file and uses no network.

Text from a journal is untrusted. The template escapes it; data for scripts is embedded as JSON without a `<`; and the
page's content security policy allows only its own scripts.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import version
from typing import Any

from deepgen.report import markdown
from deepgen.report.charts import TRIALS, check_libraries
from deepgen.report.facts import Facts
from deepgen.report.plots import Figure, figures_of
from deepgen.report.words import sentence, without_advice
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary.folders import default_cache_folder, write_whole

_MANY = 2_000  # trials; above this, charts are drawn on a canvas, as a page with so many elements is slow


def render(facts: Facts, live: Mapping[str, Any] | None = None) -> str:
    """The page of a study, or of several.

    `live` is for a page that follows a running study: the data its script needs (`serve/static/study.js`).
    """
    check_libraries()
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(_text),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": seconds_text, "moment": _moment, "sentence": sentence, "commands": _commands}
    environment.globals |= {"without_advice": without_advice}
    figures = figures_of(facts)
    data: dict[str, Any] = {"charts": {figure.name: _spec(figure) for figure in figures}, "live": dict(live or {})}
    if facts["kind"] == "study":
        data |= {TRIALS: facts["trials"], "renderer": "canvas" if facts["kept"] > _MANY else "svg"}
    return environment.get_template("page.html.j2").render(
        facts=facts,
        figures={figure.name: figure for figure in figures},
        live=live,
        tables=markdown,
        data=_embedded(data),
        style=_text("page.css"),
        vega=vega_script() if figures else "",
        script=_text("page.js"),
        policy=policy(live=live is not None),
    )


@cache
def vega_script() -> str:
    """Vega-Embed with all its dependencies, bundled by the installed vl-convert. Cached on disk: bundling takes
    seconds.
    """
    import vl_convert

    file = default_cache_folder() / "view" / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError):
        return file.read_text(encoding="utf-8")
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with suppress(OSError):  # a report does not depend on the cache
        write_whole(file, text)
    return text


def _spec(figure: Figure) -> dict[str, Any]:
    """A chart's spec for the page's script: full width, without a title, and without data."""
    spec = figure.chart.to_dict(validate=False)
    spec.pop("title", None)
    spec.pop("$schema", None)
    spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    spec["description"] = figure.described  # Vega uses it as the chart's label
    return {"spec": spec, "fields": list(figure.fields)}


def _embedded(data: Any) -> str:
    """JSON that is safe inside a script element: it cannot close the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def policy(*, live: bool = False) -> str:
    """Only these scripts may run, and nothing is loaded; a live page has one more script and may call its server."""
    scripts = (_text("page.js"), vega_script())
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    own, connect = (" 'self'", " connect-src 'self';") if live else ("", "")
    look = "style-src 'unsafe-inline'; img-src data:;"
    return f"default-src 'none'; script-src {hashes}{own}; {look}{connect} base-uri 'none'"


def _text(name: str) -> str:
    return (importlib.resources.files("deepgen.report") / name).read_text(encoding="utf-8")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _commands(text: str) -> Any:
    """A sentence with commands in backticks shown as code."""
    import markupsafe

    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))
