// Connects the parts: the state, the controls that change it, the requests to the server, and the plots.

import * as state from "./state.js";
import { ask, bytes, latest, settled } from "./server.js";
import { Card, choiceTile, element, paint, polar, shape } from "./plots.js";
import { Pad } from "./pad.js";
import { Layer } from "./layer.js";
import { Photo } from "./photo.js";
import { Tour } from "./tour.js";

const NAMES = { cnn: "CNN", pr_cnn: "PR-CNN", st_cnn: "ST-CNN", aligned_cnn: "Aligned", unrolled_cnn: "Unrolled" };
const NOTES = {
  r: "R: 28×28 images, rotated by −90° to 90°, not shifted.",
  t: "T: anywhere on a 42×42 canvas, not rotated. The aligned and the unrolled CNN never saw a shifted digit.",
};
const SEEN = { r: true, t: false }; // whether rotations were seen in training
const at = (id) => document.getElementById(id);
let now = state.read(location.hash);
let about, samples, answer, ring, shifts, pad, layer, photo, tour;
const cards = {};

const get = (name) => now[name];
const OF_PHOTO = /^photo/; // names in the state

function set(name, value) {
  if (now[name] === value) return;
  change({ [name]: value });
}

// Every change of the state goes through here.
function change(changes) {
  Object.assign(now, changes);
  writeAddress();
  showState();
  const names = Object.keys(changes);
  tour.leave();
  if (names.includes("channel")) layer.redraw();
  if (names.includes("photoChannel")) photo?.layer.redraw();
  const ofDigit = names.filter((name) => !OF_PHOTO.test(name) && name !== "channel");
  if (ofDigit.length) askAnswer(performance.now());
  if (names.includes("digit")) ring = shifts = null;
  if (names.some((name) => ["digit", "trained", "right", "down"].includes(name))) askRing();
  if (names.some((name) => ["digit", "trained", "rotation"].includes(name))) askShifts();
  if (names.some((name) => OF_PHOTO.test(name) && name !== "photoChannel")) photo?.look();
}

const writeAddress = settled(250, () => history.replaceState(null, "", `#${state.write(now)}`));

function request() {
  const { digit, rotation, right, down, trained } = now;
  const sent = "sample" in digit ? { strokes: samples[digit.sample].strokes } : digit;
  return { digit: sent, rotation, right, down, trained };
}

const hasInk = () => !("strokes" in now.digit) || now.digit.strokes.length > 0;

const askAnswer = latest(async (since) => {
  if (!hasInk()) return;
  try {
    answer = await ask("/api/answer", { ...request(), layer: layer.settings() });
    showAnswer();
    problem("");
    const took = performance.measure("change", { start: since, end: performance.now() }).duration;
    at("latency").textContent = `The last change took ${Math.round(took)} ms.`;
  } catch (error) {
    problem(error.message);
  }
});

const askRing = follow("ring", 120, async (signal) => {
  ring = await ask("/api/ring", request(), { signal });
  drawRings();
});

const askShifts = follow("map", 220, async (signal) => {
  shifts = await ask("/api/shifts", request(), { signal });
  drawMaps();
});

// The slower plots: pale until they are those of the current digit.
function follow(which, milliseconds, work) {
  const run = settled(milliseconds, async (signal) => {
    if (!hasInk()) return;
    try {
      await work(signal);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      problem(error.message);
    }
  });
  return () => {
    Object.values(cards).forEach((card) => card[which].classList.add("old"));
    run();
  };
}

// The label of the digit if it is known, else what most networks predict for it upright.
function expected() {
  const known = answer?.label ?? samples[now.digit.sample]?.label;
  if (known !== undefined) return known;
  const votes = Object.values(answer?.upright ?? {});
  return votes.find((vote, i) => votes.indexOf(vote) !== i) ?? votes[0];
}

function showAnswer() {
  const label = expected();
  const changed = at("expected").textContent !== String(label);
  const texts = Object.entries(cards).map(([name, card]) => `${NAMES[name]} predicts ${card.show(answer.probabilities[name], label)}`);
  at("expected").textContent = label;
  at("strip").replaceChildren(...Object.entries(cards).map(([name, card]) => stripPart(NAMES[name], card.root.dataset.prediction, label)));
  paint(at("seen"), bytes(answer.image), answer.side, answer.side);
  paint(cards.st_cnn.transformed, bytes(answer.transformed), answer.side, answer.side);
  layer.show(answer.layer);
  if (changed) {
    drawRings(); // their colours depend on it
    drawMaps();
  }
  at("remark").textContent = label === 6 || label === 9 ? `Rotated by 180°, a ${label} is a ${15 - label}: no network can be right at every rotation.` : "";
  tour.show(answer.layer.similarity);
  announce(`${texts.join(", ")}.`);
}

