// Pictures of answers: bars of probabilities, the ring of angles, the square of shifts, and grey values on a canvas.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function shape(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const colours = new Map(); // asking for a style costs a layout
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

export function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

// Bytes as more or less of one colour, so that light and dark pages both show much as much.
export function paint(canvas, values, height, width, ink = "--ink") {
  const [red, green, blue] = rgb(colour(ink));
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) image.data.set([red, green, blue, values[i]], 4 * i);
  context.putImageData(image, 0, 0);
}

export function rgb(text) {
  const hex = text.replace("#", "");
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

export class Card {
  constructor(name, title, errors) {
    this.title = title;
    this.root = element("article", { class: "card", "data-network": name, "aria-label": title });
    const says = (this.says = element("p", { class: "says" }));
    this.rows = [];
    const body = element("tbody");
    for (let digit = 0; digit < 10; digit++) {
      const bar = element("div", { class: "fill" });
      const percent = element("td", { class: "percent" });
      const row = element("tr", {}, element("th", { scope: "row" }, String(digit)), element("td", { class: "track" }, bar), percent);
      this.rows.push({ row, bar, percent });
      body.append(row);
    }
    const table = element("table", { class: "bars" }, element("caption", { class: "unseen" }, `Probabilities, ${title}`), body);
    this.ring = shape("svg", { viewBox: "-64 -64 128 128", role: "img", class: "ring" });
    this.map = shape("svg", { viewBox: "-1 -1 152 152", role: "img", class: "map" });
    this.transformed = null;
    this.angles = element("p", { class: "small told", "aria-hidden": "true" });
    this.places = element("p", { class: "small told", "aria-hidden": "true" });
    this.root.append(element("h3", {}, title), says, table, this.ring, this.angles, this.map, this.places);
    if (name === "st_cnn") {
      this.transformed = element("canvas", { role: "img", "aria-label": "What its transformer makes of the digit", width: 28, height: 28 });
      this.root.append(element("figure", { class: "transformed" }, this.transformed, element("figcaption", {}, "after its transformer")));
    }
    this.root.append(element("p", { class: "small" }, `wrong on ${errors.r} % (R), ${errors.t} % (T) of MNIST’s test digits`));
  }

  answer(probabilities, meant) {
    const best = probabilities.indexOf(Math.max(...probabilities));
    this.root.dataset.answer = best;
    this.says.replaceChildren("reads ", element("b", { class: best === meant ? "right" : "wrong" }, String(best)), ` ${percent(probabilities[best])}`);
    this.rows.forEach(({ row, bar, percent: cell }, digit) => {
      bar.style.width = `${100 * probabilities[digit]}%`;
      cell.textContent = percent(probabilities[digit]);
      row.className = digit === meant ? "right" : digit === best ? "wrong" : "";
    });
    return best;
  }

  drawRing(angles, answers, meant, turn) {
    this.ring.classList.remove("old");
    const parts = [shape("path", { d: arc(-90, 90, 54), class: "seen-in-training" })];
    const step = angles[1] - angles[0];
    angles.forEach((angle, i) => {
      const kind = answers.labels[i] === meant ? "right" : "wrong";
      const made = shape("path", { d: segment(angle - step / 2, angle + step / 2, 36, 50), class: kind });
      made.setAttribute("fill-opacity", shade(answers.probabilities[i]));
      made.append(shape("title", {}, `${angle}°: ${answers.labels[i]}, ${percent(answers.probabilities[i])}`));
      parts.push(made);
    });
    for (const [first, last, label] of runs(answers.labels)) {
      if (label === meant || last - first < 2) continue; // too short to write on
      const [x, y] = polar((angles[0] + step * ((first + last) / 2)), 28);
      parts.push(shape("text", { x, y, class: "wrong" }, String(label)));
    }
    parts.push(shape("text", { x: 0, y: 0, class: "middle" }, String(meant)));
    parts.push((this.needle = shape("g", { class: "mark" })));
    this.ring.replaceChildren(...parts);
    this.ring.setAttribute("aria-label", `${this.title} over the whole circle of angles: ${told(answers.labels, meant, "angles")}`);
    this.angles.textContent = brief(answers.labels, meant, "angles");
    this.place(turn);
  }

  drawMap(places, answers, meant, right, down) {
    this.map.classList.remove("old");
    const parts = [];
    const side = places.length;
    answers.labels.forEach((label, i) => {
      const x = 10 * (i % side);
      const y = 10 * Math.floor(i / side);
      const made = shape("rect", { x: x + 0.4, y: y + 0.4, width: 9.2, height: 9.2, class: label === meant ? "right" : "wrong" });
      made.setAttribute("fill-opacity", shade(answers.probabilities[i]));
      made.append(shape("title", {}, `${places[i % side]} right, ${places[Math.floor(i / side)]} down: ${label}, ${percent(answers.probabilities[i])}`));
      parts.push(made);
    });
    parts.push((this.frame = shape("rect", { width: 11, height: 11, class: "mark" })));
    this.map.replaceChildren(...parts);
    this.map.setAttribute("aria-label", `${this.title} over all shifts: ${told(answers.labels, meant, "places")}`);
    this.places.textContent = brief(answers.labels, meant, "shifts");
    this.move(right, down);
  }

  place(turn) {
    if (!this.needle) return;
    const [x1, y1] = polar(turn, 33);
    const [x2, y2] = polar(turn, 58);
    this.needle.replaceChildren(shape("line", { x1, y1, x2, y2 }), shape("circle", { cx: x2, cy: y2, r: 3 }));
  }

  move(right, down) {
    if (!this.frame) return;
    this.frame.setAttribute("x", 10 * (right + 7) - 0.5);
    this.frame.setAttribute("y", 10 * (down + 7) - 0.5);
  }

  fade(which) {
    this[which].classList.add("old");
  }
}

export function polar(degrees, radius) {
  const angle = (degrees * Math.PI) / 180; // counter-clockwise, 0 is up
  return [round(-Math.sin(angle) * radius), round(-Math.cos(angle) * radius)];
}

export function percent(value) {
  return value > 0 && value < 0.005 ? "<1%" : `${Math.round(100 * value)}%`;
}

function shade(probability) {
  return round(0.25 + 0.75 * Math.max(0, (probability - 0.3) / 0.7));
}

function segment(from, to, inner, outer) {
  const [a, b, c, d] = [polar(from, outer), polar(to, outer), polar(to, inner), polar(from, inner)];
  return `M${a}A${outer},${outer} 0 0 0 ${b}L${c}A${inner},${inner} 0 0 1 ${d}Z`;
}

function arc(from, to, radius) {
  return `M${polar(from, radius)}A${radius},${radius} 0 0 0 ${polar(to, radius)}`;
}

// Stretches of one label around the circle: first and last place (the last may be beyond the end) and label.
function runs(labels) {
  const count = labels.length;
  let start = labels.findIndex((label, i) => label !== labels[(i + count - 1) % count]);
  if (start < 0) return [[0, count - 1, labels[0]]];
  const found = [];
  for (let i = start; i < start + count; i++) {
    if (found.length && found.at(-1)[2] === labels[i % count]) found.at(-1)[1] = i;
    else found.push([i, i, labels[i % count]]);
  }
  return found;
}

function told(labels, meant, what) {
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) || 0) + 1);
  const right = counts.get(meant) || 0;
  const others = [...counts].filter(([label]) => label !== meant).sort((a, b) => b[1] - a[1]);
  const rest = others.map(([label, count]) => `${label} at ${count}`).join(", ");
  return `${meant} at ${right} of ${labels.length} ${what}${rest ? `; otherwise ${rest}` : ""}`;
}

// The same in a few words, for the line below a picture.
function brief(labels, meant, what) {
  const others = [...new Set(labels.filter((label) => label !== meant))];
  const right = labels.filter((label) => label === meant).length;
  const count = (label) => labels.filter((other) => other === label).length;
  others.sort((a, b) => count(b) - count(a));
  return `${meant} at ${Math.round((100 * right) / labels.length)} % of all ${what}${others.length ? `, else ${others.slice(0, 4).join(", ")}${others.length > 4 ? " …" : ""}` : ""}`;
}

function round(value) {
  return Math.round(1000 * value) / 1000;
}
