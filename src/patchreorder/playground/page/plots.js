// Plots of predictions (bars, the ring of rotations, the square of shifts), and bytes drawn on a canvas.

const SVG = "http://www.w3.org/2000/svg";

export const element = (name, ...rest) => build(document.createElement(name), ...rest);
export const shape = (name, ...rest) => build(document.createElementNS(SVG, name), ...rest); // part of a drawing

function build(made, attributes = {}, ...children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A small canvas that is chosen as a radio button.
export function choiceTile(name, value, label, choose) {
  const input = element("input", { type: "radio", name, value, class: "unseen", "aria-label": label });
  input.addEventListener("change", choose);
  return element("label", { class: "tile", title: label }, input, element("canvas", { "aria-hidden": "true" }));
}

const colours = new Map(); // getComputedStyle is slow
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

export function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

// Draws bytes as opacities of one colour, so that more is stronger in light and in dark mode.
export function paint(canvas, values, height, width, ink = "--ink") {
  const rgb = [1, 3, 5].map((at) => parseInt(colour(ink).slice(at, at + 2), 16)); // of #rrggbb
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) image.data.set([...rgb, values[i]], 4 * i);
  context.putImageData(image, 0, 0);
}

export class Card {
  constructor(name, title, errors) {
    this.title = title;
    this.root = element("article", { class: "card", "data-network": name, "aria-label": title });
    this.prediction = element("p", { class: "prediction" });
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
    this.ringSummary = element("p", { class: "small summary", "aria-hidden": "true" });
    this.mapSummary = element("p", { class: "small summary", "aria-hidden": "true" });
    this.root.append(element("h3", {}, title), this.prediction, table, this.ring, this.ringSummary, this.map, this.mapSummary);
    if (name === "st_cnn") {
      this.transformed = element("canvas", { role: "img", "aria-label": "The digit after the spatial transformer", width: 28, height: 28 });
      this.root.append(element("figure", { class: "transformed" }, this.transformed, element("figcaption", {}, "transformed")));
    }
    this.root.append(element("p", { class: "small" }, `test error: ${errors.r.toFixed(2)}\u00a0%\u00a0(R), ${errors.t.toFixed(2)}\u00a0%\u00a0(T)`));
  }

  show(probabilities, expected) {
    const best = probabilities.indexOf(Math.max(...probabilities));
    this.root.dataset.prediction = best;
    this.prediction.replaceChildren(element("span", {}, "predicts "), element("b", { class: best === expected ? "right" : "wrong" }, String(best)), ` ${percent(probabilities[best])}`);
    this.rows.forEach(({ row, bar, percent: cell }, digit) => {
      bar.style.width = `${100 * probabilities[digit]}%`;
      cell.textContent = percent(probabilities[digit]);
      row.className = digit === expected ? "right" : digit === best ? "wrong" : "";
    });
    return best;
  }

  drawRing(angles, predictions, expected, rotation, seen) {
    const parts = [];
    if (seen) parts.push(shape("path", { d: `M${polar(-90, 54)}A54,54 0 0 0 ${polar(90, 54)}`, class: "seen-in-training" }));
    const step = angles[1] - angles[0];
    angles.forEach((angle, i) => {
      const kind = predictions.labels[i] === expected ? "right" : "wrong";
      const title = shape("title", {}, `${angle}°: ${predictions.labels[i]}, ${percent(predictions.probabilities[i])}`);
      const d = segment(angle - step / 2, angle + step / 2, 36, 50);
      parts.push(shape("path", { d, class: kind, "fill-opacity": shade(predictions.probabilities[i]) }, title));
    });
    for (const [first, last, label] of runs(predictions.labels)) {
      if (label === expected || last - first < 2) continue; // too short for a number
      const [x, y] = polar((angles[0] + step * ((first + last) / 2)), 28);
      parts.push(shape("text", { x, y, class: "wrong" }, String(label)));
    }
    parts.push(shape("text", { x: 0, y: 0, class: "middle" }, String(expected)));
    parts.push((this.needle = shape("g", { class: "mark" })));
    this.fill(this.ring, parts, this.ringSummary, "rotations", summary(predictions.labels, expected, "angles"));
    this.markRotation(rotation);
  }

  drawMap(shifts, predictions, expected, right, down) {
    const parts = [];
    const side = shifts.length;
    predictions.labels.forEach((label, i) => {
      const x = 10 * (i % side);
      const y = 10 * Math.floor(i / side);
      const title = shape("title", {}, `${shifts[i % side]} right, ${shifts[Math.floor(i / side)]} down: ${label}, ${percent(predictions.probabilities[i])}`);
      const square = { x: x + 0.4, y: y + 0.4, width: 9.2, height: 9.2, class: label === expected ? "right" : "wrong" };
      parts.push(shape("rect", { ...square, "fill-opacity": shade(predictions.probabilities[i]) }, title));
    });
    parts.push((this.frame = shape("rect", { width: 11, height: 11, class: "mark" })));
    this.fill(this.map, parts, this.mapSummary, "shifts", summary(predictions.labels, expected, "shifts"));
    this.markShift(right, down);
  }

  fill(svg, parts, below, what, { full, short }) {
    svg.classList.remove("old");
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", `${this.title} over all ${what}: ${full}`);
    below.textContent = short;
  }

  markRotation(rotation) {
    if (!this.needle) return;
    const [x1, y1] = polar(rotation, 33);
    const [x2, y2] = polar(rotation, 58);
    this.needle.replaceChildren(shape("line", { x1, y1, x2, y2 }), shape("circle", { cx: x2, cy: y2, r: 3 }));
  }

  markShift(right, down) {
    if (!this.frame) return;
    this.frame.setAttribute("x", 10 * (right + 7) - 0.5);
    this.frame.setAttribute("y", 10 * (down + 7) - 0.5);
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

// Runs of equal labels around the circle: first and last index (the last may be beyond the end) and label.
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

// How often the expected label is predicted, and what else: in full for screen readers, in short below the plot.
function summary(labels, expected, what) {
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  const right = counts.get(expected) ?? 0;
  const others = [...counts].filter(([label]) => label !== expected).sort((a, b) => b[1] - a[1]);
  const full = others.map(([label, count]) => `${label} at ${count}`).join(", ");
  const short = others.slice(0, 4).map(([label]) => label).join(", ") + (others.length > 4 ? " …" : "");
  return {
    full: `${expected} at ${right} of ${labels.length} ${what}${full && `; otherwise ${full}`}`,
    short: `${expected} at ${Math.round((100 * right) / labels.length)} % of all ${what}${short && `, else ${short}`}`,
  };
}

function round(value) {
  return Math.round(1000 * value) / 1000;
}
