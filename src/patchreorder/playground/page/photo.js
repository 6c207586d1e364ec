// The photograph: uploaded once, then requested in every pose.

import { ask, latest, settled } from "./server.js";
import { element, percent } from "./plots.js";
import { Layer } from "./layer.js";

const MAX_BYTES = 10_000_000;

export class Photo {
  constructor({ get, set, side, noAnswers, noMaps }) {
    this.get = get;
    this.file = null;
    this.name = null;
    const at = (id) => document.getElementById(id);
    this.at = at;
    this.layer = new Layer(at("photo-layer"), "photo", {
      get: (name) => get(photoKey(name)),
      set: (name, value) => set(photoKey(name), value),
    });
    this.layer.update(side);
    at("photo-layer").hidden = true;
    for (const name of ["rotation", "right", "down"]) at(`p-${name}`).addEventListener("input", (event) => set(photoKey(name), Number(event.target.value)));
    at("p-upright").addEventListener("click", () => ["rotation", "right", "down"].forEach((name) => set(photoKey(name), 0)));
    at("file").addEventListener("change", (event) => event.target.files[0] && this.send(event.target.files[0]));
    const drop = at("drop");
    drop.addEventListener("dragover", (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      if (event.dataTransfer.files[0]) this.send(event.dataTransfer.files[0]);
    });
    for (const [id, reason] of [["no-answers", noAnswers], ["no-maps", noMaps]]) {
      at(id).textContent = reason;
      at(id).hidden = !reason;
    }
    this.drawn = ""; // what the answers around the circle are of
    this.askRing = settled(250, (signal, ...rest) => this.around(signal, ...rest));
    this.look = latest(() => this.request());
    this.update();
  }

  // Sliders and layer controls show the state.
  update() {
    for (const [name, unit] of [["rotation", "°"], ["right", " %"], ["down", " %"]]) {
      const value = this.get(photoKey(name));
      this.at(`p-${name}`).value = value;
      this.at(`p-${name}-value`).textContent = `${value}${unit}`.replace("-", "−");
    }
    this.layer.update();
  }

  async send(file) {
    this.problem("");
    this.at("drop-note").textContent = "uploading…";
    try {
      if (file.size > MAX_BYTES) throw new Error(`the file has ${(file.size / 1e6).toFixed(1)} MB, more than 10 MB`);
      const { photo } = await ask("/api/photos", file);
      this.file = file;
      this.name = photo;
      await this.look();
    } catch (error) {
      this.problem(error.message);
    } finally {
      this.at("drop-note").textContent = this.name ? "" : "Drop a photograph here";
      this.at("file").value = ""; // the same file can be chosen again
    }
  }

  async request() {
    this.update();
    if (!this.name) return;
    const request = {
      photo: this.name, rotation: this.get("photoRotation"), right: this.get("photoRight"), down: this.get("photoDown"),
      layer: this.layer.settings(),
    };
    try {
      const answer = await ask("/api/photo", request);
      const shown = this.at("photo");
      shown.src = `data:image/jpeg;base64,${answer.image}`;
      shown.hidden = false;
      this.at("photo-layer").hidden = !answer.layer;
      if (answer.layer) this.layer.show(answer.layer);
      this.showAnswers(answer.answers);
      this.problem("");
    } catch (error) {
      if (error.status === 404 && this.file) {
        const file = this.file; // the server has dropped it
        this.file = this.name = null;
        setTimeout(() => this.send(file));
      } else {
        this.problem(error.message);
      }
    }
  }

  showAnswers({ upright, posed }) {
    this.at("photo-answers").hidden = !upright;
    if (!upright) return;
    for (const [id, answers] of [["upright", upright], ["posed", posed]]) {
      this.at(`answers-${id}`).tBodies[0].replaceChildren(...answers.map(({ name, probability }) => {
        const bar = element("div", { class: "fill" });
        bar.style.width = `${100 * probability}%`;
        return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, element("div", { class: "track" }, bar)), element("td", { class: "value" }, percent(probability)));
      }));
    }
    const same = upright[0].name === posed[0].name;
    this.at("photo-verdict").textContent = same
      ? `The same first answer as upright: ${posed[0].name}.`
      : `Another first answer than upright: ${posed[0].name}, not ${upright[0].name}.`;
    this.at("photo-answers").dataset.same = same;
    const where = [this.name, this.get("photoRight"), this.get("photoDown")].join();
    if (this.drawn !== where) this.askRing(where, upright[0].name);
  }

  // The first answer at every rotation, at the current shift.
  async around(signal, where, upright) {
    const request = { photo: this.name, right: this.get("photoRight"), down: this.get("photoDown") };
    try {
      const { angles, answers } = await ask("/api/photo-ring", request, { signal });
      this.drawn = where;
      this.at("photo-ring").replaceChildren(...angles.map((angle, i) => {
        const { name, probability } = answers[i];
        const text = `${angle}°`.replace("-", "−");
        return element("p", { class: name === upright ? "right" : "wrong" }, element("b", {}, text), ` ${name} `, element("span", {}, percent(probability)));
      }));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.problem(error.message);
    }
  }

  problem(text) {
    this.at("photo-problem").textContent = text && `That did not work: ${text}.`.replace(/\.\.$/, ".");
    this.at("photo-problem").hidden = !text;
  }
}

// The name of a setting of the photograph in the state of the page.
function photoKey(name) {
  return `photo${name[0].toUpperCase()}${name.slice(1)}`;
}
