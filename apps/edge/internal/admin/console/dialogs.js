// The two dialogs: all that is known of a run, and the question before a cancel. The element keeps the focus inside while
// it is open, closes on Escape, and the browser gives the focus back to the button that opened it.

import { Refused, getJSON, post } from './api.js';
import { byId, el, setText } from './dom.js';
import { bytes, clock, rate, span, waited } from './format.js';
import { codeTone, runTone, words } from './words.js';

const long = ['Error', 'Run', 'Node', 'Session']; // what gets a line of its own

const facts = (list) => list.filter(([, value]) => value).map(([name, value]) =>
  el('div', { class: long.includes(name) ? 'wide' : '' }, el('dt', { text: name }), el('dd', { text: value })));

// closes lets a click beside a dialog, and its button, close it.
function closes(dialog, button) {
  button.addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
}

// refocus gives the focus back, or to the title of its section when the row that had it is gone.
function refocus(dialog, opener, refuge) {
  dialog.addEventListener('close', () => (opener.isConnected && !opener.disabled ? opener : refuge).focus({ preventScroll: true }), { once: true });
}

// makeCancel returns what asks before it cancels. said tells people what came of it.
export function makeCancel(said) {
  const dialog = byId('cancel');
  const yes = byId('cancel-yes');
  let run = null;
  closes(dialog, byId('cancel-no'));
  yes.addEventListener('click', async () => {
    const id = run.run_id;
    yes.disabled = true;
    try {
      await post(`runs/${encodeURIComponent(id)}/cancel`);
      dialog.close();
      said(`Run ${id} is being cancelled.`);
    } catch (error) {
      setText(byId('cancel-error'), error instanceof Refused ? error.message : `It isn't known whether that arrived: ${error.message}`);
    } finally {
      yes.disabled = false;
    }
  });
  return (r, opener) => {
    run = r;
    setText(byId('cancel-error'), '');
    byId('cancel-facts').replaceChildren(...facts([['Model', r.model || r.target], ['Principal', r.principal], ['Node', r.node], ['Run', r.run_id]]));
    refocus(dialog, opener, byId('live-title'));
    dialog.showModal();
  };
}

// RunDialog shows a run and its timeline, anew at each snapshot while it is live.
export class RunDialog {
  #dialog = byId('run');
  #id = '';
  #ended = false;

  constructor() {
    closes(this.#dialog, byId('run-close'));
    this.#dialog.addEventListener('close', () => { this.#id = ''; });
  }

  async open(id, opener) {
    this.#id = id;
    this.#ended = false;
    setText(byId('run-title'), `Run ${id}`);
    setText(byId('run-error'), '');
    byId('run-facts').replaceChildren(el('div', {}, el('dt', { text: 'State' }), el('dd', { text: 'Loading…' })));
    byId('run-steps').replaceChildren();
    refocus(this.#dialog, opener, byId('main'));
    this.#dialog.showModal();
    await this.refresh();
  }

  async refresh() {
    const id = this.#id;
    if (!id || this.#ended) return;
    let run = null;
    let failure = '';
    try {
      run = await getJSON(`runs/${encodeURIComponent(id)}`);
    } catch (error) {
      failure = error instanceof Refused ? error.message : `No answer: ${error.message}`;
    }
    if (id !== this.#id) return;
    setText(byId('run-error'), failure);
    if (!run) {
      if (byId('run-steps').childElementCount === 0) byId('run-facts').replaceChildren();
      return;
    }
    this.#ended = !run.live;
    byId('run-facts').replaceChildren(...runFacts(run));
    byId('run-steps').replaceChildren(...run.timeline.flatMap(step));
  }
}

function runFacts(r) {
  const u = r.usage;
  const state = el('div', {}, el('dt', { text: 'State' }), el('dd', {}, el('span', { class: 'chip', text: words(r.code || r.state),
    'data-tone': r.code ? codeTone(r.code) : runTone(r.state) })));
  return [state, ...facts([
    ['Error', r.error && `${r.error}${r.origin ? ` (from the ${r.origin})` : ''}`], ['Model', r.model], ['Target', r.target !== r.model && r.target],
    ['Route', r.route], ['Principal', r.principal], ['Session', r.session_id], ['Node', r.node && `${r.node} / ${r.adapter}, connection ${r.connection_generation}`],
    ['Kind', r.background ? `${r.kind}, in the background` : r.kind], ['Began', clock(r.created_at)], ['Waited', !r.live && span(r.queue_ms)],
    ['First byte', r.first_byte_ms > 0 && waited(r.first_byte_ms)], ['Took', !r.live && span(r.duration_ms)],
    ['Bytes in, out', !(r.live && r.bytes_in === 0) ? `${bytes(r.bytes_in)}, ${bytes(r.bytes_out)}` : r.bytes_out > 0 && `${bytes(r.bytes_out)} out`],
    ['Tokens in, out', u && `${u.input ?? '?'}, ${u.output ?? '?'}`], ['Rate', rate(r)], ['Finish reason', r.finish_reason],
  ])];
}

// step is one step of a timeline, after those that aren't remembered.
function step(s) {
  const skipped = s.skipped > 0 && el('li', { class: 'muted', text: `${s.skipped} steps aren't remembered` });
  const more = [s.node && `${s.node} / ${s.adapter}`, s.attempt > 1 && `attempt ${s.attempt}`, s.position > 0 && `position ${s.position}`,
    s.code && s.code !== 'ok' && words(s.code)].filter(Boolean).join(', ');
  return [skipped, el('li', {}, el('span', { class: 'after', text: `+${span(s.after_ms)}` }), el('span', { class: 'main', text: words(s.event.replace(/^run_/, '')) }),
    el('span', { class: 'muted', text: more }))].filter(Boolean);
}
