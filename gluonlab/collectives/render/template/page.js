"use strict";
// data.schedules: every schedule with its steps, and what every rank holds before and after each, as Python computed it.
// data.shown: the words that are shown, with {names} where something is filled in.
// vectors[i] is how often each rank's contribution is in a sum; states[step][rank * chunks + chunk] is such an i.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const say = (what, values) => data.shown[what].replace(/{(\w+)}/g, (_, name) => values[name]);
  const LANE = 9, ARROW = 14, GAP = 9, TITLE = 26, CORNER = 5; // px; the picture is the one that as_svg makes
  const HEIGHTS = {empty: 0.08, held: 0.38, new: 0.66, often: 0.6}; // of a segment, against its cell's
  const help = $("cell").textContent;
  let chosen = data.schedules[data.start], step = 0, timer = null, pointedAt = "", laidOutFor = 0;

  // --- the picture

  function element(parent, tag, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return parent.appendChild(made);
  }

  /** Where things are, for the width there is: columns share it, but segments stay visible. */
  function layOut() {
    const {world_size: ranks, chunks, lanes} = chosen;
    laidOutFor = $("stage").clientWidth;
    const room = Math.max(240, laidOutFor - 4), narrow = room < 560;
    const labels = narrow ? 24 : Number(getComputedStyle($("stage")).getPropertyValue("--labels"));
    const pitch = Math.max(Math.min((room - labels) / ranks, 160), 14 + 2 * ranks);
    const cell = pitch - Math.max(5, Math.min(24, pitch / 5));
    const tall = narrow || chunks > 8 ? 24 : 34;
    const row = lanes * LANE + ARROW + tall + GAP;
    const padding = cell < 50 ? 3 : 6, air = cell / ranks > 8 ? 2 : cell / ranks > 5 ? 1 : 0.6;
    const frame = {labels, cell, tall, padding, air, narrow, width: labels + ranks * pitch, height: TITLE + chunks * row};
    frame.segment = (cell - 2 * padding + air) / ranks - air;
    frame.left = (rank) => labels + rank * pitch + (pitch - cell) / 2;
    frame.middle = (rank) => labels + (rank + 0.5) * pitch;
    frame.top = (chunk) => TITLE + (chunk + 1) * row - tall - GAP;
    frame.lane = (chunk, lane) => frame.top(chunk) - ARROW - lane * LANE;
    return frame;
  }

  const held = (at, rank, chunk) => chosen.states[at][rank * chosen.chunks + chunk];

  function drawCell(svg, frame, rank, chunk, written) {
    const now = held(step, rank, chunk), counts = chosen.vectors[now];
    const before = chosen.vectors[held(Math.max(0, step - 1), rank, chunk)];
    const words = say("cell", {rank, chunk, held: chosen.words[now]});
    const whole = now === chosen.goal[chunk], kind = `${written ? " written" : ""}${whole ? " whole" : ""}`;
    const group = element(svg, "g", {role: "img", "aria-label": words, "data-rank": rank, "data-chunk": chunk,
      "data-contributions": counts.join(","), "data-whole": whole});
    const x = frame.left(rank), y = frame.top(chunk);
    element(group, "title", {}, words);
    element(group, "rect", {class: `cell${kind}`, x, y, width: frame.cell, height: frame.tall, rx: 4});
    const paths = {};
    counts.forEach((count, other) => {
      const is = !count ? "empty" : count > 1 ? "often" : before[other] ? "held" : "new";
      const begin = x + frame.padding + other * (frame.segment + frame.air);
      paths[is] = `${paths[is] || ""}M${begin} ${y + frame.tall - 4}h${frame.segment}v-${HEIGHTS[is] * frame.tall}h-${frame.segment}z`;
    });
    for (const [is, d] of Object.entries(paths)) element(group, "path", {class: is, d});
  }

  /** Up from one cell, along the lane, down to the other. */
  function way(frame, src, dst, chunk, lane) {
    const begin = frame.middle(src), end = frame.middle(dst), top = frame.top(chunk), y = frame.lane(chunk, lane);
    const turn = Math.sign(end - begin) * CORNER;
    return `M${begin} ${top - 1}V${y + CORNER}Q${begin} ${y} ${begin + turn} ${y}` +
      `H${end - turn}Q${end} ${y} ${end} ${y + CORNER}V${top - 8}`;
  }

  function drawBus(svg, frame, [chunk, add, hub, lane, others]) {
    const ends = others.map((other) => add ? [other, hub] : [hub, other]);
    const ways = ends.map(([src, dst]) => way(frame, src, dst, chunk, lane)), kind = add ? "" : " copy";
    const heads = ends.map(([, dst]) => `M${frame.middle(dst) - 4} ${frame.top(chunk) - 8}h8l-4 6z`);
    element(svg, "path", {class: "halo", d: ways.join("")});
    element(svg, "path", {class: `line${kind}`, d: ways.join(""), "data-op": add ? "add" : "copy"});
    element(svg, "path", {class: `head${kind}`, d: heads.join("")});
    return ways;
  }

  /** `moving`: one step forwards, which is shown as it happens. */
  function drawPicture(moving) {
    const frame = layOut(), {world_size: ranks, chunks} = chosen;
    const {width, height} = frame, svg = element(document.createDocumentFragment(), "svg",
      {width, height, viewBox: `0 0 ${width} ${height}`, role: "group", class: moving ? "moving" : ""});
    if (!frame.narrow) element(svg, "text", {class: "quiet end", x: frame.labels - 6, y: 14}, data.shown.ranks);
    for (let rank = 0; rank < ranks; rank++) element(svg, "text", {class: "middle", x: frame.middle(rank), y: 14}, rank);
    const buses = step ? chosen.steps[step - 1].buses : [];
    const written = new Set(buses.flatMap(([chunk, add, hub, , others]) => (add ? [hub] : others).map((dst) => `${dst},${chunk}`)));
    for (let chunk = 0; chunk < chunks; chunk++) {
      const label = frame.narrow ? chunk : say("chunk", {chunk});
      element(svg, "text", {class: "quiet end", x: frame.labels - 6, y: frame.top(chunk) + frame.tall / 2 + 5}, label);
      for (let rank = 0; rank < ranks; rank++) drawCell(svg, frame, rank, chunk, written.has(`${rank},${chunk}`));
    }
    const longFirst = [...buses].sort((one, two) => two[3] - one[3]); // the short ones cross above them
    const ways = longFirst.flatMap((bus) => drawBus(svg, frame, bus));
    if (moving) for (const d of ways) element(svg, "circle", {class: "packet", r: 5}).style.offsetPath = `path("${d}")`;
    $("stage").replaceChildren(svg);
    const pointed = pointedAt && svg.querySelector(pointedAt);
    $("cell").textContent = pointed ? pointed.getAttribute("aria-label") : help;
  }

  // --- what stands beside it

  function drawTable() {
    if (!$("as-table").open) return;
    const table = document.querySelector("table");
    const cell = (row, tag, text) => { row.appendChild(document.createElement(tag)).textContent = text; };
    table.replaceChildren();
    const head = table.insertRow();
    cell(head, "th", "");
    for (let rank = 0; rank < chosen.world_size; rank++) cell(head, "th", say("rank", {rank}));
    for (let chunk = 0; chunk < chosen.chunks; chunk++) {
      const row = table.insertRow();
      cell(row, "th", say("chunk", {chunk}));
      for (let rank = 0; rank < chosen.world_size; rank++) cell(row, "td", chosen.few_words[held(step, rank, chunk)]);
    }
  }

  function drawWords() {
    const last = chosen.steps.length, counter = say("counter", {step, last});
    $("counter").textContent = counter;
    $("slider").max = last;
    $("slider").value = step;
    $("slider").setAttribute("aria-valuetext", counter);
    $("slider").disabled = !last;
    $("previous").disabled = step === 0;
    $("next").disabled = step === last;
    $("play").disabled = !last;
    $("sends-title").textContent = step ? say("sent", {step}) : last ? data.shown.start : data.shown.silent;
    const lines = step ? chosen.steps[step - 1].sends : [data.shown.own];
    $("sends").replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), {textContent: line})));
  }

  function draw(moving = false) {
    drawPicture(moving);
    drawWords();
    drawTable();
  }

  // --- what a person can do

  function go(to) {
    const before = step;
    step = Math.max(0, Math.min(chosen.steps.length, to));
    if (step === chosen.steps.length) pause();
    draw(step === before + 1);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    showPlaying();
  }

  function play() {
    if (!chosen.steps.length) return;
    if (step === chosen.steps.length) go(0);
    clearInterval(timer);
    timer = setInterval(() => go(step + 1), Number($("speed").value));
    showPlaying();
  }

  function showPlaying() {
    document.body.classList.toggle("playing", timer !== null);
    $("play").querySelector("span").textContent = timer === null ? data.shown.play : data.shown.pause;
  }

  /** The schedule with this name and, of its world sizes, the one nearest to `ranks`. */
  function choose(name, ranks) {
    const named = data.schedules.filter((schedule) => schedule.name === name);
    const distance = (schedule) => Math.abs(schedule.world_size - ranks);
    chosen = named.reduce((best, other) => distance(other) < distance(best) ? other : best);
    fill($("algorithm"), [...new Set(data.schedules.map((schedule) => schedule.name))], name);
    fill($("world-size"), named.map((schedule) => schedule.world_size), chosen.world_size);
    for (const field of ["name", "size", "description"]) $(field).textContent = chosen[field];
    document.title = say("title", chosen);
    pointedAt = "";
    pause();
    go(0);
  }

  function fill(select, values, selected) {
    select.replaceChildren(...values.map((value) => new Option(value, value, value === selected, value === selected)));
  }

  const byKey = {
    ArrowLeft: () => { pause(); go(step - 1); },
    ArrowRight: () => { pause(); go(step + 1); },
    Home: () => { pause(); go(0); },
    End: () => { pause(); go(chosen.steps.length); },
    " ": () => timer === null ? play() : pause(),
  };
  document.addEventListener("keydown", (event) => {
    const own = event.key === " " ? "button, select, summary" : "select"; // what has a use of its own for the key
    if (event.ctrlKey || event.altKey || event.metaKey || !byKey[event.key] || event.target.closest(own)) return;
    event.preventDefault();
    byKey[event.key]();
  });
  $("previous").addEventListener("click", byKey.ArrowLeft);
  $("next").addEventListener("click", byKey.ArrowRight);
  $("play").addEventListener("click", byKey[" "]);
  $("slider").addEventListener("input", () => { pause(); go(Number($("slider").value)); });
  $("speed").addEventListener("change", () => { if (timer !== null) play(); });
  $("algorithm").addEventListener("change", () => choose($("algorithm").value, chosen.world_size));
  $("world-size").addEventListener("change", () => choose(chosen.name, Number($("world-size").value)));
  $("as-table").addEventListener("toggle", drawTable);
  for (const kind of ["pointerover", "click"]) {
    $("stage").addEventListener(kind, (event) => {
      const cell = event.target.closest("g[data-rank]");
      if (!cell) return;
      $("cell").textContent = cell.getAttribute("aria-label");
      pointedAt = `[data-rank="${cell.dataset.rank}"][data-chunk="${cell.dataset.chunk}"]`;
    });
  }

  choose(chosen.name, chosen.world_size);
  new ResizeObserver(() => {
    if (laidOutFor !== $("stage").clientWidth) drawPicture(false);
  }).observe($("stage"));
})();
