// Requests to the server of this page.

export async function ask(path, body, { signal } = {}) {
  const file = body instanceof Blob;
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": file ? "application/octet-stream" : "application/json" },
    body: file ? body : JSON.stringify(body),
  };
  for (let tries = 0; ; tries++) {
    const response = await fetch(path, { ...options, signal, cache: "no-store" }).catch((error) => {
      throw error.name === "AbortError" ? error : new Error("the server does not respond: is `patchreorder play` still running?");
    });
    if (response.ok) return response.json();
    if (response.status === 503 && tries < 4) { // busy
      await new Promise((wake) => setTimeout(wake, 300 * 2 ** tries));
      continue;
    }
    const { error } = await response.json().catch(() => ({}));
    throw Object.assign(new Error(error || `the server responded with status ${response.status}`), { status: response.status });
  }
}

// Wraps `work` to run one call at a time. Of the calls made meanwhile only the last is run, when it is done.
export function latest(work) {
  let running = false;
  let waiting = null;
  return async function run(...args) {
    waiting = args;
    if (running) return;
    running = true;
    try {
      while (waiting) {
        const next = waiting;
        waiting = null;
        await work(...next);
      }
    } finally {
      running = false;
    }
  };
}

// Wraps `work` to run once there was no call for a while. A new call aborts the one that runs.
export function settled(milliseconds, work) {
  let timer = 0;
  let control = null;
  return function run(...args) {
    clearTimeout(timer);
    control?.abort();
    timer = setTimeout(async () => {
      control = new AbortController();
      try {
        await work(control.signal, ...args);
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    }, milliseconds);
  };
}

// Bytes of base64.
export function bytes(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}
