// The one event stream: it follows what happens, and when it breaks it says so and tries again.

import { Refused, ask } from './api.js';

const firstPause = 500;
const longestPause = 15_000;
const silence = 40_000; // the Edge says something every 15 s; after this the connection is dead
const longestEvent = 1 << 20;

// Feed calls on.open() when it is connected, on.event(e) for each event, on.lost(error, ms) before it pauses, and
// on.denied(error) when the Edge wants a key; then it has stopped.
export class Feed {
  #on;
  #run = null; // of the loop that is going on: {stop, wake}
  #last = '';

  constructor(on) { this.#on = on; }

  // start follows, after a pause in ms.
  start(ms = 0) {
    if (this.#run) return;
    const run = { stop: new AbortController(), wake: () => {} };
    this.#run = run;
    this.#loop(run, ms);
  }

  stop() {
    this.#run?.stop.abort();
    this.#run?.wake();
    this.#run = null;
  }

  // now ends a pause.
  now() { this.#run?.wake(); }

  async #loop(run, ms) {
    if (ms > 0) await pause(run, ms);
    for (let failures = 0; !run.stop.signal.aborted; failures++) {
      try {
        await this.#follow(run, () => { failures = 0; });
        throw new Error('the Edge has closed the connection');
      } catch (error) {
        if (run.stop.signal.aborted) return;
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.stop();
          this.#on.denied(error);
          return;
        }
        const most = Math.min(longestPause, firstPause * 2 ** failures);
        const ms = most / 2 + Math.random() * (most / 2); // so that many pages don't come back in step
        this.#on.lost(error, ms);
        await pause(run, ms);
      }
    }
  }

  // follow reads one connection to its end.
  async #follow(run, connected) {
    const dead = new AbortController();
    const signal = AbortSignal.any([run.stop.signal, dead.signal]);
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => dead.abort(new Error('the Edge is silent')), silence);
    };
    try {
      // Who follows for the first time wants to see a little of what was before.
      const response = this.#last
        ? await ask('events', { headers: { 'Last-Event-ID': this.#last }, signal })
        : await ask('events?last_each=25', { signal });
      connected();
      this.#on.open();
      heard();
      for await (const e of read(response, heard)) {
        if (e.id) this.#last = e.id;
        this.#on.event(e);
      }
    } finally {
      clearTimeout(timer);
      dead.abort();
    }
  }
}

function pause(run, ms) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    run.wake = () => { clearTimeout(timer); done(); };
  });
}

// read yields the data of each server-sent event of a response.
async function* read(response, heard) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop();
    if (rest.length > longestEvent) throw new Error('the Edge sends an event without an end');
    for (const block of blocks) {
      const data = block.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('\n');
      if (data) yield JSON.parse(data);
    }
  }
}
