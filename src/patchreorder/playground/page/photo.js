// The photograph: uploaded once, then requested in every pose.

import { ask, latest } from "./server.js";
import { Layer } from "./layer.js";

const MAX_BYTES = 10_000_000;

export class Photo {
  constructor({ get, set, side }) {
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
      this.at("photo-layer").hidden = false;
      this.layer.show(answer.layer);
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

  problem(text) {
    this.at("photo-problem").textContent = text && `That did not work: ${text}.`.replace(/\.\.$/, ".");
    this.at("photo-problem").hidden = !text;
  }
}

// The name of a setting of the photograph in the state of the page.
function photoKey(name) {
  return `photo${name[0].toUpperCase()}${name.slice(1)}`;
}
