// The form of a new run: marks what differs from the recipe while people type, and enters what the newest plan
// assumes where nobody entered anything else.
// The form may be replaced as a whole (another preset), so nothing of it is kept.
(() => {
  "use strict";
  const form = () => document.getElementById("run-form");
  if (!form()) return;
  const input = (setting) => setting.querySelector("input, select, textarea");

  function refresh() {
    let changed = 0;
    for (const setting of form().querySelectorAll(".setting")) {
      const differs = input(setting).value !== setting.dataset.base;
      setting.classList.toggle("changed", differs);
      setting.querySelector(".reset").hidden = !differs;
      changed += differs && !setting.closest(".assumptions");
    }
    document.getElementById("num-changed").textContent = String(changed);
    for (const section of form().querySelectorAll(".setting-section")) {
      const count = section.querySelectorAll(".setting.changed").length;
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
    if (event.target.id !== "only-changed") return;
    form().classList.toggle("only-changed", event.target.checked);
    if (event.target.checked) for (const section of form().querySelectorAll(".setting-section")) section.open = true;
  });
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
