"use strict";
// The theme: that of the system until the button chooses one, which is kept for the other pages.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const kept = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const show = (theme) => { root.dataset.theme = theme; };
show(kept() || (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!kept()) show(dark.matches ? "dark" : "light"); });
// On paper nothing is hidden behind a guess.
const guesses = () => [...document.querySelectorAll("details.guess")];
addEventListener("beforeprint", () => {
  root.dataset.screen = root.dataset.theme;
  show("light");
  for (const each of guesses()) { each.dataset.open = each.open ? "yes" : ""; each.open = true; }
});
addEventListener("afterprint", () => {
  show(root.dataset.screen);
  for (const each of guesses()) each.open = Boolean(each.dataset.open);
});
addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme").addEventListener("click", () => {
    show(root.dataset.theme === "dark" ? "light" : "dark");
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a browser that keeps nothing */ }
  });
  const contents = document.getElementById("contents");
  if (contents) contents.open = matchMedia("(min-width: 72rem)").matches;
  // A page within the page is as high as what it shows.
  for (const frame of document.querySelectorAll(".frame iframe:not([height])")) {
    const fit = () => { frame.style.height = `${frame.contentDocument.documentElement.scrollHeight + 2}px`; };
    const watch = () => new ResizeObserver(fit).observe(frame.contentDocument.body);
    if (frame.contentDocument && frame.contentDocument.readyState === "complete" && frame.contentDocument.body.children.length) watch();
    frame.addEventListener("load", watch);
  }
  // The other language opens at the same place.
  const other = document.getElementById("other");
  if (other) other.addEventListener("click", () => { other.hash = location.hash; });
});
