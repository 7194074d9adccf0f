// The form of a new run: marks what differs from the recipe while people type, and enters what the newest plan
// assumes where nobody entered anything else.
// The form may be replaced as a whole (another preset), so nothing of it is kept.
(() => {
  "use strict";
  const form = () => document.getElementById("run-form");
  if (!form()) return;
  const input = (setting) => setting.querySelector("input, select, textarea");

  const BEFORE = { hand: "base", follows: "original", preset: "original", policy: "original", base: "default" };

  // The rule of ``Draft.origin`` (webapp/runs/services/drafts.py).
  const originOf = (setting, value) => (value === setting.dataset.base ? setting.dataset.baseOrigin : "hand");

  function refresh() {
    const counts = {};
    const kinds = [...form().querySelectorAll(".differences li")];
    const labels = Object.fromEntries(kinds.map((kind) => [kind.dataset.origin, kind.dataset.label]));
    for (const setting of form().querySelectorAll(".setting")) {
      const { value } = input(setting);
      const origin = originOf(setting, value);
      setting.dataset.origin = origin;
      setting.querySelector(".reset").hidden = value === setting.dataset.base;
      const before = setting.dataset[BEFORE[origin]];
      const shown = [...(input(setting).options || [])].find((option) => option.value === before)?.text ?? before;
      const instead = shown === undefined ? "" : ` instead of ${shown.split("\n").join(", ") || "none"}`;
      setting.querySelector(".origin").textContent = labels[origin] ? `${labels[origin]}${instead}. ` : "";
      if (!setting.closest(".assumptions")) counts[origin] = (counts[origin] || 0) + 1;
    }
    for (const kind of kinds) {
      const count = counts[kind.dataset.origin] || 0;
      kind.hidden = !count;
      kind.querySelector(".num").textContent = String(count);
    }
    document.getElementById("num-different").textContent = String(kinds.reduce((sum, kind) => sum + (counts[kind.dataset.origin] || 0), 0));
    for (const section of form().querySelectorAll(".setting-section")) {
      const count = section.querySelectorAll('.setting:not([data-origin=""], [data-origin="base"])').length;
      const chip = section.querySelector(".changed-count");
      chip.hidden = !count;
      chip.textContent = `${count} changed`;
    }
  }

  function enterAssumptions() {
    const used = form().elements["rendered_assumptions"];
    for (const [name, [value, origin]] of Object.entries(JSON.parse(used?.value ?? "{}"))) {
      const field = form().elements[`assume.${name}`];
      const setting = field.closest(".setting");
      if (field.value === setting.dataset.base) field.value = value;
      setting.dataset.base = value;
      const label = setting.querySelector("label");
      label.querySelector(".chip")?.remove();
      if (!origin) continue;
      const chip = document.createElement("span");
      chip.className = "chip";
      chip.textContent = origin;
      label.append(" ", chip);
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.closest("#run-form")) refresh();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("#run-form .reset");
    if (!button) return;
    const setting = button.closest(".setting");
    input(setting).value = setting.dataset.base;
    refresh();
    input(setting).focus();
    input(setting).dispatchEvent(new Event("change", { bubbles: true }));
  });
  document.addEventListener("keydown", (event) => {
    // Enter in a field of the plan updates the plan; it does not start the run.
    if (event.key !== "Enter" || !event.target.matches('[name="plan.gpus"], [name^="assume."]')) return;
    event.preventDefault();
    event.target.dispatchEvent(new Event("change", { bubbles: true }));
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "show-settings") return;
    event.stopPropagation(); // the settings are as they were: nothing to check
    form().dataset.show = event.target.value;
    if (event.target.value) for (const section of form().querySelectorAll(".setting-section")) section.open = true;
  }, true);
  document.addEventListener("click", (event) => {
    if (event.target.closest('a[href="#assumptions"], a[href^="#s-assume."]')) document.getElementById("assumptions").open = true;
  });
  function update() {
    enterAssumptions();
    refresh();
  }
  document.addEventListener("htmx:afterSwap", update);
  document.addEventListener("htmx:oobAfterSwap", update);
  update();
})();
