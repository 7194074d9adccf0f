// Pages with charts (a run, the sandboxes): the grid, the enlarged chart, points from the live stream.
(() => {
  "use strict";
  const root = document.getElementById("charts");
  if (!root) return;
  const set = JSON.parse(document.getElementById(root.dataset.source).textContent);
  const dialog = document.getElementById("chart-dialog");
  let large = null;

  function enlarge(spec) {
    document.getElementById("chart-dialog-title").textContent = spec.title;
    large = new trainyard.Chart(spec, grid.data, { xLabel: grid.set.xLabel, time: grid.set.time });
    document.getElementById("chart-dialog-body").replaceChildren(large.root);
    dialog.showModal();
    large.draw();
  }

  dialog?.addEventListener("close", () => { large?.destroy(); large = null; });
  const grid = new trainyard.ChartGrid(root, set, { onEnlarge: enlarge });
  root.dataset.points = String(grid.data.x.length);

  // {reset: ChartSet}: the server always sends the whole set when the run began again or new metrics
  // appeared, else {x, columns} to append.
  trainyard.charts = {
    lastX: () => grid.lastX(),
    series: () => Object.keys(grid.data.columns),
    add(points) {
      if (points.reset) grid.reset(points.reset);
      else {
        for (const [i, x] of points.x.entries()) {
          if (x <= grid.lastX()) continue;
          grid.data.x.push(x);
          for (const [key, column] of Object.entries(grid.data.columns)) column.push(points.columns[key]?.[i] ?? null);
        }
        grid.charts.forEach((chart) => chart.update());
      }
      large?.update();
      root.dataset.points = String(grid.data.x.length);
    },
  };
})();
