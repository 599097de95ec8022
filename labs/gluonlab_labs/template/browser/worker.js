// Runs Python in a worker, so that the page stays usable, and can end code that does not end.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const CELL_FILE = "<cell>"; // as in gluonlab.exercises.browser_lab
const MAX_PRINTED = 10000;
let printed = "";
const print = (line) => { if (printed.length < MAX_PRINTED) printed += `${line}\n`; };

async function load() {
  const modules = fetch("gluonlab.zip").then((answer) => {
    if (!answer.ok) throw new Error(`gluonlab.zip: ${answer.status}`);
    return answer.arrayBuffer();
  });
  const [python, archive] = await Promise.all([loadPyodide({ stdout: print, stderr: print }), modules]);
  python.unpackArchive(archive, "zip", { extractDir: "/gluonlab" });
  python.runPython("import sys; sys.path.insert(0, '/gluonlab')");
  return { python, judge: python.runPython("from gluonlab.exercises.browser_lab import judge_cell; judge_cell") };
}

// The last line of the learner's cell in a traceback, and the error itself, without what Pyodide adds.
function shorten(message) {
  const lines = message.trimEnd().split("\n");
  const first = lines.findLastIndex((line) => line.includes(`File "${CELL_FILE}"`));
  const error = lines.findIndex((line, number) => number > Math.max(first, 0) && /^\w/.test(line));
  const shown = error < 0 ? lines.slice(-1) : lines.slice(first < 0 ? error : first, error + 1);
  return shown.join("\n").trim();
}

function run({ python, judge }, { id, name, source, language }) {
  printed = "";
  const cell = python.toPy({ __name__: "__main__" });
  try {
    python.runPython(source, { globals: cell, filename: CELL_FILE });
  } catch (error) {
    return { failed: shorten(error.message), printed };
  }
  const answer = cell.get(name);
  if (answer === undefined) return { missing: name, printed };
  return { shown: JSON.parse(judge(id, source, answer, language)), printed };
}

const loaded = load();
loaded.then(
  () => postMessage({ kind: "ready" }),
  (error) => postMessage({ kind: "failed", text: String(error.message || error) }),
);
onmessage = async (message) => {
  const python = await loaded;
  try {
    postMessage({ kind: "result", ...run(python, message.data) });
  } catch (error) {
    postMessage({ kind: "result", failed: shorten(String(error.message || error)), printed });
  }
};
