// The exercises, the learner's answers, and the worker that checks them.
const { exercises, words, bytes } = JSON.parse(document.getElementById("data").textContent);
const LIMIT_S = 10;
const STACK = "Stack (most recent call first):\n"; // the heading of the stack that Python prints when it crashes
const KEY = "gluonlab-lab"; // of what the browser keeps; both languages share it
const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const python = byId("python"), progress = byId("progress");

const dark = matchMedia("(prefers-color-scheme: dark)");
const followTheme = () => { root.dataset.theme = dark.matches ? "dark" : "light"; };
followTheme();
dark.addEventListener("change", followTheme);

// If the browser stores nothing, or its storage is full, the page shows a warning.
function keep(name, value) {
  try { localStorage.setItem(`${KEY}-${name}`, value); } catch { byId("not-saved").hidden = false; }
}
const kept = (name) => { try { return localStorage.getItem(`${KEY}-${name}`); } catch { return null; } };
const forget = (name) => { try { localStorage.removeItem(`${KEY}-${name}`); } catch { /* nothing was kept */ } };
const element = (name, text, className = "") => {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

// --- Python

let worker = null, isReady = false, running = null, number = 0;

function showState(state) {
  isReady = state === words.ready;
  python.replaceChildren(...withCode(state).childNodes);
  progress.hidden = state !== words.loading;
  enableRuns();
}

// A disabled button would lose the focus, so only aria-disabled changes.
function enableRuns() {
  for (const button of document.querySelectorAll(".run")) button.setAttribute("aria-disabled", !isReady || running !== null);
}

function startPython() {
  showState(words.loading);
  progress.value = 0;
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => {
    if (data?.kind === "ready") showState(words.ready);
    else if (data?.kind === "loaded") progress.value += data.bytes / bytes;
    else if (data?.kind === "failed") showState(fill(words.failed, { text: data.text }));
    else if (!running || data?.number !== running.number) return; // a message from an earlier run
    else if (data.kind === "printed") { running.printed += data.text; running.isCut = data.isCut; }
    else if (data.kind === "result") finish(data);
    else crash();
  };
  worker.onerror = (error) => {
    if (running) crash();
    else if (!isReady) showState(fill(words.failed, { text: error.message || "worker.js" }));
  };
}

function restartPython() {
  worker.terminate();
  startPython();
}

function run(exercise) {
  if (running) return;
  if (!isReady) return showResult(exercise, withCode(python.textContent));
  const source = byId(`code-${exercise.id}`).value;
  number += 1;
  const timer = setTimeout(() => endPython(fill(words.too_slow, { seconds: LIMIT_S })), LIMIT_S * 1000);
  running = { exercise, number, timer, printed: "", isCut: false };
  enableRuns();
  showResult(exercise, element("p", words.running));
  worker.postMessage({ number, id: exercise.id, name: exercise.name, source, language: root.lang });
}

function endRun() {
  const ended = running;
  clearTimeout(ended.timer);
  running = null;
  enableRuns();
  return ended;
}

function endPython(message, lines = []) {
  const ended = endRun();
  showVerdict(ended, { status: "stopped", heading: words.stopped, message, lines });
  restartPython();
}

function crash() {
  const [printed, stack = ""] = running.printed.split(STACK);
  const place = /File "<cell>", line (\d+)/.exec(stack);
  running.printed = printed;
  endPython(words.crashed, place ? [fill(words.crashed_line, { line: place[1] })] : []);
}

function finish({ shown, isFull }) {
  const ended = endRun(), { exercise } = ended;
  showVerdict(ended, shown);
  if (shown.status === "passed") {
    keep(`${exercise.id}-solved`, "yes");
    markSolved(exercise);
  }
  if (shown.page) showAnimation(exercise, shown.page);
  if (isFull) restartPython();
}

// --- Results

const part = (exercise, name) => document.querySelector(`#section-${CSS.escape(exercise.id)} .${name}`);

function showResult(exercise, ...children) {
  part(exercise, "result").replaceChildren(...children);
  part(exercise, "printed").replaceChildren();
  part(exercise, "animation").replaceChildren();
}

function showVerdict({ exercise, printed, isCut }, { status, heading, message, lines }) {
  const box = element("div", "", `verdict ${status}`);
  box.append(element("strong", heading));
  if (message) box.append(withCode(message));
  for (const line of lines) box.append(element("p", line, "line"));
  showResult(exercise, box);
  if (printed) { // outside the result, which screen readers read aloud
    const output = element("pre", printed, "output");
    output.tabIndex = 0;
    part(exercise, "printed").replaceChildren(element("p", isCut ? words.printed_cut : words.printed), output);
  }
  box.scrollIntoView({ block: "nearest" });
}

// A message marks code by backquotes, as in the notebook.
function withCode(message) {
  const paragraph = element("p", "", "message");
  message.split(/`([^`]+)`/).forEach((piece, number) => paragraph.append(number % 2 ? element("code", piece) : piece));
  return paragraph;
}

function showAnimation(exercise, page) {
  const frame = element("iframe", "");
  frame.title = words.animation;
  frame.setAttribute("sandbox", "allow-scripts");
  frame.srcdoc = page;
  part(exercise, "animation").replaceChildren(frame);
}

function markSolved(exercise) {
  byId(`link-${exercise.id}`).querySelector(".solved").hidden = kept(`${exercise.id}-solved`) === null;
}

// --- The editor

function insert(area, text) {
  // execCommand keeps the browser's undo, unlike setting the value
  if (!document.execCommand("insertText", false, text)) area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
}

function handleKey(event, exercise) {
  if (event.isComposing) return; // an input method for Japanese is open
  const area = event.target;
  const leaves = area.dataset.leaves; // Escape was pressed: Tab then moves the focus
  delete area.dataset.leaves;
  if (event.key === "Escape") area.dataset.leaves = "yes";
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run(exercise);
  } else if (event.key === "Enter") {
    const line = area.value.slice(0, area.selectionStart).split("\n").pop();
    event.preventDefault();
    insert(area, `\n${/^ */.exec(line)[0]}${/:\s*$/.test(line) ? "    " : ""}`);
  } else if (event.key === "Tab" && !event.shiftKey && !leaves && !event.altKey && !event.ctrlKey) {
    event.preventDefault();
    insert(area, "    ");
  }
}

function save(exercise) {
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob([byId(`code-${exercise.id}`).value], { type: "text/x-python" }));
  link.download = `${exercise.id}.py`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Another tab, or the page in the other language, may have changed the stored answers.
function showKept() {
  if (!byId("not-saved").hidden) return; // the page has answers that the browser could not store
  for (const exercise of exercises) {
    const area = byId(`code-${exercise.id}`), text = kept(exercise.id) ?? exercise.stub;
    if (area.value !== text) area.value = text;
    markSolved(exercise);
  }
}

for (const exercise of exercises) {
  const area = byId(`code-${exercise.id}`);
  area.addEventListener("keydown", (event) => handleKey(event, exercise));
  area.addEventListener("input", () => keep(exercise.id, area.value));
  part(exercise, "run").addEventListener("click", () => run(exercise));
  part(exercise, "save").addEventListener("click", () => save(exercise));
  part(exercise, "reset").addEventListener("click", () => {
    if (area.value !== exercise.stub && !confirm(words.confirm)) return;
    area.value = exercise.stub;
    forget(exercise.id);
    showResult(exercise);
  });
}
showKept();
keep("opened", "yes"); // shows the warning immediately if the browser stores nothing
addEventListener("storage", showKept);
addEventListener("pageshow", ({ persisted }) => { if (persisted) showKept(); });

// --- One exercise at a time, named by the address

function shownExercise() {
  return exercises.find((each) => `#${each.id}` === location.hash) || exercises[0];
}

function showExercise() {
  const shown = shownExercise();
  for (const each of exercises) {
    byId(`section-${each.id}`).hidden = each !== shown;
    if (each === shown) byId(`link-${each.id}`).setAttribute("aria-current", "page");
    else byId(`link-${each.id}`).removeAttribute("aria-current");
  }
  byId("other").hash = `#${shown.id}`;
  document.title = `${shown.title} - ${words.title}`;
}

const focusTitle = () => byId(`title-${shownExercise().id}`).focus();
addEventListener("hashchange", () => { showExercise(); focusTitle(); });
byId("skip").addEventListener("click", (event) => { event.preventDefault(); focusTitle(); }); // does not change the address
showExercise();
if (location.protocol === "file:") showState(words.file);
else startPython();
