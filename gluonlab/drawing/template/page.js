// Plays schedules step by step. What they look like is up to the scene: makeScene(tools) offers, for a schedule that is chosen,
//   last(chosen), opening(chosen): the last step, and that with which the page opens; the first is 0
//   pace(chosen): how long a step is shown, against the speed that a person chooses
//   counter(chosen, step): where one is, in words
//   draw(chosen, step, moving): an SVG element for the width that the stage has. moving: one step forwards, shown as it happens.
//     What has data-now stays in sight. What can be pointed at has a data-place of its own, and an aria-label, which is then shown.
//   told(chosen, step): {title, lines} of what happens in the step
//   table(chosen, step): rows of texts; the first row and the first of each row are headings
// tools.shown: the words that are shown, with {names} where something is filled in, by tools.say.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const say = (what, values) => data.shown[what].replace(/{(\w+)}/g, (_, name) => values[name]);
  const help = $("pointed").textContent;
  const scene = makeScene({shown: data.shown, say, element, stage: $("stage")});
  const choices = [...document.querySelectorAll("select[data-field]")]; // of what: the field of a schedule
  const fields = choices.map((select) => select.dataset.field);
  let chosen = data.schedules[data.start], step = 0, timer = null, pointedAt = "", laidOutFor = 0;

  function element(parent, tag, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return parent.appendChild(made);
  }

  // --- what is shown

  function drawPicture(moving) {
    laidOutFor = $("stage").clientWidth;
    const svg = scene.draw(chosen, step, moving);
    svg.classList.toggle("moving", moving);
    $("stage").replaceChildren(svg);
    const now = svg.querySelector("[data-now]"); // stays in sight where the picture is wider than the stage
    if (now) $("stage").scrollLeft = now.getBBox().x - $("stage").clientWidth / 2;
    const pointed = pointedAt && svg.querySelector(`[data-place="${pointedAt}"]`);
    $("pointed").textContent = pointed ? pointed.getAttribute("aria-label") : help;
  }

  function drawTable() {
    if (!$("as-table").open) return;
    const table = document.querySelector("table");
    table.replaceChildren();
    scene.table(chosen, step).forEach((texts, number) => {
      const row = table.insertRow();
      texts.forEach((text, column) => {
        row.appendChild(document.createElement(number && column ? "td" : "th")).textContent = text;
      });
    });
  }

  function drawWords() {
    const last = scene.last(chosen), counter = scene.counter(chosen, step), {title, lines} = scene.told(chosen, step);
    $("counter").textContent = counter;
    $("slider").max = last;
    $("slider").value = step;
    $("slider").setAttribute("aria-valuetext", counter);
    $("slider").disabled = !last;
    $("previous").disabled = step === 0;
    $("next").disabled = step === last;
    $("play").disabled = !last;
    $("told-title").textContent = title;
    $("told").replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), {textContent: line})));
  }

  function draw(moving = false) {
    drawPicture(moving);
    drawWords();
    drawTable();
  }

  // --- what a person can do

  function go(to) {
    const before = step;
    step = Math.max(0, Math.min(scene.last(chosen), to));
    if (step === scene.last(chosen)) pause();
    draw(step === before + 1);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    showPlaying();
  }

  function play() {
    if (!scene.last(chosen)) return;
    if (step === scene.last(chosen)) go(0);
    clearInterval(timer);
    timer = setInterval(() => go(step + 1), Number($("speed").value) * scene.pace(chosen));
    showPlaying();
  }

  function showPlaying() {
    document.body.classList.toggle("playing", timer !== null);
    $("play").querySelector("span").textContent = timer === null ? data.shown.play : data.shown.pause;
  }

  /** The schedule with these values of the first fields, and those nearest to the present ones of the others. */
  function choose(values) {
    let left = data.schedules;
    fields.forEach((field, place) => {
      const options = [...new Set(left.map((schedule) => schedule[field]))];
      const wanted = place < values.length ? values[place] : chosen[field];
      const distance = (option) => option === wanted ? -1 : Math.abs(option - wanted) || 0;
      const best = options.reduce((nearest, option) => distance(option) < distance(nearest) ? option : nearest);
      fill(choices[place], options, best);
      left = left.filter((schedule) => schedule[field] === best);
    });
    [chosen] = left;
    for (const field of ["name", "size", "description"]) $(field).textContent = chosen[field];
    document.title = say("title", chosen);
    pointedAt = "";
    pause();
    step = scene.opening(chosen);
    draw();
  }

  function fill(select, values, selected) {
    select.disabled = values.length < 2;
    select.replaceChildren(...values.map((value) => new Option(value, value, value === selected, value === selected)));
  }

  const byKey = {
    ArrowLeft: () => { pause(); go(step - 1); },
    ArrowRight: () => { pause(); go(step + 1); },
    Home: () => { pause(); go(0); },
    End: () => { pause(); go(scene.last(chosen)); },
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
  choices.forEach((select, place) => {
    select.addEventListener("change", () => {
      const before = fields.slice(0, place).map((field) => chosen[field]);
      const values = data.schedules.map((schedule) => schedule[fields[place]]);
      choose([...before, values.find((value) => String(value) === select.value)]);
    });
  });
  $("as-table").addEventListener("toggle", drawTable);
  for (const kind of ["pointerover", "click"]) {
    $("stage").addEventListener(kind, (event) => {
      const place = event.target.closest("[data-place]");
      if (!place) return;
      $("pointed").textContent = place.getAttribute("aria-label");
      pointedAt = place.dataset.place;
    });
  }

  choose(fields.map((field) => chosen[field]));
  new ResizeObserver(() => {
    if (laidOutFor !== $("stage").clientWidth) drawPicture(false);
  }).observe($("stage"));
})();
