// The frame on every page: theme and rail (cookies, so that the server paints them right at once),
// the drawer on phones, the account menu, copying ids, row clicks, ticking durations.
(() => {
  "use strict";
  const root = document.documentElement;
  const remember = (name, value) => {
    document.cookie = `${name}=${value};path=/;max-age=31536000;samesite=lax`;
  };
  const rail = document.getElementById("rail");
  const menu = document.querySelector("details.user");
  const darkBySystem = () => matchMedia("(prefers-color-scheme: dark)").matches;

  const actions = {
    theme() {
      const dark = root.dataset.theme === "dark" || (root.dataset.theme !== "light" && darkBySystem());
      root.dataset.theme = dark ? "light" : "dark";
      remember("theme", root.dataset.theme);
      document.dispatchEvent(new CustomEvent("trainyard:theme"));
    },
    rail() {
      root.dataset.rail = root.dataset.rail === "collapsed" ? "open" : "collapsed";
      remember("rail", root.dataset.rail);
      window.dispatchEvent(new Event("resize"));
    },
    wrap() {
      root.dataset.wrap = root.dataset.wrap === "on" ? "off" : "on";
      remember("wrap", root.dataset.wrap);
      for (const button of document.querySelectorAll("[data-action=wrap]")) button.setAttribute("aria-pressed", String(root.dataset.wrap === "on"));
    },
    drawer() {
      showDrawer(root.dataset.drawer !== "open");
      rail.querySelector("a").focus();
    },
    async copy(button) {
      const text = button.dataset.copy || button.closest("[data-copy-root]")?.querySelector("[data-copy-text]")?.textContent || "";
      try {
        await navigator.clipboard.writeText(text);
        announce("Copied");
        button.dataset.label ??= button.textContent;
        button.textContent = "copied";
        setTimeout(() => { button.textContent = button.dataset.label; }, 1200);
      } catch {
        announce("The browser blocked copying");
      }
    },
    "open-dialog"(button) {
      document.getElementById(button.dataset.target)?.showModal();
    },
    "close-dialog"(button) {
      button.closest("dialog")?.close();
    },
  };

  function showDrawer(open) {
    root.dataset.drawer = open ? "open" : "closed";
    document.querySelector("[data-action=drawer]").setAttribute("aria-expanded", String(open));
  }

  // Escape closes what is open and gives the focus back to what opened it; so does the focus that goes elsewhere.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (menu?.open) {
      menu.open = false;
      menu.querySelector("summary").focus();
    } else if (root.dataset.drawer === "open") {
      showDrawer(false);
      document.querySelector("[data-action=drawer]").focus();
    }
  });
  document.addEventListener("focusin", (event) => {
    if (menu?.open && !menu.contains(event.target)) menu.open = false;
    if (root.dataset.drawer === "open" && !rail.contains(event.target)) showDrawer(false);
  });

  function announce(text) {
    const box = document.getElementById("announcer");
    if (box) box.textContent = text;
  }

  function duration(seconds) {
    const s = Math.max(0, Math.floor(seconds));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
    const h = Math.floor(s / 3600);
    return h < 48 ? `${h} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
  }

  function tick() {
    const now = Date.now() / 1000;
    for (const node of document.querySelectorAll("[data-since]")) {
      const text = duration(now - Number(node.dataset.since));
      if (node.textContent !== text) node.textContent = text;
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button && actions[button.dataset.action]) {
      actions[button.dataset.action](button);
      return;
    }
    if (root.dataset.drawer === "open" && !rail.contains(event.target)) showDrawer(false);
    if (menu?.open && !menu.contains(event.target)) menu.open = false;
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button, input, label, summary") && String(getSelection()) === "") {
      if (event.ctrlKey || event.metaKey) window.open(row.dataset.href, "_blank", "noopener");
      else location.assign(row.dataset.href);
    }
  });
  document.addEventListener("auxclick", (event) => {
    const row = event.target.closest("tr[data-href]");
    if (row && event.button === 1 && !event.target.closest("a")) window.open(row.dataset.href, "_blank", "noopener");
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("form[data-autosubmit] select, form[data-autosubmit] input[type=checkbox]")) {
      event.target.form.requestSubmit();
    }
  });
  // Empty filters stay out of the address.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "get") {
      const question = event.submitter?.dataset.confirm;
      if (question && !window.confirm(question)) event.preventDefault();
      return;
    }
    for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
    setTimeout(() => { for (const field of event.target.elements) field.disabled = false; }, 0);
  });
  // What is down, asked again every few seconds while somebody looks at the page.
  const outages = document.getElementById("outages");
  let awaySince = null;
  const keysOf = (node) => [...node.querySelectorAll("[data-outage]")].map((one) => one.dataset.outage).join(" ");

  async function currentOutages() {
    try {
      const answer = await fetch(outages.dataset.url, { cache: "no-store", credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      awaySince = null;
      const template = document.createElement("template");
      template.innerHTML = await answer.text();
      return template.content;
    } catch {
      awaySince = awaySince || Date.now() / 1000;
      const content = document.getElementById("web-server-away").content.cloneNode(true);
      content.querySelector("[data-since]").dataset.since = String(awaySince);
      return content;
    }
  }

  async function showOutages() {
    if (!document.hidden) {
      const fresh = await currentOutages();
      const before = keysOf(outages);
      if (keysOf(fresh) !== before) {
        const restored = before !== "" && keysOf(fresh) === "";
        outages.replaceChildren(fresh);
        tick();
        if (restored) document.dispatchEvent(new CustomEvent("trainyard:restored"));
      }
    }
    setTimeout(showOutages, 5000);
  }
  if (outages) setTimeout(showOutages, 5000);
  // What scrolls by itself can be reached by keyboard in every browser, and only then.
  const SCROLLERS = ".table-wrap, .code, .diff, .prewrap, .scroll-x, .evaluation, .markdown, .markdown pre, .markdown table";
  const NAMING = { tabindex: "0", role: "group", "aria-label": "Scrollable content" };

  function reach(node) {
    const { overflowX, overflowY } = getComputedStyle(node);
    const scrolls = (overflowX === "auto" && node.scrollWidth > node.clientWidth) || (overflowY === "auto" && node.scrollHeight > node.clientHeight);
    for (const [name, value] of Object.entries(NAMING)) {
      if (scrolls) node.setAttribute(name, value);
      else if (node !== document.activeElement) node.removeAttribute(name);
    }
  }

  // Reports every element once, and again when its size changes; steps out of sight are not laid out for it.
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => reach(entry.target)));
  function watchScrollers() {
    for (const node of document.querySelectorAll(SCROLLERS)) { sizes.unobserve(node); sizes.observe(node); }
  }
  for (const name of ["htmx:afterSwap", "trainyard:live", "trainyard:loaded"]) document.addEventListener(name, watchScrollers);
  watchScrollers();
  const keepsReach = (name, node) => name in NAMING && node.matches(SCROLLERS);
  tick();
  setInterval(tick, 1000);
  window.trainyard = { announce, duration, tick, keepsReach };
})();
