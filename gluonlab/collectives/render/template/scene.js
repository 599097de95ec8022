// An allreduce's picture: a row a chunk, a column a rank; page.js says what a scene offers.
// chosen.vectors[i] is how often each rank's contribution is in a sum; chosen.states[step][rank * chunks + chunk] is such an i.
const makeScene = ({shown, say, element, stage}) => {
  const LANE = 9, ARROW = 14, GAP = 9, TITLE = 26, CORNER = 5; // px; the picture is the one that as_svg makes
  const HEIGHTS = {empty: 0.08, held: 0.38, new: 0.66, often: 0.6}; // of a segment, against its cell's

  /** Where things are, for the width there is: columns share it, but segments stay visible. */
  function layOut({world_size: ranks, chunks, lanes}) {
    const room = Math.max(240, stage.clientWidth - 4), narrow = room < 560;
    const labels = narrow ? 24 : Number(getComputedStyle(stage).getPropertyValue("--labels"));
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

  const held = (chosen, step, rank, chunk) => chosen.states[step][rank * chosen.chunks + chunk];

  function drawCell(svg, frame, chosen, step, [rank, chunk, written]) {
    const now = held(chosen, step, rank, chunk), counts = chosen.vectors[now];
    const before = chosen.vectors[held(chosen, Math.max(0, step - 1), rank, chunk)];
    const words = say("cell", {rank, chunk, held: chosen.words[now]});
    const whole = now === chosen.goal[chunk], kind = `${written ? " written" : ""}${whole ? " whole" : ""}`;
    const group = element(svg, "g", {role: "img", "aria-label": words, "data-place": `${rank},${chunk}`, "data-rank": rank,
      "data-chunk": chunk, "data-contributions": counts.join(","), "data-whole": whole});
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

  function draw(chosen, step, moving) {
    const frame = layOut(chosen), {world_size: ranks, chunks} = chosen;
    const {width, height} = frame, svg = element(document.createDocumentFragment(), "svg",
      {width, height, viewBox: `0 0 ${width} ${height}`, role: "group"});
    if (!frame.narrow) element(svg, "text", {class: "quiet end", x: frame.labels - 6, y: 14}, shown.ranks);
    for (let rank = 0; rank < ranks; rank++) element(svg, "text", {class: "middle", x: frame.middle(rank), y: 14}, rank);
    const buses = step ? chosen.steps[step - 1].buses : [];
    const written = new Set(buses.flatMap(([chunk, add, hub, , others]) => (add ? [hub] : others).map((dst) => `${dst},${chunk}`)));
    for (let chunk = 0; chunk < chunks; chunk++) {
      const label = frame.narrow ? chunk : say("chunk", {chunk});
      element(svg, "text", {class: "quiet end", x: frame.labels - 6, y: frame.top(chunk) + frame.tall / 2 + 5}, label);
      for (let rank = 0; rank < ranks; rank++) drawCell(svg, frame, chosen, step, [rank, chunk, written.has(`${rank},${chunk}`)]);
    }
    const longFirst = [...buses].sort((one, two) => two[3] - one[3]); // the short ones cross above them
    const ways = longFirst.flatMap((bus) => drawBus(svg, frame, bus));
    if (moving) for (const d of ways) element(svg, "circle", {class: "packet", r: 5}).style.offsetPath = `path("${d}")`;
    return svg;
  }

  function told(chosen, step) {
    if (step) return {title: say("sent", {step}), lines: chosen.steps[step - 1].sends};
    return {title: chosen.steps.length ? shown.start : shown.silent, lines: [shown.own]};
  }

  function table(chosen, step) {
    const ranks = [...Array(chosen.world_size).keys()], chunks = [...Array(chosen.chunks).keys()];
    const row = (chunk) => ranks.map((rank) => chosen.few_words[held(chosen, step, rank, chunk)]);
    return [["", ...ranks.map((rank) => say("rank", {rank}))], ...chunks.map((chunk) => [say("chunk", {chunk}), ...row(chunk)])];
  }

  const last = (chosen) => chosen.steps.length;
  return {last, opening: () => 0, pace: () => 1, counter: (chosen, step) => say("counter", {step, last: last(chosen)}), draw, told, table};
};
