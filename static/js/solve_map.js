// The solve map by keyboard: a task's name is one stop of the tab key, arrow keys lead to its cells and other rows.
(() => {
  "use strict";
  document.addEventListener("keydown", (event) => {
    const link = event.target.closest?.(".map tbody a");
    if (!link || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const row = link.closest("tr");
    const links = [...row.querySelectorAll("a")];
    const across = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const other = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    const next = across ? links[links.indexOf(link) + across] : other && near(other, link);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  });

  function near(row, link) {
    const x = (one) => parseFloat(one.querySelector("rect")?.getAttribute("x") ?? -1);
    return [...row.querySelectorAll("a")].reduce((best, one) => (Math.abs(x(one) - x(link)) < Math.abs(x(best) - x(link)) ? one : best));
  }
})();
