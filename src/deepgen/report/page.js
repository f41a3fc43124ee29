// Draws the charts of a report when they come into view, all of them before it is printed, and follows a live study.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  const drawn = new Map(); // the name of a chart -> its view, or null while it is being drawn

  // Columns as they are packed: plain values, or an index into levels that repeat.
  function column(packed) {
    return Array.isArray(packed) ? packed : packed.index.map((i) => packed.levels[i]);
  }

  let data, columns, trials, places;

  function load() {
    data = JSON.parse(document.getElementById("data").textContent);
    columns = {};
    for (const [name, packed] of Object.entries(data.trials || {})) columns[name] = column(packed);
    trials = (columns.trial || []).length;
    places = [...document.querySelectorAll("[data-chart]")];
    for (const place of places) watcher.observe(place);
  }

  function rows(fields, from = 0) {
    const out = [];
    for (let i = from; i < trials; i++) {
      const row = {};
      for (const field of fields) row[field] = columns[field] === undefined ? null : columns[field][i];
      out.push(row);
    }
    return out;
  }

  // Text and axes have the colours of the page, which has one look for light and one for dark.
  function look(width) {
    const { axisY, legend } = fitted(width);
    const style = getComputedStyle(document.body);
    const ink = style.color;
    const faint = style.getPropertyValue("--line").trim();
    const text = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: "transparent",
      font: style.fontFamily,
      axis: { ...text, gridColor: faint, domainColor: faint, tickColor: faint },
      axisY,
      legend: { ...text, ...legend },
      line: { color: ink },
      rule: { color: ink },
      point: { color: ink },
      text: { color: ink },
      view: { stroke: faint },
    };
  }

  function onPaper() {
    return paper.matches || document.body.classList.contains("paper");
  }

  // Paper is white, whatever the window is.
  function tone() {
    return dark.matches && !onPaper() ? "dark" : "light";
  }

  // Blue that is seen on white is too dark for a dark page; both blues are of one palette.
  function toned(text) {
    return tone() === "dark" ? text.replaceAll("#0072B2", "#56B4E9") : text;
  }

  // Long labels must leave room for what they label, and a legend must not be wider than a phone.
  function fitted(width) {
    return { axisY: { labelLimit: Math.max(80, Math.min(360, 0.35 * width)) }, legend: { columns: width < 500 ? 2 : 0 } };
  }

  async function draw(place) {
    const name = place.dataset.chart;
    if (drawn.has(name)) return;
    drawn.set(name, null);
    const { fields } = data.charts[name];
    const spec = JSON.parse(toned(JSON.stringify(data.charts[name].spec)));
    const full = { ...spec, datasets: { ...spec.datasets, trials: fields.length ? rows(fields) : [] } };
    place.dataset.tone = tone();
    try {
      // `ast`: expressions are interpreted, so that the page may forbid the making of code.
      const options = {
        actions: false,
        ast: true,
        config: look(place.clientWidth),
        logLevel: 1, // errors; it warns of layers without trials
        renderer: data.renderer || "svg",
        tooltip: { theme: tone() },
      };
      const { view } = await vegaEmbed(place, full, options);
      drawn.set(name, view);
      view.insertedUpTo = trials;
      place.dataset.drawn = "yes";
    } catch (error) {
      place.textContent = `This chart cannot be drawn: ${error.message}`;
      place.dataset.drawn = "failed";
    }
  }

  const watcher = new IntersectionObserver(
    (seen) => seen.filter((one) => one.isIntersecting).forEach((one) => draw(one.target)),
    { rootMargin: "300px" },
  );

  function drawAll() {
    return Promise.all(places.map(draw));
  }

  function again() {
    for (const view of drawn.values()) if (view) view.finalize();
    drawn.clear();
    for (const place of places) {
      watcher.unobserve(place);
      place.replaceChildren();
      delete place.dataset.drawn;
      watcher.observe(place);
    }
  }

  // On paper, charts that were drawn for a wide window would have tiny letters.
  function resize(narrow) {
    document.body.classList.toggle("paper", narrow);
    again();
    return drawAll();
  }

  load();
  dark.addEventListener("change", again);
  addEventListener("beforeprint", () => resize(true));
  addEventListener("afterprint", () => resize(false));

  // A live page has another script, which adds trials as they end, and in time puts a newer report in place of this.
  function append(fresh) {
    for (const row of fresh) {
      for (const name of Object.keys(columns)) columns[name].push(row[name] === undefined ? null : row[name]);
    }
    trials += fresh.length;
    for (const [name, view] of drawn) {
      const { fields } = data.charts[name];
      if (!view || !fields.length) continue;
      view.insert("trials", rows(fields, view.insertedUpTo)).runAsync();
      view.insertedUpTo = trials;
    }
  }

  function replace(newer) {
    for (const view of drawn.values()) if (view) view.finalize();
    drawn.clear();
    watcher.disconnect();
    for (const part of ["body > header", "body > main", "body > footer", "#data"]) {
      document.querySelector(part).replaceWith(newer.querySelector(part));
    }
    load();
  }

  if (data.live.events) window.deepgenReport = { append, replace, live: () => data.live, columns: () => columns };
  document.documentElement.dataset.ready = "yes";
})();
