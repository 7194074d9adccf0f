// Labels and comments of steps: shown at their steps, and the keys that add one to the current step.
(() => {
  "use strict";
  const list = document.getElementById("trajectory-steps");
  const notes = [...document.querySelectorAll("[data-note-step]")];

  // The list beside the steps is the only source: steps that are loaded later get theirs when they come.
  function mark(step) {
    const index = step.id.replace("step-", "");
    const own = notes.filter((note) => note.dataset.noteStep === index);
    const head = step.querySelector(":scope > header");
    if (!own.length || !head || head.querySelector(".notes")) return;
    const shown = document.createElement("div");
    shown.className = "notes";
    for (const note of own) {
      const text = document.createElement("span");
      text.className = note.dataset.noteKind === "label" ? "chip" : "comment";
      text.textContent = note.querySelector("[data-note-text]").textContent;
      shown.append(text);
    }
    head.append(shown);
  }

  for (const step of list.children) mark(step);
  document.addEventListener("trainyard:loaded", (event) => { for (const step of event.detail) mark(step); });

  function write(kind) {
    const text = document.getElementById(`note-${kind}`);
    if (!text) return;
    const step = list.querySelector(".step.current");
    text.form.elements.step.value = step ? step.id.replace("step-", "") : "";
    text.focus();
  }
  window.trainyard.key("l", () => write("label"));
  window.trainyard.key("m", () => write("comment"));
})();
