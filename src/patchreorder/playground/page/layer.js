// What the layer does to one feature map: patches outlined and numbered by energy, an animation, and similarities.

import { choiceTile, colour, element, paint } from "./plots.js";
import { bytes } from "./server.js";

const DURATION = 1400; // of the animation, in milliseconds
const LARGE = 560; // pixels of the large canvases, twice their size on the page
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

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
    this.slider.setAttribute("aria-label", "Progress of the animation: 0 is before, 100 after reordering");
    this.slider.addEventListener("input", () => this.stop(Number(this.slider.value) / 100));
    this.find(".play").addEventListener("click", () => this.play());
    this.tiles = this.find(".maps .tiles");
  }

  // Maps have this side from now on: settings that do not fit are reduced.
  update(side = this.side) {
    this.side = side;
    let { grid, levels } = this.settings();
    const fits = (grid, levels) => (grid === "pixels" ? levels === 1 : grid ** levels <= side);
    if (grid !== "pixels" && !fits(grid, 1)) this.set("grid", String((grid = 2)));
    while (levels > 1 && !fits(grid, levels)) this.set("levels", String(--levels));
    for (const radio of this.radios) {
      radio.checked = radio.value === String(this.get(radio.dataset.name));
      if (radio.dataset.name === "levels") radio.disabled = !fits(grid, Number(radio.value));
      if (radio.dataset.name === "grid" && radio.value !== "pixels") radio.disabled = Number(radio.value) > side;
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
    this.drawTiles(channel);
    for (const [name, maps] of Object.entries(this.maps)) paint(this.find(`.${name}`), maps[channel], height, width, "--own");
    this.drawBefore(channel);
    this.drawAfter(channel);
    this.showSimilarity(similarity);
  }

  // The index of the map to show: the chosen one, else the one shown last, else the strongest.
  channel() {
    const { channels, strongest } = this.view;
    const found = [this.get("channel"), this.shown, strongest].find((number) => channels.includes(number));
    this.shown = found;
    return channels.indexOf(found);
  }

  // The maps to choose from, as radio buttons; created again only if they are other maps.
  drawTiles(channel) {
    const { channels, size: [height, width] } = this.view;
    if (this.tiles.dataset.channels !== channels.join()) {
      this.tiles.dataset.channels = channels.join();
      this.tiles.replaceChildren(...channels.map((number) => choiceTile(`${this.name}-channel`, number, `map ${number}`, () => this.set("channel", number))));
    }
    [...this.tiles.children].forEach((tile, i) => {
      paint(tile.querySelector("canvas"), this.maps.pb[i], height, width, "--own");
      tile.querySelector("input").checked = i === channel;
    });
    this.find(".maps legend").textContent = `The ${channels.length} maps that are strongest in both poses. Shown above: map ${channels[channel]}`;
  }

  // Draws the map before reordering, enlarged; returns the sizes of its patches.
  enlarge(canvas) {
    const { size: [height, width], patches: [rows, columns] } = this.view;
    const cell = Math.floor(LARGE / Math.max(height, width));
    canvas.width = cell * width;
    canvas.height = cell * height;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(this.find(".pb"), 0, 0, canvas.width, canvas.height);
    return { context, cell, columns, high: Math.floor(height / rows), wide: Math.floor(width / columns), rows };
  }

  drawBefore(channel) {
    const canvas = this.find(".before");
    const where = this.enlarge(canvas);
    const order = this.order(channel);
    order.forEach((source, position) => frame(where, corner(where, source), this.number(position)));
    const { patches: [rows, columns], energy } = this.view;
    const energies = energy[energy.length > 1 ? channel : 0]; // one list if there is one order for all maps
    const first = order.slice(0, 4).map((source) => `row ${Math.floor(source / columns) + 1}, column ${(source % columns) + 1} (energy ${energies[source]})`);
    canvas.setAttribute("aria-label", `Map ${this.view.channels[channel]} before reordering, ${rows} by ${columns} patches. Strongest first: ${first.join("; ")}${order.length > 4 ? "; and so on" : ""}.`);
  }

  drawAfter(channel) {
    const canvas = this.find(".after");
    const where = this.enlarge(canvas);
    const { context, cell, rows, columns, high, wide } = where;
    const order = this.order(channel);
    context.clearRect(0, 0, columns * wide * cell, rows * high * cell); // the rest does not move
    // The strongest patches start first; each takes half of the time.
    for (let position = order.length - 1; position >= 0; position--) {
      const begin = (0.5 * position) / Math.max(1, order.length - 1);
      const part = ease(Math.min(1, Math.max(0, (this.time - begin) / 0.5)));
      const from = corner(where, order[position]);
      const to = corner(where, position);
      const [left, top] = from.map((value, axis) => value + (to[axis] - value) * part);
      context.fillStyle = colour("--page");
      context.fillRect(left, top, wide * cell, high * cell);
      context.drawImage(this.find(".pb"), from[0] / cell, from[1] / cell, wide, high, left, top, wide * cell, high * cell);
      frame(where, [left, top], this.number(position));
    }
    canvas.setAttribute("aria-label", `Map ${this.view.channels[channel]} after reordering: the strongest patch is at the upper left.`);
    this.slider.value = Math.round(100 * this.time);
  }

  order(channel) {
    const { order } = this.view;
    return order[order.length > 1 ? channel : 0];
  }

  // The number of a patch is its rank. With levels, 2.1 is the strongest part of the second strongest patch.
  number(position) {
    const { levels, grid, patches: [, columns] } = this.view;
    if (levels === 1) return String(position + 1);
    const row = Math.floor(position / columns);
    const column = position % columns;
    const parts = [];
    for (let level = levels - 1; level >= 0; level--) {
      const size = grid ** level;
      parts.push((Math.floor(row / size) % grid) * grid + (Math.floor(column / size) % grid) + 1);
    }
    return parts.join(".");
  }

  showSimilarity({ before, after, others }) {
    const rows = [["original", before, others?.before], ["reordered", after, others?.after]];
    const heads = ["", "to itself upright", ...(others ? ["to other digits"] : [])];
    this.find(".numbers thead").replaceChildren(element("tr", {}, ...heads.map((text, i) => (i ? element("th", { scope: "col" }, text) : element("td")))));
    this.find(".numbers tbody").replaceChildren(...rows.map(([text, ...values]) => element("tr", {}, element("th", { scope: "row" }, text), ...values.filter((value) => value !== undefined).map(meter))));
    this.root.dataset.before = before;
    this.root.dataset.after = after;
    this.find(".note").textContent = others
      ? "1 is identical. Sorting can make any maps more similar. The second column is the baseline: the mean similarity of the upright digit to drawings of other digits. Only what exceeds it helps."
      : "1 is identical. Sorting makes any maps more similar, so compare poses with each other, not the two rows.";
  }

  play() {
    if (reducedMotion.matches) {
      this.stop(this.time >= 1 ? 0 : 1);
      return;
    }
    cancelAnimationFrame(this.frame);
    const begin = performance.now();
    const step = (now) => {
      this.time = Math.min(1, (now - begin) / DURATION);
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

function corner({ cell, columns, high, wide }, patch) {
  return [(patch % columns) * wide * cell, Math.floor(patch / columns) * high * cell];
}

function frame({ context, cell, high, wide }, [left, top], number) {
  context.strokeStyle = colour("--ink");
  context.lineWidth = 2;
  context.strokeRect(left + 1, top + 1, wide * cell - 2, high * cell - 2);
  const size = Math.min(44, high * cell * 0.6, (wide * cell * 1.5) / Math.max(2, number.length));
  if (size < 13) return; // too small to read
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
