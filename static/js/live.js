// Live updates: one WebSocket a tab. The server sends regions rendered from the page's own partials, new
// steps and chart points; this file only swaps them in, and never moves what somebody reads: elements
// are kept by id or data-key, a selection or an open field is left alone, new rows wait behind a pill.
(() => {
  "use strict";
  if (!document.body.dataset.livePage) return;
  const dot = document.getElementById("live-dot");
  const pauseButton = document.getElementById("live-pause");
  let socket = null;
  let seq = Number(document.body.dataset.liveAfter || 0);
  let paused = false;
  let failures = 0;
  let lostAt = null;
  const held = new Map();

  function state(name, label) {
    dot.dataset.state = name;
    dot.querySelector(".text").textContent = label;
    dot.title = label;
  }

  function subscribe() {
    socket.send(JSON.stringify({
      page: document.body.dataset.livePage,
      run: document.body.dataset.liveRun ? Number(document.body.dataset.liveRun) : null,
      target: JSON.parse(document.body.dataset.liveTarget || "[]"),
      after: seq,
      query: location.search,
      steps: document.querySelectorAll("#trajectory-steps > .step").length,
      identity: document.body.dataset.liveIdentity || "",
      point: window.trainyard.charts ? window.trainyard.charts.lastX() : null,
      series: window.trainyard.charts ? window.trainyard.charts.series() : [],
    }));
  }

  function connect() {
    if (paused) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    socket = new WebSocket(`${scheme}://${location.host}/ws/live/`);
    socket.addEventListener("open", subscribe);
    socket.addEventListener("message", (event) => receive(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => {
      socket = null;
      if (paused) return;
      if (event.code === 4401) { state("lost", "signed out"); return; }
      if (event.code === 4403) { state("lost", "permissions changed; reload the page"); return; }
      lostAt = lostAt || new Date();
      state("lost", `no connection since ${lostAt.toTimeString().slice(0, 8)}`);
      failures += 1;
      setTimeout(connect, Math.min(10000, 300 * 2 ** failures) * (0.7 + 0.6 * Math.random()));
    });
  }

  function receive(message) {
    if (message.type === "ready") {
      failures = 0;
      lostAt = null;
      state("live", "live");
      return;
    }
    if (message.type === "late") {
      state("lost", "reconnecting");
      return;
    }
    if (message.type !== "update") return;
    seq = message.seq;
    if (message.identity) document.body.dataset.liveIdentity = message.identity;
    for (const [id, html] of Object.entries(message.html || {})) place(id, html);
    if (message.steps) addSteps(message.steps);
    if (message.points) window.trainyard.charts?.add(message.points);
    window.trainyard.tick?.();
    document.dispatchEvent(new CustomEvent("trainyard:live", { detail: message }));
  }

  // --- placing a region -------------------------------------------------------------------------

  function busy(region) {
    const selection = getSelection();
    if (selection && !selection.isCollapsed && selection.rangeCount && region.contains(selection.anchorNode)) return true;
    return region.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
  }

  const rowKeys = (root) => new Set([...root.querySelectorAll("tr[data-key]")].map((row) => row.dataset.key));

  function parse(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  function place(id, html, force = false) {
    const region = document.getElementById(id);
    if (!region) return;
    if (busy(region) && !force) { held.set(id, html); return; }
    const fresh = parse(html);
    identify(region, id);
    identify(fresh, id);
    if ("liveHold" in region.dataset && !force) {
      const before = rowKeys(region);
      const news = [...rowKeys(fresh)].filter((key) => !before.has(key)).length;
      if (before.size && news) {
        updateRows(region, fresh);
        held.set(id, html);
        showPill(region, id, news);
        return;
      }
    }
    held.delete(id);
    const anchor = force ? null : firstVisible();
    const top = anchor?.getBoundingClientRect().top;
    hidePill(id);
    morph(region, [...fresh.childNodes], "innerHTML");
    window.htmx?.process(region);
    if (anchor?.isConnected) {
      const moved = anchor.getBoundingClientRect().top - top;
      if (Math.abs(moved) > 0.5 && scrollY > 0) scrollBy({ top: moved, behavior: "instant" });
    }
  }

  function updateRows(region, fresh) {
    for (const row of fresh.querySelectorAll("tr[data-key]")) {
      const old = region.querySelector(`tr[data-key="${CSS.escape(row.dataset.key)}"]`);
      if (old) morph(old, row, "outerHTML");
    }
  }

  function showPill(region, id, count) {
    let pill = document.getElementById(`pill-${id}`);
    if (!pill) {
      pill = document.createElement("button");
      pill.type = "button";
      pill.id = `pill-${id}`;
      pill.className = "pill primary";
      pill.addEventListener("click", () => place(id, held.get(id) ?? region.innerHTML, true));
      region.before(pill);
    }
    pill.textContent = `${count} new`;
  }

  function hidePill(id) {
    document.getElementById(`pill-${id}`)?.remove();
  }

  function firstVisible() {
    for (const node of document.querySelectorAll("main [data-key], main h1, main h2")) {
      const box = node.getBoundingClientRect();
      if (box.height && box.top >= 48 && box.top < innerHeight) return node;
    }
    return null;
  }

  // Idiomorph matches elements by id: one is made of the keys on the way from the region to the element.
  function identify(root, id) {
    for (const node of root.querySelectorAll("[data-key]:not([id])")) {
      node.id = `${node.parentElement?.closest("[id]")?.id ?? id}--${node.dataset.key}`;
    }
  }

  const callbacks = {
    beforeNodeMorphed(old, fresh) {
      if (old.nodeType !== 1) return true;
      if (old.hasAttribute("data-live-keep") && fresh.hasAttribute?.("data-live-keep")) {
        for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
        return false;
      }
      if (old.classList.contains("current")) fresh.classList?.add("current");
      return true;
    },
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.nodeName === "DETAILS") && !window.trainyard.keepsReach(name, node),
  };

  function morph(old, fresh, morphStyle) {
    Idiomorph.morph(old, fresh, { morphStyle, restoreFocus: true, callbacks });
  }

  // --- new steps of a trajectory ------------------------------------------------------------------

  function addSteps({ start, html }) {
    const list = document.getElementById("trajectory-steps");
    if (!list) return;
    if (start === 0) list.replaceChildren();
    const known = list.children.length;
    const atEnd = list.getBoundingClientRect().bottom < innerHeight + 80;
    const fresh = parse(html.slice(Math.max(0, known - start)).join(""));
    const count = fresh.childElementCount;
    const first = fresh.firstElementChild;
    list.append(fresh);
    if (!count) return;
    document.dispatchEvent(new CustomEvent("trainyard:steps"));
    const pill = document.getElementById("new-steps");
    if (!pill || atEnd || !known) return;
    const total = Number(pill.dataset.count || 0) + count;
    pill.dataset.count = String(total);
    pill.dataset.first = pill.dataset.first || first.id;
    pill.textContent = `${total} new step${total === 1 ? "" : "s"}`;
    pill.hidden = false;
  }

  document.getElementById("new-steps")?.addEventListener("click", (event) => {
    const pill = event.currentTarget;
    document.getElementById(pill.dataset.first)?.scrollIntoView({ block: "start" });
    pill.hidden = true;
    delete pill.dataset.first;
    pill.dataset.count = "0";
  });

  // --- pause, selection, navigation ---------------------------------------------------------------

  pauseButton?.addEventListener("click", () => {
    paused = !paused;
    pauseButton.setAttribute("aria-pressed", String(paused));
    if (paused) {
      state("paused", "paused");
      socket?.close();
    } else {
      failures = 0;
      state("connecting", "connecting");
      connect();
    }
  });
  function release() {
    for (const [id, html] of [...held]) {
      const region = document.getElementById(id);
      if (region && !busy(region) && !document.getElementById(`pill-${id}`)) place(id, html);
    }
  }
  document.addEventListener("selectionchange", () => { if (held.size && getSelection()?.isCollapsed) setTimeout(release, 50); });
  document.addEventListener("focusout", () => { if (held.size) setTimeout(release, 50); });
  // Another tab of the run's page was opened in place: tell the server what is shown now.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target?.id !== "run-tabs") return;
    held.delete("run-panel");
    hidePill("run-panel");
    if (socket?.readyState === WebSocket.OPEN) subscribe();
  });
  // What was published while a service was down never reached this tab: ask for everything.
  document.addEventListener("trainyard:restored", () => { if (socket?.readyState === WebSocket.OPEN) subscribe(); });
  addEventListener("online", () => { if (!socket && !paused) connect(); });
  connect();
})();
