// The list of studies. Everything that it shows came out of files, so it is put in as text and never as HTML.

import { ask, cell, element, fill, follow, line, moment, symbol } from "/static/live.js";

const MOST_TRIALS = 15;
const rows = { studies: new Map(), runs: new Map(), bundles: new Map() };
const mayStop = document.body.dataset.stop !== "";
let trials = [];

follow(() => "/events", {
  all(data) {
    Object.values(rows).forEach((some) => some.clear());
    trials = [];
    document.getElementById("folder").textContent = data.folder;
    take(data);
  },
  some: take,
});

function take(data) {
  for (const [kind, listed] of Object.entries(rows)) {
    data[kind].forEach((row) => listed.set(row.id, row));
    data[`${kind}_gone`].forEach((id) => listed.delete(id));
  }
  trials = trials.concat(data.trials).sort((a, b) => b.ended.at - a.ended.at).slice(0, MOST_TRIALS);
  show();
}

function show() {
  const studies = [...rows.studies.values()].sort(byState);
  showTable("studies", studies, studyCells);
  document.getElementById("none").hidden = studies.length > 0;
  showTable("bundles", [...rows.bundles.values()], bundleCells);
  const devices = studies.flatMap((study) => (study.devices || []).map((device) => ({ study, device })));
  showTable("devices", devices, deviceCells);
  showTable("trials", trials, trialCells);
  const runs = document.getElementById("runs");
  runs.hidden = rows.runs.size === 0;
  fill(runs.querySelector("div"), [...rows.runs.values()].map(runPart));
}

function showTable(place, lines, cells) {
  const section = document.getElementById(place);
  const table = section.querySelector("table");
  section.hidden = lines.length === 0;
  fill(table.tBodies[0], lines.map((data) => line(table, cells(data))));
}

const ORDER = ["running", "starting", "damaged", "unreadable", "stopped", "finished"];

function byState(a, b) {
  return ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (a.id < b.id ? -1 : 1);
}

function studyCells(study) {
  const name = cell("", "name");
  name.append(studyLink(study.id));
  const done = cell(study.budget ? `${study.done} of ${study.budget}` : study.done ?? "", "number");
  if (study.budget && study.state === "running") {
    const bar = element("progress");
    bar.max = study.budget;
    bar.value = study.done;
    bar.setAttribute("aria-label", "finished trials");
    done.append(bar);
  }
  const what = cell(study.why || `${study.what} on ${study.target}`, study.why ? "why" : "");
  const stop = cell("");
  const insideRun = study.id.includes("/");
  if (mayStop && study.state === "running" && !insideRun) stop.append(stopButton("study", study));
  const state = cell("");
  state.append(stateMark(study.state));
  return [name, state, done, cell(study.best || "", "best"), what, stop];
}

function stateMark(state) {
  return element("span", `${symbol(state)} ${state}`, `state ${state}`);
}

function studyLink(id) {
  const study = rows.studies.get(id);
  const link = element("a", study ? study.name : id);
  link.href = `/study/${id}`;
  return link;
}

function stopButton(kind, { id, name }) {
  const button = element("button", "Stop");
  button.setAttribute("aria-label", `Stop ${name}`);
  button.addEventListener("click", () => ask(button, `/stop/${kind}/${id}`, `Stop ${name}? It can be resumed.`));
  return button;
}

function bundleCells(bundle) {
  const finals = cell(bundle.finals ? "done" : "not yet");
  return [cell(bundle.name, "name"), cell(bundle.done, "number"), finals, cell(bundle.device), cell(bundle.study, "name")];
}

function deviceCells({ study, device }) {
  const name = cell("", "name");
  name.append(studyLink(study.id));
  const where = [cell(device.host, "host"), cell(device.device || study.target), name];
  return [...where, cell(device.trials, "number"), cell(device.last, "number"), cell(moment(device.at))];
}

function trialCells({ study, ended }) {
  const name = cell("", "name");
  name.append(studyLink(study));
  const times = [cell(ended.trial, "number"), cell(ended.words), cell(ended.time, "number")];
  return [cell(moment(ended.at)), name, ...times, cell(ended.detail, "why")];
}

const OF_GROUP = ["group", "task", "builds on", "measures on", "devices", "does"];

function runPart(run) {
  const title = element("h3", `${run.name} `);
  title.append(stateMark(run.state), " ");
  if (mayStop && run.pid) title.append(stopButton("run", run));
  const table = element("table");
  table.createTHead().insertRow().append(...OF_GROUP.map((name) => element("th", name)));
  table.createTBody().append(...run.groups.map((group) => line(table, groupCells(group))));
  const wide = element("div", "", "wide");
  wide.append(table);
  const part = element("div");
  part.append(title, element("p", run.note), wide);
  return part;
}

function groupCells(group) {
  const task = group.tasks ? `${group.task} of ${group.tasks}: ${group.what}` : "";
  const hosts = [cell(group.builder, "host"), cell(group.tester, "host"), cell(group.devices.join(", "))];
  const does = cell(group.problem || group.line, group.problem ? "why problem" : "why");
  return [cell(group.name), cell(task), ...hosts, does];
}
