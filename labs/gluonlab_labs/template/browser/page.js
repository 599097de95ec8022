// The exercises, the learner's answers, and the worker that checks them.
const { exercises, words } = JSON.parse(document.getElementById("data").textContent);
const LIMIT_S = 10;
const KEY = "gluonlab-lab"; // of what the browser keeps; both languages share it
const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const python = byId("python");

const dark = matchMedia("(prefers-color-scheme: dark)");
const followTheme = () => { root.dataset.theme = dark.matches ? "dark" : "light"; };
followTheme();
dark.addEventListener("change", followTheme);

const keep = (name, value) => { try { localStorage.setItem(`${KEY}-${name}`, value); } catch { /* a browser that keeps nothing */ } };
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

let worker = null, isReady = false, running = null;
const enableRuns = () => {
  for (const button of document.querySelectorAll(".run")) button.disabled = !isReady || running !== null;
};

function startPython() {
  isReady = false;
  python.textContent = words.loading;
  enableRuns();
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => {
    if (data.kind === "result") return finish(data);
    isReady = data.kind === "ready";
    python.textContent = isReady ? words.ready : fill(words.failed, { text: data.text });
    enableRuns();
  };
  worker.onerror = (error) => { python.textContent = fill(words.failed, { text: error.message || "worker.js" }); };
}

function run(exercise) {
  if (!isReady || running) return;
  const source = byId(`code-${exercise.id}`).value;
  running = { exercise, timer: setTimeout(stop, LIMIT_S * 1000) };
  enableRuns();
  showResult(exercise, [element("p", words.running)]);
  worker.postMessage({ id: exercise.id, name: exercise.name, source, language: root.lang });
}

function stop() {
  const { exercise } = running;
  running = null;
  worker.terminate();
  showVerdict(exercise, "slow", words.stopped, fill(words.too_slow, { seconds: LIMIT_S }));
  startPython();
}

function finish({ shown, failed, missing, printed }) {
  const { exercise, timer } = running;
  clearTimeout(timer);
  running = null;
  enableRuns();
  if (missing) return showVerdict(exercise, "raised", words.stopped, fill(words.missing, { name: missing }), [], printed);
  if (failed) return showVerdict(exercise, "raised", words.stopped, failed, [], printed);
  showVerdict(exercise, shown.status, shown.heading, shown.message, shown.lines, printed);
  if (shown.status === "passed") {
    keep(`${exercise.id}-solved`, "yes");
    markSolved(exercise);
  }
  if (shown.page) showAnimation(exercise, shown.page);
}

// --- Results

const part = (exercise, name) => document.querySelector(`#section-${CSS.escape(exercise.id)} .${name}`);

function showResult(exercise, children) {
  part(exercise, "result").replaceChildren(...children);
  part(exercise, "animation").replaceChildren();
}

function showVerdict(exercise, status, heading, message, lines = [], printed = "") {
  const box = element("div", "", `verdict ${status}`);
  box.append(element("strong", heading));
  if (message) box.append(withCode(message));
  for (const line of lines) box.append(element("p", line, "line"));
  const output = printed ? [element("p", words.printed), element("pre", printed, "output")] : [];
  if (output.length) output[1].tabIndex = 0;
  showResult(exercise, [box, ...output]);
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
  const area = event.target;
  const leaves = area.dataset.leaves; // Escape was pressed: Tab then moves the focus
  delete area.dataset.leaves;
  if (event.key === "Escape") area.dataset.leaves = "yes";
  if (event.isComposing) return; // an input method for Japanese is open
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

for (const exercise of exercises) {
  const area = byId(`code-${exercise.id}`);
  area.value = kept(exercise.id) ?? exercise.stub;
  area.addEventListener("keydown", (event) => handleKey(event, exercise));
  area.addEventListener("input", () => keep(exercise.id, area.value));
  part(exercise, "run").addEventListener("click", () => run(exercise));
  part(exercise, "save").addEventListener("click", () => save(exercise));
  part(exercise, "reset").addEventListener("click", () => {
    if (area.value !== exercise.stub && !confirm(words.confirm)) return;
    area.value = exercise.stub;
    forget(exercise.id);
    showResult(exercise, []);
  });
  markSolved(exercise);
}

// --- One exercise at a time, named by the address

function showExercise(moveFocus) {
  const shown = exercises.find((each) => `#${each.id}` === location.hash) || exercises[0];
  for (const each of exercises) {
    byId(`section-${each.id}`).hidden = each !== shown;
    if (each === shown) byId(`link-${each.id}`).setAttribute("aria-current", "page");
    else byId(`link-${each.id}`).removeAttribute("aria-current");
  }
  byId("other").hash = `#${shown.id}`;
  if (moveFocus) byId(`title-${shown.id}`).focus();
}
addEventListener("hashchange", () => { if (location.hash !== "#main") showExercise(true); });
showExercise(false);
if (location.protocol === "file:") python.textContent = words.file;
else startPython();
