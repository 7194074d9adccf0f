// Charts from a ChartSet (webapp.core.contexts.charts): uPlot in a grid with one cursor for all, colours from
// the tokens, values of the cursor's iteration (or the newest) in the legend. Points can be added later.
// What is shown of them (smoothing, log axes, a part of x) is one View for all charts of a page.
(() => {
  "use strict";
  const FIRST = 6; // charts outside the fold
  const DASHES = [[], [7, 4], [2, 3]];
  // A canvas wants a colour, and a token may be light-dark(…): an element's computed colour is resolved.
  const probe = document.head.appendChild(document.createElement("span"));
  const token = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  // Bands in full colour would drown the lines: part of the way to the surface. Stacked bands are painted over each
  // other, so they mix with the surface's colour: through transparent ones the colours below would show.
  const soft = (colour, share, ground = "transparent") => `color-mix(in srgb, ${colour} ${share}%, ${ground})`;

  function text(value) {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value)) return String(value);
    return Math.abs(value) >= 1000 ? value.toFixed(0) : value.toPrecision(3);
  }

  // uPlot would print a learning rate of 0.0001 as 0; a tick that a log axis leaves out is null.
  function tick(value) {
    if (value === null || value === undefined) return "";
    return value !== 0 && Math.abs(value) < 0.001 ? Number(value.toPrecision(3)).toExponential() : value.toLocaleString("en", { maximumFractionDigits: 6 });
  }

  function element(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  // Exponential moving average without the pull of its start; gaps stay gaps.
  function smoothed(column, share) {
    let sum = 0;
    let weight = 0;
    return column.map((value) => {
      if (value === null || value === undefined) return null;
      sum = share * sum + (1 - share) * value;
      weight = share * weight + 1 - share;
      return sum / weight;
    });
  }

  class View {
    constructor({ smooth = 0, logX = false, logY = false, range = null } = {}) {
      Object.assign(this, { smooth, logX, logY, range });
    }
  }

  // Bands of a stacked chart are drawn from the tallest sum down, each painting over the one before.
  function stacked(columns, x) {
    const sums = columns.map((column) => column.slice());
    for (let i = 0; i < x.length; i += 1) {
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
    // source() returns {x, columns, low, high}: what is drawn may be exchanged, e.g. for a part in detail.
    constructor(spec, source, { xLabel, time = false, view = new View(), onEnlarge, onZoom }) {
      Object.assign(this, { spec, source, xLabel, time, view, onZoom });
      this.now = element("span", { class: "now" });
      this.plot = element("div", { class: "plot" });
      this.values = spec.series.map(() => element("span", { class: "value" }));
      const header = element("header", {}, element("h3", { title: spec.title }, spec.title), element("span", { class: "unit" }, spec.unit), this.now);
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
          legend.append(element("li", {}, element("span", { class: `swatch c${series.colour} d${series.dash || 0}${spec.stacked ? " band" : ""}` }), series.label, this.values[at]));
        });
        this.root.append(legend);
      }
    }

    get logY() {
      return this.view.logY && !this.spec.stacked && !this.spec.span;
    }

    // The columns in uPlot's form: x, the lines, and the ends of their bands.
    rows() {
      const data = this.source();
      const { spec, view } = this;
      const keep = view.logX ? data.x.findIndex((x) => x > 0) : 0;
      const from = keep < 0 ? data.x.length : keep;
      const x = data.x.slice(from);
      const column = (columns, key) => (columns?.[key] || data.x.map(() => null)).slice(from);
      const finish = (values) => (this.logY ? values.map((value) => (value > 0 ? value : null)) : values);
      let lines = spec.series.map((series) => column(data.columns, series.key));
      if (view.smooth) lines = lines.map((values) => smoothed(values, view.smooth));
      if (spec.stacked) return [x, ...stacked(lines, x)];
      const ends = this.banded().flatMap((series) => [column(data.high, series.key), column(data.low, series.key)]);
      return [x, ...lines.map(finish), ...ends.map(finish)];
    }

    banded() {
      const data = this.source();
      return this.view.smooth || this.spec.stacked ? [] : this.spec.series.filter((series) => data.low?.[series.key]);
    }

    yRange() {
      const { spec } = this;
      if (spec.span) return () => spec.span;
      if (spec.stacked) return (_, low, high) => [0, high || 1];
      return undefined;
    }

    xRange() {
      return (plot, low, high) => {
        const one = plot.data?.[0].length === 1 ? plot.data[0][0] : null; // uPlot widens the range of a single point itself
        const [from, to] = this.view.range || (one === null ? [low, high] : [one, one]);
        return from === to ? [from - 0.5, to + 0.5] : [from, to];
      };
    }

    options(width, height) {
      const { spec, time } = this;
      const axis = { stroke: token("--chart-axis"), grid: { stroke: token("--chart-grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const order = spec.stacked ? [...spec.series].reverse() : spec.series;
      const few = this.source().x.length < 60;
      // A band of one point has no area: a dot stands for it.
      const dots = (plot) => (spec.stacked ? plot.data[0].length === 1 : few || Boolean(spec.points));
      const log = (on) => (on ? { distr: 3 } : {});
      const whole = this.xLabel === "iteration" && !this.view.logX ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] } : {};
      const lines = order.map((series) => {
        const colour = token(`--chart-${series.colour}`);
        return { label: series.label, stroke: colour, dash: DASHES[series.dash || 0], width: spec.stacked ? 1 : 1.75, spanGaps: !spec.stacked, fill: spec.stacked ? soft(colour, 55, token("--surface")) : undefined, points: { show: dots, size: 4, fill: colour } };
      });
      const ends = this.banded().flatMap((series) => [0, 1].map(() => ({ label: series.label, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } })));
      const bands = this.banded().map((series, at) => ({ series: [1 + lines.length + 2 * at, 2 + lines.length + 2 * at], fill: soft(token(`--chart-${series.colour}`), 16) }));
      return {
        width, height, bands, legend: { show: false }, padding: [8, 16, 0, 0],
        cursor: { sync: { key: "trainyard", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } }, points: { size: 5 }, y: false, drag: { x: true, y: false, setScale: false } },
        scales: { x: { time, range: this.xRange(), ...log(this.view.logX) }, y: { range: this.yRange(), ...log(this.logY) } },
        axes: [time ? { ...axis, size: 40, space: 70 } : { ...axis, size: 26, space: 60, ...whole }, { ...axis, size: 46, space: 34, values: (_, ticks) => ticks.map(tick) }],
        series: [{ label: this.xLabel }].concat(lines, ends),
        hooks: { setCursor: [(plot) => this.showValues(plot.cursor.idx)], setSelect: [(plot) => this.selected(plot)] },
      };
    }

    // A part of x was marked with the mouse: all charts of the page show it.
    selected(plot) {
      const { left, width } = plot.select;
      if (width < 4 || !this.onZoom) return;
      const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.onZoom(range);
    }

    showValues(index) {
      const { spec } = this;
      if (!this.uplot) return;
      const x = this.uplot.data[0];
      const last = x.length - 1;
      const at = index === null || index === undefined ? last : index;
      const order = spec.stacked ? null : this.uplot.data;
      const data = this.source();
      const shift = data.x.length - x.length;
      // Other runs have their points at other places: the newest one up to the cursor is said.
      const value = (series, i) => {
        const column = order ? order[1 + i] : (data.columns[series.key] || []).slice(shift);
        let place = at;
        while (spec.joined && place > 0 && (column[place] === null || column[place] === undefined)) place -= 1;
        return text(column[place]);
      };
      spec.series.forEach((series, i) => { this.values[i].textContent = value(series, i); });
      const first = spec.series.length === 1 ? value(spec.series[0], 0) : "";
      const where = at >= 0 && at !== last ? (this.time ? new Date(1000 * x[at]).toLocaleTimeString() : `${this.xLabel} ${text(x[at])}`) : "";
      this.now.textContent = [where, first === "–" ? "" : first].filter(Boolean).join(": ");
    }

    draw() {
      this.uplot?.destroy();
      this.uplot = null;
      this.plot.replaceChildren();
      this.observer?.disconnect();
      const rows = this.rows();
      if (!rows[0].length) {
        const nothing = this.view.range ? "no data in this range" : this.time ? "no report yet" : this.xLabel === "iteration" ? "no finished iteration yet" : `not reported over ${this.xLabel}`;
        this.plot.append(element("div", { class: "empty-plot" }, nothing));
        return;
      }
      const size = () => [Math.max(120, this.plot.clientWidth), Math.max(80, this.plot.clientHeight)];
      this.uplot = new uPlot(this.options(...size()), rows, this.plot);
      this.uplot.over.addEventListener("dblclick", () => this.onZoom?.(null));
      this.observer = new ResizeObserver(() => {
        const [width, height] = size();
        if (this.uplot && (this.uplot.width !== width || this.uplot.height !== height)) this.uplot.setSize({ width, height });
      });
      this.observer.observe(this.plot);
      this.showValues(null);
      this.describe();
    }

    // The lines in words, for those who do not see them.
    describe() {
      const { columns } = this.source();
      const lines = this.spec.series.map((series) => {
        const known = (columns[series.key] || []).filter((value) => value !== null && value !== undefined);
        return known.length ? `${series.label} newest ${text(known.at(-1))}, lowest ${text(Math.min(...known))}, highest ${text(Math.max(...known))}` : `${series.label} unknown`;
      });
      this.plot.setAttribute("role", "img");
      this.plot.setAttribute("aria-label", `Chart over ${this.time ? "time" : this.xLabel}: ${lines.join("; ")}`);
    }

    update() {
      if (!this.uplot) { this.draw(); return; }
      this.uplot.setData(this.rows());
      this.showValues(this.uplot.cursor.idx);
      this.describe();
    }

    destroy() {
      this.observer?.disconnect();
      this.uplot?.destroy();
    }
  }

  // All points of a chart as a table, made when it is opened.
  function valueTable(chart) {
    const { series } = chart.spec;
    const body = element("tbody");
    const head = [chart.time ? "time" : chart.xLabel, ...series.map((one) => one.label)].map((label) => element("th", { scope: "col" }, label));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), body);
    const details = element("details", { class: "values" }, element("summary", {}, "Values"), element("div", { class: "scroll-x" }, table));
    details.addEventListener("toggle", () => {
      const { x, columns } = chart.source();
      body.replaceChildren(...x.map((at, i) => element(
        "tr", {}, element("th", { scope: "row" }, chart.time ? new Date(1000 * at).toLocaleTimeString() : text(at)),
        ...series.map((one) => element("td", {}, text(columns[one.key]?.[i]))),
      )));
    });
    return details;
  }

  function redrawWithTheme(charts) {
    const redraw = () => charts().forEach((chart) => chart.draw());
    document.addEventListener("trainyard:theme", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  class ChartGrid {
    // sourceOf(spec, plain) may return another source of a chart's points.
    constructor(root, set, { onEnlarge, onZoom, view, sourceOf = (_, plain) => plain }) {
      Object.assign(this, { root, set, onEnlarge, onZoom, view });
      this.data = { x: set.x, columns: set.columns, low: set.low, high: set.high };
      this.part = null; // what a zoom loaded
      const plain = () => this.part || this.data;
      this.source = (spec) => sourceOf(spec, plain);
      this.build();
      redrawWithTheme(() => this.charts);
    }

    build() {
      this.charts?.forEach((chart) => chart.destroy());
      const { xLabel, time } = this.set;
      this.charts = this.set.specs.map((spec) => new Chart(spec, this.source(spec), { xLabel, time, view: this.view, onEnlarge: this.onEnlarge, onZoom: this.onZoom }));
      const first = this.charts.slice(0, FIRST);
      const more = this.charts.slice(FIRST);
      this.root.replaceChildren(...first.map((chart) => chart.root));
      const place = this.root.parentElement.querySelector(".more-charts");
      if (place) {
        place.hidden = !more.length;
        place.querySelector(".charts").replaceChildren(...more.map((chart) => chart.root));
        place.querySelector("summary").textContent = `${more.length} more charts: ${more.map((chart) => chart.spec.title.toLowerCase()).join(", ")}`;
      }
      this.draw();
    }

    draw() {
      this.charts.forEach((chart) => chart.draw());
    }

    // A whole new set (other charts have something to draw, or the run began again from a checkpoint).
    reset(set) {
      this.set = set;
      this.data.x = set.x;
      this.data.columns = set.columns;
      this.data.low = set.low;
      this.data.high = set.high;
      this.build();
    }

    lastX() {
      return this.data.x.length ? this.data.x[this.data.x.length - 1] : -1;
    }
  }

  window.trainyard = Object.assign(window.trainyard || {}, { Chart, ChartGrid, View, element, redrawWithTheme, valueTable });
})();
