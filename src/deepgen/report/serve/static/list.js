// The list of studies. Everything that it shows came out of files, so it is put in as text and never as HTML.

import { ask, cell, element, follow, moment, symbol } from "/static/live.js";

const MOST_TRIALS = 15;
const rows = { studies: new Map(), runs: new Map(), bundles: new Map() };
const mayStop = document.body.dataset.stop !== "";
let trials = [];

follow("/events", {
  all(data) {
    Object.values(rows).forEach((known) => known.clear());
    trials = [];
    document.getElementById("folder").textContent = data.folder;
    take(data);
  },
  some: take,
});

function take(data) {
  for (const [kind, known] of Object.entries(rows)) {
    data[kind].forEach((row) => known.set(row.id, row));
    data[`${kind}_gone`].forEach((id) => known.delete(id));
  }
  trials = trials.concat(data.trials).sort((a, b) => b.ended.at - a.ended.at).slice(0, MOST_TRIALS);
  show();
}

function show() {
  const studies = [...rows.studies.values()].sort(byState);
  fill("#studies", studies.map(studyRow));
  document.getElementById("none").hidden = studies.length > 0;
  document.querySelector("#studies").hidden = studies.length === 0;
  fill("#bundles", [...rows.bundles.values()].map(bundleRow));
  fill("#devices", studies.flatMap(deviceRows));
  fill("#trials", trials.map(trialRow));
  showRuns([...rows.runs.values()]);
}

// Rows are replaced only where they differ, so that what has the focus keeps it.
function fill(place, fresh) {
  const section = document.querySelector(place);
  const body = section.querySelector("tbody");
  const titles = [...section.querySelector("thead tr").cells].map((one) => one.textContent);
  if (section.tagName === "SECTION") section.hidden = fresh.length === 0;
  fresh.forEach((row, i) => {
    [...row.cells].forEach((one, j) => (one.dataset.title = titles[j]));
    const old = body.rows[i];
    if (!old) body.append(row);
    else if (old.dataset.text !== row.dataset.text) old.replaceWith(row);
  });
  while (body.rows.length > fresh.length) body.lastElementChild.remove();
}

function line(data, cells) {
  const row = element("tr");
  row.dataset.text = JSON.stringify(data);
  row.append(...cells);
  return row;
}

const ORDER = ["running", "starting", "damaged", "unreadable", "stopped", "finished"];

function byState(a, b) {
  return ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (a.id < b.id ? -1 : 1);
}

function studyRow(study) {
  const name = cell("", "name");
  name.append(studyLink(study.id));
  const done = cell(study.done === undefined ? "" : study.budget ? `${study.done} of ${study.budget}` : study.done, "number");
  if (study.budget && study.state === "running") {
    const bar = element("progress");
    bar.max = study.budget;
    bar.value = study.done;
    bar.setAttribute("aria-label", "trials that have ended");
    done.append(bar);
  }
  const what = cell(study.why || `${study.what} on ${study.target}`, study.why ? "why" : "");
  const stop = cell("");
  const insideRun = study.id.includes("/");
  if (mayStop && study.state === "running" && !insideRun) stop.append(stopButton("study", study));
  return line(study, [name, stateCell(study.state), done, cell(study.best || ""), what, stop]);
}

function stateCell(state) {
  return cell(`${symbol(state)} ${state}`, `state ${state}`);
}

function studyLink(id) {
  const known = rows.studies.get(id);
  const link = element("a", known ? known.name : id);
  link.href = `/study/${id}`;
  return link;
}

function stopButton(kind, { id, name }) {
  const button = element("button", "Stop");
  button.setAttribute("aria-label", `Stop ${name}`);
  button.addEventListener("click", () => ask(button, `/stop/${kind}/${id}`, `Stop ${name}? It can be resumed.`));
  return button;
}

function bundleRow(bundle) {
  return line(bundle, [cell(bundle.name, "name"), cell(bundle.done, "number"), cell(bundle.finals ? "done" : "not yet"), cell(bundle.device), cell(bundle.study, "name")]);
}

function deviceRows(study) {
  return (study.devices || []).map((one) => {
    const name = cell("", "name");
    name.append(studyLink(study.id));
    return line([study.id, one], [cell(one.host), cell(one.device || study.target), name, cell(one.trials, "number"), cell(one.last, "number"), cell(moment(one.at))]);
  });
}

function trialRow({ study, ended }) {
  const name = cell("", "name");
  name.append(studyLink(study));
  return line([study, ended], [cell(moment(ended.at)), name, cell(ended.trial, "number"), cell(ended.words), cell(ended.time, "number"), cell(ended.detail, "why")]);
}

function showRuns(runs) {
  const section = document.getElementById("runs");
  section.hidden = runs.length === 0;
  const text = JSON.stringify(runs);
  if (section.dataset.text === text) return;
  section.dataset.text = text;
  section.querySelector("div").replaceChildren(...runs.flatMap(runParts));
}

const OF_GROUP = ["group", "task", "builds on", "measures on", "devices", "does"];

function runParts(run) {
  const title = element("h3", `${run.name} `);
  title.append(element("span", `${symbol(run.state)} ${run.state}`, `state ${run.state}`), " ");
  if (mayStop && run.pid) title.append(stopButton("run", run));
  const table = element("table");
  const head = table.createTHead().insertRow();
  head.append(...OF_GROUP.map((name) => element("th", name)));
  const body = table.createTBody();
  for (const group of run.groups) {
    const task = group.tasks ? `${group.task} of ${group.tasks}: ${group.what}` : "";
    const does = cell(group.problem || group.line, group.problem ? "why problem" : "why");
    const row = body.insertRow();
    row.append(cell(group.name), cell(task), cell(group.builder, "host"), cell(group.tester, "host"), cell(group.devices.join(", ")), does);
    [...row.cells].forEach((one, i) => (one.dataset.title = OF_GROUP[i]));
  }
  const wide = element("div", "", "wide");
  wide.append(table);
  return [title, element("p", run.note, "soft"), wide];
}
