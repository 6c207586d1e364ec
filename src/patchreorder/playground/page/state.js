// The state of the page, and its form in the address after #. The address is untrusted: an invalid value gives the
// default.

export const PAD = 1000;
const STEP = 4; // coordinates are multiples of it, so that one fits a byte and a link draws exactly the same digit
const END = 255; // between two strokes

const INTEGERS = { // key in the address: name, least, largest, default (-1: no map is chosen)
  t: ["rotation", -180, 180], x: ["right", -7, 7], y: ["down", -7, 7], k: ["channel", -1, 255, -1],
  pt: ["photoRotation", -180, 180], px: ["photoRight", -40, 40], py: ["photoDown", -40, 40], pk: ["photoChannel", -1, 255, -1],
};
const CHOICES = { // key in the address: name, values; the first is the default
  n: ["trained", ["r", "t"]],
  g: ["grid", ["2", "3", "4", "pixels"]], l: ["levels", ["1", "2", "3"]],
  e: ["energy", ["l2", "l1"]], c: ["per_channel", ["each", "joint"]],
  pg: ["photoGrid", ["2", "3", "4", "pixels"]], pl: ["photoLevels", ["2", "1", "3"]],
  pe: ["photoEnergy", ["l2", "l1"]], pc: ["photoPer_channel", ["each", "joint"]],
};

export function defaults() {
  const state = { digit: { sample: 3 } };
  for (const [name, , , usual = 0] of Object.values(INTEGERS)) state[name] = usual;
  for (const [name, values] of Object.values(CHOICES)) state[name] = values[0];
  return state;
}

export function read(fragment) {
  const state = defaults();
  const given = new URLSearchParams(fragment.replace(/^#/, "").slice(0, 20000));
  for (const [key, [name, low, high]] of Object.entries(INTEGERS)) {
    const text = given.get(key) ?? "";
    if (/^-?\d{1,4}$/.test(text) && Number(text) >= low && Number(text) <= high) state[name] = Number(text);
  }
  for (const [key, [name, values]] of Object.entries(CHOICES)) {
    if (values.includes(given.get(key))) state[name] = given.get(key);
  }
  state.digit = readDigit(given.get("d") || "") || state.digit;
  return state;
}

export function write(state) {
  const usual = defaults();
  const given = new URLSearchParams();
  const digit = writeDigit(state.digit);
  if (digit !== writeDigit(usual.digit)) given.set("d", digit);
  for (const [key, [name]] of [...Object.entries(INTEGERS), ...Object.entries(CHOICES)]) {
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
  const fits = strokes.length <= 64 && strokes.every((stroke) => stroke.length >= 2 && stroke.length % 2 === 0);
  return fits ? { strokes } : null;
}

function writeDigit(digit) {
  if ("sample" in digit) return `s${digit.sample}`;
  if ("mnist" in digit) return `m${digit.mnist}`;
  const bytes = [];
  for (const stroke of digit.strokes) bytes.push(...(bytes.length ? [END] : []), ...stroke.map((value) => Math.round(value / STEP)));
  return "w" + btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}

// A coordinate from 0 to 1 as one of the pad.
export function onPad(value) {
  return Math.min(PAD, Math.max(0, Math.round((value * PAD) / STEP) * STEP));
}
