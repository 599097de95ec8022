// A pipeline's picture: a row a device, time to the right; below, what every device keeps. page.js says what a scene offers.
// chosen.events: [op, stage, microbatch, begin, end] of all that takes time, as Python priced it, and of all messages;
// chosen.ticks: the time of each step. All times are in chosen.unit.
const makeScene = ({shown, say, element, stage}) => {
  const AXIS = 24, GAP = 18, BETWEEN = 38, RIGHT = 24, ASIDE = 5; // px: above the rows, between them, above and right of what is kept; of two messages that meet
  const FORWARD = 0, BACKWARD = 1, SEND_FORWARD = 2, SEND_BACKWARD = 4, UPDATE = 6; // places in Python's OPS
  const pen = document.createElement("canvas").getContext("2d"); // measures words
  const NAMES = {[FORWARD]: "forward", [BACKWARD]: "backward", [UPDATE]: "update"};
  const round = (time) => Number(time.toPrecision(4));
  const last = (chosen) => chosen.ticks.length - 1;
  const device = (chosen, which) => which % chosen.devices;
  const seconds = (chosen) => chosen.ticks[last(chosen)];
  const all = (count) => [...Array(count).keys()];
  const stages = (chosen, of) => all(chosen.stages_per_device).map((nth) => of + nth * chosen.devices).join(", ");
  const shade = (chosen, which) => Math.floor(which / chosen.devices) % 3;

  function width(text, size) {
    pen.font = `${size}px ${getComputedStyle(stage).fontFamily}`;
    return pen.measureText(text).width;
  }

  /** What a row is called: its device, and below that its stages, which a narrow picture names where they are several. */
  function rowWords(chosen, row, narrow) {
    const several = chosen.stages_per_device > 1, names = {stages: stages(chosen, row)};
    const below = narrow ? (several ? names.stages : "") : say(several ? "several" : "one", names);
    return [narrow ? `${row}` : `${shown.device} ${row}`, below];
  }

  /** Where things are, for the width there is: time shares it, but the numbers of microbatches can be read. */
  function layOut(chosen) {
    const room = Math.max(240, stage.clientWidth - 4), narrow = room < 560;
    const words = all(chosen.devices).flatMap((row) => rowWords(chosen, row, narrow)).map((text) => width(text, 13));
    const labels = Math.max(...words) + 12;
    const lengths = chosen.events.filter(([op]) => op === FORWARD || op === BACKWARD).map(([, , , begin, end]) => end - begin);
    const shortest = Math.min(...lengths), needs = (size) => width(`${chosen.microbatches - 1}`, size) + 1.5;
    const whole = (room - labels - RIGHT) / (seconds(chosen) || Infinity), sizes = [narrow ? 11 : 12, 11, 10, 9];
    const number = sizes.find((size) => needs(size) <= shortest * whole) || sizes[3];
    const scale = Math.max(whole, Math.min(needs(number) / shortest, 4 * whole)) || 0;
    const tall = narrow ? 30 : 36, low = narrow ? 24 : 30, rows = chosen.devices;
    const frame = {labels, narrow, number, tall, low, width: labels + scale * seconds(chosen) + RIGHT};
    frame.x = (time) => labels + time * scale;
    frame.top = (row) => AXIS + row * (tall + GAP);
    frame.below = frame.top(rows) - GAP + BETWEEN;
    frame.base = (row) => frame.below + row * (low + 8) + low;
    frame.height = frame.base(rows - 1) + 6;
    return frame;
  }

  function drawAxis(svg, frame, chosen) {
    const bottom = frame.top(chosen.devices) - GAP;
    if (!frame.narrow) element(svg, "text", {class: "quiet small end", x: frame.labels - 12, y: 14}, chosen.unit);
    for (const time of chosen.axis[frame.width < 560 ? 1 : 0]) {
      element(svg, "path", {class: "scale", d: `M${frame.x(time)} ${AXIS - 4}V${bottom + 3}`});
      element(svg, "text", {class: "quiet small middle", x: frame.x(time), y: 14}, time);
    }
  }

  function drawLabels(svg, frame, chosen) {
    const x = frame.labels - 8;
    for (const row of all(chosen.devices)) {
      const y = frame.top(row) + frame.tall / 2, [name, below] = rowWords(chosen, row, frame.narrow);
      element(svg, "text", {class: "end", x, y: below ? y - 2 : y + 5}, name);
      element(svg, "text", {class: "quiet small end", x, y: y + 12}, below);
      element(svg, "text", {class: "quiet small end", x, y: frame.base(row) - 4}, name);
      element(svg, "text", {class: "small end", x: frame.width - 4, y: frame.base(row) - 4, "data-most": chosen.most[row]}, chosen.most[row]);
    }
    element(svg, "text", {class: "quiet small", x: frame.labels, y: frame.below - 8}, shown.kept);
    element(svg, "text", {class: "quiet small end", x: frame.width - 2, y: frame.below - 8}, shown.most);
  }

  /** A box of work; what is still to come is pale. */
  function drawWork(svg, frame, chosen, now, [op, which, microbatch, begin, end]) {
    const row = device(chosen, which), name = NAMES[op], x = frame.x(begin), y = frame.top(row);
    const words = say(name, {device: row, stage: which, microbatch, begin: round(begin), end: round(end), unit: chosen.unit});
    const group = element(svg, "g", {role: "img", "aria-label": words, "data-place": `${name},${which},${microbatch}`, "data-op": name,
      "data-stage": which, "data-microbatch": microbatch, "data-begin": begin, "data-end": end, "data-done": end <= now});
    const kind = op === UPDATE ? "box update" : `box ${name} shade-${shade(chosen, which)}`;
    const box = (till, more = "") => element(group, "rect",
      {class: `${kind}${more}`, x: x + 0.5, y, width: Math.max(frame.x(till) - x - 1, 0.5), height: frame.tall, rx: 3});
    element(group, "title", {}, words);
    if (end > now) box(end, " to-come");
    if (begin < now) box(Math.min(end, now));
    if (op !== UPDATE) drawNumber(group, frame, now, {name: `${name}-${shade(chosen, which)}`, microbatch, begin, end, y});
  }

  /** The microbatch, in what is done of its box, or in the rest of it: where there is room. */
  function drawNumber(group, frame, now, {name, microbatch, begin, end, y}) {
    const till = Math.max(begin, Math.min(end, now)), needed = width(`${microbatch}`, frame.number);
    const done = frame.x(till) - frame.x(begin) >= needed, [from, to] = done ? [begin, till] : [till, end];
    if (frame.x(to) - frame.x(from) < needed) return;
    const x = (frame.x(from) + frame.x(to)) / 2;
    element(group, "text", {class: `number ${done ? `on-${name}` : "quiet"}`, x, y: y + frame.tall / 2 + 4}, microbatch);
  }

  function drawIdle(svg, frame, chosen, now, row) {
    for (const [begin, end] of chosen.idle[row]) {
      const words = say("idle", {device: row, begin: round(begin), end: round(end), unit: chosen.unit});
      const group = element(svg, "g", {role: "img", "aria-label": words, "data-place": `idle,${row},${begin}`});
      element(group, "title", {}, words);
      const box = (till, more = "") => element(group, "rect",
        {class: `idle${more}`, x: frame.x(begin), y: frame.top(row), width: frame.x(till) - frame.x(begin), height: frame.tall});
      if (end > now) box(end, " to-come");
      if (begin < now) box(Math.min(end, now));
    }
  }

  function drawKept(svg, frame, chosen, now, row) {
    const most = Math.max(...chosen.most, 1), base = frame.base(row), height = (many) => base - many / most * frame.low;
    const path = (till) => {
      let d = `M${frame.x(0)} ${base}`;
      for (const [at, many] of chosen.kept[row]) if (at <= till) d += `H${frame.x(at)}V${height(many)}`;
      return `${d}H${frame.x(till)}`;
    };
    element(svg, "path", {class: "scale", d: `M${frame.x(0)} ${base}H${frame.x(seconds(chosen))}`});
    const draw = (till, more = "") => {
      element(svg, "path", {class: `kept${more}`, d: `${path(till)}V${base}z`});
      element(svg, "path", {class: `level${more}`, d: path(till)});
    };
    if (now < seconds(chosen)) draw(seconds(chosen), " to-come");
    draw(now);
  }

  /** The messages that are on their way in a step: from device to device, at the time of the one's end and the other's begin. */
  const messages = (chosen, step) => chosen.events.filter(([op, , , begin, end]) =>
    (op === SEND_FORWARD || op === SEND_BACKWARD) && step && begin <= chosen.ticks[step] && end > chosen.ticks[step - 1]);
  const receiver = (chosen, [op, which]) => device(chosen, which + (op === SEND_FORWARD ? 1 : -1));

  function drawMessage(svg, frame, chosen, event) {
    const [op, which, microbatch, begin, end] = event, from = device(chosen, which), to = receiver(chosen, event);
    const down = to > from, edge = (row, lower) => frame.top(row) + (lower ? frame.tall : 0);
    const aside = down ? ASIDE : -ASIDE; // neighbors often exchange both ways at the same time
    const x = frame.x(begin) + aside, y = edge(from, down), tip = frame.x(end) + aside, foot = edge(to, !down), back = down ? -6 : 6;
    const d = `M${x} ${y}L${tip} ${foot + back}`;
    element(svg, "path", {class: "halo", d});
    element(svg, "path", {class: "line", d, "data-message": `${op === SEND_FORWARD ? "send_forward" : "send_backward"},${which},${microbatch}`});
    element(svg, "path", {class: "head", d: `M${tip - 4} ${foot + back}h8l-4 ${-back}z`});
  }

  function draw(chosen, step) {
    const frame = layOut(chosen), now = chosen.ticks[step], size = [frame.width, frame.height];
    const svg = element(document.createDocumentFragment(), "svg",
      {width: size[0], height: size[1], viewBox: `0 0 ${size.join(" ")}`, role: "group"});
    svg.style.setProperty("--number", `${frame.number}px`);
    document.body.classList.toggle("several", chosen.stages_per_device > 1);
    document.body.classList.toggle("updates", chosen.events.some(([op]) => op === UPDATE));
    drawAxis(svg, frame, chosen);
    drawLabels(svg, frame, chosen);
    for (const row of all(chosen.devices)) drawIdle(svg, frame, chosen, now, row);
    for (const event of chosen.events) if (NAMES[event[0]]) drawWork(svg, frame, chosen, now, event);
    for (const row of all(chosen.devices)) drawKept(svg, frame, chosen, now, row);
    if (step < last(chosen)) {
      element(svg, "path", {class: "now", "data-now": now, d: `M${frame.x(now)} ${AXIS - 6}V${frame.height - 4}`});
      for (const event of messages(chosen, step)) drawMessage(svg, frame, chosen, event);
    }
    return svg;
  }

  function told(chosen, step) {
    if (!step) return {title: shown.start, lines: [shown.begins]};
    const [begin, end] = [chosen.ticks[step - 1], chosen.ticks[step]];
    const work = chosen.events.filter(([op, , , from, to]) => NAMES[op] && from < end && to > begin);
    const lines = all(chosen.devices).flatMap((row) => {
      const own = work.filter(([, which]) => device(chosen, which) === row);
      const of = (which) => chosen.stages_per_device > 1 ? say("of-stage", {stage: which}) : "";
      const does = own.map(([op, which, microbatch]) => say(`does-${NAMES[op]}`, {device: row, microbatch}) + of(which));
      return does.length ? does : [say("does-nothing", {device: row})];
    });
    const sent = messages(chosen, step).map((event) => say(event[0] === SEND_FORWARD ? "sends-forward" : "sends-backward",
      {device: device(chosen, event[1]), to: receiver(chosen, event), microbatch: event[2]}));
    return {title: say("interval", {begin: round(begin), end: round(end), unit: chosen.unit}), lines: [...lines, ...sent]};
  }

  function table(chosen, step) {
    const now = chosen.ticks[step];
    const done = (row, wanted) => chosen.events.filter(([op, which, , , end]) => op === wanted && device(chosen, which) === row && end <= now).length;
    const kept = (row) => chosen.kept[row].reduce((before, [at, many]) => at <= now ? many : before, 0);
    const heads = ["device", "stages", "done", "kept", "most", "bubble"].map((name) => shown[`table-${name}`]);
    return [heads, ...all(chosen.devices).map((row) => [row, stages(chosen, row),
      say("done", {forward: done(row, FORWARD), backward: done(row, BACKWARD)}), kept(row), chosen.most[row],
      say("percent", {share: chosen.bubbles[row]})])];
  }

  const counter = (chosen, step) => say("counter", {time: round(chosen.ticks[step]), last: round(seconds(chosen)), unit: chosen.unit});
  const pace = (chosen) => Math.min(1, 16 / last(chosen)); // so that a long schedule plays in about as many seconds
  return {last, opening: last, pace, counter, draw, told, table};
};
