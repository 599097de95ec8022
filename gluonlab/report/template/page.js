// Columns sort, and where runs are many, a filter appears. Without scripts the page says all the same.
(() => {
  "use strict";
  const results = document.getElementById("results"), body = results.tBodies[0];

  const value = (row, column) => {
    const text = row.cells[column].textContent.trim(), number = Number(text.replace(/,/g, ""));
    return text && !Number.isNaN(number) ? number : text;
  };
  // numbers before words, what is not known behind all, whatever the direction
  const compare = (a, b, down) => {
    const rank = (each) => (typeof each === "number" ? 0 : each === "-" || each === "" ? 2 : 1);
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true});
    return down ? -order : order;
  };
  const sort = (heading, column) => {
    const before = heading.getAttribute("aria-sort");
    const down = before ? before === "ascending" : column > 0; // of numbers, the largest first
    for (const each of results.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort(([a], [b]) => compare(a, b, down)).forEach(([, row]) => body.append(row));
  };
  [...results.tHead.rows[0].cells].forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(heading, column));
    heading.append(button);
  });

  const filter = document.getElementById("filter");
  if (filter) {
    const names = new Map([...body.rows].map((row) => [row.dataset.run, row.cells[0].textContent.toLowerCase()]));
    filter.closest("label").hidden = false;
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase();
      for (const [run, name] of names) {
        const hidden = !name.includes(wanted);
        for (const each of document.querySelectorAll(`[data-run="${run}"]`)) each.hidden = hidden;
        for (const curve of document.querySelectorAll(`g[id$="-run-${run}"]`)) curve.style.display = hidden ? "none" : "";
      }
    });
  }
})();
