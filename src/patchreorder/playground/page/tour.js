// Six states of the page, each with a text about it; those about the layer, with the similarities that the server computed.

import { element } from "./plots.js";

const UPRIGHT = { digit: { sample: 3 }, rotation: 0, right: 0, down: 0, levels: "1", energy: "l2", per_channel: "each" };
const STOPS = [
  {
    title: "1 Shift it",
    similar: true,
    changes: { ...UPRIGHT, trained: "t", right: 5, down: -4, grid: "2" },
    text: "The networks trained on shifted digits recognise it, but PR-CNN hardly because of its layer. Sorting four large patches leaves the maps about as different from those of the upright digit as before, because the content of each patch has shifted too.",
  },
  {
    title: "2 Sort pixels instead",
    similar: true,
    changes: { ...UPRIGHT, trained: "t", right: 5, down: -4, grid: "pixels" },
    text: "Now every pixel is a patch. The maps of the shifted digit become almost those of the upright one, far more similar than those of other digits. This is what reordering can do.",
  },
  {
    title: "3 Rotate it",
    similar: true,
    changes: { ...UPRIGHT, trained: "r", rotation: 60, grid: "pixels" },
    text: "A rotated stroke activates other filters, and sorting within a map cannot undo that. The similarity rises, but so does the similarity to other digits.",
  },
  {
    title: "4 Rotate it too far",
    changes: { ...UPRIGHT, trained: "r", rotation: 180, grid: "2" },
    text: "No network was trained beyond 90°, and the rings of CNN, PR-CNN and ST-CNN change colour there. What a network has only learned ends where its training ended.",
  },
  {
    title: "5 Build it in: shifts",
    changes: { ...UPRIGHT, trained: "t", right: -6, down: 7, grid: "pixels" },
    text: "The aligned CNN was trained on digits in the middle only. It moves the centroid of the digit there first, so that its square has one colour: the same answer at every shift. CNN, PR-CNN and ST-CNN had to see digits at all these places to learn that.",
  },
  {
    title: "6 Build it in: rotations",
    changes: { ...UPRIGHT, trained: "r", rotation: 180, grid: "pixels" },
    text: "The unrolled CNN reads the digit in rings, where a rotation is a shift. It saw no digit beyond 90° either, and its ring goes on where those of the others end. What you know about your images you can build in, and the network need not learn it.",
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
    if (!this.stop?.similar) return;
    const number = (value) => element("strong", {}, value.toFixed(2));
    this.text.replaceChildren(this.stop.text, " In PR-CNN, similarity to the maps of the upright digit: ", number(before), " original, ", number(after), " reordered. To other digits, reordered: ", number(others.after), ".");
  }
}
