// Pages with charts (a run, the sandboxes): the grid, the enlarged chart, points from the live stream.
(() => {
  "use strict";
  const root = document.getElementById("charts");
  if (!root) return;
  const set = JSON.parse(document.getElementById(root.dataset.source).textContent);
  const section = document.getElementById("charts-section"); // hidden while a run has nothing to draw
  const dialog = document.getElementById("chart-dialog");
  const form = document.getElementById("chart-tools");
  let large = null;
  let asked = 0;

  const controls = form ? trainyard.tools(form, (what) => {
    if (what === "range") showPart();
    else redraw();
  }) : { view: new trainyard.View(), zoom(range) { this.view.range = range; redraw(); } };
  const zoom = (range) => controls.zoom(range);

  function redraw() {
    grid.draw();
    large?.draw();
  }

  // Points of a long run are means over several iterations: a part of it is asked for in detail.
  async function showPart() {
    const range = controls.view.range;
    asked += 1;
    const mine = asked;
    grid.part = null;
    redraw();
    if (!range || !grid.set.bucketed || !root.dataset.series) return;
    const query = new URLSearchParams({ from: String(range[0]), to: String(range[1]) });
    try {
      const response = await fetch(`${root.dataset.series}?${query}`, { credentials: "same-origin" });
      if (!response.ok || mine !== asked) return;
      grid.part = await response.json();
      redraw();
    } catch {
      // The means that are here already stay.
    }
  }

  function enlarge(spec) {
    document.getElementById("chart-dialog-title").textContent = spec.title;
    large = new trainyard.Chart(spec, grid.source, { xLabel: grid.set.xLabel, time: grid.set.time, view: controls.view, onZoom: zoom });
    document.getElementById("chart-dialog-body").replaceChildren(large.root, trainyard.valueTable(large));
    dialog.showModal();
    large.draw();
  }

  dialog?.addEventListener("close", () => { large?.destroy(); large = null; });
  const grid = new trainyard.ChartGrid(root, set, { onEnlarge: enlarge, onZoom: zoom, view: controls.view });
  root.dataset.points = String(grid.data.x.length);
  if (controls.view.range) showPart();

  function append(data, points, [from, to]) {
    const last = data.x.at(-1) ?? -Infinity;
    for (const [i, x] of points.x.entries()) {
      if (x <= last || x < from || x > to) continue;
      data.x.push(x);
      for (const [key, column] of Object.entries(data.columns)) column.push(points.columns[key]?.[i] ?? null);
    }
  }

  // {reset: ChartSet}: the server always sends the whole set when the run began again or new metrics
  // appeared, else {x, columns} to append.
  trainyard.charts = {
    lastX: () => grid.lastX(),
    series: () => Object.keys(grid.data.columns),
    add(points) {
      if (points.reset) {
        const nothing = !points.reset.specs.length;
        if (section) section.hidden = nothing;
        if (nothing) dialog?.close();
        grid.reset(points.reset);
        if (grid.part) showPart();
      } else {
        append(grid.data, points, [-Infinity, Infinity]);
        if (grid.part) append(grid.part, points, controls.view.range);
        grid.charts.forEach((chart) => chart.update());
      }
      large?.update();
      root.dataset.points = String(grid.data.x.length);
    },
  };
})();
