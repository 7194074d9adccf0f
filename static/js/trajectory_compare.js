// Two rollouts: j and k go to the next and previous difference.
(() => {
  "use strict";
  const rows = [...document.querySelectorAll(".pair-row.differs")];
  const top = (row) => row.getBoundingClientRect().top;
  function move(by) {
    const at = rows.indexOf(document.activeElement);
    const line = document.querySelector(".pair-heads").getBoundingClientRect().bottom + 4;
    const near = by > 0 ? rows.find((row) => top(row) > line) : rows.findLast((row) => top(row) < line - 8);
    const next = at < 0 ? near : rows[at + by];
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "start" });
  }
  window.trainyard.key("j", () => move(1));
  window.trainyard.key("k", () => move(-1));
})();
