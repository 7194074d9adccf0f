// Labels and comments of steps: shown at their steps, and the keys that add one to the current step.
(() => {
  "use strict";
  const list = document.getElementById("trajectory-steps");

  // The list beside the steps is the only source: steps that are loaded later get theirs when they come.
  function mark(steps) {
    const notes = Map.groupBy(document.querySelectorAll("[data-note-step]"), (note) => `step-${note.dataset.noteStep}`);
    for (const step of steps) {
      const head = step.querySelector(":scope > header");
      head?.querySelector(".notes")?.remove();
      if (head && notes.has(step.id)) show(head, notes.get(step.id));
    }
  }

  function show(head, own) {
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

  mark(list.children);
  document.addEventListener("trainyard:live", () => mark(list.children));
  document.addEventListener("trainyard:loaded", (event) => mark(event.detail));

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
