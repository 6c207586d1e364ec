// Four states of the page, each with a text about it and the similarities that the server computed.

import { element } from "./plots.js";

const UPRIGHT = { digit: { sample: 3 }, rotation: 0, right: 0, down: 0, levels: "1", energy: "l2", per_channel: "each" };
const STOPS = [
  {
    title: "1 Shift it",
    changes: { ...UPRIGHT, trained: "t", right: 5, down: -4, grid: "2" },
    text: "The networks trained on shifted digits still recognise it, but hardly because of the layer. Sorting four large patches leaves the maps about as different from those of the upright digit as before, because the content of each patch has shifted too.",
  },
  {
    title: "2 Sort pixels instead",
    changes: { ...UPRIGHT, trained: "t", right: 5, down: -4, grid: "pixels" },
    text: "Now every pixel is a patch. The maps of the shifted digit become almost those of the upright one, far more similar than those of other digits. This is what reordering can do.",
  },
  {
    title: "3 Rotate it",
    changes: { ...UPRIGHT, trained: "r", rotation: 60, grid: "pixels" },
    text: "A rotated stroke activates other filters, and sorting within a map cannot undo that. The similarity rises, but so does the similarity to other digits.",
  },
  {
    title: "4 Rotate it too far",
    changes: { ...UPRIGHT, trained: "r", rotation: 180, grid: "2" },
    text: "No network was trained beyond 90°, and all three rings change colour there. Reordering does not make a network recognise what it has never seen.",
  },
];

export class Tour {
  constructor(root, text, go) {
    this.text = text;
    this.stop = null;
    this.buttons = STOPS.map((stop) => {
      const button = element("button", { type: "button", "aria-pressed": "false" }, stop.title);
      button.addEventListener("click", () => {
        go(structuredClone(stop.changes));
        this.stop = stop;
        button.setAttribute("aria-pressed", "true");
        this.text.textContent = stop.text;
      });
      return button;
    });
    root.append(...this.buttons);
  }

  // The state has changed otherwise: the text is no longer about it.
  leave() {
    this.stop = null;
    for (const button of this.buttons) button.setAttribute("aria-pressed", "false");
  }

  show({ before, after, others }) {
    if (!this.stop) return;
    const number = (value) => element("strong", {}, value.toFixed(2));
    this.text.replaceChildren(this.stop.text, " Similarity to the maps of the upright digit: ", number(before), " original, ", number(after), " reordered. To other digits, reordered: ", number(others.after), ".");
  }
}
