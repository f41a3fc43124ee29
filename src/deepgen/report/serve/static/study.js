// A report that follows its study: trials are added to its charts as they end. When there is more to say, as after the
// finals, or when there are twice as many trials as it was made of, a newer report takes its place.

import { ask, cell, fill, follow, line, moment } from "/static/live.js";

const MOST_LATEST = 12;
const report = window.deepgenReport;
let state = null; // of the study, as the report says it
let renewing = false;
let wanted = false;

follow(() => report.live().events, {
  trials({ again, trials }) {
    if (again) renew(); // another server, or another journal, than the one that made this report
    else append(trials);
  },
  study(row) {
    tell({ ended: row.done ?? 0, best: row.best || "none" });
    document.querySelectorAll("[data-stop]").forEach((button) => (button.hidden = row.state !== "running"));
    showDevices(row);
    const about = `${row.state} ${row.why || ""}`;
    if (state !== null && state !== about) renew();
    state = about;
  },
  gone(_, end) {
    end();
    document.getElementById("connection").textContent = "the study's folder is gone";
  },
});

document.addEventListener("click", (event) => {
  const address = event.target.dataset.stop;
  if (address) ask(event.target, address, `Stop ${report.live().name}? It can be resumed.`);
});

function append(trials) {
  const live = report.live();
  const columns = report.columns();
  const present = new Set(columns.trial);
  const fresh = trials.filter((one) => !present.has(one.trial));
  showLatest(fresh);
  if (present.size + fresh.length >= 2 * live.trials_shown) renew();
  if (!present.size) return; // a report of no trials has no charts
  const place = live.last ? columns.trial.lastIndexOf(live.last.trial) : -1;
  const began = place < 0 ? 0 : live.last.at - columns.at[place];
  report.append(fresh.map((one) => fields(one, live, began)));
}

function fields(one, live, began) {
  const row = { trial: one.trial, verdict: one.verdict, shown: 1 };
  row.time = one.seconds === null ? null : one.seconds * live.scale;
  row.at = began ? one.at - began : null;
  for (const [knob, value] of Object.entries(one.knobs)) if (live.knobs[knob]) row[live.knobs[knob]] = value;
  return row;
}

async function renew() {
  wanted = true;
  if (renewing) return;
  renewing = true;
  while (wanted) {
    wanted = false;
    try {
      const answer = await fetch(`${location.pathname}?newest`);
      if (!answer.ok) break;
      const newer = new DOMParser().parseFromString(await answer.text(), "text/html");
      const focused = focusable().indexOf(document.activeElement);
      report.replace(newer);
      if (focused >= 0) focusable()[focused]?.focus({ preventScroll: true });
    } catch {
      break; // the server is away: the stream comes back when it does, and asks again
    }
  }
  renewing = false;
}

function focusable() {
  return [...document.querySelectorAll("a[href], button, summary, [tabindex]")];
}

function tell(texts) {
  for (const [name, text] of Object.entries(texts)) {
    for (const place of document.querySelectorAll(`[data-live="${name}"]`)) place.textContent = text;
  }
}

function showLatest(trials) {
  const table = document.querySelector("#latest table");
  const body = table.tBodies[0];
  for (const one of trials.slice(-MOST_LATEST)) {
    const times = [cell(one.trial, "number"), cell(one.words), cell(one.time, "number")];
    body.prepend(line(table, [cell(moment(one.at)), ...times, cell(one.detail)]));
  }
  while (body.rows.length > MOST_LATEST) body.lastElementChild.remove();
  document.getElementById("latest").hidden = body.rows.length === 0;
}

function showDevices(row) {
  const table = document.querySelector("#devices table");
  const lines = (row.devices || []).map((one) => {
    const where = [cell(one.host), cell(one.device || row.target)];
    return line(table, [...where, cell(one.trials, "number"), cell(one.last, "number"), cell(moment(one.at))]);
  });
  fill(table.tBodies[0], lines);
  document.getElementById("devices").hidden = lines.length === 0;
}
