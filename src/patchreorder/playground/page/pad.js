// The drawing pad, for mouse, finger or stylus.

import { PAD, onPad } from "./state.js";
import { colour, element, paint } from "./plots.js";

const NEAR = 14; // smallest distance between two points of a stroke
const MAX_STROKES = 60;
const MAX_POINTS = 1900; // both a little below the limits of the server

export class Pad {
  constructor(canvas, onChange) {
    this.canvas = canvas;
    this.strokes = [];
    this.pixels = null; // of an MNIST digit
    this.picked = false; // the digit was chosen, not drawn: the next stroke replaces it
    this.stroke = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button || this.stroke || this.strokes.length >= MAX_STROKES) return;
      event.preventDefault();
      canvas.setPointerCapture(event.pointerId);
      if (this.picked) this.strokes = [];
      this.pixels = null;
      this.picked = false;
      this.stroke = this.at(event);
      this.strokes.push(this.stroke);
      this.draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.stroke) return;
      for (const part of event.getCoalescedEvents?.() ?? [event]) this.add(part);
      this.draw();
      onChange(this.strokes);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, () => {
        if (!this.stroke) return;
        this.stroke = null;
        onChange(this.strokes);
      });
    }
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [onPad((event.clientX - box.left) / box.width), onPad((event.clientY - box.top) / box.height)];
  }

  add(event) {
    const [x, y] = this.at(event);
    const [lastX, lastY] = this.stroke.slice(-2);
    const points = this.strokes.reduce((sum, stroke) => sum + stroke.length / 2, 0);
    if (Math.hypot(x - lastX, y - lastY) >= NEAR && points < MAX_POINTS) this.stroke.push(x, y);
  }

  show(strokes, { picked = false, pixels = null } = {}) {
    this.strokes = strokes.map((stroke) => [...stroke]);
    Object.assign(this, { picked, pixels });
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const context = canvas.getContext("2d");
    const scale = canvas.width / PAD;
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (this.pixels) {
      const small = element("canvas");
      paint(small, this.pixels, 28, 28);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, 0, 0, canvas.width, canvas.height);
      return;
    }
    context.strokeStyle = context.fillStyle = colour("--ink");
    context.lineWidth = 80 * scale;
    context.lineCap = context.lineJoin = "round";
    for (const stroke of this.strokes) {
      context.beginPath();
      context.moveTo(stroke[0] * scale, stroke[1] * scale);
      if (stroke.length === 2) context.lineTo(stroke[0] * scale + 0.1, stroke[1] * scale); // a dot
      for (let i = 2; i < stroke.length; i += 2) context.lineTo(stroke[i] * scale, stroke[i + 1] * scale);
      context.stroke();
    }
    if (!this.strokes.length) {
      context.fillStyle = colour("--faint");
      context.font = `${80 * scale}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.fillText("draw a digit here", canvas.width / 2, canvas.height / 2);
    }
  }
}
