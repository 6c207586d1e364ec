// A click on the head of a table sorts it: by the first number of each cell, or by its text.
"use strict";
const valueOf = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const found = text.replaceAll("\u2212", "-").replaceAll(",", "").match(/^[+-]?\d+(\.\d+)?/);
  return found ? Number(found[0]) : text;
};
const compare = (a, b, descending) => {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what has no number comes last
  const order = typeof a === "number" ? a - b : a.localeCompare(b);
  return descending ? -order : order;
};
const sort = (head) => {
  const table = head.closest("table");
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const column = head.cellIndex;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(valueOf(a, column), valueOf(b, column), descending));
  table.tBodies[0].append(...rows);
};
for (const head of document.querySelectorAll(".md-typeset table:not([class]) thead th")) {
  head.tabIndex = 0;
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      sort(head);
    }
  });
}
