// The controls above charts: smoothing, log axes, the quantity and the part of x. What they say is kept in
// the address, so that a view can be shared; every control works by keyboard.
(() => {
  "use strict";

  // Returns {view, axis(), zoom(range)}; changed(what) is called with "view", "range" or "axis".
  function tools(form, changed) {
    const field = (name) => form.elements.namedItem(name);
    const params = new URLSearchParams(location.search);
    const view = new trainyard.View();
    const number = (text) => (text === "" || text === null || !Number.isFinite(Number(text)) ? null : Number(text));

    function show() {
      form.querySelector("output").textContent = view.smooth ? view.smooth.toFixed(2) : "off";
      form.querySelector("[data-reset-zoom]").hidden = !view.range;
      for (const [at, name] of ["from", "to"].entries()) field(name).value = view.range ? String(Number(view.range[at].toPrecision(6))) : "";
    }

    function remember() {
      const now = new URLSearchParams(location.search);
      const said = {
        smooth: view.smooth || "", logy: view.logY ? "1" : "", logx: view.logX ? "1" : "",
        from: field("from").value, to: field("to").value, x: field("x") && field("x").selectedIndex > 0 ? field("x").value : "",
      };
      for (const [name, value] of Object.entries(said)) {
        if (value === "") now.delete(name);
        else now.set(name, String(value));
      }
      const query = now.toString().replaceAll("%2C", ",");
      history.replaceState(history.state, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
    }

    function read() {
      view.smooth = Number(field("smooth").value);
      view.logY = field("logy").checked;
      view.logX = field("logx")?.checked ?? false;
    }

    function zoom(range) {
      view.range = range;
      show();
      remember();
      changed("range");
    }

    field("smooth").value = String(Math.min(0.99, number(params.get("smooth")) ?? 0));
    field("logy").checked = params.get("logy") === "1";
    if (field("logx")) field("logx").checked = params.get("logx") === "1";
    const from = number(params.get("from"));
    const to = number(params.get("to"));
    if (from !== null && to !== null && from < to) view.range = [from, to];
    read();
    show();

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      if (event.target.name !== "smooth") return;
      read();
      show();
      remember();
      changed("view");
    });
    form.addEventListener("change", (event) => {
      const { name } = event.target;
      if (name === "from" || name === "to") {
        const range = [number(field("from").value), number(field("to").value)];
        if (range.every((end) => end === null)) zoom(null);
        else if (range.every((end) => end !== null) && range[0] < range[1]) zoom(range);
        return;
      }
      read();
      if (name === "x") view.range = null;
      show();
      remember();
      changed(name === "x" ? "axis" : "view");
    });
    form.querySelector("[data-reset-zoom]").addEventListener("click", () => { zoom(null); field("from").focus(); });
    form.hidden = false;
    return { view, zoom, axis: () => field("x")?.value || "iteration" };
  }

  window.trainyard = Object.assign(window.trainyard || {}, { tools });
})();
