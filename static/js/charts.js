// Charts from a ChartSet (webapp.contexts.charts): uPlot in a grid with one cursor for all, colours from
// the tokens, values of the cursor's iteration (or the newest) in the legend. Points can be added later.
(() => {
  "use strict";
  const FIRST = 6; // charts outside the fold
  // A canvas wants a colour, and a token may be light-dark(…): an element's computed colour is resolved.
  const probe = document.head.appendChild(document.createElement("span"));
  const token = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  // Bands in full colour would drown the lines: half way to the surface.
  const soft = (colour) => `color-mix(in srgb, ${colour} 55%, ${token("--surface")})`;

  function text(value) {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value)) return String(value);
    return Math.abs(value) >= 1000 ? value.toFixed(0) : value.toPrecision(3);
  }

  function element(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  // Bands of a stacked chart are drawn from the tallest sum down, each painting over the one before.
  function rows(spec, data) {
    const columns = spec.series.map((series) => data.columns[series.key] || data.x.map(() => null));
    if (!spec.stacked) return columns;
    const sums = columns.map((column) => column.slice());
    for (let i = 0; i < data.x.length; i += 1) {
      let sum = 0;
      const known = columns.some((column) => column[i] !== null && column[i] !== undefined);
      for (const [at, column] of columns.entries()) {
        sum += column[i] || 0;
        sums[at][i] = known ? sum : null;
      }
    }
    return sums.reverse();
  }

  class Chart {
    constructor(spec, data, { xLabel, time = false, onEnlarge }) {
      Object.assign(this, { spec, data, xLabel, time });
      this.now = element("span", { class: "now" });
      this.plot = element("div", { class: "plot" });
      this.values = spec.series.map(() => element("span", { class: "value" }));
      const header = element("header", {}, element("h3", {}, spec.title), element("span", { class: "unit" }, spec.unit), this.now);
      if (onEnlarge) {
        const button = element("button", { type: "button", class: "icon-button", "aria-label": `Enlarge ${spec.title}`, title: "Enlarge" });
        button.append(document.querySelector("#icon-expand")?.content.cloneNode(true) ?? "⤢");
        button.addEventListener("click", () => onEnlarge(spec));
        header.append(button);
      }
      this.root = element("section", { class: "chart", id: `chart-${spec.id}`, "aria-label": spec.title }, header, this.plot);
      this.root.dataset.chart = spec.id;
      if (spec.series.length > 1) {
        const legend = element("ul", { class: "legend" });
        spec.series.forEach((series, at) => {
          legend.append(element("li", {}, element("span", { class: `swatch c${series.colour}` }), series.label, this.values[at]));
        });
        this.root.append(legend);
      }
    }

    options(width, height) {
      const { spec } = this;
      const axis = { stroke: token("--chart-axis"), grid: { stroke: token("--chart-grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const order = spec.stacked ? [...spec.series].reverse() : spec.series;
      const few = this.data.x.length < 60;
      return {
        width, height, legend: { show: false }, padding: [8, 6, 0, 0],
        cursor: { sync: { key: "trainyard" }, points: { size: 5 }, y: false, drag: { x: true, y: false } },
        scales: { x: { time: this.time }, y: { range: spec.span ? () => spec.span : spec.stacked ? (_, low, high) => [0, high || 1] : undefined } },
        axes: [this.time ? { ...axis, size: 40, space: 70 } : { ...axis, size: 26, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 46, space: 34 }],
        series: [{ label: this.xLabel }].concat(order.map((series) => {
          const colour = token(`--chart-${series.colour}`);
          return { label: series.label, stroke: colour, width: spec.stacked ? 1 : 1.75, fill: spec.stacked ? soft(colour) : undefined, points: { show: !spec.stacked && few, size: 4, fill: colour } };
        })),
        hooks: { setCursor: [(plot) => this.showValues(plot.cursor.idx)] },
      };
    }

    showValues(index) {
      const last = this.data.x.length - 1;
      const at = index === null || index === undefined ? last : index;
      this.spec.series.forEach((series, i) => { this.values[i].textContent = text((this.data.columns[series.key] || [])[at]); });
      const first = this.spec.series.length === 1 ? text((this.data.columns[this.spec.series[0].key] || [])[at]) : "";
      const x = this.data.x[at];
      const where = at >= 0 && at !== last ? (this.time ? new Date(1000 * x).toLocaleTimeString() : `${this.xLabel} ${x}`) : "";
      this.now.textContent = [where, first === "–" ? "" : first].filter(Boolean).join(": ");
    }

    draw() {
      this.uplot?.destroy();
      this.uplot = null;
      this.plot.replaceChildren();
      this.observer?.disconnect();
      if (!this.data.x.length) {
        this.plot.append(element("div", { class: "empty-plot" }, this.time ? "no report yet" : "no finished iteration yet"));
        return;
      }
      const size = () => [Math.max(120, this.plot.clientWidth), Math.max(80, this.plot.clientHeight)];
      this.uplot = new uPlot(this.options(...size()), [this.data.x, ...rows(this.spec, this.data)], this.plot);
      this.observer = new ResizeObserver(() => {
        const [width, height] = size();
        if (this.uplot && (this.uplot.width !== width || this.uplot.height !== height)) this.uplot.setSize({ width, height });
      });
      this.observer.observe(this.plot);
      this.showValues(null);
    }

    update() {
      if (!this.uplot) { this.draw(); return; }
      const zoomed = this.zoomed();
      this.uplot.setData([this.data.x, ...rows(this.spec, this.data)], !zoomed);
      if (zoomed) this.uplot.redraw();
      this.showValues(this.uplot.cursor.idx);
    }

    zoomed() {
      const { min, max } = this.uplot.scales.x;
      const x = this.uplot.data[0];
      return x.length > 1 && (min > x[0] || max < x[x.length - 1]);
    }

    destroy() {
      this.observer?.disconnect();
      this.uplot?.destroy();
    }
  }

  class ChartGrid {
    constructor(root, set, { onEnlarge }) {
      Object.assign(this, { root, set, onEnlarge });
      this.data = { x: set.x, columns: set.columns };
      this.build();
      document.addEventListener("trainyard:theme", () => this.charts.forEach((chart) => chart.draw()));
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.charts.forEach((chart) => chart.draw()));
    }

    build() {
      this.charts?.forEach((chart) => chart.destroy());
      this.charts = this.set.specs.map((spec) => new Chart(spec, this.data, { xLabel: this.set.xLabel, time: this.set.time, onEnlarge: this.onEnlarge }));
      const first = this.charts.slice(0, FIRST);
      const more = this.charts.slice(FIRST);
      this.root.replaceChildren(...first.map((chart) => chart.root));
      const place = this.root.parentElement.querySelector(".more-charts");
      if (place) {
        place.hidden = !more.length;
        place.querySelector(".charts").replaceChildren(...more.map((chart) => chart.root));
        place.querySelector("summary").textContent = `${more.length} more charts: ${more.map((chart) => chart.spec.title.toLowerCase()).join(", ")}`;
      }
      this.charts.forEach((chart) => chart.draw());
    }

    // A whole new set (other charts have something to draw, or the run began again from a checkpoint).
    reset(set) {
      this.set = set;
      this.data.x = set.x;
      this.data.columns = set.columns;
      this.build();
    }

    lastX() {
      return this.data.x.length ? this.data.x[this.data.x.length - 1] : -1;
    }
  }

  window.trainyard = Object.assign(window.trainyard || {}, { Chart, ChartGrid });
})();
