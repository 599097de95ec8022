// A deck: one slide at a time, by keys, buttons, a clicker or a swipe; and a second window for the speaker.
addEventListener("DOMContentLoaded", () => {
  const slides = [...document.querySelectorAll(".slide")];
  if (!slides.length) return; // the index
  const [place, clock, notes] = ["place", "clock", "notes"].map((id) => document.getElementById(id));
  const speaks = location.hash.startsWith("#presenter-");
  let at = 0;
  let other = speaks ? window.opener : null; // the speaker's window, or the one that the audience sees
  root.classList.add("js");
  root.classList.toggle("presenter", speaks);

  const numbered = () => Number((location.hash.match(/\d+$/) || [1])[0]) - 1;
  const showSlide = (to, tell = true) => {
    at = Math.max(0, Math.min(slides.length - 1, to));
    slides.forEach((slide, number) => {
      const after = speaks && number === at + 1;
      slide.hidden = number !== at && !after;
      slide.classList.toggle("after", after);
      slide.inert = after;
    });
    place.textContent = place.dataset.place.replace("{}", at + 1).replace("{}", slides.length);
    history.replaceState(null, "", `#${speaks ? "presenter-" : ""}${at + 1}`);
    if (tell) {
      slides[at].focus({preventScroll: true}); // a screen reader reads on from here
      if (other && !other.closed) other.postMessage({slide: at}, "*");
    }
    if (slides[at].scrollIntoView && innerWidth <= 640) scrollTo(0, 0);
  };
  const ways = {
    ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, Enter: 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Backspace: -1,
    Home: -slides.length, End: slides.length,
  };
  const toggleNotes = () => notes.setAttribute("aria-pressed", root.classList.toggle("with-notes"));
  const toggleScreen = () => {
    (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen()).catch(() => { /* not allowed here */ });
  };
  const openPresenter = () => {
    other = open(`${location.href.split("#")[0]}#presenter-${at + 1}`, "presenter", "width=1280,height=760");
    if (!other) toggleNotes(); // a browser that opens no windows
  };

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const pressed = event.target.closest("button, a") && [" ", "Enter"].includes(event.key);
    const scrolls = event.target.closest("pre") && /^Arrow/.test(event.key) && event.target.scrollWidth > event.target.clientWidth;
    if (pressed || scrolls) return;
    const does = {f: toggleScreen, n: toggleNotes, p: openPresenter}[event.key];
    const way = event.key === " " && event.shiftKey ? -1 : ways[event.key];
    if (!does && !way) return;
    event.preventDefault();
    if (does) does(); else showSlide(at + way);
  });
  const clicks = {previous: () => showSlide(at - 1), next: () => showSlide(at + 1), fullscreen: toggleScreen, notes: toggleNotes, presenter: openPresenter};
  for (const [id, does] of Object.entries(clicks)) document.getElementById(id).addEventListener("click", does);

  let touched = null;
  addEventListener("touchstart", ({target, touches: [{clientX, clientY}]}) => {
    touched = target.closest("pre, .wide, table") ? null : {clientX, clientY};
  }, {passive: true});
  addEventListener("touchend", ({changedTouches: [{clientX, clientY}]}) => {
    if (!touched) return;
    const [across, down] = [clientX - touched.clientX, clientY - touched.clientY];
    if (Math.abs(across) > 60 && Math.abs(across) > 2 * Math.abs(down)) showSlide(at + (across < 0 ? 1 : -1));
  }, {passive: true});

  // From the other window: where it is. From a page within a slide: a key that leads on, or back to the deck.
  addEventListener("message", ({source, data}) => {
    if (other && source === other && data && Number.isInteger(data.slide)) showSlide(data.slide, false);
    const frame = [...document.querySelectorAll("iframe")].find(({contentWindow}) => contentWindow === source);
    if (frame && data === "Escape") slides[at].focus();
    if (frame && ["PageUp", "PageDown"].includes(data)) showSlide(at + ways[data]);
  });
  const fit = () => root.style.setProperty("--size", parseFloat(getComputedStyle(root).fontSize) / 20);
  addEventListener("resize", fit);
  fit();
  addEventListener("hashchange", () => { if (numbered() !== at) showSlide(numbered()); });

  if (speaks) {
    const began = Date.now();
    const tick = () => {
      const seconds = Math.floor((Date.now() - began) / 1000);
      const elapsed = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
      clock.textContent = `${new Date().toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"})} · ${elapsed} ${deck.dataset.elapsed}`;
    };
    const deck = document.getElementById("deck");
    clock.hidden = false;
    tick();
    setInterval(tick, 1000);
  }
  showSlide(numbered(), false);
});