// A network and its prediction, for narrow screens, where the cards are below the pad.
function stripPart(title, prediction, label) {
  return element("span", {}, `${title} `, element("b", { class: Number(prediction) === label ? "right" : "wrong" }, prediction));
}

function drawRings() {
  if (ring && answer) for (const [name, card] of Object.entries(cards)) card.drawRing(ring.angles, ring.predictions[name], expected(), now.rotation, SEEN[now.trained]);
}

function drawMaps() {
  if (shifts && answer) for (const [name, card] of Object.entries(cards)) card.drawMap(shifts.shifts, shifts.predictions[name], expected(), now.right, now.down);
}

const announce = settled(900, (signal, text) => {
  at("announcement").textContent = text;
});

function problem(text) {
  at("problem").textContent = text && `Error: ${text}`;
  at("problem").hidden = !text;
}

// ---- the state, shown ------------------------------------------------------------------------------

function showState() {
  document.body.classList.toggle("empty", !hasInk());
  for (const [name, unit] of [["rotation", "°"], ["right", " px"], ["down", " px"]]) {
    at(name).value = now[name];
    at(`${name}-value`).textContent = `${now[name]}${unit}`.replace("-", "−");
  }
  at("trained-note").textContent = NOTES[now.trained];
  layer.update(about.maps[now.trained][0]);
  photo?.update();
  const [cx, cy] = polar(now.rotation, 90);
  at("dial").replaceChildren(shape("circle", { r: 90, class: "rim" }), shape("circle", { cx, cy, r: 9, class: "knob" }));
  for (const card of Object.values(cards)) {
    card.markRotation(now.rotation);
    card.markShift(now.right, now.down);
  }
  for (const [name, value] of Object.entries({ trained: now.trained, sample: now.digit.sample, mnist: now.digit.mnist })) {
    for (const radio of document.getElementsByName(name)) radio.checked = radio.value === String(value);
  }
  if (document.activeElement !== at("index")) at("index").value = now.digit.mnist ?? "";
}

async function showDigit() {
  const { digit } = now;
  if ("strokes" in digit) pad.show(digit.strokes);
  else if ("sample" in digit) pad.show(samples[digit.sample].strokes, { picked: true });
  else {
    try {
      const { image, side } = await ask("/api/answer", { digit });
      if (now.digit === digit) pad.show([], { picked: true, pixels: middle(bytes(image), side) });
    } catch (error) {
      problem(error.message);
    }
  }
}

function middle(values, side) {
  const edge = (side - 28) / 2;
  return Uint8Array.from({ length: 784 }, (_, i) => values[(Math.floor(i / 28) + edge) * side + (i % 28) + edge]);
}

function tile(group, value, pixels, label) {
  const made = choiceTile(group, value, label, () => pick({ [group]: value }));
  made.redraw = () => paint(made.querySelector("canvas"), bytes(pixels), 28, 28);
  made.redraw();
  return made;
}

async function offerMnist(seed) {
  const { digits } = await ask(`/api/mnist?seed=${seed}`);
  at("chosen").replaceChildren(...digits.map(({ index, label, pixels }) => tile("mnist", index, pixels, `a ${label}, test digit ${index}`)));
  showState();
}

function pick(digit) {
  change({ digit });
  showDigit();
}

// ---- the state, changed ----------------------------------------------------------------------------

