// Four states of the page, each with what one sees there; the numbers are those of the answer that came.

import { element } from "./plots.js";

const UPRIGHT = { digit: { sample: 3 }, turn: 0, right: 0, down: 0, levels: "1", energy: "l2", per_channel: "each" };
const STOPS = [
  {
    title: "1 Shift it",
    changes: { ...UPRIGHT, trained: "t", right: 5, down: -4, grid: "2" },
    text: "The networks trained on shifted digits still read it. But the layer has not much to do with that: sorting four large patches leaves the maps about as unlike those of the upright digit as they were, because what is inside a patch has moved too.",
  },
  {
    title: "2 Sort pixels instead",
    changes: { ...UPRIGHT, trained: "t", right: 5, down: -4, grid: "pixels" },
    text: "Now every pixel is a patch of its own, and the maps of the shifted digit become nearly those of the upright one, much more alike than other digits are. This is what reordering can do.",
  },
  {
    title: "3 Turn it",
    changes: { ...UPRIGHT, trained: "r", turn: 60, grid: "pixels" },
    text: "A turned stroke wakes other filters, and sorting within a map cannot undo that: similarity rises, but that to other digits rises too.",
  },
  {
    title: "4 Turn it too far",
    changes: { ...UPRIGHT, trained: "r", turn: 180, grid: "2" },
    text: "Beyond 90° no network was trained, and all three rings change colour there. Reordering does not make a network see what it has never seen.",
  },
];

export class Tour {
  constructor(root, told, go) {
    this.told = told;
    this.stop = null;
    this.buttons = STOPS.map((stop) => {
      const button = element("button", { type: "button", "aria-pressed": "false" }, stop.title);
      button.addEventListener("click", () => {
        go(structuredClone(stop.changes));
        this.stop = stop;
        button.setAttribute("aria-pressed", "true");
        this.told.textContent = stop.text;
      });
      return button;
    });
    root.append(...this.buttons);
  }

  // Something else was changed: what is told here would not be about it.
  leave() {
    this.stop = null;
    for (const button of this.buttons) button.setAttribute("aria-pressed", "false");
  }

  tell({ before, after, others }) {
    if (!this.stop) return;
    const number = (value) => element("strong", {}, value.toFixed(2));
    this.told.replaceChildren(this.stop.text, " Similarity of the maps to those of the digit upright: ", number(before), " as they are, ", number(after), " reordered; to other digits, reordered: ", number(others.after), ".");
  }
}
