// Questions to the server that this page came from; to no other.

export class Problem extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function ask(path, body, { signal } = {}) {
  for (let tries = 0; ; tries++) {
    const answer = await send(path, body, signal);
    if (answer.ok) return answer.json();
    if (answer.status === 503 && tries < 4) {
      await new Promise((wake) => setTimeout(wake, 300 * 2 ** tries)); // it said that it is busy
      continue;
    }
    let text = `the server answered ${answer.status}`;
    try {
      text = (await answer.json()).error || text;
    } catch { /* it said nothing more */ }
    throw new Problem(answer.status, text);
  }
}

async function send(path, body, signal) {
  const file = body instanceof Blob;
  const how = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": file ? "application/octet-stream" : "application/json" },
    body: file ? body : JSON.stringify(body),
  };
  try {
    return await fetch(path, { ...how, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "the server does not answer: is `patchreorder play` still running?");
  }
}

// Runs one question at a time; of those that come meanwhile only the last is asked, when it is over.
export function latest(work) {
  let running = false;
  let waiting = null;
  return async function run(...given) {
    waiting = given;
    if (running) return;
    running = true;
    try {
      while (waiting) {
        const now = waiting;
        waiting = null;
        await work(...now);
      }
    } finally {
      running = false;
    }
  };
}

// Asks once nothing has changed for a while; what is under way is given up as soon as something changes.
export function settled(milliseconds, work) {
  let timer = 0;
  let control = null;
  return function again(...given) {
    clearTimeout(timer);
    if (control) control.abort();
    timer = setTimeout(async () => {
      const own = (control = new AbortController());
      try {
        await work(own.signal, ...given);
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    }, milliseconds);
  };
}

export function bytes(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}
