// Talks to the admin API of the listener that this page came from.
//
// The key lives in this module's memory and nowhere else. Not in a cookie, which the browser would also send with what
// other pages make it ask for: without one, no request can be forged. Not in storage, where it would outlive the page.
// Never in an address, which is written to logs. The price is that a reload asks for it again, where a password manager
// helps; and it outlives a restart of the Edge, which a session would not.

const base = new URL('../admin/v1/', document.baseURI);
const limit = 10_000;

let key = '';

export function setKey(value) { key = value; }
export const hasKey = () => key !== '';

// Refused is an answer of the Edge that isn't a success.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// ask sends a request and returns the response once it is known to be good. The limit is on its head only.
export async function ask(path, { method = 'GET', headers = {}, signal } = {}) {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new Error('the Edge takes too long to answer')), limit);
  const all = key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
  try {
    const response = await fetch(new URL(path, base), {
      method, headers: all, cache: 'no-store', redirect: 'error', referrerPolicy: 'no-referrer',
      signal: signal ? AbortSignal.any([signal, late.signal]) : late.signal,
    });
    if (!response.ok) throw await refusal(response);
    return response;
  } finally {
    clearTimeout(timer);
  }
}

async function refusal(response) {
  let message = `the Edge answers ${response.status}`;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* not one of the Edge's errors */ }
  return new Refused(response.status, message);
}

export const getJSON = async (path, options) => (await ask(path, options)).json();
export const post = (path, options) => getJSON(path, { ...options, method: 'POST' });