function listen() {
  for (const name of ["rotation", "right", "down"]) at(name).addEventListener("input", (event) => set(name, Number(event.target.value)));
  for (const radio of document.getElementsByName("trained")) radio.addEventListener("change", () => set("trained", radio.value));
  at("upright").addEventListener("click", () => change({ rotation: 0, right: 0, down: 0 }));
  at("clear").addEventListener("click", () => pick({ strokes: [] }));
  at("undo").addEventListener("click", () => {
    if (!pad.picked && pad.strokes.length) pick({ strokes: pad.strokes.slice(0, -1) });
  });
  at("index").addEventListener("change", (event) => {
    const value = Number(event.target.value);
    if (event.target.value !== "" && Number.isInteger(value) && value >= 0 && value <= 9999) pick({ mnist: value });
  });
  let seed = 0;
  at("more").addEventListener("click", () => offerMnist(++seed).catch((error) => problem(error.message)));
  at("share").addEventListener("click", async () => {
    history.replaceState(null, "", `#${state.write(now)}`);
    try {
      await navigator.clipboard.writeText(location.href);
      at("shared").textContent = "copied";
    } catch {
      at("shared").textContent = "copy it from the address bar";
    }
  });
  addEventListener("hashchange", () => {
    now = state.read(location.hash);
    showDigit();
    ring = shifts = null;
    change({ ...now });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  drag();
}

function redraw() {
  pad.draw();
  layer.redraw();
  photo?.layer.redraw();
  document.querySelectorAll("#samples .tile, #chosen .tile").forEach((made) => made.redraw());
  if (answer) showAnswer();
}

// Dragging the digit shifts it, dragging the rim rotates it. Arrow keys, comma and full stop do the same.
function drag() {
  const posed = at("posed");
  let begin = null;
  const fromCentre = (event) => {
    const box = posed.getBoundingClientRect();
    return [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2, box.width / 2];
  };
  posed.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const [x, y, radius] = fromCentre(event);
    begin = { x, y, right: now.right, down: now.down, rotating: Math.hypot(x, y) > 0.78 * radius };
    posed.setPointerCapture(event.pointerId);
  });
  posed.addEventListener("pointermove", (event) => {
    if (!begin) return;
    const [x, y] = fromCentre(event);
    if (begin.rotating) {
      set("rotation", Math.round((Math.atan2(-x, -y) * 180) / Math.PI));
      return;
    }
    const pixel = at("seen").getBoundingClientRect().width / (answer?.side ?? 28);
    const right = clamp(begin.right + Math.round((x - begin.x) / pixel), 7);
    const down = clamp(begin.down + Math.round((y - begin.y) / pixel), 7);
    if (right !== now.right || down !== now.down) change({ right, down });
  });
  for (const name of ["pointerup", "pointercancel"]) posed.addEventListener(name, () => (begin = null));
  const keys = {
    ArrowLeft: ["right", -1, 7], ArrowRight: ["right", 1, 7], ArrowUp: ["down", -1, 7], ArrowDown: ["down", 1, 7],
    ",": ["rotation", 5, 180], ".": ["rotation", -5, 180],
  };
  posed.addEventListener("keydown", (event) => {
    const key = keys[event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [name, step, most] = key;
    set(name, clamp(now[name] + step, most));
  });
}

function clamp(value, most) {
  return Math.max(-most, Math.min(most, value));
}

async function start() {
  [about, samples] = await Promise.all([ask("/api/about"), ask("/samples.json")]);
  at("version").textContent = `Version ${about.version}.`;
  for (const [name, title] of Object.entries(NAMES)) cards[name] = new Card(name, title, about.errors[name]);
  at("cards").append(...Object.values(cards).map((card) => card.root));
  layer = new Layer(at("layer"), "digit", { get, set });
  pad = new Pad(at("pad"), (strokes) => change({ digit: { strokes: structuredClone(strokes) } }));
  at("samples").append(...about.samples.map(({ label, pixels }, i) => tile("sample", i, pixels, `a drawn ${label}`)));
  tour = new Tour(at("tour"), at("tour-text"), (changes) => {
    change(changes);
    showDigit();
  });
  for (const [reason, part, note] of [[about.mnist, "mnist", "no-mnist"], [about.photographs, "photo-part", "no-photo"]]) {
    at(part).hidden = !!reason;
    at(note).hidden = !reason;
    at(note).textContent = reason;
  }
  if (about.mnist && "mnist" in now.digit) now.digit = state.defaults().digit;
  if (!about.photographs) photo = new Photo({ get, set, side: about.maps.photo[0], noAnswers: about.classifier, noMaps: about.conv5 });
  showState();
  listen();
  showDigit();
  askAnswer(performance.now());
  askRing();
  askShifts();
  if (!about.mnist) await offerMnist(0);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => problem(error.message));
