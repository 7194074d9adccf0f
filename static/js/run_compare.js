// Runs laid over each other: a chart for each metric and a line for each run. Points are asked for when a
// chart is about to be seen, and again in detail for a part of x.
(() => {
  "use strict";
  const root = document.getElementById("compared-charts");
  if (!root) return;
  const set = JSON.parse(document.getElementById("comparison").textContent);
  const FIRST = 6;
  const dialog = document.getElementById("chart-dialog");
  const labels = { iteration: "iteration", time: "hours", tokens: "tokens" };
  let generation = 0;
  let large = null;

  const panes = set.charts.map((chart) => ({ ...chart, data: { x: [], columns: {}, low: {}, high: {} }, wanted: false, loaded: -1 }));

  const controls = trainyard.tools(document.getElementById("chart-tools"), (what) => {
    if (what === "axis") { build(); return; }
    if (what === "view") { redraw(); return; }
    reload();
  });

  // The runs have their points at different places: one sorted x for all, gaps where a run has none.
  function joined(pane, runs) {
    const series = set.runs.map((run) => runs[run.id]?.[pane.key] || { x: [], y: [], low: [], high: [] });
    const x = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const places = new Map(x.map((value, at) => [value, at]));
    const data = { x, columns: {}, low: {}, high: {} };
    set.runs.forEach((run, i) => {
      for (const [name, part] of [["columns", "y"], ["low", "low"], ["high", "high"]]) {
        const column = new Array(x.length).fill(null);
        series[i].x.forEach((value, at) => { column[places.get(value)] = series[i][part][at]; });
        data[name][run.id] = column;
      }
      if (data.low[run.id].every((value, at) => value === data.high[run.id][at])) {
        delete data.low[run.id];
        delete data.high[run.id];
      }
    });
    return data;
  }

  function spec(pane) {
    const series = set.runs.map((run) => ({ key: run.id, label: run.label, colour: run.colour, dash: run.dash, points: pane.key.startsWith("eval:") }));
    return { id: pane.key.replace(/[^a-z0-9]+/gi, "-"), title: pane.title, unit: pane.unit, series, stacked: false, span: null, joined: true };
  }

  function enlarge(pane) {
    document.getElementById("chart-dialog-title").textContent = pane.title;
    large = new trainyard.Chart(spec(pane), () => pane.data, { xLabel: labels[controls.axis()], view: controls.view, onZoom: controls.zoom });
    document.getElementById("chart-dialog-body").replaceChildren(large.root, trainyard.valueTable(large));
    dialog.showModal();
    large.draw();
  }
  dialog?.addEventListener("close", () => { large?.destroy(); large = null; });

  async function load(panesToLoad) {
    const mine = generation;
    panesToLoad.forEach((pane) => { pane.loaded = mine; pane.chart.root.classList.add("dim"); });
    const query = new URLSearchParams({ runs: set.runs.map((run) => run.id).join(","), keys: panesToLoad.map((pane) => pane.key).join(","), x: controls.axis() });
    if (controls.view.range) controls.view.range.forEach((end, at) => query.set(at ? "to" : "from", String(end)));
    let answer = null;
    try {
      const response = await fetch(`${set.source}?${query}`, { credentials: "same-origin" });
      answer = response.ok ? await response.json() : null;
    } catch {
      answer = null;
    }
    if (mine !== generation) return;
    for (const pane of panesToLoad) {
      pane.chart.root.classList.remove("dim");
      if (answer) {
        pane.data = joined(pane, answer.runs);
        pane.chart.draw();
      } else {
        pane.loaded = -1;
        pane.chart.plot.textContent = "The points could not be loaded. Reload the page.";
      }
    }
    if (answer) large?.draw();
    root.dataset.loaded = String(Number(root.dataset.loaded || 0) + panesToLoad.length);
  }

  function loadWanted() {
    const waiting = panes.filter((pane) => pane.wanted && pane.loaded !== generation);
    for (let i = 0; i < waiting.length; i += set.most) load(waiting.slice(i, i + set.most));
  }

  function reload() {
    generation += 1;
    loadWanted();
  }

  function redraw() {
    panes.forEach((pane) => { if (pane.loaded >= 0) pane.chart.draw(); });
    large?.draw();
  }

  let soon = 0;
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) panes.find((pane) => pane.chart.root === entry.target).wanted = true;
    }
    clearTimeout(soon);
    soon = setTimeout(loadWanted, 30);
  }, { rootMargin: "300px" });

  function build() {
    panes.forEach((pane) => { pane.chart?.destroy(); if (pane.chart) observer.unobserve(pane.chart.root); });
    for (const pane of panes) {
      const options = { xLabel: labels[controls.axis()], view: controls.view, onZoom: controls.zoom, onEnlarge: () => enlarge(pane) };
      pane.chart = new trainyard.Chart(spec(pane), () => pane.data, options);
    }
    root.replaceChildren(...panes.slice(0, FIRST).map((pane) => pane.chart.root));
    const more = panes.slice(FIRST);
    const place = document.getElementById("more-charts");
    place.hidden = !more.length;
    place.querySelector("summary").textContent = `${more.length} more charts`;
    place.querySelector(".charts").replaceChildren(...more.map((pane) => pane.chart.root));
    panes.forEach((pane) => observer.observe(pane.chart.root));
    reload();
  }

  build();
  trainyard.redrawWithTheme(() => panes.filter((pane) => pane.loaded >= 0).map((pane) => pane.chart));
})();
