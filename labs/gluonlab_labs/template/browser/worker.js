// Runs Python in a worker, so that the page stays usable, and can end code that does not end.
const MAX_PRINTED = 10000; // characters of a run's output that the page shows
const MAX_MEMORY = 2 ** 30; // bytes; Python's memory never shrinks
let number = 0; // the page's number for the current run
let left = MAX_PRINTED; // characters that the page can still show

function makeStream() {
  const decoder = new TextDecoder();
  return {
    write(bytes) {
      if (left >= 0) { // at 0, the page does not yet know whether there is more
        const text = decoder.decode(bytes.subarray(0, 4 * MAX_PRINTED), { stream: true });
        postMessage({ kind: "printed", number, text: text.slice(0, left), isCut: text.length > left });
        left -= text.length;
      }
      return bytes.length;
    },
  };
}

// Pyodide reports no progress, and waits forever if its WebAssembly file is missing, is incomplete or has the wrong type.
function watchFetch(fail) {
  const plainFetch = self.fetch;
  self.fetch = async (address, options) => {
    const name = String(address.url ?? address).split("/").pop();
    const failWith = (reason) => fail(new Error(`${name}: ${reason}`));
    const answer = await plainFetch(address, options).catch((error) => { failWith(error.message); throw error; });
    if (!answer.ok) failWith(answer.status);
    const counter = new TransformStream({
      transform(chunk, out) {
        postMessage({ kind: "loaded", bytes: chunk.byteLength });
        out.enqueue(chunk);
      },
    });
    answer.body.pipeTo(counter.writable).catch((error) => failWith(error.message));
    const headers = name.endsWith(".wasm") ? { "Content-Type": "application/wasm" } : {};
    return new Response(counter.readable, { headers });
  };
  return () => { self.fetch = plainFetch; };
}

async function load() {
  const modules = fetch("gluonlab.zip").then((answer) => answer.arrayBuffer());
  const { loadPyodide } = await import("./pyodide/pyodide.mjs");
  const python = await loadPyodide();
  python.unpackArchive(await modules, "zip", { extractDir: "/gluonlab" });
  python.setStdout(makeStream());
  python.setStderr(makeStream());
  python.runPython("import sys; sys.path.insert(0, '/gluonlab')");
  const { run_cell: runCell, refuse_input } = python.pyimport("gluonlab.exercises.browser_lab");
  python.pyimport("builtins").input = refuse_input;
  const { stdout } = python.pyimport("sys");
  const { eval_code: runCode } = python.pyimport("pyodide.code");
  return ({ id, name, source, language }) => {
    const shown = JSON.parse(runCell(id, name, source, language, runCode));
    stdout.flush();
    return { shown, isFull: python._module.HEAPU8.length > MAX_MEMORY };
  };
}

const loaded = new Promise((resolve, reject) => {
  const unwatch = watchFetch(reject);
  load().finally(unwatch).then(resolve, reject);
});
loaded.then(() => postMessage({ kind: "ready" }), (error) => postMessage({ kind: "failed", text: String(error.message || error) }));
onmessage = async ({ data }) => {
  const run = await loaded;
  number = data.number;
  left = MAX_PRINTED;
  try {
    postMessage({ kind: "result", number, ...run(data) });
  } catch {
    postMessage({ kind: "crashed", number }); // Python's memory or stack is full, or the code has called exit
  }
};
