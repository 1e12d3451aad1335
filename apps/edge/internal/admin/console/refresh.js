// When the page asks for a snapshot: an event says that something has changed, a snapshot says what is. So the page shows
// what the Edge knows and never what it worked out itself from events that it may have missed.

const least = 1000; // ms between two requests, however many events come
const most = 15_000; // with no event at all; heartbeats have none
const share = 4; // a snapshot that took long is asked for less often: at most a quarter of the time

export class Refresh {
  #fetch;
  #timer = 0;
  #due = 0; // when the timer fires
  #earliest = 0;
  #running = false;
  #again = false;
  #on = false;

  // fetch gets a snapshot and never throws.
  constructor(fetch) { this.#fetch = fetch; }

  start() {
    this.#on = true;
    this.#earliest = 0;
    this.#again = this.#running;
    this.#plan(0);
  }

  stop() {
    this.#on = false;
    clearTimeout(this.#timer);
    this.#timer = 0;
  }

  // want asks for a snapshot as soon as it is due.
  want() {
    if (this.#running) this.#again = true;
    else if (this.#on) this.#plan(0);
  }

  #plan(ms) {
    const due = Math.max(performance.now() + ms, this.#earliest);
    if (this.#timer && this.#due <= due) return;
    clearTimeout(this.#timer);
    this.#due = due;
    this.#timer = setTimeout(() => this.#go(), due - performance.now());
  }

  async #go() {
    this.#timer = 0;
    if (this.#running || !this.#on) return;
    this.#running = true;
    this.#again = false;
    const from = performance.now();
    await this.#fetch();
    this.#running = false;
    this.#earliest = performance.now() + Math.max(least, share * (performance.now() - from));
    if (this.#on) this.#plan(this.#again ? 0 : most);
  }
}
