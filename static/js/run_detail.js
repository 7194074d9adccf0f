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

  const baseline = root.dataset.baseline; // address of the points of the run to compare with
  let other = null; // its points, over the quantity that is shown
  let shownAxis = "iteration";
  const controls = form ? trainyard.tools(form, (what) => {
    if (what === "view") redraw();
    else showPart();
  }) : { view: new trainyard.View(), axis: () => "iteration", zoom(range) { this.view.range = range; redraw(); } };
  const zoom = (range) => controls.zoom(range);
  const xLabel = () => (shownAxis === "iteration" ? grid.set.xLabel : form.elements.namedItem("x").selectedOptions[0].textContent);

  function redraw() {
    for (const chart of grid.charts) chart.xLabel = xLabel();
    grid.draw();
    if (large) large.xLabel = xLabel();
    large?.draw();
  }

  // Charts of one line show the baseline's line too.
  const compared = (shown) => (baseline ? { ...shown, specs: shown.specs.map(withBaseline) } : shown);
  function withBaseline(spec) {
    if (spec.stacked || spec.series.length !== 1) return spec;
    const line = { key: `baseline:${spec.series[0].key}`, label: root.dataset.baselineLabel, colour: 9, dash: 1 };
    return { ...spec, joined: true, series: [...spec.series, line] };
  }
  let merged = { of: null };
  function sourceOf(spec, plain) {
    if (spec.series.length !== 2 || !spec.series[1].key.startsWith("baseline:")) return plain;
    return () => {
      const data = plain();
      if (!other) return data;
      if (merged.of === data && merged.other === other && merged.length === data.x.length && merged.last === data.x.at(-1)) return merged.data;
      const x = [...new Set([...data.x, ...other.x])].sort((a, b) => a - b);
      const columns = {};
      for (const [part, prefix] of [[data, ""], [other, "baseline:"]]) {
        const places = new Map(part.x.map((value, i) => [value, i]));
        for (const [key, column] of Object.entries(part.columns)) columns[prefix + key] = x.map((value) => column[places.get(value)] ?? null);
      }
      merged = { of: data, other, length: data.x.length, last: data.x.at(-1), data: { x, columns } };
      return merged.data;
    };
  }

  async function points(address, query) {
    try {
      const response = await fetch(`${address}?${new URLSearchParams(query)}`, { credentials: "same-origin" });
      return response.ok ? await response.json() : null;
    } catch {
      return null; // what is here already stays
    }
  }

  // Points of a long run are means over several iterations: a part of it is asked for in detail. Other quantities of
  // the x axis are always asked for.
  async function showPart() {
    const range = controls.view.range;
    const axis = controls.axis();
    asked += 1;
    const mine = asked;
    if (axis === "iteration") grid.part = null;
    if (axis === shownAxis) redraw();
    const query = { ...(range ? { from: String(range[0]), to: String(range[1]) } : {}), ...(axis === "iteration" ? {} : { x: axis }) };
    const isNeeded = root.dataset.series && (axis !== "iteration" || (range && grid.set.bucketed));
    const isOther = baseline && (!other || axis !== shownAxis);
    const [part, line] = await Promise.all([
      isNeeded ? points(root.dataset.series, query) : null,
      isOther ? points(baseline, axis === "iteration" ? {} : { x: axis }) : other,
    ]);
    if (mine !== asked || (axis !== "iteration" && !part)) return;
    grid.part = part;
    other = line;
    shownAxis = axis;
    redraw();
  }

  function enlarge(spec) {
    document.getElementById("chart-dialog-title").textContent = spec.title;
    large = new trainyard.Chart(spec, grid.source(spec), { xLabel: xLabel(), time: grid.set.time, view: controls.view, onZoom: zoom });
    document.getElementById("chart-dialog-body").replaceChildren(large.root, trainyard.valueTable(large));
    dialog.showModal();
    large.draw();
  }

  dialog?.addEventListener("close", () => { large?.destroy(); large = null; });
  const grid = new trainyard.ChartGrid(root, compared(set), { onEnlarge: enlarge, onZoom: zoom, view: controls.view, sourceOf });
  root.dataset.points = String(grid.data.x.length);
  if (controls.view.range || controls.axis() !== "iteration" || baseline) showPart();
  let refresh = 0;

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
        grid.reset(compared(points.reset));
        if (grid.part) showPart();
      } else {
        append(grid.data, points, [-Infinity, Infinity]);
        if (shownAxis !== "iteration") {
          clearTimeout(refresh);
          refresh = setTimeout(showPart, 1000);
        } else if (grid.part) append(grid.part, points, controls.view.range);
        grid.charts.forEach((chart) => chart.update());
      }
      large?.update();
      root.dataset.points = String(grid.data.x.length);
    },
  };
})();
