// What the page shows, as the part of its address behind #. Anybody may have written the address: what is not
// in order is left out, and the default stands.

export const PAD = 1000;
const STEP = 4; // drawings are kept to a 250th of the pad, so that a link draws the very same digit
const END = 255; // between two lines

const WHOLE = {
  t: ["turn", -180, 180], x: ["right", -7, 7], y: ["down", -7, 7], k: ["channel", -1, 255, -1],
  pt: ["photoTurn", -180, 180], px: ["photoRight", -40, 40], py: ["photoDown", -40, 40], pk: ["photoChannel", -1, 255, -1],
};
const ONE_OF = {
  n: ["trained", ["r", "t"]],
  g: ["grid", ["2", "3", "4", "pixels"]], l: ["levels", ["1", "2", "3"]],
  e: ["energy", ["l2", "l1"]], c: ["per_channel", ["each", "joint"]],
  pg: ["photoGrid", ["2", "3", "4", "pixels"]], pl: ["photoLevels", ["2", "1", "3"]],
  pe: ["photoEnergy", ["l2", "l1"]], pc: ["photoPer_channel", ["each", "joint"]],
};

export function standard() {
  const state = { digit: { sample: 3 } };
  for (const [name, , , usual = 0] of Object.values(WHOLE)) state[name] = usual; // no map chosen: -1
  for (const [name, values] of Object.values(ONE_OF)) state[name] = values[0];
  return state;
}

export function read(fragment) {
  const state = standard();
  const given = new URLSearchParams(fragment.replace(/^#/, "").slice(0, 20000));
  for (const [key, [name, low, high]] of Object.entries(WHOLE)) {
    const value = given.get(key);
    if (value !== null && /^-?\d{1,4}$/.test(value) && Number(value) >= low && Number(value) <= high) state[name] = Number(value);
  }
  for (const [key, [name, values]] of Object.entries(ONE_OF)) {
    if (values.includes(given.get(key))) state[name] = given.get(key);
  }
  state.digit = readDigit(given.get("d") || "") || state.digit;
  return state;
}

export function write(state) {
  const usual = standard();
  const given = new URLSearchParams();
  const digit = writeDigit(state.digit);
  if (digit !== writeDigit(usual.digit)) given.set("d", digit);
  for (const [key, [name]] of [...Object.entries(WHOLE), ...Object.entries(ONE_OF)]) {
    if (state[name] !== usual[name]) given.set(key, String(state[name]));
  }
  return given.toString();
}

// A digit is {sample: 0 to 9}, {mnist: 0 to 9999} or {strokes: [[x, y, x, y, ...], ...]}.
function readDigit(text) {
  if (/^s\d$/.test(text)) return { sample: Number(text[1]) };
  if (/^m\d{1,4}$/.test(text)) return { mnist: Number(text.slice(1)) };
  if (!/^w[\w-]{3,8000}$/.test(text)) return null;
  let bytes;
  try {
    bytes = Uint8Array.from(atob(text.slice(1).replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
  } catch {
    return null;
  }
  const strokes = [[]];
  for (const byte of bytes) {
    if (byte === END) strokes.push([]);
    else if (byte > PAD / STEP) return null;
    else strokes.at(-1).push(byte * STEP);
  }
  const fits = strokes.length <= 64 && strokes.every((line) => line.length >= 2 && line.length % 2 === 0);
  return fits ? { strokes } : null;
}

function writeDigit(digit) {
  if ("sample" in digit) return `s${digit.sample}`;
  if ("mnist" in digit) return `m${digit.mnist}`;
  const bytes = [];
  for (const line of digit.strokes) bytes.push(...(bytes.length ? [END] : []), ...line.map((value) => Math.round(value / STEP)));
  return "w" + btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}

export function onPad(value) {
  return Math.min(PAD, Math.max(0, Math.round((value * PAD) / STEP) * STEP));
}
