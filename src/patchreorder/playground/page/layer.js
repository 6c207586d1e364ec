// What the layer does to one map: patches outlined and numbered by energy, their moves, and how alike the maps are.

import { colour, element, paint } from "./plots.js";
import { bytes } from "./server.js";

const MOVE = 1400; // milliseconds of the animation
const LARGE = 560; // pixels of the large canvases, twice what they take on the page
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Layer {
  // `get` and `set` read and change the page's state by the names grid, levels, energy, per_channel and channel.
  constructor(root, name, { get, set }) {
    this.get = get;
    this.set = set;
    this.name = name;
    root.append(document.getElementById("layer-template").content.cloneNode(true));
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.radios = [...root.querySelectorAll("[data-name]")];
    for (const radio of this.radios) {
      radio.name = `${name}-${radio.dataset.name}`;
      radio.addEventListener("change", () => this.set(radio.dataset.name, radio.value));
    }
    this.time = 1;
    this.slider = this.find(".time");
    this.slider.setAttribute("aria-label", "From before (0) to after (100) the patches moved");
    this.slider.addEventListener("input", () => this.stop(Number(this.slider.value) / 100));
    this.find(".play").addEventListener("click", () => this.play());
    this.tiles = this.find(".maps .tiles");
    this.side = 0;
  }

  // The largest grid and number of levels that fit maps of this side.
  fit(side) {
    this.side = side;
    this.settle();
  }

  settle() {
    let { grid, levels } = this.settings();
    const fits = (grid, levels) => (grid === "pixels" ? levels === 1 : grid ** levels <= this.side);
    if (this.side && grid !== "pixels" && !fits(grid, 1)) this.set("grid", String((grid = 2)));
    while (this.side && levels > 1 && !fits(grid, levels)) this.set("levels", String(--levels));
    for (const radio of this.radios) {
      radio.checked = radio.value === String(this.get(radio.dataset.name));
      if (radio.dataset.name === "levels") radio.disabled = !!this.side && !fits(grid, Number(radio.value));
      if (radio.dataset.name === "grid" && radio.value !== "pixels") radio.disabled = !!this.side && Number(radio.value) > this.side;
    }
  }

  settings() {
    const grid = this.get("grid");
    return {
      grid: grid === "pixels" ? grid : Number(grid),
      levels: Number(this.get("levels")),
      energy: this.get("energy"),
      per_channel: this.get("per_channel") === "each",
    };
  }

  show(view) {
    const [height, width] = view.size;
    const cut = (text) => {
      const all = bytes(text);
      return view.channels.map((_, i) => all.subarray(i * height * width, (i + 1) * height * width));
    };
    this.view = view;
    this.maps = {
      ub: cut(view.upright.before), ua: cut(view.upright.after),
      pb: cut(view.posed.before), pa: cut(view.posed.after),
    };
    this.redraw();
  }

  redraw() {
    if (!this.view) return;
    const { size: [height, width], similarity } = this.view;
    const channel = this.channel();
    this.choose(channel);
    for (const [name, maps] of Object.entries(this.maps)) paint(this.find(`.${name}`), maps[channel], height, width, "--own");
    this.drawBefore(channel);
    this.drawAfter(channel);
    this.tell(channel, similarity);
  }

  // The place in the list of the map that is shown: the chosen one, else the last one as long as it is there.
  channel() {
    const { channels, strongest } = this.view;
    const found = [this.get("channel"), this.shown, strongest].find((number) => channels.includes(number));
    this.shown = found;
    return channels.indexOf(found);
  }

  // The maps to choose from, as radio buttons; made anew only when they are others.
  choose(channel) {
    const { channels, size: [height, width] } = this.view;
    if (this.tiles.dataset.channels !== channels.join()) {
      this.tiles.dataset.channels = channels.join();
      this.tiles.replaceChildren(...channels.map((number, i) => {
        const input = element("input", { type: "radio", name: `${this.name}-channel`, value: number, class: "unseen", "aria-label": `map ${number}` });
        input.addEventListener("change", () => this.set("channel", number));
        return element("label", { class: "tile", title: `map ${number}` }, input, element("canvas", { "aria-hidden": "true" }));
      }));
    }
    [...this.tiles.children].forEach((tile, i) => {
      paint(tile.querySelector("canvas"), this.maps.pb[i], height, width, "--own");
      tile.querySelector("input").checked = i === channel;
    });
    this.find(".maps legend").textContent = `The ${channels.length} maps that are strongest in both poses; shown above: map ${channels[channel]}`;
  }

  geometry(canvas) {
    const { size: [height, width], patches: [rows, columns] } = this.view;
    const cell = Math.floor(LARGE / Math.max(height, width));
    canvas.width = cell * width;
    canvas.height = cell * height;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    return { context, cell, rows, columns, high: Math.floor(height / rows), wide: Math.floor(width / columns), height, width };
  }

  drawBefore(channel) {
    const canvas = this.find(".before");
    const where = this.geometry(canvas);
    pixels(where, this.maps.pb[channel]);
    const order = this.order(channel);
    order.forEach((source, place) => outline(where, source, this.number(place)));
    const { patches: [rows, columns], energy } = this.view;
    const energies = energy[energy.length > 1 ? channel : 0]; // one for all if they are ranked together
    const first = order.slice(0, 4).map((source) => `row ${Math.floor(source / columns) + 1}, column ${(source % columns) + 1} (energy ${energies[source]})`);
    canvas.setAttribute("aria-label", `Map ${this.view.channels[channel]} before reordering, ${rows} by ${columns} patches. In the order of their new places: ${first.join("; ")}${order.length > 4 ? "; and so on" : ""}.`);
  }

  drawAfter(channel) {
    const canvas = this.find(".after");
    const where = this.geometry(canvas);
    const order = this.order(channel);
    if (this.time >= 1) pixels(where, this.maps.pa[channel]);
    else this.drawMoving(where, this.maps.pb[channel], order);
    if (this.time >= 1) order.forEach((_, place) => outline(where, place, this.number(place)));
    canvas.setAttribute("aria-label", `Map ${this.view.channels[channel]} after reordering: the strongest patch is at the upper left.`);
    this.slider.value = Math.round(100 * this.time);
  }

  // The strongest patches set out first; each takes half of the time.
  drawMoving(where, values, order) {
    const { context, cell, columns, high, wide } = where;
    pixels(where, values, (row, column) => row >= high * where.rows || column >= wide * columns);
    const count = order.length;
    [...order.keys()].reverse().forEach((place) => {
      const begin = count > 1 ? (0.5 * place) / (count - 1) : 0;
      const part = ease(Math.min(1, Math.max(0, (this.time - begin) / 0.5)));
      const from = [Math.floor(order[place] / columns) * high, (order[place] % columns) * wide];
      const to = [Math.floor(place / columns) * high, (place % columns) * wide];
      const top = (from[0] + (to[0] - from[0]) * part) * cell;
      const left = (from[1] + (to[1] - from[1]) * part) * cell;
      context.fillStyle = colour("--page");
      context.fillRect(left, top, wide * cell, high * cell);
      context.fillStyle = colour("--own");
      for (let i = 0; i < high; i++) {
        for (let j = 0; j < wide; j++) {
          context.globalAlpha = values[(from[0] + i) * where.width + from[1] + j] / 255;
          context.fillRect(left + j * cell, top + i * cell, cell, cell);
        }
      }
      context.globalAlpha = 1;
      frame(where, left, top, this.number(place));
    });
  }

  order(channel) {
    const { order } = this.view;
    return order[order.length > 1 ? channel : 0];
  }

  // A patch's number is its new place; with levels, that in the large patch comes behind a point: 2.1 is the strongest
  // part of the second strongest quarter.
  number(place) {
    const { levels, grid, patches: [, columns] } = this.view;
    if (levels === 1) return String(place + 1);
    const row = Math.floor(place / columns);
    const column = place % columns;
    const parts = [];
    for (let level = levels - 1; level >= 0; level--) {
      const size = grid ** level;
      parts.push((Math.floor(row / size) % grid) * grid + (Math.floor(column / size) % grid) + 1);
    }
    return parts.join(".");
  }

  tell(channel, { before, after, others }) {
    const rows = [["as they are", before, others?.before], ["reordered", after, others?.after]];
    const heads = ["", "with itself upright", ...(others ? ["with other digits"] : [])];
    this.find(".numbers thead").replaceChildren(element("tr", {}, ...heads.map((text, i) => (i ? element("th", { scope: "col" }, text) : element("td")))));
    this.find(".numbers tbody").replaceChildren(...rows.map(([text, ...values]) => element("tr", {}, element("th", { scope: "row" }, text), ...values.filter((value) => value !== undefined).map(meter))));
    this.root.dataset.before = before;
    this.root.dataset.after = after;
    this.find(".note").textContent = others
      ? "1 is the same. Sorted maps can be more alike whatever they show, so the second column says how alike this digit, upright, is to other digits (the mean over drawn ones): only what exceeds it helps."
      : "1 is the same. Sorted maps are more alike whatever they show, so compare poses with each other rather than the two rows.";
  }

  play() {
    if (still.matches) {
      this.stop(this.time >= 1 ? 0 : 1); // no motion was asked for: it jumps
      return;
    }
    cancelAnimationFrame(this.frame);
    const begin = performance.now();
    const step = (now) => {
      this.time = Math.min(1, (now - begin) / MOVE);
      if (this.view) this.drawAfter(this.channel());
      if (this.time < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  stop(time) {
    cancelAnimationFrame(this.frame);
    this.time = time;
    if (this.view) this.drawAfter(this.channel());
  }
}

function pixels({ context, cell, height, width }, values, wanted = () => true) {
  context.fillStyle = colour("--own");
  for (let i = 0; i < height; i++) {
    for (let j = 0; j < width; j++) {
      if (!wanted(i, j)) continue;
      context.globalAlpha = values[i * width + j] / 255;
      context.fillRect(j * cell, i * cell, cell, cell);
    }
  }
  context.globalAlpha = 1;
}

function outline(where, patch, number) {
  const { cell, columns, high, wide } = where;
  frame(where, (patch % columns) * wide * cell, Math.floor(patch / columns) * high * cell, number);
}

function frame({ context, cell, high, wide }, left, top, number) {
  context.strokeStyle = colour("--ink");
  context.lineWidth = 2;
  context.strokeRect(left + 1, top + 1, wide * cell - 2, high * cell - 2);
  const size = Math.min(44, high * cell * 0.6, (wide * cell * 1.5) / Math.max(2, number.length));
  if (size < 13) return; // nobody could read it
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = size / 6;
  context.strokeStyle = colour("--page");
  context.lineJoin = "round";
  const [x, y] = [left + (wide * cell) / 2, top + (high * cell) / 2 + 1];
  context.strokeText(number, x, y);
  context.fillStyle = colour("--ink");
  context.fillText(number, x, y);
}

function meter(value) {
  const fill = element("div", { class: "fill" });
  fill.style.width = `${100 * Math.max(0, value)}%`;
  return element("td", {}, element("span", { class: "value" }, value.toFixed(2)), element("div", { class: "track", "aria-hidden": "true" }, fill));
}

function ease(part) {
  return part < 0.5 ? 2 * part * part : 1 - (2 - 2 * part) ** 2 / 2;
}
