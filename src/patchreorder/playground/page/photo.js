// The photograph: sent once, then asked for in every pose.

import { ask, latest } from "./server.js";
import { Layer } from "./layer.js";

const MOST = 10_000_000;

export class Photo {
  constructor({ get, set, side }) {
    this.get = get;
    this.file = null;
    this.name = null;
    const at = (id) => document.getElementById(id);
    this.at = at;
    this.layer = new Layer(at("photo-layer"), "photo", {
      get: (name) => get(own(name)),
      set: (name, value) => set(own(name), value),
    });
    this.layer.fit(side);
    at("photo-layer").hidden = true;
    for (const name of ["turn", "right", "down"]) at(`p-${name}`).addEventListener("input", (event) => set(own(name), Number(event.target.value)));
    at("p-upright").addEventListener("click", () => ["turn", "right", "down"].forEach((name) => set(own(name), 0)));
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
    this.look = latest(() => this.lookNow());
    this.sliders();
  }

  sliders() {
    for (const [name, unit] of [["turn", "°"], ["right", " %"], ["down", " %"]]) {
      const value = this.get(own(name));
      this.at(`p-${name}`).value = value;
      this.at(`p-${name}-value`).textContent = `${value}${unit}`.replace("-", "−");
    }
    this.layer.settle();
  }

  async send(file) {
    this.problem("");
    this.at("drop-note").textContent = "sending…";
    try {
      if (file.size > MOST) throw new Error(`the file has ${(file.size / 1e6).toFixed(1)} MB, more than 10 MB`);
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

  async lookNow() {
    this.sliders();
    if (!this.name) return;
    const question = {
      photo: this.name, turn: this.get("photoTurn"), right: this.get("photoRight"), down: this.get("photoDown"),
      layer: this.layer.settings(),
    };
    try {
      const answer = await ask("/api/photo", question);
      const picture = this.at("picture");
      picture.src = `data:image/jpeg;base64,${answer.picture}`;
      picture.hidden = false;
      this.at("photo-layer").hidden = false;
      this.layer.show(answer.layer);
      this.problem("");
    } catch (error) {
      if (error.status === 404 && this.file) {
        const file = this.file; // it was forgotten meanwhile
        this.file = this.name = null;
        setTimeout(() => this.send(file));
      } else {
        this.problem(error.message);
      }
    }
  }

  redraw() {
    this.layer.redraw();
  }

  problem(text) {
    const place = this.at("photo-problem");
    place.textContent = text && `That did not work: ${text}.`.replace(/\.\.$/, ".");
    place.hidden = !text;
  }
}

function own(name) {
  return `photo${name[0].toUpperCase()}${name.slice(1)}`;
}
