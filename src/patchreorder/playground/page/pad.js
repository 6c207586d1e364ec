// The drawing pad: lines of a pen, from mouse, finger or stylus.

import { PAD, onPad } from "./state.js";
import { colour } from "./plots.js";

const NEAR = 14; // points nearer than this to the last one are left out
const MOST_LINES = 60;
const MOST_POINTS = 1900; // the server takes some more

export class Pad {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.strokes = [];
    this.pixels = null; // of a digit that was not drawn here
    this.picked = false; // what is shown was picked: a drawing takes its place
    this.line = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button || this.line || this.strokes.length >= MOST_LINES) return;
      event.preventDefault();
      canvas.setPointerCapture(event.pointerId);
      if (this.picked) this.strokes = [];
      this.pixels = null;
      this.picked = false;
      this.line = this.at(event);
      this.strokes.push(this.line);
      this.draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.line) return;
      for (const part of event.getCoalescedEvents?.() ?? [event]) this.add(part);
      this.draw();
      changed(this.strokes);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, () => {
        if (!this.line) return;
        this.line = null;
        changed(this.strokes);
      });
    }
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [onPad((event.clientX - box.left) / box.width), onPad((event.clientY - box.top) / box.height)];
  }

  add(event) {
    const [x, y] = this.at(event);
    const [lastX, lastY] = this.line.slice(-2);
    const points = this.strokes.reduce((sum, line) => sum + line.length / 2, 0);
    if (Math.hypot(x - lastX, y - lastY) >= NEAR && points < MOST_POINTS) this.line.push(x, y);
  }

  show(strokes, picked = false) {
    this.strokes = strokes.map((line) => [...line]);
    this.pixels = null;
    this.picked = picked;
    this.draw();
  }

  showPixels(pixels) {
    this.pixels = pixels;
    this.picked = true;
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const context = canvas.getContext("2d");
    const scale = canvas.width / PAD;
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (this.pixels) {
      const cell = canvas.width / 28;
      context.fillStyle = colour("--ink");
      this.pixels.forEach((value, i) => {
        if (!value) return;
        context.globalAlpha = value / 255;
        context.fillRect((i % 28) * cell, Math.floor(i / 28) * cell, cell + 0.3, cell + 0.3);
      });
      context.globalAlpha = 1;
      return;
    }
    context.strokeStyle = context.fillStyle = colour("--ink");
    context.lineWidth = 80 * scale;
    context.lineCap = context.lineJoin = "round";
    for (const line of this.strokes) {
      context.beginPath();
      context.moveTo(line[0] * scale, line[1] * scale);
      if (line.length === 2) context.lineTo(line[0] * scale + 0.1, line[1] * scale);
      for (let i = 2; i < line.length; i += 2) context.lineTo(line[i] * scale, line[i + 1] * scale);
      context.stroke();
    }
    if (!this.strokes.length) {
      context.fillStyle = colour("--faint");
      context.font = `${44 * scale}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.fillText("draw a digit here", canvas.width / 2, canvas.height / 2);
    }
  }
}
